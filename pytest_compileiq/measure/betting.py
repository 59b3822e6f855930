"""Betting on the sign of log-ratios: tests that may be looked at after every unit.

A gambler who starts with 1 and bets at fair odds that the candidate is faster ends above 20
with a probability of at most 1/20, whenever he stops (Ville 1939). So his capital is evidence,
and its inverse an error rate, under continuous looking. The construction follows
Waudby-Smith & Ramdas, "Estimating means of bounded random variables by betting" (JRSS-B 2024),
on Huber-clipped log-ratios, whose fairness comes from a coin (Vovk & Wang 2024, e-tests of
symmetry); the mixture over stakes is that of Krichevsky & Trofimov (1981).

Capital grows by multiplication alone, and sums are exact (``math.fsum``), so the numbers do not
depend on how a machine's vector unit adds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from pytest_compileiq.measure.scale import LIMIT, RunningScale, Scale

Floats = npt.NDArray[np.float64]

_COUNT = 16
#: Stakes in (0, 1): the nodes of a half-arcsine prior. Rounded, so that no libm moves them.
STAKES: Floats = np.array(
    [round(math.cos((k - 0.5) * math.pi / (2 * _COUNT)), 12) for k in range(1, _COUNT + 1)]
)
#: A log-ratio counts up to this many scales: Huber's constant, 96 % efficient on normal noise.
CLIP = 1.5
#: Largest logarithm of an e-value that is handed out as a number: JSON has no infinity.
_MAX_LOG = 690.0
#: No factor is above 8 and no stake below 0.049, so in this many bets nothing over- or underflows.
_BETS_BETWEEN_SCALINGS = 256
#: Ends of an interval are found to this (log units): 0.00001 %.
_TOLERANCE = 1e-7


class Capital:
    """The mean capital of gamblers with different ``stakes``, each starting at 1.

    A bet on ``x`` multiplies a gambler's capital by ``1 + stake * x``. When the mean of x given
    the past is at most 0, the capital is an e-process.
    """

    def __init__(self, stakes: Floats) -> None:
        self._stakes = stakes
        self._wealth = np.ones_like(stakes)
        self._exponent = 0
        self._bets = 0

    def bet(self, x: float) -> None:
        self._wealth *= 1.0 + self._stakes * x
        self._bets += 1
        if self._bets % _BETS_BETWEEN_SCALINGS == 0:
            exponent = math.frexp(float(self._wealth.max()))[1]
            self._wealth = np.ldexp(self._wealth, -exponent)
            self._exponent += exponent

    @property
    def log(self) -> float:
        """Natural logarithm of the mean capital."""
        mean = math.fsum(self._wealth.tolist()) / len(self._stakes)
        return math.log(mean) + self._exponent * math.log(2)


def _log_capital(stakes: Floats, x: Floats) -> float:
    """Logarithm of the capital after all bets ``x``, shape (n,), at once."""
    size = 32  # factors in (0.001, 2): 32 of them neither over- nor underflow
    factors = np.ones((-(-len(x) // size) * size, len(stakes)))
    factors[: len(x)] += x[:, None] * stakes
    logs = np.log(factors.reshape(-1, size, len(stakes)).prod(axis=1)).sum(axis=0)
    top = float(logs.max())
    return top + math.log(float(np.exp(logs - top).mean()))


def e_value(log: float) -> float:
    """An e-value from its logarithm, finite for JSON: at most 1e299."""
    return math.exp(min(log, _MAX_LOG))


class BettingTest:
    """Is the location of log-ratios above or below ``delta``?

    Feed one log-ratio ``d = log(t_base / t_candidate)`` a unit. ``above`` (E+) is evidence
    against "the location is at most delta", ``below`` (E-) against "at least delta". Each is an
    e-process if a fair coin makes d symmetric about its location given the past: the chance
    that it ever reaches 1/alpha is at most alpha. The location is Huber's, so rare outliers do
    not move it. At most one of the two exceeds 1 at any time.

    ``scale`` is a :class:`~pytest_compileiq.measure.scale.Scale`, or a pilot's standard
    deviation (log units). ``prior`` holds the logarithms of (E+, E-) of independent evidence for
    the same delta, from what is no unit: e-values multiply.
    """

    def __init__(
        self, delta: float, scale: float | Scale, *, prior: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        if not math.isfinite(delta):
            raise ValueError(f"delta is a finite number, not {delta!r}")
        if not all(math.isfinite(log) for log in prior):
            raise ValueError(f"prior holds two finite logarithms, not {prior!r}")
        self.delta = delta
        self.prior = prior
        self.missing = 0
        self.scale: Scale = RunningScale(scale) if isinstance(scale, int | float) else scale
        self._up = Capital(STAKES)
        self._down = Capital(-STAKES)
        #: The log-ratios that were taken in, one a unit.
        self.taken: list[float] = []
        self._s: list[float] = []

    def update(self, d: float) -> None:
        """Take in one unit's log-ratio. NaN is no evidence and only counted in ``missing``."""
        if math.isnan(d):
            self.missing += 1
            return
        d = max(-LIMIT, min(LIMIT, float(d)))
        s = self.scale.current
        psi = max(-1.0, min(1.0, (d - self.delta) / (CLIP * s)))
        self._up.bet(psi)
        self._down.bet(psi)
        self.taken.append(d)
        self._s.append(s)
        self.scale.add(d)

    @property
    def n(self) -> int:
        """Units taken in, without those that were NaN."""
        return len(self.taken)

    @property
    def log_above(self) -> float:
        return self._up.log + self.prior[0]

    @property
    def log_below(self) -> float:
        return self._down.log + self.prior[1]

    @property
    def above(self) -> float:
        """E+: evidence that the location is above delta."""
        return e_value(self.log_above)

    @property
    def below(self) -> float:
        """E-: evidence that the location is below delta."""
        return e_value(self.log_below)

    @property
    def mean(self) -> float:
        """Mean of the log-ratios, for comparison; NaN before the first."""
        return math.fsum(self.taken) / len(self.taken) if self.taken else math.nan

    @property
    def estimate(self) -> float:
        """Huber's location of the log-ratios; NaN before the first."""
        if not self.taken:
            return math.nan
        d, c = np.array(self.taken), CLIP * np.array(self._s)

        def is_above(delta: float) -> bool:
            return float(np.clip((d - delta) / c, -1.0, 1.0).sum()) < 0

        low, high = _boundary(is_above, float(d.min()), float(d.max()))
        return 0.5 * (low + high)

    def interval(self, alpha: float) -> tuple[float, float]:
        """All delta that the units leave possible, each side at level ``alpha``.

        A time-uniform confidence interval of coverage 1 - 2 alpha for the location: it may be
        read after every unit. Both ends are rounded outwards, to about 1e-7; an end that the
        units cannot yet bound is infinite. ``prior`` does not narrow it, as it is known at one
        delta only.
        """
        if not 0 < alpha < 1:
            raise ValueError(f"alpha lies between 0 and 1, not at {alpha!r}")
        if not self.taken:
            return -math.inf, math.inf
        d, c = np.array(self.taken), CLIP * np.array(self._s)
        threshold = math.log(1 / alpha)
        center = self.estimate

        def excluded(delta: float, stakes: Floats) -> bool:
            return _log_capital(stakes, np.clip((d - delta) / c, -1.0, 1.0)) >= threshold

        low, high = -math.inf, math.inf
        # Beyond these two every bet is won in full, so evidence grows no further.
        lowest, highest = float((d - c).min()), float((d + c).max())
        if excluded(lowest, STAKES):
            low = _boundary(lambda delta: not excluded(delta, STAKES), lowest, center)[0]
        if excluded(highest, -STAKES):
            high = _boundary(lambda delta: excluded(delta, -STAKES), center, highest)[1]
        return low, high


def _boundary(is_high: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Halve [low, high] around the place where a monotone answer turns from no to yes."""
    steps = max(1, math.ceil(math.log2(max((high - low) / _TOLERANCE, 2))))
    for _ in range(steps):
        middle = 0.5 * (low + high)
        if is_high(middle):
            high = middle
        else:
            low = middle
    return low, high
