"""The timer on a real GPU: ``pytest tests/gpu/test_real_timing.py --ciq-gpu=0 -m gpu``."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import fmean, median
from types import ModuleType
from typing import Any

import pytest

from pytest_compileiq import CIQ, Build, CiqFailure, Kernel, PtxKernel
from pytest_compileiq.gpu import stream
from pytest_compileiq.measure import decide, units
from pytest_compileiq.measure.timer import Pair, Timer
from pytest_compileiq.measure.units import Budget, Comparison, Plan, Side
from pytest_compileiq.subjects.kernel import Launch
from pytest_compileiq.verdict import Status

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
EXAMPLE = Path(__file__).parents[2] / "examples" / "ptx"
A, B = Side.BASE, Side.CANDIDATE
PLAN = Plan(load=(A, B), capture=(A, B), order=(A, B, B, A))

pytestmark = pytest.mark.gpu


@pytest.fixture
def kernels(ciq_gpu: Any, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    pytest.importorskip("torch")
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module: ModuleType = pytest.importorskip("kernels", reason="no benchmarks beside these tests")
    return module


@pytest.fixture
def idle(kernels: ModuleType) -> Any:
    """8 MiB read and written, then idle cycles: about 10 us and what is added."""
    return kernels.Idle(kernels.idle_cubin(kernels.arch()), 8 << 20)


@pytest.fixture
def driver(kernels: ModuleType) -> Any:
    from pytest_compileiq.measure.cuda import CudaDriver

    return CudaDriver()


def compare(
    driver: Any, pair: Any, rule: decide.Rule, seed: int, budget: float = 2.0
) -> Comparison:
    timer = Timer(driver, seed=seed)
    pilot = timer.add("k", pair)
    one = Comparison("k", rule, pilot.seconds, seed, block_seconds=pilot.block_seconds)
    units.run([one], timer, budget=Budget(gpu_seconds=budget))
    assert one.outcome is not None
    print(one.outcome, pilot.numbers(), sum(unit.timed.gpu_seconds for unit in one.units))
    return one


def test_the_driver_s_parts(driver: Any, idle: Any) -> None:
    """The clock is one that a GPU has, the gate holds back, and an event sees what passes."""
    assert 1 <= driver.step_ns <= 2000
    start, middle, end = (driver.event() for _ in range(3))
    launch = idle.build(2_000_000).launch
    launch()
    driver.synchronize()
    driver.close_gate()
    driver.probe(0)
    driver.record(start)
    launch()
    driver.record(middle)
    driver.flush()
    driver.record(end)
    driver.probe(1)
    assert not middle.is_done
    assert driver.open_gate()
    mhz = driver.mhz(0, 1)
    assert 200 < mhz < 4000
    # 2e6 idle cycles at that clock, and the copy of 8 MiB.
    assert driver.seconds(start, middle) == pytest.approx(2e6 / (mhz * 1e6), rel=0.05)
    assert 1e-6 < driver.seconds(middle, end) < 1e-2


def test_a_gate_that_nobody_opens_gives_up(driver: Any) -> None:
    driver.close_gate()
    driver.synchronize()
    assert not driver.open_gate()


def test_events_in_a_graph_have_times(driver: Any, idle: Any) -> None:
    marks = [(driver.event(), driver.event()) for _ in range(4)]
    launch = idle.build(20_000).load(idle.kernel.place(__import__("random").Random(1)))

    def enqueue() -> None:
        for start, end in marks:
            driver.flush()
            driver.record(start)
            launch()
            driver.record(end)

    graph = driver.capture(enqueue, 16)
    for _ in range(2):
        driver.close_gate()
        graph()
        assert driver.open_gate()
        times = [driver.seconds(*mark) for mark in marks]
        assert all(5e-6 < one < 1e-4 for one in times), times


def test_a_launch_on_another_stream_is_not_taken_for_a_fast_one(driver: Any, idle: Any) -> None:
    import torch

    from pytest_compileiq.errors import CiqError

    other = torch.cuda.Stream()

    def elsewhere() -> None:
        with torch.cuda.stream(other):
            torch.empty(1, device="cuda").fill_(1)

    with pytest.raises(CiqError, match="CUDA graph of the kernel has 0 nodes"):
        driver.capture(elsewhere, 1)


def test_behind_the_gate_a_slow_host_costs_no_time(driver: Any, kernels: ModuleType) -> None:
    """A host that takes 0.3 ms to launch a kernel of 70 us: without the gate the GPU waits."""
    large = kernels.Idle(kernels.idle_cubin(kernels.arch()), 96 << 20)
    quick = large.pair(0, 0)

    def slowly(build: Build) -> Build:
        def load(args: Any) -> Launch:
            assert build.load is not None
            launch = build.load(args)

            def late() -> None:
                time.sleep(300e-6)
                launch()

            return late

        return replace(build, load=load)

    slow = Pair(quick.kernel, {side: slowly(build) for side, build in quick.builds.items()})

    def block_seconds(timer: Timer, pair: Pair) -> tuple[float, float]:
        """Of the first block and of the others."""
        timer.add("k", pair)
        times = [timer("k", PLAN).seconds for _ in range(40)]
        return median(one[0] for one in times), median(fmean(one[1:]) for one in times)

    class Ungated:
        def __getattr__(self, name: str) -> Any:
            return getattr(driver, name)

        def close_gate(self) -> None:
            driver.synchronize()

        def open_gate(self) -> bool:
            driver.synchronize()
            return True

    usual = block_seconds(Timer(driver, seed=1), quick)
    gated = block_seconds(Timer(driver, seed=1), slow)
    ungated = block_seconds(Timer(Ungated(), seed=1), slow)
    print("first block, others: usual", usual, "slow host", gated, "without a gate", ungated)
    assert usual[0] == pytest.approx(usual[1], rel=0.02)
    assert gated == pytest.approx(usual, rel=0.05)
    assert min(ungated) > 300e-6


@pytest.mark.parametrize("megabytes", [1, 8, 96])
def test_identical_kernels_are_not_told_apart(
    driver: Any, kernels: ModuleType, megabytes: int
) -> None:
    subject = kernels.Idle(kernels.idle_cubin(kernels.arch()), megabytes << 20)
    rule = decide.Rule(ratio=1.0, alpha_pass=0.001, alpha_fail=0.001)
    one = compare(driver, subject.pair(0, 0), rule, 1, budget=1.0)
    assert one.outcome is not None
    assert one.outcome.end is decide.End.BUDGET  # neither told apart nor without usable times
    low, high = one.outcome.interval
    assert low is not None
    assert high is not None
    assert low < 1 < high < 1.05 * low


@pytest.mark.parametrize("megabytes", [1, 96])
def test_a_known_effect_of_5_percent_is_found(
    driver: Any, kernels: ModuleType, megabytes: int
) -> None:
    subject = kernels.Idle(kernels.idle_cubin(kernels.arch()), megabytes << 20)
    timer = Timer(driver, seed=2)
    slow = subject.pair(20_000, 20_000)
    seconds = median(timer.add("probe", slow).seconds)
    driver.probe(0)
    slow.builds[A].launch()
    driver.probe(1)
    driver.synchronize()
    cycles = round(0.05 * seconds * (driver.mhz(0, 1) or 1500) * 1e6)
    one = compare(driver, subject.pair(20_000 + cycles, 20_000), decide.win(1.02), 2)
    assert one.outcome is not None
    assert one.outcome.status is Status.PASS
    assert one.outcome.speedup == pytest.approx(1.05, abs=0.01)
    low, high = one.outcome.interval
    assert low is not None
    assert high is not None
    assert 1.0 < low < 1.06
    assert math.isfinite(high)


def test_fill_and_place(kernels: ModuleType) -> None:
    import torch

    x = torch.arange(1000, device="cuda", dtype=torch.bfloat16)
    stream.fill(x)
    assert torch.isnan(x).all()
    source = torch.arange(1000, device="cuda", dtype=torch.float32)
    from random import Random

    from pytest_compileiq.subjects.placing import place

    first, seven = place((source, 7), Random(1))
    second, _ = place((source, 7), Random(2))
    assert seven == 7
    assert len({first.data_ptr(), second.data_ptr(), source.data_ptr()}) == 3
    core = stream.core()
    # As without torch: cuda-core's own memory.
    (third,) = place((core.Buffer.from_handle(source.data_ptr(), 4000, owner=source),), Random(1))
    back = torch.empty_like(source)
    target = core.Buffer.from_handle(back.data_ptr(), 4000)
    target.copy_from(third, stream=stream.current())
    stream.synchronize()
    assert torch.equal(first, source)
    assert torch.equal(back, source)


SCALE = """
.version 7.8
.target sm_80
.address_size 64
.visible .entry scale(.param .u64 out, .param .u64 in, .param .f32 by, .param .u32 n)
{
    .reg .pred %p; .reg .b32 %i, %t, %b, %n; .reg .f32 %f, %by; .reg .b64 %o, %x, %y;
    ld.param.u64 %x, [in]; ld.param.u64 %y, [out]; ld.param.f32 %by, [by]; ld.param.u32 %n, [n];
    mov.u32 %t, %tid.x; mov.u32 %b, %ntid.x; mov.u32 %i, %ctaid.x;
    mad.lo.u32 %i, %i, %b, %t;
    setp.ge.u32 %p, %i, %n;
    @%p bra done;
    mul.wide.u32 %o, %i, 4;
    add.u64 %x, %x, %o; add.u64 %y, %y, %o;
    ld.global.f32 %f, [%x]; mul.f32 %f, %f, %by; st.global.f32 [%y], %f;
done:
    ret;
}
"""


@pytest.fixture
def scale(ciq: CIQ) -> Iterator[Any]:
    """PtxKernel through the whole fixture: times 3.0, whatever it is checked against."""
    if not ciq.on_gpu:
        pytest.skip("needs a GPU: run with --ciq-gpu=SPEC")
    torch = pytest.importorskip("torch")
    n = 1 << 22
    source = torch.rand(n, device="cuda")
    out = torch.empty_like(source)
    major, minor = torch.cuda.get_device_capability()

    def make(factor: float) -> PtxKernel:
        return PtxKernel(
            SCALE,
            arch=f"sm_{major}{minor}",
            entry="scale",
            grid=n // 256,
            block=256,
            args=(out, source, 3.0, n),
            outputs=[out],
            check=lambda: torch.testing.assert_close(out, factor * source),
        )

    return make


def test_a_wrong_baseline_is_told_before_any_time(ciq: CIQ, scale: Any) -> None:
    with pytest.raises(CiqFailure) as raised:
        ciq.assert_stable(scale(2.0), 50)
    (verdict,) = raised.value.verdicts
    assert verdict.reason == "unfit"
    assert "the result is wrong before timing, without any ACF" in verdict.message
    assert not verdict.samples


def test_an_acf_that_breaks_the_kernel(ciq: CIQ, kernels: ModuleType) -> None:
    """Only with the ACF does the kernel sum up half of what it should."""
    import torch

    from pytest_compileiq.subjects.launcher import Loaded
    from pytest_compileiq.toolchain import ptxas

    n = 1024
    a, b = (torch.rand(n, n, device="cuda") for _ in "ab")
    c = torch.empty_like(a)
    text = (EXAMPLE / "sgemm.ptx").read_text()

    def build(acf: Path | None) -> Build:
        made = ptxas.assemble(ptxas.find(), text, arch=kernels.arch(), acf=acf, timeout=60)
        size = n if acf is None else n // 2

        def launch() -> None:
            Loaded(made.cubin, "sgemm", (n // 128, n // 128), 256).bind((c, a, b, size))()

        return Build(made.cubin, made.log, launch=launch)

    right = a @ b
    kernel = Kernel(
        build,
        entry="sgemm",
        outputs=[c],
        check=lambda: torch.testing.assert_close(c, right, rtol=1e-2, atol=1e-1),
    )
    with pytest.raises(CiqFailure) as raised:
        ciq.assert_beats_baseline(kernel, EXAMPLE / "best.acf")
    (verdict,) = raised.value.verdicts
    assert verdict.reason == "wrong-result", verdict.message
    assert "best.acf: the result is wrong before timing" in verdict.message


def test_the_cv_of_a_steady_kernel(ciq: CIQ, scale: Any) -> None:
    verdict = ciq.assert_stable(scale(3.0), 25)
    assert verdict.status is Status.PASS
    assert verdict.numbers["launches"] <= 300
    with pytest.raises(CiqFailure) as raised:
        ciq.assert_stable(scale(3.0), 0.0001)
    assert [one.reason for one in raised.value.verdicts] == ["noisy"]


def test_raw_o0_is_slower(ciq: CIQ, kernels: ModuleType) -> None:
    """The example's kernel, without any ACF: O0 in time, and O3 as the baseline's own code."""
    torch = pytest.importorskip("torch")
    n = 1024
    a, b = (torch.rand(n, n, device="cuda") for _ in "ab")
    c = torch.empty_like(a)
    kernel = PtxKernel(
        (EXAMPLE / "sgemm.ptx").read_text(),
        arch=kernels.arch(),
        entry="sgemm",
        grid=(n // 128, n // 128),
        block=256,
        args=(c, a, b, n),
        outputs=[c],
        check=lambda: torch.testing.assert_close(c, a @ b, rtol=1e-3, atol=1e-2),
    )
    verdict = ciq.assert_canary(kernel)
    assert verdict.status is Status.PASS
    timed = verdict.numbers["timed_o0"]
    assert timed["speedup"] < 0.8  # type: ignore[index]
    print(verdict.message, timed)


def test_a_build_that_cannot_run_is_unfit(ciq: CIQ) -> None:
    if not ciq.on_gpu:
        pytest.skip("needs a GPU: run with --ciq-gpu=SPEC")
    with pytest.raises(pytest.skip.Exception, match="gives no launch"):
        ciq.assert_stable(Kernel(lambda acf: Build()), 5)
