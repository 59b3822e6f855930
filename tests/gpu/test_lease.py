"""One holder a GPU, and files that nobody can play tricks with."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pytest_compileiq.errors import GpuError
from pytest_compileiq.gpu import lease as _lease
from pytest_compileiq.gpu.identity import Gpu
from pytest_compileiq.gpu.lease import Folder, Lease, LeaseTimeout, first_free
from tests.gpu.sessions import until

UUID = "GPU-00000000-1111-2222-3333-444455556666"
OTHER_USER = 65534

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as another user")


def is_free(folder: Path, uuid: str = UUID) -> bool:
    """Asked through a descriptor of its own, as another process would."""
    fd = os.open(folder / f"{uuid}.lock", os.O_RDWR)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(fd)
    return True


def test_held_inside_and_free_after(folder: Path) -> None:
    with Lease(UUID, folder=folder) as lease:
        assert lease.held
        assert not is_free(folder)
    assert not lease.held
    assert is_free(folder)
    assert (folder / f"{UUID}.lock").stat().st_mode & 0o777 == 0o600


def test_an_instance_leases_its_card(folder: Path) -> None:
    instance = Gpu("MIG-1", 0, "H100 MIG", "0:10:00.0", parent_uuid=UUID)
    with Lease(instance, folder=folder):
        assert not is_free(folder)


def test_the_timeout_names_the_holder(folder: Path) -> None:
    with Lease(UUID, folder=folder, label="test_a.py::test_slow\x1b[31m"):
        start = time.monotonic()
        with pytest.raises(LeaseTimeout) as caught:
            Lease(UUID, 0.2, folder).acquire()
        assert 0.2 <= time.monotonic() - start < 5
    text = str(caught.value)
    assert f"pid {os.getpid()}" in text
    assert "test_a.py::test_slow" in text
    assert "\x1b" not in text  # written by somebody else: shown escaped


def test_the_name_of_a_test_may_be_long(folder: Path) -> None:
    """Whoever makes a test for each kernel's text has ids of any length."""
    with Lease(UUID, folder=folder, label="test_a.py::test[" + "ld.global.f32 \\n" * 9000):
        told = Lease(UUID, folder=folder).holder()
    assert "test 'test_a.py::test[ld.global" in told
    assert len(told) < 1000


def test_of_the_former_holder_nothing_is_left(folder: Path) -> None:
    with Lease(UUID, folder=folder, label="a test with quite a long name"):
        pass
    with Lease(UUID, folder=folder, label="b"):
        assert "test 'b'" in Lease(UUID, folder=folder).holder()


def test_holder_text_of_any_kind_is_survived(folder: Path) -> None:
    for text in (b"", b"\xff\xfe{", b"[]", b'{"pid": 1}', b"x" * 100_000):
        (folder / f"{UUID}.lock").write_bytes(text)
        assert Lease(UUID, folder=folder).holder() == "somebody who left no name"


def test_waiting_ends_when_the_holder_lets_go(folder: Path) -> None:
    holder = Lease(UUID, folder=folder).acquire()
    threading.Timer(0.3, holder.release).start()
    with Lease(UUID, 10, folder) as lease:
        assert 0.2 < lease.waited_s < 3


def test_first_free_takes_what_is_free(folder: Path) -> None:
    with Lease("GPU-a", folder=folder):
        leases = [Lease("GPU-a", folder=folder), Lease("GPU-b", folder=folder)]
        taken = first_free(leases, 5)
        assert taken.key == "GPU-b"
        for lease in leases:
            lease.release()


HOLDER = """
import sys, time
from pathlib import Path
from pytest_compileiq.gpu.lease import Lease
Lease(sys.argv[2], folder=Path(sys.argv[1])).acquire()
print("held", flush=True)
time.sleep(60)
"""


def test_a_killed_holder_frees_at_once(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(folder), UUID], stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"held\n"
        assert not is_free(folder)
        process.kill()
        killed = time.monotonic()
        with Lease(UUID, 10, folder):
            assert time.monotonic() - killed < 1


def fork_sleeper() -> int:
    child = os.fork()
    if not child:
        time.sleep(30)
        os._exit(0)
    return child


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_sleeper_neither_frees_nor_keeps_it(folder: Path) -> None:
    lease = Lease(UUID, folder=folder).acquire()
    child = fork_sleeper()
    try:
        assert not is_free(folder)  # closing the child's copy did not free the parent's
        lease.release()
        # ... and the sleeping child, once it runs at all, does not keep it.
        until(lambda: is_free(folder), "free in spite of the child", 5)
    finally:
        os.kill(child, 9)
        os.waitpid(child, 0)


def test_a_link_in_place_of_the_file(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("content")
    (folder / f"{UUID}.lock").symlink_to(target)
    with pytest.raises(GpuError, match="symbolic link"):
        Lease(UUID, folder=folder).acquire()
    assert target.read_text() == "content"


def test_a_second_name_of_the_file(folder: Path, tmp_path: Path) -> None:
    target = tmp_path / "precious"
    target.write_text("content")
    os.link(target, folder / f"{UUID}.lock")
    with pytest.raises(GpuError, match="2 links"):
        Lease(UUID, folder=folder).acquire()
    assert target.read_text() == "content"


def test_a_pipe_in_place_of_the_file(folder: Path) -> None:
    os.mkfifo(folder / f"{UUID}.lock")
    with pytest.raises(GpuError, match="not a plain file"):
        Lease(UUID, folder=folder).acquire()


def test_a_link_in_place_of_the_folder(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(folder)
    with pytest.raises(GpuError, match="symbolic link"):
        Folder(tmp_path / "link")


def test_a_file_in_place_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(GpuError, match="cannot be made"):
        Folder(tmp_path / "file")


@pytest.mark.parametrize(("mode", "fine"), [(0o777, False), (0o770, False), (0o1777, True)])
def test_a_folder_that_others_can_write(folder: Path, mode: int, fine: bool) -> None:
    folder.chmod(mode)
    if not fine:
        with pytest.raises(GpuError, match=f"mode {mode:04o}"):
            Folder(folder)
        return
    with Lease(UUID, folder=folder):
        # In a folder for all users the file must be open to all of them, or only one could lock.
        assert (folder / f"{UUID}.lock").stat().st_mode & 0o777 == 0o666


def test_a_lease_file_whose_maker_was_killed_is_mended(folder: Path) -> None:
    """It is made for its user alone, and opened to all in a second step."""
    folder.chmod(0o1777)
    (folder / f"{UUID}.lock").touch(mode=0o600)
    with Lease(UUID, folder=folder):
        assert (folder / f"{UUID}.lock").stat().st_mode & 0o777 == 0o666


@needs_root
def test_a_folder_of_another_user(folder: Path) -> None:
    os.chown(folder, OTHER_USER, -1)
    with pytest.raises(GpuError, match=f"belongs to user {OTHER_USER}"):
        Folder(folder)


@needs_root
def test_a_file_of_another_user(folder: Path) -> None:
    lock = folder / f"{UUID}.lock"
    lock.touch()
    os.chown(lock, OTHER_USER, -1)
    with pytest.raises(GpuError, match=f"owner {OTHER_USER}"):
        Lease(UUID, folder=folder).acquire()


AS_OTHER = """
import os, sys
from pathlib import Path
from pytest_compileiq.errors import GpuError
from pytest_compileiq.gpu.lease import Lease
os.setuid(int(sys.argv[3]))
try:
    with Lease(sys.argv[2], 0.1, Path(sys.argv[1])):
        print("held")
except GpuError as error:
    print(error)
"""


def as_other(folder: Path) -> str:
    run = subprocess.run(
        [sys.executable, "-c", AS_OTHER, str(folder), UUID, str(OTHER_USER)],
        capture_output=True,
        text=True,
        check=True,
    )
    return run.stdout


@pytest.fixture
def public() -> Iterator[Callable[[int], Path]]:
    """A folder that every user can reach, which pytest's own temporary folders are not."""
    with tempfile.TemporaryDirectory() as base:
        Path(base).chmod(0o755)

        def make(mode: int) -> Path:
            path = Path(base) / "leases"
            path.mkdir()
            path.chmod(mode)
            return path

        yield make


@needs_root
def test_a_read_only_folder(public: Callable[[int], Path]) -> None:
    said = as_other(public(0o555))
    assert "cannot be opened: it (Permission denied); nothing was locked" in said
    assert "--ciq-lease-dir" in said


@needs_root
def test_two_users_share_a_public_folder(public: Callable[[int], Path]) -> None:
    folder = public(0o1777)
    assert as_other(folder) == "held\n"
    with Lease(UUID, folder=folder, label="root's test"):
        assert "root's test" in as_other(folder)
    assert as_other(folder) == "held\n"


def test_default_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = tmp_path / "site"
    monkeypatch.setattr(_lease, "SITE_FOLDER", site)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    own = Folder()
    assert own.path == tmp_path / "ciq"
    assert own.path.stat().st_mode & 0o777 == 0o700
    assert "only jobs of this user" in own.note()
    own.close()
    for other in ("", "relative", str(tmp_path / "absent"), "/proc/1/none"):
        monkeypatch.setenv("XDG_RUNTIME_DIR", other)
        assert _lease.choose(None) == (Path(f"/tmp/ciq-{os.geteuid()}"), False)
    site.mkdir(mode=0o700)
    shared = Folder()
    assert shared.path == site
    assert "only jobs of this user" not in shared.note()
    shared.close()


@needs_root
def test_the_runtime_folder_of_another_user_is_not_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sudo -E pytest`, to be allowed to lock clocks, comes with the caller's XDG_RUNTIME_DIR."""
    monkeypatch.setattr(_lease, "SITE_FOLDER", tmp_path / "none")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    os.chown(tmp_path, OTHER_USER, -1)
    assert _lease.choose(None) == (Path(f"/tmp/ciq-{os.geteuid()}"), False)
    assert not (tmp_path / "ciq").exists()


def test_the_holder_is_written_for_people(folder: Path) -> None:
    with Lease(UUID, folder=folder, label="test_x"):
        told = json.loads((folder / f"{UUID}.lock").read_text())
    assert told["pid"] == os.getpid()
    assert told["test"] == "test_x"
    assert set(told) == {"pid", "host", "test", "since"}
