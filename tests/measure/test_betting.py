"""The betting test against independent arithmetic: by hand, by enumeration, and by ville."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Sequence
from statistics import median

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_compileiq.measure.betting import STAKES, BettingTest
from pytest_compileiq.measure.scale import FLOOR, RunningScale

ratios = st.floats(-0.2, 0.2).map(lambda d: round(d, 6))
anything = st.one_of(
    ratios, st.floats(allow_nan=True, allow_infinity=True), st.sampled_from([0.0, -1e300])
)
slow = settings(max_examples=60, deadline=None)


class Fixed:
    """A scale that does not learn: what is proved for it is proved for the bets alone."""

    current = 0.01

    def add(self, d: float) -> None:
        pass


def fed(values: Sequence[float], delta: float = 0.0, scale: object = 0.01) -> BettingTest:
    test = BettingTest(delta, scale)  # type: ignore[arg-type]
    for d in values:
        test.update(d)
    return test


def by_hand(values: Sequence[float], delta: float, pilot: float) -> tuple[float, float]:
    """E+ and E- from the formulas of the method, written for reading and not for speed."""
    stakes = [math.cos((k - 0.5) * math.pi / 32) for k in range(1, 17)]
    up, down = [1.0] * 16, [1.0] * 16
    for i, d in enumerate(values):
        past = values[:i]
        scale = max(pilot, FLOOR)
        if past:
            deviation = median(abs(one - median(past)) for one in past)
            weight = min(1.0, i / 16)
            scale = max(1.4826 * deviation, FLOOR) ** weight * scale ** (1 - weight)
        psi = min(1.0, max(-1.0, (d - delta) / (1.5 * scale)))
        up = [one * (1 + stake * psi) for one, stake in zip(up, stakes, strict=True)]
        down = [one * (1 - stake * psi) for one, stake in zip(down, stakes, strict=True)]
    return sum(up) / 16, sum(down) / 16


@given(st.lists(ratios, max_size=40), ratios, st.floats(1e-4, 0.1))
@slow
def test_agrees_with_the_formulas(values: list[float], delta: float, pilot: float) -> None:
    test = fed(values, delta, pilot)
    above, below = by_hand(values, delta, pilot)
    assert test.n == len(values)
    assert test.above == pytest.approx(above, rel=1e-9)
    assert test.below == pytest.approx(below, rel=1e-9)


@pytest.mark.parametrize("alpha", [0.05, 0.02, 0.01])
@pytest.mark.parametrize("delta", [0.0, 0.03])
def test_exact_error_by_all_coins(alpha: float, delta: float) -> None:
    """All 2^10 outcomes of the coins over fixed noise: a mean of 1, and errors within alpha.

    This is the randomisation distribution itself, with the scale learning from each path.
    """
    n = 10
    sizes = 0.01 + np.abs(np.random.default_rng(3).standard_t(3, n)) * 0.01
    ever_above = ever_below = 0
    ends = []
    for signs in itertools.product((1, -1), repeat=n):
        test = BettingTest(delta, 0.002)
        above = below = False
        for sign, size in zip(signs, sizes, strict=True):
            test.update(delta + sign * float(size))
            above |= test.above >= 1 / alpha
            below |= test.below >= 1 / alpha
        ever_above += above
        ever_below += below
        ends.append((test.above, test.below))
    means = [math.fsum(column) / 2**n for column in zip(*ends, strict=True)]
    assert means == pytest.approx([1.0, 1.0], rel=1e-9)
    assert 0 < ever_above <= alpha * 2**n
    assert 0 < ever_below <= alpha * 2**n


@given(st.lists(anything, max_size=60), ratios)
@slow
def test_never_both(values: list[float], delta: float) -> None:
    test = BettingTest(delta, 0.01)
    for d in values:
        test.update(d)
        assert min(test.log_above, test.log_below) <= 1e-9
        assert math.isfinite(test.above)
        assert math.isfinite(test.below)


@given(st.lists(anything, min_size=1, max_size=60))
@slow
def test_interval_answers_everything(values: list[float]) -> None:
    test = fed(values)
    narrow, wide = test.interval(0.05), test.interval(0.001)
    assert wide[0] <= narrow[0] <= narrow[1] <= wide[1]
    if test.n:
        assert narrow[0] <= test.estimate <= narrow[1]
        assert math.isfinite(test.estimate)
    assert test.n + test.missing == len(values)
    assert test.missing == sum(map(math.isnan, values))


@given(st.lists(ratios, min_size=1, max_size=40), st.sampled_from([0.3, 0.05, 0.01, 1e-6]))
@slow
def test_interval_holds_what_no_test_rejects(values: list[float], alpha: float) -> None:
    """The ends are where tests at those boundaries turn: the inversion, checked by testing."""
    low, high = fed(values, scale=0.01).interval(alpha)
    for end, side, outwards in ((low, "above", -1), (high, "below", 1)):
        if math.isfinite(end):
            outside = fed(values, end + outwards * 1e-6)
            inside = fed(values, end - outwards * 1e-6)
            assert getattr(outside, side) >= (1 - 1e-9) / alpha
            assert getattr(inside, side) < (1 + 1e-9) / alpha
    if not math.isfinite(low):
        assert fed(values, -10).above < 1 / alpha


@given(st.lists(ratios, min_size=1, max_size=30), st.integers(2, 4))
@slow
def test_interval_shrinks(values: list[float], times: int) -> None:
    """The same evidence again leaves less possible: E of twice the bets is at least E^2."""
    once = fed(values, scale=Fixed()).interval(0.05)
    more = fed(values * times, scale=Fixed()).interval(0.05)
    assert once[0] - 1e-6 <= more[0] <= more[1] <= once[1] + 1e-6


def test_interval_shrinks_with_fresh_units() -> None:
    d = np.random.default_rng(1).normal(0.02, 0.01, 400).tolist()
    widths = []
    for n in (8, 25, 100, 400):
        low, high = fed(d[:n]).interval(0.05)
        assert low < 0.02 < high
        widths.append(high - low)
    assert widths == sorted(widths, reverse=True)
    assert widths[-1] < widths[1] / 3


def test_coverage_under_continuous_looking() -> None:
    rng = np.random.default_rng(4)
    lost = 0
    for _ in range(200):
        d = rng.standard_t(2, 60) * 0.01
        # The truth leaves the interval when a test at the truth rejects.
        test = BettingTest(0.0, 0.01)
        left = False
        for one in d:
            test.update(float(one))
            left |= max(test.above, test.below) >= 20
        lost += left
    assert 0 < lost <= 20 + 3 * math.sqrt(20)  # 2 * 5 % of 200, and three of its deviations


@pytest.mark.parametrize("value", [math.inf, -math.inf, 1e308, -1e308])
def test_a_broken_clock_is_one_full_bet(value: float) -> None:
    test = fed([value] * 3)
    assert (test.above > 1) is (value > 0)
    assert test.above == pytest.approx(fed([math.copysign(1, value)] * 3).above)


def test_nan_is_no_evidence() -> None:
    test = fed([0.01, math.nan, 0.02, math.nan])
    assert (test.n, test.missing) == (2, 2)
    assert test.above == fed([0.01, 0.02]).above
    empty = fed([math.nan] * 5)
    assert (empty.above, empty.below) == (1, 1)
    assert empty.interval(0.05) == (-math.inf, math.inf)


@pytest.mark.parametrize("d", [0.0, 1e-9, 0.02, -0.02])
def test_constant_series(d: float) -> None:
    test = fed([d] * 200)
    low, high = test.interval(0.05)
    assert low <= d <= high
    assert high - low < 0.001
    assert test.estimate == pytest.approx(d, abs=1e-6)
    assert (test.above > 1e6, test.below > 1e6) == (d > 0.001, d < -0.001)


def test_long_winning_and_losing_runs_stay_finite() -> None:
    test = fed([1.0] * 3000)
    assert test.log_above == pytest.approx(3000 * math.log(1 + STAKES[0]) - math.log(16), rel=1e-9)
    assert test.above < math.inf
    for _ in range(6000):
        test.update(-1.0)
    assert test.log_below > 1000
    assert test.log_above < -10
    assert math.isfinite(test.log_above)


def test_six_units_at_5_percent_and_eight_at_1() -> None:
    for alpha, least in ((0.05, 6), (0.01, 8)):
        assert fed([1.0] * (least - 1)).above < 1 / alpha <= fed([1.0] * least).above


def test_a_prior_multiplies() -> None:
    first = fed([0.01, 0.005, -0.002])
    second = BettingTest(0.0, 0.01, prior=(first.log_above, first.log_below))
    alone = BettingTest(0.0, 0.01)
    assert second.above == pytest.approx(first.above)
    for d in (0.02, 0.004):
        second.update(d)
        alone.update(d)
    assert second.above == pytest.approx(first.above * alone.above)
    assert second.below == pytest.approx(first.below * alone.below)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_bad_arguments(bad: float) -> None:
    with pytest.raises(ValueError, match="delta"):
        BettingTest(bad, 0.01)
    with pytest.raises(ValueError, match="prior"):
        BettingTest(0, 0.01, prior=(bad, 0.0))
    with pytest.raises(ValueError, match="alpha"):
        BettingTest(0, 0.01).interval(bad)


@pytest.mark.parametrize("mean", [0.01, 0.005])
def test_ville_stops_about_as_soon(mean: float) -> None:
    """Another's implementation of the same idea, fed our clipped stream."""
    ville = pytest.importorskip("ville")
    rng = np.random.default_rng(2)
    ours, theirs = [], []
    for _ in range(60):
        d = rng.normal(mean, 0.014, 1000)
        psi = np.clip(d / (1.5 * 0.014), -1, 1)
        test = BettingTest(0.0, 0.014)
        for n, one in enumerate(d, start=1):
            test.update(float(one))
            if test.above >= 20:
                ours.append(n)
                break
        other = ville.BettingTest(0.0, bounds=(-1, 1), alternative="greater", alpha=0.05)
        theirs.append(other.fit(psi).stopping_time())
    assert len(ours) == 60
    assert None not in theirs
    assert 0.6 < np.mean(ours) / np.mean(theirs) < 1.4


def test_statistics_cost_less_than_a_launch() -> None:
    """At most 50 us a unit and 5 ms an interval. Measured: 7 us and 1.2 ms."""
    d = np.random.default_rng(0).normal(0.001, 0.01, 250).tolist()
    units, intervals = [], []
    for _ in range(5):  # the best of five: the machine may be busy
        test = BettingTest(0.0, RunningScale(0.01))
        start = time.perf_counter()
        for one in d:
            test.update(one)
            assert test.log_above < 50 > test.log_below
        middle = time.perf_counter()
        test.interval(0.05)
        units.append((middle - start) / len(d))
        intervals.append(time.perf_counter() - middle)
    assert min(units) < 50e-6
    assert min(intervals) < 5e-3
