"""Arrival and effect, shown on builds that are wrong in one way each, with a real ptxas."""

from __future__ import annotations

import shutil

import pytest

from ..conftest import DATA, RunJson

# Each build() below runs the real ptxas. Only what it does with the ACF differs.
TEST = """
import pathlib, subprocess
import pytest
from pytest_compileiq import Build, Kernel
from pytest_compileiq.toolchain.ptxas import find

PTX = pathlib.Path(__file__).parent / "sgemm.ptx"
CACHE = {{}}

def assemble(acf, out="k.cubin", more=()):
    flags = [f"--apply-controls={{acf}}"] if acf else []
    done = subprocess.run(
        [find().path, "-v", "-arch=sm_90", *more, *flags, PTX, "-o", out],
        capture_output=True, text=True,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return Build(cubin=pathlib.Path(out).read_bytes(), ptxas_log=done.stderr)

def build(acf):
    {body}

@pytest.mark.ciq_beats_baseline("best.acf")
def test_kernel(ciq):
    ciq.check(Kernel(build))
"""

PASS = (None, "")
CASES = {
    "good": ("return assemble(acf)", *PASS),
    "ignores the acf": ("return assemble(None)", "not-applied", "without --apply-controls"),
    "stale baseline": (
        "return CACHE.setdefault('k', assemble(acf))",
        "not-applied",
        "without --apply-controls",
    ),
    "stale other acf": (
        "return assemble(acf and PTX.with_name('worst.acf'))",
        "not-applied",
        "was made with another ACF",
    ),
    "same path new content": (
        "import shutil; acf and shutil.copy(acf, 'f.acf'); return assemble(acf and 'f.acf')",
        "not-applied",
        "was made with another ACF",
    ),
    # ptxas takes the last of two, and its note names that one only.
    "another flag wins": (
        (
            "flags = [f'--apply-controls={p}' for p in (acf, PTX.with_name('worst.acf'))]\n"
            "    return assemble(None, more=flags if acf else [])"
        ),
        "not-applied",
        "got --apply-controls more than once",
    ),
    "our flag wins": (
        (
            "more = [f'--apply-controls={PTX.with_name(\"worst.acf\")}'] if acf else []; "
            "return assemble(acf, more=more)"
        ),
        "not-applied",
        "got --apply-controls more than once",
    ),
    "baseline has an acf": (
        "return assemble(acf or PTX.with_name('worst.acf'))",
        "unfit",
        "the baseline has an ACF applied",
    ),
    "baseline does not build": (
        "if acf is None: raise OSError('no compiler')\n    return assemble(acf)",
        "crashed",
        "the baseline does not build: OSError: no compiler",
    ),
    "acf arm does not build": (
        "if acf: raise OSError('disk full')\n    return assemble(acf)",
        "crashed",
        "the baseline builds, but this arm does not: OSError: disk full",
    ),
    "one output path for all arms": (
        "assemble(acf); return Build(cubin=pathlib.Path('k.cubin'))",
        *PASS,
    ),
    "returns no build": (
        "return 'k.cubin'",
        "crashed",
        "build() returned str, not a Build",
    ),
    "not a cubin": (
        "return Build(cubin=b'hello')",
        "unfit",
        "not an ELF file",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_build_is_named(sgemm: pytest.Pytester, run_json: RunJson, case: str) -> None:
    body, reason, message = CASES[case]
    sgemm.makepyfile(TEST.format(body=body))
    result, (record,) = run_json()
    assert record["reason"] == reason
    assert message in record["message"]
    result.assert_outcomes(**({"passed": 1} if reason is None else {"failed": 1}))


def test_an_acf_that_ptxas_takes_and_that_changes_nothing(
    sgemm: pytest.Pytester, run_json: RunJson
) -> None:
    """An ACF of nvcc's search space: the right path arrives, and the code is the baseline's."""
    shutil.copy(DATA / "nvcc.acf", sgemm.path / "best.acf")
    sgemm.makepyfile(TEST.format(body="return assemble(acf)"))
    result, (record,) = run_json()
    result.assert_outcomes(failed=1)
    assert record["reason"] == "no-effect"
    assert "changed nothing" in record["message"]
    assert "not the file that its sidecar describes" in record["message"]


def test_no_effect_names_a_kernel_that_has_changed(
    sgemm: pytest.Pytester, run_json: RunJson
) -> None:
    """The ACF does nothing for the new kernel, and the sidecar knows that it is a new one."""
    empty = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry empty()\n{\n ret;\n}\n"
    (sgemm.path / "sgemm.ptx").write_text(empty)
    sgemm.makepyfile(
        "from pytest_compileiq import PtxKernel\n"
        "def test(ciq): ciq.assert_beats_baseline(PtxKernel('sgemm.ptx', arch='sm_90'))"
    )
    _, (record,) = run_json()
    assert record["reason"] == "no-effect"
    assert "; best.acf was made for another kernel, or another version" in record["message"]
    assert "search for one that does something for this kernel" in record["remedy"]
    assert record["numbers"]["looked_at"] == [str(sgemm.path / "best.acf.json")]


def test_an_empty_kernel_leaves_nothing_to_control(
    sgemm: pytest.Pytester, run_json: RunJson
) -> None:
    empty = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry empty()\n{\n ret;\n}\n"
    (sgemm.path / "sgemm.ptx").write_text(empty)
    sgemm.makepyfile(TEST.format(body="return assemble(acf)"))
    result, (record,) = run_json()
    result.assert_outcomes(failed=1)
    assert record["reason"] == "no-effect"


def test_refusal_catches_a_build_that_never_reads_the_acf(
    sgemm: pytest.Pytester, run_json: RunJson
) -> None:
    """The build swaps the file at the right path for a good ACF: only damage unmasks it."""
    body = (
        "import shutil\n"
        "    if acf: shutil.copy(PTX.with_name('worst.acf'), acf)\n"
        "    return assemble(acf)"
    )
    test = TEST.format(body=body).replace(
        'ciq_beats_baseline("best.acf")', 'ciq_canary(o0="worst.acf")'
    )
    sgemm.makepyfile(test)
    result, (record,) = run_json()
    result.assert_outcomes(failed=1)
    assert record["reason"] == "not-applied"
    assert "damaged-worst.acf was taken without an error" in record["message"]


def test_same_code_under_two_names_is_the_same(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    """Whole cubins differ by the ACF's path; the code does not. So only .text is compared."""
    shutil.copy(sgemm.path / "best.acf", sgemm.path / "copy.acf")
    sgemm.makepyfile(
        TEST.format(body="return assemble(acf)")
        + """
from pytest_compileiq.toolchain import cubin
def test_names():
    a = assemble(PTX.with_name("best.acf")).cubin
    b = assemble(PTX.with_name("copy.acf")).cubin
    assert a != b
    assert cubin.read(a).fingerprint() == cubin.read(b).fingerprint()
    assert cubin.read(a).controls() == [str(PTX.with_name("best.acf"))]
"""
    )
    run_json()[0].assert_outcomes(passed=2)
