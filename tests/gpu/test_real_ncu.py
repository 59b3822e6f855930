"""--ciq-ncu on a real GPU: ``pytest tests/gpu/test_real_ncu.py --ciq-gpu=0 --ciq-isolate=off -s``.

It needs Triton and ncu, and no ptxas 13.3: the two arms differ in the number of warps.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_compileiq.report import ncu, ncu_csv

pytestmark = pytest.mark.gpu

SUITE = """
import pytest
import torch
import triton
import triton.language as tl
from pytest_compileiq import Build, Kernel

@triton.jit
def softmax_kernel(out, x, n, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    values = tl.load(x + row * n + columns, mask=columns < n, other=-float("inf"))
    powers = tl.exp(values - tl.max(values, axis=0))
    tl.store(out + row * n + columns, powers / tl.sum(powers, axis=0), mask=columns < n)

@pytest.mark.ciq_beats_baseline("best.acf")
def test_softmax(ciq):
    x = torch.rand(8192, 4096, device="cuda")
    out = torch.empty_like(x)

    def build(acf):
        def launch():
            softmax_kernel[(8192,)](out, x, 4096, BLOCK=4096, num_warps=8 if acf else 1)
        return Build(launch=launch)

    ciq.check(Kernel(build, name="softmax", outputs=[out]))
"""


def test_both_arms_of_a_triton_kernel_in_forty_seconds(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    pytest.importorskip("triton")
    gpu = request.config.getoption("ciq_gpu") or pytest.skip("needs --ciq-gpu")
    if shutil.which("nvidia-smi") is None:
        pytest.skip("needs an NVIDIA GPU")
    (tmp_path / "best.acf").write_bytes(b"stands for an ACF: this build does not read it")
    (tmp_path / "test_it.py").write_text(SUITE)

    def run(*arguments: str) -> tuple[float, str, dict[str, object]]:
        command = [sys.executable, "-m", "pytest", "-c", "/dev/null", f"--rootdir={tmp_path}"]
        command += ["-p", "no:cacheprovider", f"--ciq-gpu={gpu}", "--ciq-json=r.json", *arguments]
        began = time.perf_counter()
        done = subprocess.run(
            [*command, "test_it.py"], cwd=tmp_path, capture_output=True, text=True
        )
        seconds = time.perf_counter() - began
        (record,) = json.loads((tmp_path / "r.json").read_text())["records"]
        return seconds, done.stdout + done.stderr, record["numbers"]

    alone, _, _ = run()
    seconds, text, numbers = run("--ciq-ncu")
    print(text, f"\n{seconds:.1f} s, without --ciq-ncu {alone:.1f} s")
    found = numbers["ncu"]
    assert isinstance(found, dict)
    if "unavailable" in found:
        assert found["remedy"]
        assert "; the verdict stands" in text
        pytest.skip(f"said as it has to be: {found['unavailable']}")
    assert seconds - alone <= 40
    (pair,) = found["kernels"]
    for arm in ("baseline", "acf"):
        assert set(pair[arm]) == set(ncu_csv.SHOWN)
        assert all(value > 0 for value in pair[arm].values()), pair
        assert 1e-6 < pair[arm]["duration_seconds"] < 1e-2
    assert pair["baseline"]["registers_per_thread"] > pair["acf"]["registers_per_thread"]
    assert "registers a thread" in text


def test_ncu_is_found() -> None:
    try:
        assert Path(ncu.find()).is_file()
    except ncu.NcuError as error:
        pytest.skip(error.what)
