"""--ciq-ncu on a real GPU: ``pytest tests/gpu/test_real_ncu.py --ciq-gpu=0 --ciq-isolate=off -s``.

It needs Triton, torch, ncu and ptxas 13.3.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from pytest_compileiq.report import ncu, ncu_csv
from pytest_compileiq.toolchain.ptxas import Ptxas
from tests.conftest import ROOT

pytestmark = pytest.mark.gpu
TRITON = ROOT / "examples" / "triton"

SUITE = f"""
import sys
sys.path.insert(0, {str(TRITON)!r})
import pytest, triton_inputs
from test_triton import kernel

@pytest.mark.ciq_resources(max_registers=255)
@pytest.mark.ciq_beats_baseline("softmax.acf")
def test_softmax(ciq):
    ciq.check(kernel(triton_inputs.softmax(on_gpu=ciq.on_gpu)))
"""


def run(folder: Path, *arguments: str) -> tuple[str, dict[str, dict[str, Any]]]:
    """Run SUITE; returns what it printed and the numbers of each check."""
    for name in ("softmax.acf", "softmax.acf.json"):
        shutil.copy(TRITON / name, folder)
    (folder / "test_it.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", f"--rootdir={folder}"]
    command += ["-p", "no:cacheprovider", "--ciq-json=r.json", *arguments, "test_it.py"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    text = done.stdout + done.stderr
    assert (folder / "r.json").exists(), text
    records = json.loads((folder / "r.json").read_text())["records"]
    return text, {record["check"]: record["numbers"] for record in records}


def static_registers(numbers: dict[str, dict[str, Any]]) -> tuple[int, int]:
    """What ptxas reported of the baseline and of the ACF's build, in hardware's steps of eight."""
    found = numbers["resources"]
    return _in_eights(found["baseline"]["registers"]), _in_eights(found["registers"])


def _in_eights(registers: float) -> int:
    return -int(-registers // 8) * 8


def test_both_arms_of_an_example_in_forty_seconds(
    tmp_path: Path, request: pytest.FixtureRequest, ptxas: Ptxas
) -> None:
    pytest.importorskip("triton")
    gpu = request.config.getoption("ciq_gpu") or pytest.skip("needs --ciq-gpu")
    if shutil.which("nvidia-smi") is None:
        pytest.skip("needs an NVIDIA GPU")
    began = time.perf_counter()
    text, numbers = run(tmp_path, f"--ciq-gpu={gpu}", "--ciq-clocks=observe", "--ciq-ncu")
    seconds = time.perf_counter() - began
    print(text, f"\n{seconds:.1f} s")
    found = numbers["win"]["ncu"]
    assert isinstance(found, dict)
    if "unavailable" in found:
        assert found["remedy"]
        assert "; the verdict stands" in text
        pytest.skip(f"said as it has to be: {found['unavailable']}")
    assert seconds <= 40
    assert found["acf"] == "softmax.acf"
    (pair,) = found["kernels"]
    for arm in ("baseline", "acf"):
        assert set(pair[arm]) == {metric.key for metric in ncu_csv.METRICS.values()}
        assert all(value > 0 for value in pair[arm].values()), pair
        assert 1e-6 < pair[arm]["duration_seconds"] < 1e-2
    shown = [_in_eights(pair[arm]["registers_per_thread"]) for arm in ("baseline", "acf")]
    assert shown == list(static_registers(numbers))  # each arm is the build that it is said to be
    for _, label, *_ in ncu_csv.METRICS.values():
        assert label in text


def test_ncu_is_found() -> None:
    try:
        assert Path(ncu.find()).is_file()
    except ncu.NcuError as error:
        pytest.skip(error.what)
