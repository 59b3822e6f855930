"""``ciq_max_cv`` on a simulated GPU: single launches are judged, however they are timed."""

from __future__ import annotations

import random
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_compileiq import Build, Kernel
from pytest_compileiq.checks import stability, timing
from pytest_compileiq.checks.timing import Stopwatch
from pytest_compileiq.marks import StabilityParams
from pytest_compileiq.measure import cuda
from pytest_compileiq.measure.samples import replay
from pytest_compileiq.measure.timer import Timer
from pytest_compileiq.subjects.kernel import Workbench
from pytest_compileiq.toolchain.assembler import Assembler
from pytest_compileiq.verdict import Reason, Status, Verdict
from tests.measure.simulated import SimulatedGpu


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """``judged(gpu, seconds, percent)``: the verdict on a kernel that takes so long."""

    def judge(gpu: SimulatedGpu, seconds: float, percent: float, cold: bool = True) -> Verdict:
        monkeypatch.setattr(cuda, "CudaDriver", lambda: gpu)
        monkeypatch.setattr(timing, "Timer", lambda *a, **o: Timer(*a, **o, now=gpu.now))
        launch = gpu.kernel("A", seconds)
        build = Build(launch=launch, load=lambda _: launch)
        kernel = Kernel(lambda acf: build, name="k", place=lambda random: random.random())
        held = SimpleNamespace(monitor=SimpleNamespace(reasons=lambda since: 0))
        assembler = Assembler()
        watch = Stopwatch(lambda: nullcontext(held), budget_seconds=60.0, cold=cold)  # type: ignore[arg-type]
        try:
            bench = Workbench(kernel, assembler, tmp_path)
            verdict = stability.judge_kernel(bench, StabilityParams(percent), watch)
        finally:
            watch.close()
            assembler.close()
        (sample,) = verdict.samples
        again = replay(sample)
        assert not again.differences
        assert again.recomputed["status"] == verdict.status.value
        return verdict

    return judge


@pytest.mark.parametrize("cold", [True, False])
@pytest.mark.parametrize("seconds", [2e-6, 6e-6, 18e-6, 50e-6, 200e-6])
def test_noise_of_single_launches_is_seen_at_every_length(
    seconds: float, cold: bool, judged: Any
) -> None:
    """A mean of 30 launches has a fifth of it: 15 % passed for 3 %, and for below 5 %."""
    verdict = judged(SimulatedGpu(jitter=0.15, host_seconds=1e-7), seconds, 5, cold)
    assert (verdict.status, verdict.reason) == (Status.FAIL, Reason.NOISY)
    assert verdict.numbers["classic_cv"] > 0.08
    verdict = judged(SimulatedGpu(jitter=0.024, host_seconds=1e-7), seconds, 5, cold)
    assert verdict.status is Status.PASS
    assert verdict.numbers["short_cv"] == pytest.approx(0.024, rel=0.35)


def test_the_message_counts_single_launches_and_the_record_has_each(judged: Any) -> None:
    gpu = SimulatedGpu(jitter=0.02, host_seconds=1e-7, quantum=32e-9)
    verdict = judged(gpu, 6e-6, 5)
    count = verdict.numbers["launches"]
    assert f"{count} launches" in verdict.message
    assert len(verdict.samples[0]["seconds"]) == count
    assert verdict.numbers["cuda_graph"] is True
    assert verdict.numbers["kernel_seconds"] == pytest.approx(6e-6, rel=0.05)
    assert verdict.numbers["overhead_seconds"] == pytest.approx(2e-6, rel=0.05)


def test_half_the_limit_with_an_outlier_in_a_hundred_takes_150_launches(judged: Any) -> None:
    gpu, draw = SimulatedGpu(jitter=0.01, host_seconds=1e-7), random.Random(1)
    plain = gpu._pass
    gpu._pass = lambda s: plain(1.5 * s if s < 30e-6 and draw.random() < 0.01 else s)  # type: ignore[method-assign]
    found = [judged(gpu, 6e-6, 2) for _ in range(30)]
    assert {one.status for one in found} == {Status.PASS}
    assert median(one.numbers["launches"] for one in found) <= 150


def test_a_limit_below_a_step_of_the_clock_is_unfit(judged: Any) -> None:
    verdict = judged(SimulatedGpu(jitter=0.0005, host_seconds=1e-7, quantum=32e-9), 6e-6, 0.4)
    assert (verdict.status, verdict.reason) == (Status.UNDECIDED, Reason.UNFIT)
    assert "events step by 32 ns, 0.53 % of a launch of" in verdict.message
    assert verdict.remedy == "raise the limit to 0.6 %, or give it more work"
    verdict = judged(SimulatedGpu(jitter=0.0005, host_seconds=1e-7, quantum=32e-9), 6e-6, 0.6)
    assert verdict.status is Status.PASS
