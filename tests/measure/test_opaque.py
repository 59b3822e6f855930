from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import pytest

from pytest_compileiq.measure import opaque
from pytest_compileiq.measure.decide import Rule, canary_o0, not_slower, win
from pytest_compileiq.measure.opaque import ORDERS, OpaqueOutcome, OpaqueTest
from pytest_compileiq.measure.units import Side
from pytest_compileiq.verdict import Reason, Status
from tests.measure.support import most

A, B = Side
Score = Callable[[Side], Sequence[float] | None]


def play(score: Score, *rules: Rule, seed: int = 1, **more: object) -> OpaqueOutcome:
    test = OpaqueTest(rules or [win()], seed=seed, **more)  # type: ignore[arg-type]
    while (side := test.ask()) is not None:
        test.tell(score(side))
    assert test.outcome is not None
    return test.outcome


def noisy(speedup: float, seed: int = 0, noise: float = 0.01) -> Score:
    rng = np.random.default_rng(seed)
    return lambda side: [math.exp(noise * rng.standard_normal()) / (speedup if side is B else 1.0)]


def test_a_clear_win_takes_eight_calls_and_two_to_warm_up() -> None:
    outcome = play(noisy(1.5))
    assert (outcome.status, outcome.calls, outcome.exact) == (Status.PASS, 10, False)
    assert outcome.speedups[0] == pytest.approx(1.5, rel=0.02)


def test_a_clear_loss_takes_two_pairs_more_since_red_is_surer() -> None:
    outcome = play(noisy(0.7))
    assert (outcome.status, outcome.reason, outcome.calls) == (Status.FAIL, Reason.SLOWER, 14)
    equal = Rule(ratio=1.0, alpha_pass=0.05, alpha_fail=0.05)
    assert play(noisy(0.7), equal).calls == 10


def test_throw_away_calls_count_in_no_ratio() -> None:
    calls, good = itertools.count(), noisy(1.5)
    outcome = play(lambda side: [500.0 if side is B else 1e-3] if next(calls) < 2 else good(side))
    assert outcome.speedups[0] == pytest.approx(1.5, rel=0.02)
    assert outcome.mean_speedups[0] == pytest.approx(1.5, rel=0.02)


def test_several_scores_share_the_chance_of_a_wrong_failure() -> None:
    calls = {}
    for many in (1, 2, 20):
        worse = [noisy(0.7, seed) for seed in range(many)]
        outcome = play(
            lambda side, worse=worse: [one for score in worse for one in score(side) or ()],  # type: ignore[misc]
            *[win()] * many,
        )
        assert outcome.reason is Reason.SLOWER
        calls[many] = outcome.calls
    assert calls[1] < calls[2] < calls[20]


def test_the_scale_of_a_pair_is_its_standard_deviation() -> None:
    rng = np.random.default_rng(3)
    scales = [
        opaque._pair_scale(rng.normal(5, 0.01, 4).tolist(), rng.normal(6, 0.01, 4).tolist())
        for _ in range(2000)
    ]
    assert median(scales) == pytest.approx(0.01 * math.sqrt(2), rel=0.1)


def test_canaries() -> None:
    assert play(noisy(1 / 3), canary_o0()).calls == 10
    assert play(noisy(1 / 3), canary_o0()).status is Status.PASS
    assert play(noisy(1.0), canary_o0()).reason is Reason.NO_EFFECT
    assert play(noisy(1.0), not_slower(0.05)).status is Status.PASS


def test_max_problems_turn_the_scores_round() -> None:
    assert play(noisy(1 / 1.5), problem_type="max").status is Status.PASS
    assert play(noisy(1.5), problem_type="max").reason is Reason.SLOWER


def test_a_margin_shifts_the_exact_stage() -> None:
    assert play(noisy(1.05, noise=0.001), win(1.02)).status is Status.PASS
    assert play(noisy(1.05, noise=0.001), win(1.08)).reason is Reason.SLOWER


@pytest.mark.parametrize("alpha", [0.3, 0.05, 1 / 70, 0.01, 0.0002])
def test_stage_2_is_an_e_value(alpha: float) -> None:
    """Over the 70 equally likely orders its mean is at most 1, and it decides where it may."""
    separated = sum(
        max(base) < min(set(range(8)) - set(base)) for base in itertools.combinations(range(8), 4)
    )
    assert (separated, ORDERS) == (1, 70)
    yes, no = (math.exp(opaque._stage_2(one, alpha)) for one in (True, False))
    assert (yes + 69 * no) / 70 <= 1 + 1e-12
    assert (opaque._stage_2(True, alpha) >= math.log(1 / alpha)) is (alpha > 1 / 70)


def test_orders_of_stage_2_are_all_equally_likely() -> None:
    counts: dict[tuple[Side, ...], int] = {}
    for seed in range(7000):
        order = tuple(OpaqueTest([win()], seed=seed)._order[2:])
        counts[order] = counts.get(order, 0) + 1
    assert len(counts) == 70
    assert 50 < min(counts.values()) <= max(counts.values()) < 150


def test_a_coin_says_which_call_of_a_pair_comes_first() -> None:
    first = []
    for seed in range(20):
        test, score = OpaqueTest([win()], seed=seed), noisy(1.0, seed)
        while (side := test.ask()) is not None:
            test.tell(score(side))
        asked = [side for side, _ in test.calls[10:]]
        pairs = list(zip(asked[::2], asked[1::2], strict=True))
        assert all(set(pair) == {A, B} for pair in pairs)
        first += [one for one, _ in pairs]
    assert len(first) > 300
    assert abs(first.count(A) - first.count(B)) < 4 * math.sqrt(len(first))


def test_error_rate_where_the_second_call_of_a_pair_is_slower() -> None:
    rule = Rule(ratio=1.0, alpha_pass=0.05, alpha_fail=0.05)
    faster = slower = 0
    n = 200
    for seed in range(n):
        rng, calls = np.random.default_rng(seed), itertools.count()
        outcome = play(
            lambda _, rng=rng, calls=calls: [  # type: ignore[misc]
                math.exp(0.01 * rng.standard_normal() + 0.01 * (next(calls) % 2))
            ],
            rule,
            seed=seed,
        )
        faster += outcome.status is Status.PASS
        slower += outcome.reason is Reason.SLOWER
    assert max(faster, slower) <= most(n, 0.05)


def test_error_rate_with_drift_and_outliers() -> None:
    rng = np.random.default_rng(6)
    rule = Rule(ratio=1.0, alpha_pass=0.05, alpha_fail=0.05)
    faster = slower = 0
    n = 400
    for seed in range(n):
        walk = itertools.accumulate(rng.normal(0, 0.02, 100))
        noise = iter([d + 0.01 * rng.standard_t(2) for d in walk])
        outcome = play(lambda _, noise=noise: [math.exp(next(noise))], rule, seed=seed)  # type: ignore[misc]
        faster += outcome.status is Status.PASS
        slower += outcome.reason is Reason.SLOWER
    assert max(faster, slower) <= most(n, 0.05)


@pytest.mark.parametrize(
    ("base", "tuned", "rule", "status", "reason"),
    [
        (128, 64, win(), Status.PASS, None),
        (128, 128, win(), Status.FAIL, Reason.NO_WIN),
        (128, 0, win(), Status.PASS, None),
        (0, 0, win(), Status.FAIL, Reason.NO_WIN),
        (0, 8, win(), Status.FAIL, Reason.SLOWER),
        (-5, -7, win(), Status.PASS, None),
        (128, 64, win(2.5), Status.FAIL, Reason.SLOWER),
        (128, 128, win(2.5), Status.FAIL, Reason.NO_WIN),
        (128, 128, not_slower(), Status.PASS, None),
        (128, 128, canary_o0(), Status.FAIL, Reason.NO_EFFECT),
        (0, 64, canary_o0(), Status.PASS, None),
    ],
)
def test_scores_without_noise_are_compared_exactly(
    base: float, tuned: float, rule: Rule, status: Status, reason: Reason | None
) -> None:
    outcome = play(lambda side: [base if side is A else tuned], rule)
    assert (outcome.status, outcome.reason, outcome.exact) == (status, reason, True)
    assert outcome.calls == 10
    assert outcome.same_score is (base == tuned)


@pytest.mark.parametrize("call", range(10))
@pytest.mark.parametrize("rule", [win(), canary_o0(), not_slower()])
def test_one_call_of_ten_that_differs_is_noise(call: int, rule: Rule) -> None:
    calls = itertools.count()
    outcome = play(lambda _: [101.0 if next(calls) == call else 100.0], rule)
    assert not outcome.exact


def test_o0_has_to_worsen_one_of_several_scores_that_do_not_vary() -> None:
    for slow, status in (([100.0, 106.0], Status.PASS), ([104.0, 104.0], Status.FAIL)):
        outcome = play(lambda side, s=slow: [100.0, 100.0] if side is A else s, *[canary_o0()] * 2)  # type: ignore[misc]
        assert (outcome.status, outcome.exact) == (status, True)


def test_noise_about_zero_has_no_ratio() -> None:
    rng = np.random.default_rng(0)
    outcome = play(lambda _: [float(rng.standard_normal())])
    assert (outcome.status, outcome.reason) == (Status.FAIL, Reason.INVALID_SCORE)


def test_scores_at_the_end_of_the_numbers_are_answered() -> None:
    huge = itertools.cycle([-1.7e308, 1.7e308, 1.7e308])
    outcome = play(lambda _: [next(huge)])
    assert (outcome.status, outcome.reason) == (Status.FAIL, Reason.INVALID_SCORE)


@pytest.mark.parametrize("bad", [None, [math.nan], [math.inf], [10**400]])
def test_invalid_scores(bad: Sequence[float] | None) -> None:
    outcome = play(lambda side: bad if side is A else [1.0])
    assert (outcome.status, outcome.reason, outcome.blame) == (
        Status.FAIL,
        Reason.INVALID_SCORE,
        A,
    )
    assert outcome.calls == 1
    outcome = play(lambda side: bad if side is B else [1.0])
    assert (outcome.reason, outcome.blame, outcome.calls) == (Reason.INVALID_SCORE, B, 3)


def test_one_invalid_candidate_is_called_again() -> None:
    first = iter([None])
    good = noisy(1.5)
    outcome = play(lambda side: next(first, good(side)) if side is B else good(side))
    assert (outcome.status, outcome.calls) == (Status.PASS, 11)


def test_a_score_that_turns_bad_late_is_no_evidence() -> None:
    calls = itertools.count()
    good = noisy(1.0, seed=3)
    outcome = play(lambda side: good(side) if next(calls) < 12 else [0.0])
    assert outcome.status is Status.UNDECIDED
    assert outcome.calls == 70


def test_all_of_several_objectives_have_to_pass() -> None:
    time, other = noisy(1.5), noisy(1.4, seed=1)
    both = play(lambda side: [*(time(side) or ()), *(other(side) or ())], win(), win())
    assert (both.status, both.calls) == (Status.PASS, 10)
    assert len(both.outcomes) == len(both.speedups) == 2
    worse = noisy(0.7, seed=2)
    one = play(lambda side: [*(time(side) or ()), *(worse(side) or ())], win(), win())
    assert (one.status, one.reason) == (Status.FAIL, Reason.SLOWER)
    assert [outcome and outcome.status for outcome in one.outcomes] == [Status.PASS, Status.FAIL]
    spills = play(lambda side: [2.0 if side is A else 1.0, 8.0], win(), win())
    assert spills.status is Status.PASS
    with pytest.raises(ValueError, match="2 scores are judged and 1 were told"):
        play(lambda _: [1.0], win(), win())


def test_the_projection_is_of_the_right_size() -> None:
    """Calls that were told to be missing after twenty, over those that then were."""
    ratios = []
    for seed in range(40):
        test, score = OpaqueTest([win()], seed=5), noisy(1.012, seed)
        projected = None
        while (side := test.ask()) is not None:
            test.tell(score(side))
            if len(test.calls) == 20:
                projected = test.more_calls
        if projected and test.outcome and test.outcome.status is Status.PASS:
            ratios.append(projected / (len(test.calls) - 20))
    assert len(ratios) > 10
    assert 1.0 < median(ratios) < 2.0


def test_to_stop_is_to_be_undecided_and_final() -> None:
    test, score = OpaqueTest([win()], seed=5), noisy(1.012, seed=6)
    assert test.more_calls is None
    for _ in range(24):
        side = test.ask()
        assert side is not None
        assert test.tell(score(side)) is None
    stopped = test.stop()
    assert (stopped.status, stopped.reason, stopped.calls) == (
        Status.UNDECIDED,
        Reason.UNDECIDED,
        24,
    )
    assert test.stop() is stopped
    assert test.ask() is None
    assert test.more_calls == 0
    with pytest.raises(ValueError, match="stands"):
        test.tell([1.0])
    assert OpaqueTest([win()], seed=5).stop().reason is Reason.UNDECIDED


def test_a_decision_is_not_stopped() -> None:
    test, score = OpaqueTest([win()], seed=5), noisy(1.5)
    while (side := test.ask()) is not None:
        test.tell(score(side))
    assert test.stop().status is Status.PASS


def test_no_rule_no_test() -> None:
    with pytest.raises(ValueError, match="at least one"):
        OpaqueTest([], seed=1)
