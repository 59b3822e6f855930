"""The timer on a simulated GPU: each rule of a unit, and what goes wrong without it."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from statistics import median, stdev
from typing import Any

import pytest

from pytest_compileiq.errors import CiqError
from pytest_compileiq.measure import decide, units
from pytest_compileiq.measure.blocks import Form, choose_form
from pytest_compileiq.measure.timer import Pair, Timer
from pytest_compileiq.measure.units import Budget, Comparison, Plan, Side
from pytest_compileiq.subjects.kernel import Build, Kernel
from pytest_compileiq.verdict import Status

from .simulated import SimulatedGpu, kernel

A, B = Side.BASE, Side.CANDIDATE
PLAN = Plan(load=(B, A), capture=(B, A), order=(A, B, B, A))


def timer_of(
    gpu: SimulatedGpu, base: float = 70e-6, candidate: float = 70e-6, **options: Any
) -> tuple[Timer, Any]:
    made, first, second = kernel(gpu, base, candidate)
    timer = Timer(gpu, seed=1, now=gpu.now, **options)
    return timer, timer.add("k", Pair(made, {A: first, B: second}))


def unit_log(gpu: SimulatedGpu, timer: Timer, plan: Plan = PLAN) -> list[tuple[str, Any]]:
    gpu.log.clear()
    timer("k", plan)
    return list(gpu.log)


def test_a_unit_is_a_seat_then_four_blocks_behind_a_gate() -> None:
    gpu = SimulatedGpu()
    timer, pilot = timer_of(gpu)
    assert pilot.form == Form(launches=2)  # no jitter at all: 32 ns matter at 70 us
    log = unit_log(gpu, timer)
    (name_b, seat_b), (name_a, seat_a) = log[:2]
    assert (name_b, name_a) == ("load B", "load A")  # as the coin says
    assert seat_a == seat_b  # the same buffers for both
    assert [name for name, _ in log[2:4]] == ["cold", "cold"]  # each run once, not timed
    assert log[4] == ("gate", None)
    launch = ["flush", "event", "cold", "event"]
    block = ["probe", *launch * 2, "probe"]
    assert [name for name, _ in log[5:]] == block * 4
    assert [of for name, of in log[5:] if name == "cold"] == list("AABBBBAA")
    assert unit_log(gpu, timer)[0][1] != seat_b  # the next unit lies elsewhere


def test_where_a_seat_lies_follows_from_the_seed() -> None:
    def places(seed: int) -> list[Any]:
        gpu = SimulatedGpu()
        made, first, second = kernel(gpu, 70e-6, 70e-6)
        timer = Timer(gpu, seed=seed, now=gpu.now)
        timer.add("k", Pair(made, {A: first, B: second}))
        return [unit_log(gpu, timer)[0][1] for _ in range(3)]

    assert places(1) == places(1)
    assert not set(places(1)) & set(places(2))


def test_a_clock_that_cannot_be_told_in_one_block_is_not_told() -> None:
    gpu = SimulatedGpu()
    timer, _ = timer_of(gpu)
    assert timer("k", PLAN).health.mhz == (1980.0,) * 4
    gpu.mhz = lambda first, last: 0.0 if first == 2 else 1980.0  # type: ignore[method-assign]
    assert timer("k", PLAN).health.mhz == ()


def test_without_a_gate_the_first_block_is_too_slow() -> None:
    """On an H200 by up to 10 %: the host is still enqueuing while the GPU has begun."""

    def times(gate: bool) -> tuple[float, ...]:
        timer, _ = timer_of(SimulatedGpu(host_seconds=30e-6, gate=gate), 300e-6, 300e-6)
        return timer("k", PLAN).seconds

    first, *rest = times(gate=False)
    assert first > 1.05 * max(rest)
    assert times(gate=True) == pytest.approx([300e-6] * 4)


@pytest.mark.parametrize("seconds", [6e-6, 70e-6, 300e-6])
@pytest.mark.parametrize("cold", [True, False])
def test_the_cache_is_in_the_declared_state_at_every_timed_launch(
    seconds: float, cold: bool
) -> None:
    gpu = SimulatedGpu(jitter=0.01)
    timer, pilot = timer_of(gpu, seconds, seconds, cold=cold)
    log = unit_log(gpu, timer)
    timed = log[log.index(("gate", None)) :]
    states = [name for name, _ in timed if name in ("cold", "warm")]
    blocks = 7 if cold and pilot.form.graph else 4
    if cold:
        assert set(states) == {"cold"}
        flushes = sum(name == "flush" for name, _ in timed)
        assert flushes == len(states) == blocks * pilot.form.launches
    else:  # primed: the launch before the first event is of the same kernel
        assert len(states) == blocks * (pilot.form.launches + 1)
        inside = [
            state
            for first, last in block_bounds(timed)
            for state, _ in timed[first:last]
            if state in ("cold", "warm")
        ]
        assert set(inside) == {"warm"}
        assert len(inside) == blocks * pilot.form.launches
    share = 1.0 if cold else 0.7
    assert median(timer("k", PLAN).seconds) == pytest.approx(share * seconds, rel=0.05)


def block_bounds(log: list[tuple[str, Any]]) -> list[tuple[int, int]]:
    events = [index for index, (name, _) in enumerate(log) if name == "event"]
    return list(zip(events[::2], events[1::2], strict=True))


@pytest.mark.parametrize("capture", [(A, B), (B, A)])
def test_short_kernels_run_in_graphs_captured_in_the_coin_s_order(
    capture: tuple[Side, Side],
) -> None:
    gpu = SimulatedGpu()
    timer, pilot = timer_of(gpu, 6e-6, 6e-6)
    assert pilot.form == Form(launches=30, graph=True)
    gpu.captured.clear()
    log = unit_log(gpu, timer, Plan(load=(A, B), capture=capture, order=(B, A, A, B)))
    # One graph a block: a second run of one would overwrite the first run's events.
    blocks = {A: 2, B: 4}  # its edges are of the sides that they touch
    assert [name for name, _ in gpu.captured] == [
        side.value for side in capture for _ in range(blocks[side])
    ]
    ran = [of for name, of in log[log.index(("gate", None)) :] if name == "cold"]
    assert ran[::30] == list("BBAABBB")
    assert {nodes for _, nodes in gpu.captured} == {4 * 30}  # flush, event, kernel, event


@pytest.mark.parametrize("seconds", [2e-6, 6e-6, 18e-6])
def test_graphs_with_few_behind_them_are_not_read(seconds: float) -> None:
    """The last 30 launches took up to 5 % less on an H200. The first behind a gate can take more."""
    gpu = SimulatedGpu(end=0.04, first=0.3)
    timer, pilot = timer_of(gpu, seconds, seconds)
    assert pilot.form.graph
    assert pilot.seconds == pytest.approx([seconds] * 16)
    assert pilot.overhead_seconds == pytest.approx(2e-6)
    gpu.mhz = lambda first, last: float(first)  # type: ignore[method-assign]
    timed = timer("k", PLAN)
    assert timed.seconds == pytest.approx([seconds] * 4)
    assert timed.health.mhz == (2, 4, 6, 8)  # those of the same four blocks


def test_a_launch_of_several_operations_has_shorter_blocks() -> None:
    """24 launches of five nodes are as many as 30 of four, and as many more run behind them."""
    gpu = SimulatedGpu()
    made, base, candidate = kernel(gpu, 6e-6, 6e-6, (1, 2))
    timer = Timer(gpu, seed=1, now=gpu.now)
    assert timer.add("k", Pair(made, {A: base, B: candidate})).form == Form(24, graph=True)
    form = Form(30, graph=True)
    assert form.fitting(120) == form
    assert form.fitting(30 * 13) == replace(form, launches=4)  # edges of nine blocks
    assert form.fitting(30 * 500) == replace(form, launches=1)


def test_only_what_runs_is_captured() -> None:
    gpu = SimulatedGpu()
    timer, _ = timer_of(gpu, 6e-6, 6e-6, cold=False)
    gpu.captured.clear()
    timer("k", PLAN)
    assert len(gpu.captured) == 4


def test_a_graph_s_second_run_does_not_count_for_its_first() -> None:
    gpu = SimulatedGpu(drift=50.0)
    timer, _ = timer_of(gpu, 6e-6, 6e-6)
    times = timer("k", PLAN).seconds
    assert all(first < second for first, second in pairwise(times))


@pytest.mark.parametrize(
    ("seconds", "jitter", "cold", "expected"),
    [
        (1e-3, 0.0, True, Form()),
        (150e-6, 0.0, True, Form()),  # 32 ns do not matter from 100 us on
        (50e-6, 0.01, True, Form()),  # jitter hides the clock's steps
        (50e-6, 0.001, True, Form(2)),  # 32 ns are 0.064 %, more than a quarter of 0.1 %
        (19e-6, 0.01, True, Form(11, graph=True)),
        (6e-6, 0.01, True, Form(30, graph=True)),
        (6e-6, 0.01, False, Form(34, graph=True, cold=False)),
        (0.5e-6, 0.01, False, Form(128, graph=True, cold=False)),
    ],
)
def test_the_form_of_a_block(seconds: float, jitter: float, cold: bool, expected: Form) -> None:
    assert choose_form(seconds, jitter, cold=cold) == expected


@pytest.mark.parametrize("seconds", [1e-6, 6e-6, 12e-6, 19e-6, 60e-6])
@pytest.mark.parametrize("cold", [True, False])
@pytest.mark.parametrize("operations", [(1, 1), (1, 2), (3, 1), (1, 6), (6, 1)])
def test_a_queue_is_never_longer_than_cuda_s(
    seconds: float, cold: bool, operations: tuple[int, int]
) -> None:
    """Which counts what is in a graph too: with 1080 nodes the host waited on an H200."""
    gpu = SimulatedGpu()
    timer = Timer(gpu, seed=1, now=gpu.now, cold=cold)
    made, base, candidate = kernel(gpu, seconds, seconds, operations)
    pilot = timer.add("k", Pair(made, {A: base, B: candidate}))
    assert pilot.form.launches > 1 or seconds > 50e-6
    series = timer.series("k")
    timer("k", PLAN)
    for _ in range(40):
        next(series)
    assert gpu.longest <= 855


def test_linear_drift_cancels() -> None:
    gpu = SimulatedGpu(drift=20.0)
    timer, _ = timer_of(gpu, 300e-6, 300e-6)
    times = timer("k", PLAN).seconds
    assert times[3] > 1.01 * times[0]
    assert abs(units.log_ratio(PLAN.order, times)) < 2e-3


def test_warm_up_lasts_100_ms_and_until_the_clock_is_steady() -> None:
    gpu = SimulatedGpu()
    _, pilot = timer_of(gpu, 300e-6, 300e-6)
    assert 0.1 <= pilot.warm_up_seconds < 0.2
    settling = SimulatedGpu(clock=lambda t: 1980.0 - 400 * min(t, 0.5))
    _, pilot = timer_of(settling, 300e-6, 300e-6)
    assert 0.5 <= pilot.warm_up_seconds < 0.8
    never = SimulatedGpu(clock=lambda t: 1500.0 + 200 * math.sin(40 * t))
    _, pilot = timer_of(never, 300e-6, 300e-6)
    assert 1.0 <= pilot.warm_up_seconds < 1.2


def test_a_warm_gpu_is_not_warmed_again_and_a_cold_one_is() -> None:
    gpu = SimulatedGpu()
    timer, _ = timer_of(gpu, 300e-6, 300e-6)
    made, base, candidate = kernel(gpu, 300e-6, 300e-6)
    pair = Pair(made, {A: base, B: candidate})
    assert timer.add("again", pair).warm_up_seconds < 0.01
    gpu.host += 1.0
    assert timer.add("later", pair).warm_up_seconds > 0.1


def test_a_launch_that_waits_for_the_gpu_is_named() -> None:
    gpu = SimulatedGpu()
    launch = gpu.kernel("A", 70e-6)

    def waits() -> None:
        launch()
        gpu.wait()

    build = Build(b"", launch=waits)
    with pytest.raises(CiqError, match="waited 1 s for launches to be enqueued") as raised:
        Timer(gpu, seed=1, now=gpu.now).add(
            "k", Pair(Kernel(lambda acf: build), {A: build, B: build})
        )
    assert "only enqueue" in raised.value.remedy


def test_a_unit_whose_gate_gave_up_says_nothing() -> None:
    gpu = SimulatedGpu()
    timer, _ = timer_of(gpu)
    gpu.host_seconds = 0.1  # the host was held up
    assert all(map(math.isnan, timer("k", PLAN).seconds))


def test_a_build_without_a_launch() -> None:
    gpu = SimulatedGpu()
    pair = Pair(Kernel(lambda acf: Build(), name="k"), {A: Build(), B: Build()})
    with pytest.raises(CiqError, match="k: the build cannot be launched"):
        Timer(gpu, seed=1, now=gpu.now).add("k", pair)


def test_a_build_without_load_has_one_seat_and_says_so() -> None:
    gpu = SimulatedGpu(jitter=0.01)
    build = Build(b"", launch=gpu.kernel("A", 70e-6))
    timer = Timer(gpu, seed=1, now=gpu.now)
    pilot = timer.add("k", Pair(Kernel(lambda acf: build), {A: build, B: build}))
    assert pilot.numbers()["seats"] is False
    assert len(timer("k", PLAN).seconds) == 4


def compare(gpu: SimulatedGpu, candidate: float, **rule: Any) -> Comparison:
    timer, pilot = timer_of(gpu, 300e-6, candidate)
    block = pilot.block_seconds
    one = Comparison("k", decide.win(**rule), pilot.seconds, seed=5, block_seconds=block)
    units.run([one], timer, budget=Budget(gpu_seconds=2.0), pause=lambda s: None)
    return one


def test_a_true_gain_is_found_and_identical_kernels_are_not_told_apart() -> None:
    one = compare(SimulatedGpu(jitter=0.01), 300e-6 / 1.05, min_speedup=1.02)
    assert one.outcome is not None
    assert one.outcome.status is Status.PASS
    assert len(one.pilot) + 4 * len(one.units) <= 60
    assert one.outcome.speedup == pytest.approx(1.05, rel=0.01)
    one = compare(SimulatedGpu(jitter=0.01), 300e-6)
    assert one.outcome is not None
    assert one.outcome.status is not Status.PASS


def test_a_unit_in_which_the_clock_changed_is_thrown_away_whole() -> None:
    """Every third unit meets a clock that drops: none of its four blocks is used."""
    gpu = SimulatedGpu(
        jitter=0.002, clock=lambda t: 1980.0 if math.fmod(t, 0.02) < 0.013 else 1500.0
    )
    one = compare(gpu, 300e-6 / 1.05)
    rejected = [unit for unit in one.units if unit.rejected]
    assert rejected
    assert {unit.rejected for unit in rejected} <= {"clock change"}
    assert all(len(unit.timed.seconds) == 4 for unit in rejected)
    assert one.kept == len(one.units) - len(rejected) == one.judge.test.n
    assert one.outcome is not None
    assert one.outcome.speedup == pytest.approx(1.05, rel=0.02)


def test_event_reasons_reach_the_unit() -> None:
    gpu = SimulatedGpu()
    made, base, candidate = kernel(gpu, 70e-6, 70e-6)
    asked: list[float] = []

    def reasons(since: float) -> int:
        asked.append(since)
        return 0x40

    timer = Timer(gpu, seed=1, now=gpu.now, reasons=reasons)
    timer.add("k", Pair(made, {A: base, B: candidate}))
    before = gpu.now()
    timed = timer("k", PLAN)
    assert units.reject(timed.health) == "hardware thermal slowdown"
    assert asked == [before]


def test_a_site_times_every_block_itself() -> None:
    gpu = SimulatedGpu()
    made, base, candidate = kernel(gpu, 70e-6, 70e-6)
    calls: list[tuple[str, Side]] = []

    def time_block(name: str, side: Side, launch: Any) -> float:
        launch()
        calls.append((name, side))
        return 1e-3 if side is A else 2e-3

    timer = Timer(None, seed=1, time_block=time_block)
    pilot = timer.add("k", Pair(made, {A: base, B: candidate}))
    assert pilot.seconds == (1e-3,) * 16
    assert timer("k", PLAN).seconds == (1e-3, 2e-3, 2e-3, 1e-3)
    assert calls[16:] == [("k", side) for side in PLAN.order]


@pytest.mark.parametrize("cold", [True, False])
@pytest.mark.parametrize(("seconds", "graph"), [(6e-6, True), (18e-6, True), (70e-6, False)])
def test_series_times_single_launches(seconds: float, graph: bool, cold: bool) -> None:
    """Each between events of its own, its cache in the declared state, where blocks hold many."""
    gpu = SimulatedGpu(jitter=0.1 if graph else 0.0, host_seconds=1e-7)
    timer, pilot = timer_of(gpu, seconds, seconds, cold=cold)
    assert pilot.form.launches > 1
    assert pilot.form.graph is graph
    captured = len(gpu.captured)
    gpu.log.clear()
    series = timer.series("k")
    times = [next(series) for _ in range(200)]
    if graph:
        assert stdev(map(math.log, times)) == pytest.approx(0.1, rel=0.2)
        assert len(gpu.captured) > captured
    log = gpu.log[next(k for k, (name, _) in enumerate(gpu.log) if name == "gate") :]
    for first, last in block_bounds(log):
        assert [name for name, _ in log[first:last]] == ["event", "cold" if cold else "warm"]
        assert not cold or log[first - 1][0] == "flush"


def test_series_is_the_baseline_alone() -> None:
    gpu = SimulatedGpu()
    timer, _ = timer_of(gpu, 70e-6, 140e-6)
    gpu.log.clear()
    series = timer.series("k")
    assert [next(series) for _ in range(20)] == pytest.approx([70e-6] * 20)
    assert {of for name, of in gpu.log if name in ("cold", "warm")} == {"A"}


@pytest.mark.parametrize("cold", [True, False])
@pytest.mark.parametrize(("seconds", "graph"), [(6e-6, True), (18e-6, True), (70e-6, False)])
def test_series_leaves_its_edges_out(seconds: float, graph: bool, cold: bool) -> None:
    """A gate before a launch, or the end of a graph behind it, are no jitter of the kernel."""
    ends = 0.1 if cold else 0.0
    gpu = SimulatedGpu(first=0.1, last=ends, end=ends)
    timer, pilot = timer_of(gpu, seconds, seconds, cold=cold)
    assert pilot.form.graph is graph
    series = timer.series("k")
    share = 1.0 if cold else 0.7
    assert [next(series) for _ in range(100)] == pytest.approx([share * seconds] * 100)


@pytest.mark.parametrize("seconds", [12e-6, 19e-6, 300e-6])
def test_neighbours_of_a_series_have_no_gate_between_them(seconds: float) -> None:
    """The noise is told from the first and second, the third and fourth, and so on."""
    gpu = SimulatedGpu()
    timer, _ = timer_of(gpu, seconds, seconds)
    series = timer.series("k")

    def gate() -> int:
        next(series)
        return sum(name == "gate" for name, _ in gpu.log)

    gates = [gate() for _ in range(60)]
    assert gates[::2] == gates[1::2]
    assert len(set(gates)) > 3
