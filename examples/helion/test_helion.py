"""A committed ACF of a Helion kernel: proven without a GPU, timed with ``--ciq-gpu``.

Helion asks the GPU when a kernel is declared. So the fixture imports it: imported with this module
it would start CUDA in pytest's own process, and each isolated test would have to import torch anew.
"""

from __future__ import annotations

import pytest

from pytest_compileiq import CIQ, HelionKernel


@pytest.fixture
def softmax(ciq: CIQ) -> HelionKernel:
    pytest.importorskip("helion", reason="needs Helion and torch")
    import helion_kernel as kernel
    import torch

    torch.manual_seed(0)
    x = torch.randn(kernel.ROWS, kernel.COLUMNS, device="cuda" if ciq.on_gpu else "cpu")

    def check(out: torch.Tensor) -> None:
        torch.testing.assert_close(out, torch.softmax(x, 1), atol=1e-7, rtol=1e-4)

    return HelionKernel(kernel.softmax, args=(x,), check=check, arch="sm_90a")


@pytest.mark.ciq_canary
@pytest.mark.ciq_resources(max_registers=255, max_spill_bytes=0)
@pytest.mark.ciq_max_cv(5)
@pytest.mark.ciq_beats_baseline("softmax.acf")
def test_softmax(ciq: CIQ, softmax: HelionKernel) -> None:
    ciq.check(softmax)


@pytest.mark.ciq_canary
@pytest.mark.ciq_resources(max_registers=255, max_spill_bytes=0)
def test_without_an_acf(ciq: CIQ, softmax: HelionKernel) -> None:
    ciq.check(softmax)
