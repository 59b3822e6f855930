"""A committed ACF of a CUDA kernel: proven without a GPU, timed with ``--ciq-gpu``."""

from __future__ import annotations

import contextlib
import shutil

import pytest

from pytest_compileiq import CIQ, NvccKernel

with contextlib.suppress(ImportError):
    # Here and not in the fixture: each isolated test then finds it imported, which saves seconds.
    import torch

ROWS, COLUMNS = 8192, 16384

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on PATH")


@pytest.fixture
def logsumexp(ciq: CIQ) -> NvccKernel:
    if not ciq.on_gpu:
        return NvccKernel("logsumexp.cu", arch="sm_90a")
    torch.manual_seed(0)
    x = torch.randn(ROWS, COLUMNS, device="cuda")
    out = torch.empty(ROWS, device="cuda")
    right = torch.logsumexp(x, 1)
    return NvccKernel(
        "logsumexp.cu",
        arch="sm_90a",
        grid=ROWS,
        block=256,
        args=(out, x, COLUMNS),
        outputs=[out],
        check=lambda: torch.testing.assert_close(out, right, atol=1e-4, rtol=1e-5),
    )


@pytest.mark.ciq_canary
@pytest.mark.ciq_resources(max_registers=64, max_spill_bytes=0)
@pytest.mark.ciq_max_cv(5)
@pytest.mark.ciq_beats_baseline("best.acf")
def test_logsumexp(ciq: CIQ, logsumexp: NvccKernel) -> None:
    ciq.check(logsumexp)


@pytest.mark.ciq_canary
@pytest.mark.ciq_resources(max_registers=64, max_spill_bytes=0)
def test_without_an_acf(ciq: CIQ, logsumexp: NvccKernel) -> None:
    ciq.check(logsumexp)
