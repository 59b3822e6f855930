from __future__ import annotations

import math
from statistics import median

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_compileiq.measure.scale import (
    FLOOR,
    MAD_TO_SD,
    RunningScale,
    pilot_scale,
    scale_floor,
)


@given(st.lists(st.floats(-1, 1), min_size=16, max_size=80))
def test_after_sixteen_units_it_is_the_median_deviation(values: list[float]) -> None:
    scale = RunningScale(0.3)
    for one in values:
        scale.add(one)
    center = median(values)
    deviation = MAD_TO_SD * median(abs(one - center) for one in values)
    assert scale.current == pytest.approx(max(deviation, FLOOR), rel=1e-12)


def test_first_unit_is_scaled_by_the_pilot_alone() -> None:
    assert RunningScale(0.02).current == 0.02
    scale = RunningScale(0.02)
    for one in (-0.1, 0.1, -0.1, 0.1):
        scale.add(one)
    assert scale.current == pytest.approx((MAD_TO_SD * 0.1) ** 0.25 * 0.02**0.75)


@pytest.mark.parametrize("pilot", [math.nan, math.inf, 0.0, -1.0, 1e-9])
def test_a_useless_pilot_means_the_floor(pilot: float) -> None:
    assert RunningScale(pilot).current == FLOOR
    with pytest.raises(ValueError, match="floor"):
        RunningScale(0.01, floor=pilot if pilot < 1e-10 or not pilot > 0 else 0.0)


def test_pilot_measures_one_unit_and_ignores_drift() -> None:
    rng = np.random.default_rng(0)
    drift = np.linspace(0, 0.5, 4000)
    seconds = 1e-4 * np.exp(drift + 0.01 * rng.standard_normal(4000))
    assert pilot_scale(seconds.tolist()) == pytest.approx(0.01, rel=0.05)
    # A quad of launches of this jitter has the same deviation: half of the sum of four.
    logs = np.log(seconds).reshape(-1, 4)
    quads = 0.5 * (logs[:, 0] - logs[:, 1] - logs[:, 2] + logs[:, 3])
    assert pilot_scale(seconds.tolist()) == pytest.approx(float(quads.std()), rel=0.1)


def test_pilot_leaves_out_what_is_no_time() -> None:
    good = [1.0, 1.01, 1.0, 0.99]
    assert pilot_scale([*good, 0.0, 1.0, math.nan, 1.0, -1.0, 1.0]) == pilot_scale(good)
    assert math.isnan(pilot_scale([]))
    assert math.isnan(pilot_scale([1.0]))
    assert math.isnan(pilot_scale([5e-324, 1e308]))


def test_floor_is_half_a_tick_of_the_clock() -> None:
    assert scale_floor(1e-3) == FLOOR
    assert scale_floor(5e-6) == pytest.approx(0.0032)
    assert scale_floor(math.nan) == scale_floor(0.0) == FLOOR
