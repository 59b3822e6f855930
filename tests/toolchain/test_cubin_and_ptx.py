"""Reading machine code and PTX."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_compileiq.errors import CiqError
from pytest_compileiq.toolchain import cubin as _cubin
from pytest_compileiq.toolchain import ptx as _ptx
from pytest_compileiq.toolchain.acf import load
from pytest_compileiq.toolchain.assembler import Assembler, Job
from pytest_compileiq.toolchain.ptxas import Assembled

from ..conftest import EXAMPLE, TINY, TWO


def cubin(assembler: Assembler, job: Job) -> _cubin.Cubin:
    (answer,) = assembler.run_all([job])
    assert isinstance(answer, Assembled)
    return _cubin.read(answer.cubin)


def test_the_note_holds_tool_version_and_command_line(assembler: Assembler) -> None:
    plain = cubin(assembler, Job(TINY, "sm_90"))
    assert plain.tool == "ptxas"
    assert str(assembler.ptxas()) in str(plain.tool_version)
    assert "sm_90" in str(plain.command_line)
    assert plain.controls() == []
    acf = load(EXAMPLE / "best.acf")
    assert cubin(assembler, Job(TINY, "sm_90", acf)).controls() == [
        str(assembler.staging.path(acf))
    ]


def test_code_of_one_entry_function(assembler: Assembler) -> None:
    both = cubin(assembler, Job(TWO, "sm_90"))
    slow = cubin(assembler, Job(TWO, "sm_90", flags=("-O0",)))
    assert set(both.text) == {".text.tiny", ".text.other"}
    assert both.fingerprint("tiny") != both.fingerprint("other") != both.fingerprint()
    assert slow.fingerprint("tiny") != both.fingerprint("tiny")
    assert slow.code_size("tiny") > both.code_size("tiny")
    assert both.code_size() == both.code_size("tiny") + both.code_size("other")


@pytest.mark.parametrize(
    ("line", "paths"),
    [
        ("-v -arch sm_90", []),
        ("-apply-controls /a/b.acf -v", ["/a/b.acf"]),
        ("--apply-controls=/a/b.acf", ["/a/b.acf"]),
        ("-apply-controls /a -apply-controls=/b", ["/a", "/b"]),
        ("-apply-controls", [""]),
        ("it's -apply-controls /a", ["/a"]),
        (None, None),
    ],
)
def test_paths_of_apply_controls(line: str | None, paths: list[str] | None) -> None:
    assert _cubin.Cubin({}, {}, {}, None, None, line).controls() == paths


@given(st.binary(max_size=300))
def test_no_bytes_break_the_reader(data: bytes) -> None:
    with pytest.raises(CiqError):
        _cubin.read(data)
    _cubin._tool_note(data)


def test_a_truncated_cubin_is_an_error(assembler: Assembler) -> None:
    (answer,) = assembler.run_all([Job(TINY, "sm_90")])
    assert isinstance(answer, Assembled)
    for length in range(0, len(answer.cubin), 97):
        with contextlib.suppress(CiqError):  # any other exception is the failure
            _cubin.read(answer.cubin[:length])
    with pytest.raises(CiqError, match="not an ELF file"):
        _cubin.read(answer.cubin[:100])


def test_entries_and_target() -> None:
    text = TWO + "/* .entry ghost( */ // .entry shade(\n.weak .entry $odd_1(\n"
    assert _ptx.entries(text) == ["tiny", "other", "$odd_1"]
    assert _ptx.target(text) == "sm_90"
    assert _ptx.entries("") == []
    assert _ptx.target("") is None


def test_the_hash_ignores_noise_and_sees_changes() -> None:
    noise = (
        '// by nvcc\n.file 1 "/home/me/x.cu"\n'
        + TINY.replace("add.f32", ".loc 1 5 3\n    add.f32").replace("\n", " \n\n")
        + ".section .debug_str\n{\n.b8 99\n}\n"
    )
    assert _ptx.normalised_sha256(noise) == _ptx.normalised_sha256(TINY)
    for old, new in (("add.f32", "sub.f32"), ("0f3F800000", "0f40000000"), ("tiny", "tony")):
        assert _ptx.normalised_sha256(TINY.replace(old, new)) != _ptx.normalised_sha256(TINY)


def test_a_comment_inside_a_string_is_none() -> None:
    """A path in a .file directive may hold /*, and what follows it is code."""
    text = '.target sm_90\n.file 1 "/tmp/*/x.cu"\n.visible .entry f() {{ {}.f32 %f1, %f2, %f3; ret; }}\n'
    assert _ptx.entries(text.format("add")) == ["f"]
    hashes = {_ptx.normalised_sha256(text.format(name)) for name in ("add", "sub")}
    assert len(hashes) == 2
