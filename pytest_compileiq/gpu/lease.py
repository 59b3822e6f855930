"""One holder a GPU at a time: across pytest runs, xdist workers, and containers that share a folder.

The lease is a ``flock`` on ``<uuid>.lock`` of the physical GPU. It belongs to the open file, so the
guardian can inherit it, and the kernel frees it when the last holder dies. Files are never deleted:
a lock on a deleted file excludes nobody.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import random
import socket
import stat
import time
import weakref
from collections.abc import Sequence
from pathlib import Path

from pytest_compileiq.errors import GpuError
from pytest_compileiq.gpu.identity import Gpu

SITE_FOLDER = Path("/run/lock/ciq")
_LONGEST_PAUSE_S = 0.05
_INFO_LIMIT = 4096
#: A test's id holds its parameters, which may be whole kernels: of the label this much is kept.
_LABEL_LIMIT = 300
_open: weakref.WeakSet[Lease] = weakref.WeakSet()


class LeaseTimeout(GpuError):
    """Somebody else kept the GPU until the time was over."""


class Folder:
    """The lease folder, opened and checked once; all files are reached through ``fd``.

    Raises GpuError when it is a link, belongs to somebody else, or can be tampered with.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path, self.shared = choose(path)
        _make(self.path)
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        try:
            self.fd = os.open(self.path, flags)
        except OSError as error:
            what = "is a symbolic link" if self.path.is_symlink() else f"({error.strerror})"
            raise _bad(self.path, f"cannot be opened as a folder: it {what}") from None
        about = os.fstat(self.fd)
        problem = ""
        if about.st_uid not in (0, os.geteuid()):
            problem = f"belongs to user {about.st_uid}"
        elif about.st_mode & 0o022 and not about.st_mode & stat.S_ISVTX:
            problem = f"has mode {stat.S_IMODE(about.st_mode):04o}: others can replace its files"
        if problem:
            self.close()
            raise _bad(self.path, problem)
        # Whoever may make files here must be able to open those of the others.
        self.file_mode = 0o600 | (about.st_mode & 0o022) * 3

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def note(self) -> str:
        """What this folder does not exclude, for people; empty when nothing is to be said."""
        if not self.shared:
            return (
                f"leases are kept in {self.path}: only jobs of this user exclude each other "
                f"(an administrator can make {SITE_FOLDER}, mode 1777)"
            )
        contained = Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()
        if contained and os.fstat(self.fd).st_dev == os.stat("/").st_dev:
            return (
                f"leases are kept in {self.path} of this container alone: mount the host's folder "
                "there to exclude jobs outside"
            )
        return ""


def _bad(path: Path, problem: str) -> GpuError:
    return GpuError(
        f"the lease folder {str(path)!r} {problem}, so nothing was locked",
        remedy="name another with --ciq-lease-dir, owned by you or root, not writable by others "
        "unless its sticky bit is set",
    )


def choose(path: Path | None) -> tuple[Path, bool]:
    """The folder, which may not be there yet, and whether other users share it."""
    if path is not None:
        return path, True
    if SITE_FOLDER.is_dir():
        return SITE_FOLDER, True
    runtime = _runtime_folder()
    return runtime / "ciq" if runtime else Path(f"/tmp/ciq-{os.geteuid()}"), False


def _make(path: Path) -> None:
    """For this user alone."""
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        if not os.path.isdir(path):  # Path.is_dir() raises where a parent may not be entered
            raise _bad(path, f"cannot be made ({error.strerror})") from None


def _runtime_folder() -> Path | None:
    """$XDG_RUNTIME_DIR if it is this user's: `sudo -E` and `su` hand on somebody else's."""
    path = Path(os.environ.get("XDG_RUNTIME_DIR", ""))
    try:
        about = path.stat()
    except OSError:
        return None
    own = path.is_absolute() and stat.S_ISDIR(about.st_mode) and about.st_uid == os.geteuid()
    return path if own else None


class Lease:
    """Holds one GPU. A context manager; ``acquire`` and ``release`` do the same by hand.

    ``timeout_s`` is the longest wait in seconds; ``label`` names the test for whoever waits.
    A forked child does not hold the lease, and its copy cannot keep it from others.
    """

    def __init__(
        self,
        gpu: Gpu | str,
        timeout_s: float = 600.0,
        folder: Path | None = None,
        *,
        label: str = "",
    ) -> None:
        # A MIG instance shares clocks and power with its siblings: the card is what is leased.
        self.key = gpu if isinstance(gpu, str) else gpu.parent_uuid or gpu.uuid
        self.timeout_s = timeout_s
        self.label = label if len(label) <= _LABEL_LIMIT else label[:_LABEL_LIMIT] + "..."
        self.waited_s = 0.0
        self.fd = -1
        self._path = folder
        self._folder: Folder | None = None
        self.note = ""

    @property
    def folder_fd(self) -> int:
        return -1 if self._folder is None else self._folder.fd

    @property
    def folder(self) -> Path | None:
        return None if self._folder is None else self._folder.path

    @property
    def held(self) -> bool:
        return self.fd >= 0

    def acquire(self) -> Lease:
        """Wait for the GPU. Raises LeaseTimeout that names the holder, GpuError for bad files."""
        return first_free([self], self.timeout_s)

    def try_acquire(self) -> bool:
        """Take the GPU if it is free now."""
        if self._folder is None:
            self._folder = Folder(self._path)
            self.note = self._folder.note()
        fd = _open_file(self._folder, f"{self.key}.lock")
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(fd)
            return False
        except BaseException:
            os.close(fd)
            raise
        self.fd = fd
        _open.add(self)
        self._write_holder()
        return True

    def _write_holder(self) -> None:
        holder = {
            "pid": os.getpid(), "host": socket.gethostname(), "test": self.label,
            "since": time.strftime("%Y-%m-%d %H:%M:%S"),
        }  # fmt: skip
        try:
            os.ftruncate(self.fd, 0)
            os.pwrite(self.fd, json.dumps(holder).encode(), 0)
        except OSError:
            pass  # a full disk costs the next one a name, not the lease

    def holder(self) -> str:
        """Who holds the lease, as the holder wrote it: information, never trusted."""
        folder = self._folder or Folder(self._path)
        try:
            fd = _open_file(folder, f"{self.key}.lock")
            try:
                text = os.pread(fd, _INFO_LIMIT, 0).decode(errors="replace")
            finally:
                os.close(fd)
            told = json.loads(text)
            parts = [f"{key} {told[key]!r}" for key in ("pid", "host", "test", "since")]
            return ", ".join(parts)
        except (GpuError, ValueError, TypeError, KeyError):
            return "somebody who left no name"
        finally:
            if folder is not self._folder:
                folder.close()

    def release(self) -> None:
        """Close our share; it is free once a guardian that inherited it has closed its own.

        Never LOCK_UN: that would free it under a guardian that is still resetting clocks.
        """
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
        if self._folder is not None:
            self._folder.close()
            self._folder = None
        _open.discard(self)

    def __enter__(self) -> Lease:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


def first_free(leases: Sequence[Lease], timeout_s: float) -> Lease:
    """Acquire whichever of the leases is free first. Raises LeaseTimeout that names the holders."""
    start = time.monotonic()
    pause = 0.002
    while True:
        for lease in leases:
            if lease.try_acquire():
                lease.waited_s = time.monotonic() - start
                return lease
        if time.monotonic() - start >= timeout_s:
            break
        # The random part keeps workers that began together from asking together.
        time.sleep(min(pause * random.uniform(0.7, 1.3), timeout_s))
        pause = min(pause * 1.5, _LONGEST_PAUSE_S)
    holders = [f"{lease.key}: held by {lease.holder()}" for lease in leases]
    for lease in leases:
        lease.release()
    what = f"GPU {leases[0].key}" if len(leases) == 1 else f"none of {len(leases)} GPUs"
    raise LeaseTimeout(
        f"{what} did not become free in {timeout_s:g} s",
        looked_at=holders,
        remedy="wait for that job or end it, or raise --ciq-gpu-timeout",
    )


def _open_file(folder: Folder, name: str) -> int:
    """Open a lock file without following links; make it if needed. Raises GpuError."""
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
    path = str(folder.path / name)
    fd = -1
    try:
        # Without O_CREAT first: with it, fs.protected_regular refuses others' files in /tmp.
        while fd < 0:
            try:
                fd = os.open(name, flags, dir_fd=folder.fd)
            except FileNotFoundError:
                try:
                    fd = os.open(name, flags | os.O_CREAT | os.O_EXCL, 0o600, dir_fd=folder.fd)
                except FileExistsError:
                    continue  # made by another one in between
    except OSError as error:
        what = "is a symbolic link" if error.errno == errno.ELOOP else f"({error.strerror})"
        raise GpuError(
            f"the lease file {path!r} cannot be opened: it {what}; nothing was locked",
            remedy="remove it if it is not yours to share, or name another --ciq-lease-dir",
        ) from None
    about = os.fstat(fd)
    private = folder.file_mode == 0o600
    strange = private and about.st_uid not in (0, os.geteuid())
    if not stat.S_ISREG(about.st_mode) or about.st_nlink != 1 or strange:
        os.close(fd)
        raise GpuError(
            f"the lease file {path!r} is not a plain file of its own (owner {about.st_uid}, "
            f"{about.st_nlink} links); nothing was locked",
            remedy="remove it, or name another --ciq-lease-dir",
        )
    # Not at its making alone: a kill in between would leave a file that no other user can open.
    if about.st_uid == os.geteuid() and stat.S_IMODE(about.st_mode) != folder.file_mode:
        with contextlib.suppress(OSError):  # of a file system without modes
            os.fchmod(fd, folder.file_mode)
    return fd


def _forget_in_child() -> None:
    # A flock lasts until the last copy is closed: a sleeping child would keep it for its life.
    for lease in list(_open):
        lease.release()


os.register_at_fork(after_in_child=_forget_in_child)
