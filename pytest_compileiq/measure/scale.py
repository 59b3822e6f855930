"""The scale of a log-ratio, known before the log-ratio is: pilot launches, then the past.

A test that bets on clipped log-ratios stays valid with any scale that was fixed before the
unit was seen. A scale that looks at the unit it scales breaks it: see
``tests/measure/test_broken_designs.py``.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from statistics import median
from typing import Protocol

#: Below this a log-ratio is taken as equal: 0.05 %.
FLOOR = 5e-4
#: What CUDA events resolve: 32 ns, measured on an H200.
EVENT_QUANTUM = 32e-9
#: A log-ratio beyond this (a ratio of 6e27) is a broken clock, and is cut to it.
LIMIT = 64.0
#: Median absolute deviation to standard deviation, for a normal distribution.
MAD_TO_SD = 1.4826
#: Units after which the pilot no longer counts.
PILOT_UNITS = 16


class Scale(Protocol):
    """What a test needs of a scale: ``current`` for the next unit, then ``add`` that unit."""

    @property
    def current(self) -> float: ...

    def add(self, d: float) -> None: ...


def pilot_scale(seconds: Sequence[float]) -> float:
    """Standard deviation of one unit's log-ratio, from launches of one kernel in a row.

    ``seconds`` are times of the baseline alone, in the order of the launches; neighbours are
    paired, so slow drift cancels. A pair with a time that is not a positive number is left
    out. NaN when none is left, which :class:`RunningScale` takes for "no pilot".
    """
    steps = [
        abs(math.log(first / second))
        for first, second in zip(seconds[::2], seconds[1::2], strict=False)
        if 0 < first < math.inf and 0 < second < math.inf and 0 < first / second < math.inf
    ]
    return MAD_TO_SD * median(steps) / math.sqrt(2) if steps else math.nan


def scale_floor(block_seconds: float) -> float:
    """The least scale worth using when a block takes ``block_seconds``: half a clock tick."""
    if not 0 < block_seconds < math.inf:
        return FLOOR
    return max(FLOOR, 0.5 * EVENT_QUANTUM / block_seconds)


def median_deviation(values: Sequence[float]) -> float:
    """Median of the distances of sorted ``values`` from their median; at least one is needed."""
    n = len(values)
    half = n // 2
    if n % 2:
        return _distance(values, values[half], half + 1)
    center = 0.5 * (values[half - 1] + values[half])
    return 0.5 * (_distance(values, center, half) + _distance(values, center, half + 1))


def _distance(values: Sequence[float], center: float, count: int) -> float:
    """How far from ``center`` the ``count`` nearest of the sorted values reach.

    They lie side by side, so the first of them is found by bisection.
    """
    low, high = 0, len(values) - count
    while low < high:
        middle = (low + high) // 2
        if center - values[middle] > values[middle + count] - center:
            low = middle + 1
        else:
            high = middle
    return max(center - values[low], values[low + count - 1] - center)


class RunningScale:
    """The scale for the next unit, from the units before it and a pilot.

    The median absolute deviation of the past, weighted against the pilot by
    ``min(1, units / 16)`` in log terms, and never below ``floor``. Exact, in O(log n)
    comparisons a unit.
    """

    def __init__(self, pilot: float = math.nan, floor: float = FLOOR) -> None:
        if not 0 < floor < math.inf:
            raise ValueError(f"a scale's floor is a positive number, not {floor!r}")
        self.floor = floor
        self.pilot = max(pilot, floor) if 0 < pilot < math.inf else floor
        self._sorted: list[float] = []
        self._current = self.pilot

    @property
    def current(self) -> float:
        """The scale for the next unit (log units)."""
        return self._current

    def add(self, d: float) -> None:
        """Take in a finite log-ratio, after it was judged by the scale before it."""
        insort(self._sorted, d)
        spread = max(MAD_TO_SD * median_deviation(self._sorted), self.floor)
        weight = min(1.0, len(self._sorted) / PILOT_UNITS)
        if weight < 1:
            spread = math.exp(weight * math.log(spread) + (1 - weight) * math.log(self.pilot))
        self._current = max(spread, self.floor)
