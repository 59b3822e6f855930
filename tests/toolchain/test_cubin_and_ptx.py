"""Reading machine code and PTX."""

from __future__ import annotations

import contextlib
import tracemalloc

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
    assert _cubin.Cubin({}, {}, {}, None, line).controls() == paths


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


def test_zeros_that_are_only_a_number_in_the_file_are_not_read(assembler: Assembler) -> None:
    large = TINY.replace(
        ".visible .entry", ".visible .global .b8 big[1073741824];\n.visible .entry"
    )
    (answer,) = assembler.run_all([Job(large, "sm_90")])
    assert isinstance(answer, Assembled)
    tracemalloc.start()
    try:
        assert _cubin.read(answer.cubin).code_size("tiny") > 0
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_code_for_a_cpu_is_no_cubin(assembler: Assembler) -> None:
    (answer,) = assembler.run_all([Job(TINY, "sm_90")])
    assert isinstance(answer, Assembled)
    host = answer.cubin[:18] + (62).to_bytes(2, "little") + answer.cubin[20:]
    with pytest.raises(CiqError, match="another machine, EM_X86_64, not for a GPU"):
        _cubin.read(host)


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


#: What line information adds to a kernel: by Triton's compiler and, inlined functions, by nvcc's.
LINES = """
.target sm_90
.visible .entry f(.param .u64 p)
{
$L__func_begin0:
 .loc 1 7 0
 ld.param.u64 %rd1, [p];
 .loc 2 12 5, function_name $L__info_string0, inlined_at 1 8 3
$L__tmp0:
 bra $L__BB0_1;
$L__BB0_1:
$L__tmp1:
 ret;
$L__func_end0:
}
 .file 1 "/home/me/k.py"
 .file 2 "/home/me/h.cuh", 1700000000, 4711
 .section .debug_info
 {
.b64 $L__func_begin0
.b64 $L__tmp1
 }
 .section .debug_macinfo { }
"""
BARE = """
.target sm_90
.visible .entry f(.param .u64 p)
{
 ld.param.u64 %rd1, [p];
 bra $L__BB0_1;
$L__BB0_1:
 ret;
}
"""


def test_line_information_changes_no_hash() -> None:
    assert _ptx.normalised_sha256(LINES) == _ptx.normalised_sha256(BARE)
    moved = LINES.replace("bra $L__BB0_1", "bra $L__tmp1")
    elsewhere = moved.replace("$L__tmp1:\n ret;", "ret;\n$L__tmp1:")
    # What code jumps to counts, whatever its name.
    assert len({_ptx.normalised_sha256(text) for text in (LINES, moved, elsewhere)}) == 3


@pytest.mark.parametrize(
    "directive",
    [
        ".loc 1 2 3",
        ".loc 2 12 5, function_name $L__info_string0, inlined_at 1 8 3",
        ".loc 2 12 5, function_name $L__info_string0 + 9, inlined_at 1 8 3",
        '.file 1 "/a b/{;}.cu"',
        '.file 1 "/x.cu", 1700000000, 4711',
        ".section .debug_macinfo { }",
    ],
)
def test_code_behind_a_debug_directive_counts(directive: str) -> None:
    texts = [TINY.replace("add.f32", f"{directive} {name}.f32") for name in ("add", "sub")]
    hashes = [_ptx.normalised_sha256(text) for text in texts]
    assert hashes[0] == _ptx.normalised_sha256(TINY) != hashes[1]


def test_a_hash_of_a_path_in_a_name_does_not_count() -> None:
    text = ".entry _ZN34_GLOBAL__N__a476058a_4_x_cu__Z1fPf1kEPfi() { call _INTERNAL_a476058a_4_f; }"
    other = text.replace("a476058a", "3a56f976")
    assert _ptx.normalised_sha256(text) == _ptx.normalised_sha256(other)
    for change in (("4_x_cu", "4_y_cu"), ("_INTERNAL_a4", "_EXTERNAL_a4"), ("1kE", "1mE")):
        assert _ptx.normalised_sha256(text.replace(*change)) != _ptx.normalised_sha256(text)
