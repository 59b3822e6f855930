from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest

from pytest_compileiq.measure.decide import End, Rule, not_slower, win
from pytest_compileiq.measure.units import (
    FIRST_ROUND,
    Budget,
    Coins,
    Comparison,
    Health,
    Plan,
    Side,
    Timed,
    TimeUnit,
    Unit,
    log_ratio,
    run,
)
from pytest_compileiq.verdict import Reason, Status

A, B = Side
ABBA = (A, B, B, A)
PILOT = np.exp(0.01 * np.random.default_rng(9).standard_normal(16) - 9).tolist()


def comparison(name: str = "k", seed: int = 1, **more: object) -> Comparison:
    return Comparison(name, more.pop("rule", win()), PILOT, seed, **more)  # type: ignore[arg-type]


def timer(speedups: dict[str, float], noise: float = 0.01) -> TimeUnit:
    rng = np.random.default_rng(4)

    def time_unit(name: str, plan: Plan) -> Timed:
        gain = {A: 1.0, B: speedups[name]}
        noises = noise * rng.standard_normal(4)
        seconds = [
            1e-4 * math.exp(n) / gain[side] for n, side in zip(noises, plan.order, strict=True)
        ]
        return Timed(tuple(seconds), gpu_seconds=sum(seconds))

    return time_unit


def test_log_ratio_is_the_speedup_and_drift_cancels() -> None:
    drift = [math.exp(0.05 * slot) for slot in range(4)]
    for order in (ABBA, (B, A, A, B)):
        seconds = [
            (2.0 if side is A else 1.0) * slow for side, slow in zip(order, drift, strict=True)
        ]
        assert log_ratio(order, seconds) == pytest.approx(math.log(2), rel=1e-12)
    assert log_ratio((A, B, A, B), drift) == pytest.approx(-0.05)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_a_unit_without_a_time_says_nothing(bad: float) -> None:
    assert math.isnan(log_ratio(ABBA, [1.0, 1.0, bad, 1.0]))
    with pytest.raises(ValueError, match="4 blocks were asked for and 3 timed"):
        log_ratio(ABBA, [1.0] * 3)


def test_coins_are_fair_independent_and_replayable() -> None:
    plans = [Coins(7, "k").plan() for _ in range(2)]
    assert plans[0] == plans[1]
    coins = Coins(7, "k")
    drawn = [coins.plan() for _ in range(4000)]
    counts = Counter((plan.load[0], plan.capture[0], plan.order[0]) for plan in drawn)
    assert len(counts) == 8
    assert all(abs(count - 500) < 100 for count in counts.values())
    assert {plan.order for plan in drawn} == {ABBA, (B, A, A, B)}
    other = Coins(7, "other")
    assert [other.plan() for _ in range(20)] != drawn[:20]


def test_first_round_then_turns_for_the_undecided() -> None:
    asked: list[str] = []
    time_unit = timer({"fast": 1.5, "same": 1.0, "slow": 0.7})

    def logged(name: str, plan: Plan) -> Timed:
        asked.append(name)
        return time_unit(name, plan)

    ones = [comparison(name) for name in ("fast", "same", "slow")]
    run(ones, logged, budget=Budget(blocks=16 + 4 * 30))
    assert [one.outcome and one.outcome.status for one in ones] == [
        Status.PASS,
        Status.UNDECIDED,
        Status.FAIL,
    ]
    runs = [(name, len(list(group))) for name, group in itertools.groupby(asked)]
    assert runs[:3] == [("fast", 6), ("same", FIRST_ROUND), ("slow", FIRST_ROUND)]
    assert runs[3:] == [("same", 30 - FIRST_ROUND)]


def test_turns_are_spread_over_time() -> None:
    asked: list[str] = []
    time_unit = timer({"a": 1.0, "b": 1.0})

    def logged(name: str, plan: Plan) -> Timed:
        asked.append(name)
        return time_unit(name, plan)

    run([comparison("a"), comparison("b")], logged, budget=Budget(blocks=16 + 4 * 20))
    assert "".join(asked) == "a" * 8 + "b" * 8 + "ab" * 12


def test_a_decided_comparison_costs_nothing() -> None:
    one = comparison()
    run([one], timer({"k": 1.5}))
    units = list(one.units)
    run([one], lambda name, plan: pytest.fail("timed without need"))
    assert one.units == units


def test_budget_counts_blocks_and_the_pilot() -> None:
    one = comparison()
    run([one], timer({"k": 1.0}, noise=0.1), budget=Budget(blocks=200))
    assert one.outcome
    assert (one.outcome.end, one.outcome.units) == (End.BUDGET, (200 - 16) // 4)


@pytest.mark.parametrize(("seconds", "units"), [(0.01, 6), (2.0, 20)])
def test_gpu_seconds_end_it_but_not_before_a_verdict_was_possible(
    seconds: float, units: int
) -> None:
    one = comparison()

    def slow_kernel(_: str, plan: Plan) -> Timed:
        sign = 1 if len(one.units) % 2 else -1
        return Timed(tuple(0.1 + 0.001 * sign * (s is A) for s in plan.order), gpu_seconds=0.1)

    run([one], slow_kernel, budget=Budget(gpu_seconds=seconds))
    assert one.outcome
    assert one.outcome.end is End.BUDGET
    assert one.outcome.units == units


def test_disturbed_units_are_kept_out_whole() -> None:
    time_unit = timer({"k": 1.05})
    reasons = itertools.cycle([0x4, 0x40, 0x4, 0x4, 0x4, 0x4])

    def disturbed(name: str, plan: Plan) -> Timed:
        timed = time_unit(name, plan)
        reason = next(reasons)
        seconds = tuple(one * 9 for one in timed.seconds) if reason == 0x40 else timed.seconds
        return Timed(seconds, health=Health(reasons=reason))

    one = comparison()
    run([one], disturbed)
    assert one.outcome
    assert one.outcome.status is Status.PASS
    assert one.outcome.units == one.kept == len(one.units) - 1
    assert [unit.rejected for unit in one.units if unit.rejected] == ["hardware thermal slowdown"]


def disturbed_every(nth: int, health: Health, blocks: int) -> tuple[Comparison, list[float]]:
    """A run with every nth unit disturbed, on kernels that cannot be told apart, and its pauses."""
    time_unit = timer({"k": 1.0}, noise=0.1)
    turn = itertools.count(1)

    def time_it(name: str, plan: Plan) -> Timed:
        bad = next(turn) % nth == 0
        return Timed(time_unit(name, plan).seconds, health=health if bad else Health())

    one, pauses = comparison(), list[float]()
    run([one], time_it, budget=Budget(blocks=blocks), pause=pauses.append)
    return one, pauses


def test_disturbed_units_cost_of_the_budget_too() -> None:
    one, pauses = disturbed_every(6, Health(reasons=0x40), 16 + 4 * 30)
    assert one.outcome
    assert (len(one.units), one.outcome.units, pauses) == (30, 25, [])


def test_more_than_a_fifth_disturbed_is_a_pause() -> None:
    _, pauses = disturbed_every(4, Health(reasons=0x40), 16 + 4 * 30)
    assert pauses[:1] == [0.5]


@pytest.mark.parametrize(("nth", "moving"), [(6, False), (4, True)])
def test_clocks_that_change_in_more_than_a_fifth_are_this_card_s_way(
    nth: int, moving: bool
) -> None:
    one, pauses = disturbed_every(nth, Health(mhz=(1980.0, 1500.0)), 16 + 4 * 40)
    assert one.clocks_move is moving
    assert pauses == []


def test_throttling_pauses_and_then_is_unfit() -> None:
    pauses: list[float] = []
    one = comparison()
    hot = Health(reasons=0x20)
    run([one], lambda *_: Timed((1e-4,) * 4, health=hot), pause=pauses.append)
    assert one.outcome
    assert (one.outcome.status, one.outcome.reason) == (Status.UNDECIDED, Reason.UNFIT)
    assert (one.outcome.end, one.outcome.units) == (End.THROTTLED, 0)
    assert pauses == [0.5, 1.0, 2.0]
    assert len(one.units) == 13


def test_a_pause_that_helps_ends_in_an_answer() -> None:
    time_unit = timer({"k": 1.3})
    cold = False

    def cool(_: float) -> None:
        nonlocal cold
        cold = True

    def hot_at_first(name: str, plan: Plan) -> Timed:
        timed = time_unit(name, plan)
        return Timed(timed.seconds, health=Health(reasons=0 if cold else 0x8))

    one = comparison()
    run([one], hot_at_first, pause=cool)
    assert one.outcome
    assert one.outcome.status is Status.PASS


@pytest.mark.parametrize("speedup", [1.0, 1.1])
def test_clocks_that_never_hold_still_are_lived_with(speedup: float) -> None:
    """As of a matrix product at the power limit: no pause helps, and no unit would be left."""
    time_unit = timer({"k": speedup})
    restless = Health(mhz=(1980.0, 1900.0, 1980.0, 1900.0))

    def moving(name: str, plan: Plan) -> Timed:
        return Timed(time_unit(name, plan).seconds, health=restless)

    pauses: list[float] = []
    one = comparison()
    run([one], moving, pause=pauses.append)
    assert one.outcome
    assert one.clocks_move
    assert (one.outcome.status is Status.PASS) == (speedup > 1)
    assert all(unit.rejected is None for unit in one.units)
    assert one.kept == len(one.units)
    assert pauses == []


@pytest.mark.parametrize("moving", [(0, 1), (1, 3), (2, 3), (0, 1, 2, 3)])
def test_half_of_the_first_four_is_enough(moving: tuple[int, ...]) -> None:
    """Then nothing is lost: all four are judged, in their order, as if none had been rejected."""
    time_unit = timer({"k": 1.1})
    turn = itertools.count()

    def moved_at_first(name: str, plan: Plan) -> Timed:
        clocks = (1980.0, 1900.0, 1980.0, 1980.0) if next(turn) in moving else ()
        return Timed(time_unit(name, plan).seconds, health=Health(mhz=clocks))

    one, steady = comparison(), comparison()
    run([one], moved_at_first)
    run([steady], timer({"k": 1.1}))
    assert one.clocks_move
    assert len(one.units) == len(steady.units) == one.kept
    assert one.outcome == steady.outcome


@pytest.mark.parametrize("alpha", [0.25, 0.7])
def test_a_verdict_of_three_units_leaves_no_first_look(alpha: float) -> None:
    time_unit = timer({"k": 1.5})
    restless = Health(mhz=(1980.0, 1900.0))
    rule = Rule(ratio=1.0, alpha_pass=alpha, alpha_fail=alpha)
    one = Comparison("k", rule, [1e-4] * 16, 3)
    run([one], lambda name, plan: Timed(time_unit(name, plan).seconds, health=restless))
    assert one.outcome
    assert one.outcome.status is Status.PASS


def test_one_of_the_first_four_is_rejected() -> None:
    time_unit = timer({"k": 1.1})
    turn = itertools.count()

    def moved_once(name: str, plan: Plan) -> Timed:
        clocks = (1980.0, 1900.0, 1980.0, 1980.0) if next(turn) == 1 else ()
        return Timed(time_unit(name, plan).seconds, health=Health(mhz=clocks))

    one = comparison()
    run([one], moved_once)
    assert not one.clocks_move
    assert [unit.rejected for unit in one.units[:4]] == [None, "clock change", None, None]
    assert one.kept == len(one.units) - 1


def test_a_hot_card_is_unfit_whatever_its_clocks_do() -> None:
    one = comparison()
    hot = Health(reasons=0x40)
    causes = itertools.cycle([Health(mhz=(1980.0, 1500.0)), hot, hot])
    run([one], lambda *_: Timed((1e-4,) * 4, health=next(causes)), pause=lambda _: None)
    assert one.outcome
    assert one.clocks_move
    assert one.outcome.end is End.THROTTLED


def test_times_that_are_none_end_it() -> None:
    one = comparison()
    run([one], lambda *_: Timed((0.0,) * 4))
    assert one.outcome
    assert (one.outcome.reason, one.outcome.end) == (Reason.UNFIT, End.BROKEN)
    assert len(one.units) == FIRST_ROUND


def test_a_few_times_that_are_none_do_not_end_it() -> None:
    time_unit = timer({"k": 1.0})
    turn = itertools.count()

    def lossy(name: str, plan: Plan) -> Timed:
        return Timed((math.nan,) * 4) if next(turn) % 3 == 0 else time_unit(name, plan)

    one = comparison()
    run([one], lossy, budget=Budget(blocks=16 + 4 * 36))
    assert one.outcome
    assert one.judge.test.missing == 12
    assert one.outcome.end is End.BUDGET


def test_power_coupling_is_told_from_chance() -> None:
    def rejected(lows: list[Side]) -> Comparison:
        one = comparison()
        for low in lows:
            clocks = [1980.0, 1980.0, 1980.0, 1980.0]
            clocks[ABBA.index(low)] = 1800.0
            timed = Timed((1e-4,) * 4, health=Health(mhz=tuple(clocks)))
            one.add(Unit(Plan((A, B), (A, B), ABBA), timed, "clock change"))
        return one

    even = rejected([A, B] * 10)
    assert even.lowest_clocks == {A: 10, B: 10}
    assert not even.power_coupled
    assert rejected([A] * 3 + [B]).lowest_clocks == {A: 3, B: 1}
    assert not rejected([B] * 7).power_coupled  # 2 * 2^-7 is above 1 %
    assert rejected([B] * 8).power_coupled
    assert not comparison().power_coupled
    unknown = comparison()
    timed = Timed((1e-4,) * 4, health=Health(mhz=(0.0, 1980.0, 1900.0, 1980.0)))
    unknown.add(Unit(Plan((A, B), (A, B), ABBA), timed))
    assert unknown.lowest_clocks == {A: 0, B: 1}


def test_what_the_timer_raises_goes_through() -> None:
    def crash(name: str, plan: Plan) -> Timed:
        raise RuntimeError("illegal memory access")

    with pytest.raises(RuntimeError, match="illegal"):
        run([comparison()], crash)


def test_scale_floor_follows_the_length_of_a_block() -> None:
    fast = Comparison("k", not_slower(), [5e-6] * 16, 1)
    assert fast.judge.test.scale.current == pytest.approx(0.0032)
    graph = Comparison("k", not_slower(), [5e-6] * 16, 1, block_seconds=2e-4)
    assert graph.judge.test.scale.current == 5e-4
