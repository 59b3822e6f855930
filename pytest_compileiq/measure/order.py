"""What the order of a unit's blocks does to their times, known from the units before it.

The first or the last block of a unit may not be like the others: of a softmax on an H200 the first
took 0.4 % more, of a matrix product at the power limit once 1.6 %. A coin turns that into noise, ABBA
one way and BAAB the other, so it misleads nobody, but for a 6 us kernel in CUDA graphs without edges it
was more than half of the noise. What past units show of it can be taken off the next one.

The test stays exact for a kernel whose times are its baseline's in every place of a unit, or those
times one factor: the coin only turns the sign of what is left, whatever number was chosen before
the toss. Rosenbaum, "Covariance adjustment in randomized experiments and observational studies"
(Statistical Science 2002), one unit at a time. Where one of the two is noisier in some places only,
a number that is itself noise could be carried over; so only a clear effect is taken off.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from statistics import median

from pytest_compileiq.measure.scale import MAD_TO_SD, median_deviation

#: Units of each order before which nothing is taken off.
_LEAST = 2
#: Standard error of a median to that of a mean, for a normal distribution.
_OF_A_MEDIAN = math.sqrt(math.pi / 2)
#: An effect within three standard errors is taken for none, and a greater one is shrunk. So false
#: claims stay within 5 % even where one order spreads five times as wide as the other.
_DOUBT = 3.0**2


class OrderEffect:
    """Half of what log-ratios of ABBA exceed those of BAAB by; ``add`` each unit after its test.

    Medians, so that rare outliers do not move it, shrunk towards 0 (James & Stein 1961): where
    the order does nothing, next to nothing is added to the noise.
    """

    def __init__(self) -> None:
        self._sorted: dict[int, list[float]] = {1: [], -1: []}

    @property
    def current(self) -> float:
        """The effect for the next unit, log units: to be subtracted for ABBA, added for BAAB."""
        first, second = self._sorted.values()
        if min(len(first), len(second)) < _LEAST:
            return 0.0
        effect = 0.5 * (median(first) - median(second))
        doubt = 0.25 * _DOUBT * (_variance(first) + _variance(second))
        return effect * (1 - doubt / effect**2) if effect**2 > doubt else 0.0

    def add(self, sign: int, d: float) -> None:
        """Take in a finite log-ratio of a unit; ``sign`` is 1 for ABBA and -1 for BAAB."""
        insort(self._sorted[sign], d)


def _variance(values: Sequence[float]) -> float:
    """Of the median of these sorted values."""
    return (_OF_A_MEDIAN * MAD_TO_SD * median_deviation(values)) ** 2 / len(values)
