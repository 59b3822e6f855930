"""What stands in the way of an honest answer: tools that lie, files that are not what they seem."""

from __future__ import annotations

import os
import signal
import time
import zipfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_compileiq.checks import proof
from pytest_compileiq.errors import AcfError, CiqError
from pytest_compileiq.subjects.kernel import Arm, Workbench
from pytest_compileiq.subjects.ptx import PtxKernel
from pytest_compileiq.toolchain import acf as _acf
from pytest_compileiq.toolchain import process
from pytest_compileiq.toolchain import ptx as _ptx
from pytest_compileiq.toolchain import sidecar as _sidecar
from pytest_compileiq.toolchain.assembler import Assembler
from pytest_compileiq.toolchain.ptxas import Ptxas
from tests.conftest import EXAMPLE, TINY

Script = Callable[[str, str], Path]
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:aa\nsize 2416\n"


def judged(ptxas: Path, text: str = TINY, *, acf: Path = EXAMPLE / "best.acf") -> proof.Proven:
    assembler = Assembler(explicit=ptxas, timeout=20)
    try:
        bench = Workbench(PtxKernel(text, arch="sm_90"), assembler, Path())
        committed = _acf.load(acf)
        return proof.proven(bench, Arm(committed.name, committed))
    finally:
        assembler.close()


VERSION = 'if [ "$1" = --version ]; then {real} --version; exit; fi\n'


@pytest.mark.parametrize(
    ("body", "reason", "told"),
    [
        ("echo 'release 99.1, V99.1.1'; {real} \"$@\"", "unfit", "says that it is ptxas 99.1.1"),
        (
            VERSION + 'for w; do case $w in --apply*) ;; *) set -- "$@" "$w";; esac; shift; done\n'
            '{real} "$@"',
            "not-applied",
            "never reached ptxas",
        ),
        (VERSION + "exit 0", "unfit", "exit status 0): it printed nothing"),
        (VERSION + 'for o; do :; done; : > "$o"', "unfit", "is not an ELF file"),
        (VERSION + 'for o; do :; done; mkdir "$o"', "unfit", "exit status 0): it printed nothing"),
        (VERSION + '{real} "$@"; exit 3', "unfit", "exit status 3"),
        (
            VERSION + 'for w; do case $w in --apply*) rm "${{w#*=}}";; esac; done; {real} "$@"',
            "unfit",
            "vanished",
        ),
    ],
    ids=["version", "drops-the-flag", "nothing", "empty", "folder", "status", "staging"],
)
def test_a_ptxas_that_is_no_honest_one(
    script: Script, ptxas: Ptxas, body: str, reason: str, told: str
) -> None:
    with pytest.raises(CiqError, match=told.replace(")", r"\)")) as raised:
        judged(script("ptxas", body.format(real=ptxas.path)))
    assert raised.value.reason == reason


def test_what_a_ptxas_prints_beside_its_report_does_no_harm(script: Script, ptxas: Ptxas) -> None:
    noise = "echo Used 999 registers; printf '\\377\\000\\n'"
    body = VERSION.format(real=ptxas.path) + f'{noise}; {ptxas.path} "$@"; {noise} >&2'
    (used,) = judged(script("ptxas", body)).build.resources.values()
    assert used.registers == 8


def test_what_a_wrapper_leaves_running_is_not_waited_for(
    script: Script, ptxas: Ptxas, tmp_path: Path
) -> None:
    left = f"setsid sleep 60 & echo $! >> {tmp_path}/left"
    body = VERSION.format(real=ptxas.path) + f'{left}; {ptxas.path} "$@"'
    began = time.monotonic()
    try:
        assert judged(script("ptxas", body)).same_code is False
        assert time.monotonic() - began < 15
    finally:
        for pid in (tmp_path / "left").read_text().split():
            os.kill(int(pid), signal.SIGKILL)


@pytest.mark.parametrize(
    "name", ["with space", "two\nlines", os.fsdecode(b"not utf-8 \xff"), "'\"$"]
)
def test_a_ptxas_and_an_acf_in_odd_places(tmp_path: Path, ptxas: Ptxas, name: str) -> None:
    folder = tmp_path / name
    folder.mkdir()
    (folder / "ptxas").symlink_to(ptxas.path)
    (folder / f"{name}.acf").symlink_to(EXAMPLE / "best.acf")
    folder.chmod(0o555)
    assert judged(folder / "ptxas", acf=folder / f"{name}.acf").same_code is False
    folder.chmod(0o755)


# PTX


@pytest.mark.parametrize(
    "text",
    [
        TINY.replace(".address_size 64\n", ".address_size 64 "),
        TINY.replace("\n", " ") + "\n",
        TINY.replace("\n", "\r\n"),
        TINY.replace(".visible .entry", "/* .entry no( */ .visible\n\n.entry\n"),
        TINY + '.file 1 "a .entry no(.cu"\n',
        "/" + "*" * 9 + "/\n" + "\n" * 200_000 + TINY,
    ],
    ids=["same-line", "one-line", "crlf", "apart", "string", "blank-lines"],
)
def test_the_entry_function_is_found(text: str) -> None:
    began = time.process_time()
    assert _ptx.entries(text) == ["tiny"]
    assert _ptx.target(text) == "sm_90"
    assert time.process_time() - began < 2  # it took minutes for many blank lines


def test_unclosed_comments_and_sections_take_no_time() -> None:
    for many in ("/* ", ".section .debug_x {\n"):
        began = time.process_time()
        _ptx.entries(many * 50_000)
        _ptx.normalised_sha256(many * 50_000)
        assert time.process_time() - began < 2


def test_an_empty_debug_section_does_not_hide_the_code_behind_it() -> None:
    before = ".section .debug_macinfo { }\n" + TINY
    after = before.replace("add.f32", "sub.f32")
    assert _ptx.normalised_sha256(before) != _ptx.normalised_sha256(after)


# Files


def test_git_s_line_ends_are_named(tmp_path: Path, ptxas: Ptxas) -> None:
    content = (EXAMPLE / "best.acf").read_bytes()
    path = tmp_path / "best.acf"
    path.write_bytes(content.replace(b"\n", b"\r\n"))
    mangled = _acf.load(path)
    good = _sidecar.read(EXAMPLE / "best.acf")
    assert good is not None
    told = _sidecar.altered(mangled, good)
    assert told is not None
    assert told.endswith("put `*.acf binary` into .gitattributes")
    assert "gitattributes" not in str(_sidecar.altered(replace(mangled, content=b"\r\n"), good))
    with pytest.raises(AcfError) as raised:
        judged(ptxas.path, acf=path)
    assert raised.value.reason == "rejected"


def test_a_sidecar_of_a_later_version_asks_for_an_update(tmp_path: Path) -> None:
    path = tmp_path / "x.acf"
    path.write_bytes(b"x")
    _sidecar.path_of(path).write_text('{"schema": 2, "digest": 1}')
    with pytest.raises(AcfError, match="has schema 2, and this version reads 1") as raised:
        _sidecar.load(path)
    assert raised.value.remedy.startswith("update pytest-compileiq")
    assert raised.value.reason == "rejected"


def test_a_pointer_of_git_lfs_is_named_wherever_it_lies(tmp_path: Path) -> None:
    for name in ("x.acf", "O0.acf", "k.ptx"):
        (tmp_path / name).write_bytes(POINTER)
    archive = tmp_path / "pack.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(tmp_path / "O0.acf", "O0.acf")
    for read in (
        lambda: _acf.load(tmp_path / "x.acf"),
        lambda: _acf.open_debug_pack(tmp_path),
        lambda: _acf.open_debug_pack(archive),
        lambda: PtxKernel("k.ptx", arch="sm_90").text(tmp_path),
    ):
        with pytest.raises(CiqError, match="git-lfs pointer of 67 bytes; run `git lfs pull`"):
            read()


def test_a_debug_pack_that_is_none(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "bomb.zip", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("O0.acf", b"\0" * (80 << 20))
    with pytest.raises(AcfError, match="it unpacks to more than any ACF has"):
        _acf.open_debug_pack(tmp_path / "bomb.zip")
    (tmp_path / "O3.acf").write_bytes(b"")
    with pytest.raises(AcfError, match=r"O3\.acf of the debug pack .* is empty"):
        _acf.open_debug_pack(tmp_path)


@pytest.mark.parametrize("name", ["a\0b.acf", "loop.acf", "folder.acf"])
def test_a_path_that_is_no_file(tmp_path: Path, name: str) -> None:
    (tmp_path / "loop.acf").symlink_to("loop.acf")
    (tmp_path / "folder.acf").mkdir()
    with pytest.raises(AcfError, match="cannot be read") as raised:
        _acf.load(tmp_path / name)
    assert raised.value.reason == "rejected"


def test_what_a_wrapper_leaves_running_ends_with_it() -> None:
    done = process.run(["sh", "-c", "sleep 60 & echo $!"], timeout=10)
    assert done.returncode == 0
    stat = Path("/proc", done.output.strip(), "stat")
    deadline = time.monotonic() + 5
    with suppress(FileNotFoundError, ProcessLookupError):
        while ") Z" not in stat.read_text():  # a zombie waits for nobody but init
            assert time.monotonic() < deadline, "the wrapper's child still runs"
            time.sleep(0.01)


def test_of_output_without_end_the_last_words_are_kept(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "LARGEST", 1000)
    babble = script("babble", "head -c 1000000 /dev/zero; echo; echo what is wrong; exit 3")
    found = process.run([babble], timeout=60)
    assert (found.returncode, len(found.output)) == (3, 1000)
    assert found.output.endswith("\nwhat is wrong\n")
