"""A committed ACF, proven on any machine with a real ptxas; with ``--ciq-gpu`` timed as well."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from compileiq.utils.helpers import save_compiler_config

from pytest_compileiq import CIQ, Objective, PtxKernel

HERE = Path(__file__).parent


@pytest.fixture
def sgemm(ciq: CIQ) -> PtxKernel:
    if not ciq.on_gpu:  # without one, the kernel is only built
        return PtxKernel("sgemm.ptx", arch="sm_90")
    import torch

    n = 1024
    a, b = (torch.rand(n, n, device="cuda") for _ in "ab")
    c = torch.empty_like(a)
    right = (a.double() @ b.double()).float()
    return PtxKernel(
        "sgemm.ptx",
        arch="sm_90",
        grid=(n // 128, n // 128),
        block=256,
        args=(c, a, b, n),
        outputs=[c],
        check=lambda: torch.testing.assert_close(c, right, rtol=1e-4, atol=1e-3),
    )


# By mark: the test hands over its subject, the marks say what has to hold.


@pytest.mark.ciq_canary(o0="worst.acf", o3="best.acf")
@pytest.mark.ciq_resources(max_registers=80, max_spill_bytes=560, no_worse=True)
@pytest.mark.ciq_max_cv(5)  # on a GPU only
@pytest.mark.ciq_beats_baseline("best.acf")
def test_kernel(ciq: CIQ, sgemm: PtxKernel) -> None:
    ciq.check(sgemm)


# By verb: the same checks, one after the other.


def test_kernel_step_by_step(ciq: CIQ, sgemm: PtxKernel) -> None:
    ciq.assert_canary(sgemm)  # no ACF given: raw -O0 and -O3
    ciq.assert_resources(sgemm, acf="best.acf", max_spill_bytes=560)
    ciq.assert_beats_baseline(sgemm, "best.acf")


def test_compare(ciq: CIQ, sgemm: PtxKernel) -> None:
    comparison = ciq.compare(sgemm, "best.acf")
    assert comparison.baseline is not None
    assert comparison.tuned is not None
    assert comparison.tuned.spill_bytes < 0.7 * comparison.baseline.spill_bytes


# An opaque objective: the function that was given to compileiq.Search, as it was.


@pytest.fixture
def spill_bytes(tmp_path: Path, ciq_ptxas: Path) -> Objective:
    def objective(config: dict[str, object] | str) -> int | str:
        command: list[str | Path]
        command = [ciq_ptxas, "-v", "-arch=sm_90", HERE / "sgemm.ptx", "-o", tmp_path / "x.cubin"]
        if config:  # {} is the baseline: no ACF
            save_compiler_config(str(tmp_path / "x.acf"), str(config))
            command.append(f"--apply-controls={tmp_path / 'x.acf'}")
        done = subprocess.run(command, capture_output=True, text=True)
        found = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
        return int(found[1]) + int(found[2]) if found and done.returncode == 0 else "*"

    return Objective(objective, name="spill_bytes")


@pytest.mark.ciq_objective(objectives=1)
@pytest.mark.ciq_canary(o0="worst.acf", margin=10)
@pytest.mark.ciq_beats_baseline("best.acf", min_speedup=1.5)
def test_objective(ciq: CIQ, spill_bytes: Objective) -> None:
    ciq.check(spill_bytes)


def test_objective_step_by_step(ciq: CIQ, spill_bytes: Objective) -> None:
    ciq.assert_objective(spill_bytes, acf="best.acf")
    ciq.assert_canary(spill_bytes, o0="worst.acf")
    ciq.assert_beats_baseline(spill_bytes, "best.acf", min_speedup=1.5)
