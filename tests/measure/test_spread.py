from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from pytest_compileiq.measure.betting import STAKES
from pytest_compileiq.measure.spread import (
    SpreadOutcome,
    SpreadTest,
    allan_deviation,
    classic_cv,
)
from pytest_compileiq.verdict import Reason, Status
from tests.measure.support import most


def checked(seconds: object, limit: float = 0.02, **more: float) -> SpreadOutcome:
    test = SpreadTest(limit, **more)
    for one in seconds:  # type: ignore[attr-defined]
        if test.update(float(one)):
            break
    return test.end()


def times(cv: float, n: int = 1200, seed: int = 0, outliers: float = 0.0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    logs = cv * rng.standard_normal(n) + math.log(1.5) * (rng.random(n) < outliers)
    return 1e-4 * np.exp(logs)


def test_steady_and_unsteady() -> None:
    ok, bad = checked(times(0.01)), checked(times(0.04))
    assert (ok.status, ok.reason) == (Status.PASS, None)
    assert ok.short_cv == pytest.approx(0.01, rel=0.3)
    assert (bad.status, bad.reason, bad.cause) == (Status.FAIL, Reason.NOISY, "jitter")


def test_launches_at_half_the_limit() -> None:
    plain = [checked(times(0.01, seed=s)).launches for s in range(60)]
    outliers = [checked(times(0.01, seed=s, outliers=0.01)) for s in range(60)]
    assert np.mean(plain) <= 85
    assert np.mean([one.launches for one in outliers]) <= 150
    assert {one.status for one in outliers} == {Status.PASS}


def test_error_rates_at_the_limit() -> None:
    n = 150
    for side, status in (("alpha_pass", Status.PASS), ("alpha_fail", Status.FAIL)):
        wrong = [checked(times(0.02, 600, seed=s), **{side: 0.05}).status for s in range(n)]
        assert wrong.count(status) <= most(n, 0.05)


def test_one_outlier_does_not_decide() -> None:
    seconds = times(0.005, 200)
    seconds[41] *= 3
    assert (classic_cv(seconds.tolist()) or 0) > 0.02
    outcome = checked(seconds)
    assert outcome.status is Status.PASS
    assert outcome.cause == "outliers"
    assert outcome.outliers == pytest.approx(1 / outcome.launches)


def test_slow_drift_is_named_and_passes() -> None:
    seconds = times(0.003, 1200) * np.exp(0.1 * np.sin(np.arange(1200) / 60))
    test = SpreadTest(0.02, alpha_pass=1e-60)  # looks at them all
    for one in seconds:
        test.update(float(one))
    outcome = test.end()
    assert (outcome.status, outcome.reason) == (Status.UNDECIDED, Reason.UNDECIDED)
    assert outcome.cause == "drift"
    assert outcome.short_cv == pytest.approx(0.003, rel=0.2)
    assert outcome.classic_cv == pytest.approx(0.07, rel=0.1)
    small, large, longest = outcome.allan
    assert large is not None
    assert large > 0.04 > (small or 1) > 0.003
    assert longest is not None


def test_allan_deviation_of_white_noise_falls_with_the_root() -> None:
    seconds = times(0.01, 40_000).tolist()
    for size in (8, 64, 512):
        assert allan_deviation(seconds, size) == pytest.approx(0.01 / math.sqrt(size), rel=0.25)
    assert allan_deviation([1.0, 2.0, 1.0, 2.0], 1) == pytest.approx(math.sqrt(0.5) / 1.5)
    assert allan_deviation(seconds[:15], 8) is None


@pytest.mark.parametrize("value", [1e-4, 1e-12, 1e12])
def test_constant_times_are_steady(value: float) -> None:
    outcome = checked([value] * 100)
    assert (outcome.status, outcome.short_cv, outcome.cause) == (Status.PASS, 0.0, None)


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf, 5e-324, 1e300])
def test_what_is_no_time_is_no_steadiness(value: float) -> None:
    outcome = checked([value] * 100)
    assert (outcome.status, outcome.cause, outcome.classic_cv) == (Status.FAIL, "outliers", None)
    assert outcome.outliers == 1


@pytest.mark.parametrize("alpha_fail", [0.05, 0.01, 0.0001])
def test_as_many_pairs_of_the_largest_spread_fail_as_the_bets_need(alpha_fail: float) -> None:
    """Each of them multiplies a gambler's capital by 1 + 7 times his stake."""
    pairs = next(n for n in range(1, 20) if ((1 + 7 * STAKES) ** n).mean() >= 1 / alpha_fail)
    test = SpreadTest(0.02, alpha_fail=alpha_fail)
    while test.update(1.0 + 9.0 * (len(test.seconds) % 2)) is None:
        pass
    assert test.outcome is not None
    assert (test.outcome.reason, test.outcome.launches) == (Reason.NOISY, 2 * pairs)


def stepped(cv: float, step: float, launch: float, n: int = 1200) -> list[float]:
    """Times of events that start anywhere between two steps of their clock."""
    rng = np.random.default_rng(4)
    start = rng.random(n)
    end = start + launch * np.exp(cv * rng.standard_normal(n)) / step
    return list(step * (np.floor(end) - np.floor(start)))


@pytest.mark.parametrize("step", [32e-9, 500e-9])
def test_a_step_of_the_clock_that_is_more_than_the_limit_hides_the_answer(step: float) -> None:
    """Steps alone read as noise, or as none: both are no answer. From a limit of a step on it is."""
    for share in (0.001, 0.1, 0.5):  # of a step, beside a whole number of steps
        seconds = stepped(0.0, step, (100 + share) * step)
        outcome = checked(seconds, 0.008, events=True)
        assert (outcome.status, outcome.reason) == (Status.UNDECIDED, Reason.UNFIT)
        # Where no reading differs from another the step is what CUDA promises.
        assert outcome.clock_step == pytest.approx(step if share > 0.01 else 0.5e-6)
        if step == 500e-9 or share > 0.01:
            outcome = checked(seconds, 0.012, events=True)
            assert (outcome.status, outcome.clock_step) == (Status.PASS, None)


def test_levels_of_a_noisy_kernel_are_no_steps_of_the_clock() -> None:
    """Decided after a few launches, there is one gap between two readings, of 7 us."""
    for seed in range(50):
        rng = random.Random(seed)
        seconds = [rng.choice([70e-6, 77e-6]) for _ in range(200)]
        assert checked(seconds, 0.01, events=True).reason is Reason.NOISY


def test_noise_beyond_the_clock_s_steps_is_noise() -> None:
    outcome = checked(stepped(0.05, 32e-9, 6e-6), 0.004, events=True)
    assert (outcome.status, outcome.reason) == (Status.FAIL, Reason.NOISY)
    outcome = checked(stepped(0.001, 32e-9, 6e-6), 0.02, events=True)
    assert outcome.status is Status.PASS


def test_times_of_another_clock_have_no_such_steps() -> None:
    assert checked([1e-6] * 100, 0.01).status is Status.PASS
    assert checked([1e-6] * 100, 0.01, events=True).reason is Reason.UNFIT


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=40))
@example([1e300, 5e-324, 1e-300, 1e300])
@example([1.7e308, 1.7e308, 1.7e308])
@settings(deadline=None)
def test_any_series_is_answered(values: list[float]) -> None:
    outcome = checked(values)
    assert outcome.launches <= len(values)
    assert math.isfinite(outcome.log_ok)
    assert math.isfinite(outcome.log_too_high)


@pytest.mark.parametrize("limit", [0.0, -1.0, math.nan, math.inf])
def test_bad_limits(limit: float) -> None:
    with pytest.raises(ValueError, match="limit"):
        SpreadTest(limit)


def test_the_first_decision_stands() -> None:
    test = SpreadTest(0.02)
    while not test.update(1e-4):
        pass
    with pytest.raises(ValueError, match="stands"):
        test.update(1e-4)
