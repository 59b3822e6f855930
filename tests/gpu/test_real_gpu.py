"""``ciq_gpu`` on a real card under a real load. Run with ``--ciq-gpu=0 --ciq-clocks=observe``."""

from __future__ import annotations

import os
import time

import pytest

from pytest_compileiq.gpu.evidence import Condition
from pytest_compileiq.gpu.session import Held

pytestmark = pytest.mark.gpu


def multiply(seconds: float) -> None:
    """Keep the GPU busy with large matrix products, which draw all the power that it may."""
    torch = pytest.importorskip("torch")
    a, b = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for _ in range(20):
            torch.mm(a, b)
        torch.cuda.synchronize()


def test_a_load_shows_its_clocks_reasons_and_counters(ciq_gpu: Held) -> None:
    with ciq_gpu.window() as window:
        multiply(4)
    seen = window.evidence
    assert seen.busy_samples > 20
    assert seen.sm_mhz_median is not None
    assert seen.sm_mhz_median > 500
    assert seen.power_w is not None
    assert seen.power_w > 100
    assert seen.counters_ms, "no throttle counter was read"
    assert seen.condition is not Condition.UNVERIFIED
    if "H200" in str(ciq_gpu.gpu):
        # Measured: such a product runs into the software power cap, and no clock is locked.
        assert "sw-power-cap" in seen.reason_share, str(seen)


def test_an_idle_gpu_is_not_called_clean(ciq_gpu: Held) -> None:
    time.sleep(1)
    with ciq_gpu.window() as window:
        time.sleep(1)
    assert window.evidence.condition is not Condition.CLEAN
    assert window.evidence.busy_samples == 0


def test_cuda_sees_this_gpu_and_no_other(ciq_gpu: Held) -> None:
    torch = pytest.importorskip("torch")
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ciq_gpu.uuid
    assert torch.cuda.device_count() == 1
    assert str(torch.cuda.get_device_properties(0).uuid) in ciq_gpu.uuid
