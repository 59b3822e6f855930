"""What is taken off a unit for the order of its blocks."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_compileiq.measure.decide import Rule
from pytest_compileiq.measure.order import OrderEffect
from pytest_compileiq.measure.samples import record_units, replay
from pytest_compileiq.measure.scale import median_deviation
from pytest_compileiq.measure.units import Budget, Comparison, Plan, Side, Timed, Unit, run
from tests.measure.support import most

A, B = Side
COINS = (A, B), (A, B)
ABBA, BAAB = (A, B, B, A), (B, A, A, B)


def effect(*told: tuple[int, float]) -> float:
    one = OrderEffect()
    for sign, d in told:
        one.add(sign, d)
    return one.current


def test_nothing_is_taken_off_before_two_of_each_order() -> None:
    assert effect() == 0
    assert effect((1, 0.3), (1, 0.31), (1, 0.3), (-1, 0.1)) == 0
    assert effect((1, 0.3), (1, 0.3), (-1, 0.1), (-1, 0.1)) == pytest.approx(0.1)


def test_the_gain_of_the_candidate_is_none_of_the_order() -> None:
    assert effect(*[(1, 0.5), (-1, 0.5)] * 4) == 0
    assert effect(*[(1, 0.5 - 0.03), (-1, 0.5 + 0.03)] * 4) == pytest.approx(-0.03)


def test_what_chance_may_have_brought_is_left_in() -> None:
    noise = np.random.default_rng(1).normal(0, 0.01, (400, 12))
    small = [effect(*[((-1) ** k, d) for k, d in enumerate(row)]) for row in noise]
    # Of twelve units the standard error of the effect is 0.36 %; most of it counts for nothing.
    assert np.mean(np.array(small) == 0) > 0.9
    assert np.std(small) < 0.0015
    large = [effect(*[((-1) ** k, d + 0.06 * (-1) ** k) for k, d in enumerate(r)]) for r in noise]
    assert np.mean(large) == pytest.approx(0.06, rel=0.1)


def test_an_outlier_moves_it_little() -> None:
    told = [(1, 0.02), (-1, -0.02)] * 5
    assert effect(*told, (1, 3.0), (-1, 2.0)) == pytest.approx(effect(*told), abs=1e-3)


numbers = st.lists(st.floats(-1e3, 1e3, allow_subnormal=False), min_size=1, max_size=30)


@given(numbers)
def test_the_median_deviation_is_that_of_its_definition(values: list[float]) -> None:
    values.sort()
    center = median(values)
    expected = median(abs(one - center) for one in values)
    assert median_deviation(values) == pytest.approx(expected, abs=1e-9)


@given(st.lists(st.tuples(st.sampled_from([1, -1]), st.floats(-64, 64)), max_size=30))
def test_it_is_always_a_number_within_what_was_seen(told: list[tuple[int, float]]) -> None:
    found = effect(*told)
    assert math.isfinite(found)
    assert abs(found) <= max((abs(d) for _, d in told), default=0.0) * (1 + 1e-9)


def session(speedup: float, seed: int, *, order_effect: bool = True) -> Comparison:
    """The last block is 6 % faster than the others, which differ by 1.7 %."""
    rng = np.random.default_rng(seed)

    def time_unit(_: str, plan: Plan) -> Timed:
        logs = 0.017 * rng.standard_normal(4) + [0, 0, 0, -0.06] - 12
        logs -= [math.log(speedup) * (side is B) for side in plan.order]
        return Timed(tuple(np.exp(logs).tolist()))

    pilot = np.exp(0.017 * rng.standard_normal(16) - 12).tolist()
    rule = Rule(ratio=1.0, alpha_fail=0.05)
    one = Comparison("kernel", rule, pilot, seed, order_effect=order_effect)
    run([one], time_unit, budget=Budget(blocks=1000, gpu_seconds=math.inf))
    return one


def test_it_saves_launches_and_claims_nothing_false() -> None:
    found = [median(len(session(1.01, seed, order_effect=on).units) for seed in range(40))
             for on in (True, False)]  # fmt: skip
    assert found[0] < 0.6 * found[1]
    ratios = [session(1.01, seed).outcome for seed in range(40)]
    assert all(one is not None and one.status == "pass" for one in ratios)


@pytest.mark.parametrize("wider", [1, 3, 5])
def test_a_candidate_that_is_noisier_in_one_order(wider: int) -> None:
    """Nothing is exact then, and still no more is claimed than is allowed."""
    rng = np.random.default_rng(wider)
    claims = {"pass": 0, "fail": 0}
    for seed in range(300):
        one = Comparison("kernel", Rule(ratio=1.0, alpha_fail=0.05), [1e-5] * 16, seed)
        while one.outcome is None and len(one.units) < 100:
            plan = one.plan()
            spread = 0.01 * (wider if plan.order == ABBA else 1)
            first = math.exp(2 * spread * rng.standard_normal())
            one.add(Unit(plan, Timed((first, 1, 1, 1))))
        if one.outcome is not None:
            claims[one.outcome.status] += 1
    assert max(claims.values()) <= most(300, 0.05)


def test_a_judge_is_told_what_is_left_of_a_unit() -> None:
    one = Comparison("kernel", Rule(ratio=1.0), [1e-5] * 16, 0)
    for order, times in [(ABBA, (1, 1, 1, 0.9)), (BAAB, (1, 1, 1, 0.9))] * 2:
        one.add(Unit(Plan(*COINS, order), Timed(times)))
    half = math.log(0.9) / 2
    assert one.judge.test.taken == pytest.approx([half, -half] * 2)
    assert one.units[0].log_ratio == pytest.approx(half)
    one.add(Unit(Plan(*COINS, BAAB), Timed((1, 1, 1, 0.9))))
    assert one.judge.test.taken[-1] == pytest.approx(0, abs=1e-12)
    one.add(Unit(Plan(*COINS, ABBA), Timed((1, math.nan, 1, 0.9))))
    one.add(Unit(Plan(*COINS, ABBA), Timed((1, 1, 1, 0.9)), rejected="clock change"))
    assert len(one.judge.test.taken) == 5


def test_a_record_says_whether_it_was_taken_off() -> None:
    new, old = (session(1.02, 5, order_effect=on) for on in (True, False))
    assert record_units(new)["schema"] == 2
    assert record_units(old)["schema"] == 1
    for one in (new, old):
        assert replay(record_units(one)).differences == []
    assert replay({**record_units(new), "schema": 1}).differences
    assert replace(new).order_effect
