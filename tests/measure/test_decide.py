from __future__ import annotations

import math
from dataclasses import replace
from statistics import median

import numpy as np
import pytest

from pytest_compileiq.measure.betting import BettingTest
from pytest_compileiq.measure.decide import (
    NEAR,
    End,
    Judge,
    Outcome,
    Rule,
    canary_o0,
    exact,
    not_slower,
    win,
)
from pytest_compileiq.verdict import Reason, Status

#: Noise of 1 % whose median is 0. Its signs come by chance, as the coins' do: a strict
#: alternation would beat with the scale, and no test that rests on a coin can stand that.
NOISE = np.random.default_rng(12).normal(0, 0.01, 240).tolist()
NOISE = [d - median(NOISE) for d in NOISE]


def judged(rule: Rule, speedup: float, units: int = 240, noise: float = 1.0) -> Outcome:
    judge = Judge(rule, 0.01)
    for i in range(units):
        if judge.feed(math.log(speedup) + noise * NOISE[i % len(NOISE)]):
            break
    return judge.end(End.BUDGET)


@pytest.mark.parametrize(
    ("rule", "speedup", "status", "reason"),
    [
        (win(), 1.05, Status.PASS, None),
        (win(), 0.95, Status.FAIL, Reason.SLOWER),
        (win(1.02), 1.05, Status.PASS, None),
        (win(1.2), 1.05, Status.FAIL, Reason.SLOWER),
        (canary_o0(), 1 / 3, Status.PASS, None),
        (canary_o0(), 1 / 1.01, Status.FAIL, Reason.NO_EFFECT),
        (not_slower(), 1.0, Status.PASS, None),
        (not_slower(), 1.5, Status.PASS, None),
        (not_slower(), 0.93, Status.FAIL, Reason.SLOWER),
    ],
)
def test_rules(rule: Rule, speedup: float, status: Status, reason: Reason | None) -> None:
    outcome = judged(rule, speedup)
    assert (outcome.status, outcome.reason, outcome.end) == (status, reason, End.DECIDED)
    low, high = outcome.interval
    assert low is not None
    assert high is not None
    assert low < speedup < high
    assert not low <= rule.ratio <= high
    assert outcome.speedup == pytest.approx(speedup, rel=0.01)
    assert outcome.more_units is None


def test_a_red_answer_needs_more_than_a_green_one() -> None:
    assert judged(win(), 1.5).units == 6
    assert judged(win(), 0.5).units == 8
    assert judged(win().among(50), 0.5).units == 15
    assert judged(win().among(50), 1.5).units == 6


def test_budget_spent_at_the_threshold_is_no_win() -> None:
    outcome = judged(win(1.02), 1.02)
    assert (outcome.status, outcome.reason, outcome.end) == (
        Status.FAIL,
        Reason.NO_WIN,
        End.BUDGET,
    )
    assert outcome.units == 240
    # Seven times the noise: the interval is too wide to call it no win.
    outcome = judged(win(1.02), 1.02, noise=7.0)
    assert (outcome.status, outcome.reason) == (Status.UNDECIDED, Reason.UNDECIDED)


def test_no_win_holds_at_the_error_rate_of_a_failure() -> None:
    """An interval at 5 % lies inside earlier than one at 1 %, and does not suffice."""
    ends = {}
    for alpha in (0.05, 0.01):
        rule = Rule(ratio=1.0, alpha_pass=alpha, alpha_fail=alpha)
        for units in range(20, 240):
            if judged(rule, 1.0, units).reason is Reason.NO_WIN:
                ends[alpha] = units
                break
    assert ends[0.05] < ends[0.01]
    between = (ends[0.05] + ends[0.01]) // 2
    assert judged(win(), 1.0, between).status is Status.UNDECIDED
    assert judged(win(), 1.0, ends[0.01]).reason is Reason.NO_WIN


@pytest.mark.parametrize("speedup", [1.003, 0.997])
def test_an_interval_near_the_threshold_on_one_side_alone_is_no_answer(speedup: float) -> None:
    outcome = judged(replace(win(), alpha_pass=0.01), speedup, 40)
    low, high = outcome.interval
    assert low is not None
    assert high is not None
    near, far = sorted((-math.log(low), math.log(high)))
    assert 0 < near < NEAR < far
    assert (outcome.status, outcome.reason) == (Status.UNDECIDED, Reason.UNDECIDED)


def test_canary_ends_early_at_the_threshold() -> None:
    outcome = judged(not_slower(0.02), 1 / 1.02, noise=0.3)
    assert (outcome.status, outcome.reason) == (Status.UNDECIDED, Reason.UNDECIDED)
    assert outcome.end is End.AT_THRESHOLD
    assert outcome.units < 240


def test_a_canary_at_the_threshold_is_undecided_also_when_the_budget_ends_first() -> None:
    rule = not_slower(0.02)
    stopped = judged(rule, 1 / 1.02, noise=0.3).units
    judge = Judge(rule, 0.01)
    for i in range(stopped - 1):
        judge.feed(-math.log(1.02) + 0.3 * NOISE[i])
    low, high = judge.test.interval(0.01)
    assert max(rule.delta - low, high - rule.delta) < rule.near
    assert judge.end(End.BUDGET).reason is Reason.UNDECIDED


@pytest.mark.parametrize("why", [End.THROTTLED, End.BROKEN])
def test_what_disturbs_is_unfit(why: End) -> None:
    outcome = Judge(win(), 0.01).end(why)
    assert (outcome.status, outcome.reason, outcome.units) == (Status.UNDECIDED, Reason.UNFIT, 0)
    assert outcome.speedup is None
    assert outcome.interval == (None, None)


def test_stopped_in_time_is_never_no_win() -> None:
    judge = Judge(win(), 0.01)
    for i in range(240):
        judge.feed(NOISE[i % len(NOISE)] / 10)
    assert judge.end(End.STOPPED).reason is Reason.UNDECIDED


def test_the_first_decision_stands() -> None:
    judge = Judge(win(), 0.01)
    while not judge.feed(0.1):
        pass
    decided = judge.outcome
    assert judge.end(End.BUDGET) is decided
    with pytest.raises(ValueError, match="stands"):
        judge.feed(-0.1)


def test_projection() -> None:
    judge = Judge(win(), 0.02)
    assert judge.more_units is None
    for i in range(12):
        judge.feed(0.006 + NOISE[i % len(NOISE)])
    need = judge.more_units
    assert need is not None
    used = 0
    while judge.outcome is None:
        judge.feed(0.006 + NOISE[used % len(NOISE)])
        used += 1
    assert 0.4 * need <= used <= 2.5 * need


def test_earlier_evidence_may_decide_at_once() -> None:
    outcome = Judge(win(), 0.01, prior=(math.log(20), -1.0)).outcome
    assert outcome is not None
    assert (outcome.status, outcome.units) == (Status.PASS, 0)


def test_minimum_units_is_what_full_bets_need() -> None:
    assert win().minimum_units == 6
    assert replace(win(), alpha_pass=0.01).minimum_units == 8
    test = BettingTest(0.0, 0.01)
    for _ in range(6):
        test.update(1.0)
    assert test.above >= 20


@pytest.mark.parametrize(
    ("rule", "ratio", "status", "reason"),
    [
        (win(), 1.0, Status.FAIL, Reason.NO_WIN),
        (win(), 1.0001, Status.PASS, None),
        (win(), 0.9999, Status.FAIL, Reason.SLOWER),
        (win(), math.inf, Status.PASS, None),
        (win(), 0.0, Status.FAIL, Reason.SLOWER),
        (win(2.0), 128 / 64, Status.PASS, None),
        (win(2.0), 1.0, Status.FAIL, Reason.SLOWER),
        (not_slower(0.0), 1.0, Status.FAIL, Reason.NO_WIN),
        (not_slower(), 1.0, Status.PASS, None),
        (canary_o0(), 0.5, Status.PASS, None),
        (canary_o0(), 1.0, Status.FAIL, Reason.NO_EFFECT),
        (win(), math.nan, Status.FAIL, Reason.INVALID_SCORE),
    ],
)
def test_exact(rule: Rule, ratio: float, status: Status, reason: Reason | None) -> None:
    assert exact(rule, ratio) == (status, reason)


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_bad_rules(bad: float) -> None:
    with pytest.raises(ValueError, match="ratio"):
        Rule(ratio=bad)
    with pytest.raises(ValueError, match="alpha"):
        Rule(ratio=1.0, alpha_pass=bad)
