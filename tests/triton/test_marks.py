"""The static tier on Triton kernels: all marks, no GPU."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="tox -e triton brings it")

import triton

from pytest_compileiq.toolchain.ptxas import Ptxas
from tests.conftest import EXAMPLE, RunJson
from tests.gpu import test_real_ncu

HEAD = """
import pytest
from pytest_compileiq import TritonKernel
from tests.triton import kernels

def waves(**more):
    given = dict(grid=(4,), args=("*fp32", 4096), constexprs={"BLOCK": 1024}, arch="sm_90a")
    return TritonKernel(kernels.waves, **{**given, **more})
"""


@pytest.fixture
def folder(pytester: pytest.Pytester, ptxas: object) -> pytest.Pytester:
    for name in ("best.acf", "worst.acf"):
        shutil.copy(EXAMPLE / name, pytester.path / name)
    return pytester


def test_all_marks(folder: pytest.Pytester, run_json: RunJson) -> None:
    folder.makepyfile(
        HEAD
        + """
@pytest.mark.ciq_canary
@pytest.mark.ciq_resources(max_registers=64, max_spill_bytes=0)
@pytest.mark.ciq_max_cv(5)
@pytest.mark.ciq_beats_baseline("best.acf")
def test_it(ciq):
    ciq.check(waves())

def test_compare(ciq):
    shown = ciq.compare(waves(), "best.acf")
    assert shown.same_code is False
    assert shown.tuned.registers > 8
"""
    )
    for isolate in ("off", "require"):
        result, records = run_json(f"--ciq-isolate={isolate}")
        result.assert_outcomes(passed=2)
        found = {record["check"]: record for record in records}
        assert found["canary"]["status"] == found["resources"]["status"] == "pass"
        assert found["canary"]["numbers"]["source"] == "raw -O0 and raw -O3"
        assert found["win"]["numbers"]["ptx_sha256"]
        assert not [record for record in records if record["status"] == "fail"]


def test_a_file_swapped_at_the_same_path_is_seen(
    folder: pytest.Pytester, run_json: RunJson
) -> None:
    """The first test accepts one ACF, and another file takes its place before the second."""
    folder.makepyfile(
        HEAD
        + """
import shutil
from pathlib import Path
HERE = Path(__file__).parent

def test_1(ciq):
    ciq.assert_beats_baseline(waves(), "best.acf")

def test_2(ciq):
    before = ciq.compare(waves(), "best.acf")
    shutil.copy(HERE / "worst.acf", HERE / "best.acf")
    after = ciq.compare(waves(), "best.acf")
    assert before.tuned.registers != after.tuned.registers

def test_3(ciq):
    (HERE / "best.acf").write_bytes(b"damaged" * 100)
    with pytest.raises(Exception, match="refuses best.acf"):
        ciq.compare(waves(), "best.acf")
"""
    )
    result, _ = run_json("--ciq-isolate=off")
    result.assert_outcomes(passed=3)


def test_a_kernel_that_changed_is_told_from_a_slow_one(
    folder: pytest.Pytester, run_json: RunJson
) -> None:
    text = """
def test_it(ciq):
    ciq.assert_beats_baseline(waves({}), "best.acf")
"""
    folder.makepyfile(HEAD + text.format(""))
    result, _ = run_json("--ciq-accept", "--ciq-isolate=off")
    result.assert_outcomes(passed=1)
    folder.makepyfile(HEAD + text.format("args=('*fp32', 4095)"))
    result, (record,) = run_json("--ciq-isolate=off")
    result.assert_outcomes(failed=1)
    assert record["reason"] == "kernel-changed"


def test_the_arms_that_ncu_is_tried_on_can_be_told_apart(tmp_path: Path, ptxas: Ptxas) -> None:
    """tests/gpu/test_real_ncu.py knows each arm by its registers, so they have to differ."""
    if not triton.__version__.startswith("3.6."):
        pytest.skip("the ACF is for the PTX that Triton 3.6 makes")
    _, numbers = test_real_ncu.run(tmp_path)
    base, tuned = test_real_ncu.static_registers(numbers)
    assert base > tuned > 0
