"""Is the spread of a kernel's times below a limit? A sequential check of the CV.

The usual sd / mean of 15 or 100 launches is a coin toss near its limit, and hostage to one
outlier. Here neighbouring launches are paired, so slow drift cancels (von Neumann 1941), a
pair's variance is capped, since no test can bound a variance otherwise (Bahadur & Savage 1956),
and a betting test (Waudby-Smith & Ramdas 2024) compares its mean with the limit after each pair.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean, median, stdev

from pytest_compileiq.measure.betting import STAKES, Capital
from pytest_compileiq.measure.decide import ALPHA_FAIL, ALPHA_PASS
from pytest_compileiq.measure.scale import EVENT_QUANTUM
from pytest_compileiq.verdict import Reason, Status

#: A pair's variance counts up to this many times the limit's.
CAP = 8.0
#: A launch this many times slower than the median is an outlier.
OUTLIER = 1.2
#: Launches over which the slow component is averaged.
ALLAN = (8, 64, 512)
#: Launches after which the check ends undecided.
LAUNCHES = 1200
#: What CUDA promises that the time between two events resolves.
PROMISED_STEP = 0.5e-6
#: What is no time of a launch, in seconds: a femtosecond, and thirty million years.
_LEAST, _MOST = 1e-15, 1e15


@dataclass(frozen=True, kw_only=True, slots=True)
class SpreadOutcome:
    """The answer, and what the spread is made of. All CVs are ratios, not percent.

    ``short_cv``: between neighbouring launches, capped, the tested number. ``classic_cv``:
    sd / mean of all launches, for comparison. ``outliers``: share of launches above 1.2 times
    the median. ``allan``: Allan deviation (ratio) over 8, 64 and 512 launches, None where there
    are too few. ``cause`` names what is above the limit: "jitter" between neighbours,
    "outliers", or "drift", the slow component; None when nothing is. ``clock_step`` (s) is the
    step of the clock where that hides the answer, which then is ``unfit``.
    """

    status: Status
    reason: Reason | None
    launches: int
    limit: float
    log_ok: float
    log_too_high: float
    short_cv: float | None
    classic_cv: float | None
    outliers: float
    allan: tuple[float | None, ...]
    cause: str | None
    clock_step: float | None = None

    def numbers(self) -> dict[str, object]:
        return {
            "status": self.status.value,
            "reason": None if self.reason is None else self.reason.value,
            "launches": self.launches,
            "limit": self.limit,
            "log_e_ok": self.log_ok,
            "log_e_too_high": self.log_too_high,
            "short_cv": self.short_cv,
            "classic_cv": self.classic_cv,
            "outlier_share": self.outliers,
            "allan": dict(zip(map(str, ALLAN), self.allan, strict=True)),
            "cause": self.cause,
            "clock_step": self.clock_step,
        }


class SpreadTest:
    """Is the coefficient of variation of launch times below ``limit`` (a ratio, 0.02 is 2 %)?

    Feed the seconds of single launches, in order. After each second launch the evidence may
    decide: PASS, or FAIL with ``noisy``. A time that is not a positive number, or out of this
    world, counts as the largest spread.

    With ``events`` the times are those of CUDA events, whose clock goes in steps. Steps alone make
    a CV of up to half a step, and a smaller one may be hidden in them. So where a step is more than
    the limit (at 1 % below 3.2 us, with the 32 ns of an H200) nothing passes, and nothing
    fails whose neighbours differ by no more than a step on average: the answer is ``unfit``.
    """

    def __init__(
        self,
        limit: float,
        *,
        alpha_pass: float = ALPHA_PASS,
        alpha_fail: float = ALPHA_FAIL,
        events: bool = False,
    ) -> None:
        if not 0 < limit < math.inf:
            raise ValueError(f"a limit of a CV is a positive ratio, not {limit!r}")
        self.limit = limit
        self.alpha_pass = alpha_pass
        self.alpha_fail = alpha_fail
        self.events = events
        self.seconds: list[float] = []
        self.outcome: SpreadOutcome | None = None
        self._variance = math.log1p(limit * limit)  # of the logarithm, if times are log-normal
        self._ok = Capital(-STAKES / (CAP - 1))
        self._too_high = Capital(STAKES)
        self._capped: list[float] = []

    def update(self, seconds: float) -> SpreadOutcome | None:
        if self.outcome is not None:
            raise ValueError("this check has decided; its first decision stands")
        self.seconds.append(seconds)
        if len(self.seconds) % 2:
            return None
        first, second = self.seconds[-2:]
        share = CAP
        if _is_time(first) and _is_time(second):
            step = math.log(second) - math.log(first)
            share = min(0.5 * step * step / self._variance, CAP)
        self._capped.append(share)
        self._ok.bet(share - 1)
        self._too_high.bet(share - 1)
        if self._ok.log >= math.log(1 / self.alpha_pass):
            return self._close(Status.PASS, None)
        if self._too_high.log >= math.log(1 / self.alpha_fail):
            return self._close(Status.FAIL, Reason.NOISY)
        return None

    def end(self) -> SpreadOutcome:
        """Answer with what there is: undecided, if nothing was decided."""
        return self.outcome or self._close(Status.UNDECIDED, Reason.UNDECIDED)

    def _close(self, status: Status, reason: Reason | None) -> SpreadOutcome:
        usable = list(filter(_is_time, self.seconds))
        slow = OUTLIER * median(usable) if usable else math.inf
        quiet = [one for one in usable if one <= slow]
        lost = len(self.seconds) - len(quiet)
        step = self._hiding_step(usable, status)
        if step is not None:
            status, reason = Status.UNDECIDED, Reason.UNFIT
        self.outcome = SpreadOutcome(
            status=status,
            reason=reason,
            launches=len(self.seconds),
            limit=self.limit,
            log_ok=self._ok.log,
            log_too_high=self._too_high.log,
            short_cv=self._short_cv(),
            classic_cv=classic_cv(usable),
            outliers=lost / len(self.seconds) if self.seconds else 0.0,
            allan=tuple(allan_deviation(quiet, size) for size in ALLAN),
            cause=self._cause(usable, quiet),
            clock_step=step,
        )
        return self.outcome

    def _hiding_step(self, usable: list[float], status: Status) -> float | None:
        if not self.events or len(usable) < len(self.seconds) or not usable:
            return None
        step = clock_step(usable)
        apart = fmean(abs(b - a) for a, b in zip(usable[::2], usable[1::2], strict=False))
        fine = step <= self.limit * median(usable) or (status is not Status.PASS and apart > step)
        return None if fine else step

    def _short_cv(self) -> float | None:
        if not self._capped:
            return None
        return math.sqrt(math.expm1(self._variance * fmean(self._capped)))

    def _cause(self, usable: list[float], quiet: list[float]) -> str | None:
        classic = classic_cv(usable)
        if len(usable) < len(self.seconds):
            return "outliers"
        if classic is None or (classic <= self.limit and (self._short_cv() or 0) <= self.limit):
            return None
        # Judged without the outliers, each of which fills up one pair's cap.
        steps = [
            0.5 * math.log(second / first) ** 2
            for first, second in zip(quiet[::2], quiet[1::2], strict=False)
        ]
        if steps and fmean(steps) > self._variance:
            return "jitter"
        return "outliers" if (classic_cv(quiet) or 0) <= self.limit else "drift"


def _is_time(seconds: float) -> bool:
    return _LEAST < seconds < _MOST


def clock_step(seconds: Sequence[float]) -> float:
    """By how much (s) readings of events step: the least that two of them differ by.

    It is EVENT_QUANTUM at least, and no more than PROMISED_STEP: two levels of a noisy kernel are
    no step, however far apart.
    """
    # Below a nanosecond it is the rounding of a float.
    gaps = [b - a for a, b in pairwise(sorted(seconds)) if b - a > 1e-9]
    return max(EVENT_QUANTUM, min([*gaps, PROMISED_STEP]))


def classic_cv(seconds: Sequence[float]) -> float | None:
    """Standard deviation / mean, as it is usually computed; None for fewer than two times."""
    return stdev(seconds) / fmean(seconds) if len(seconds) > 1 else None


def allan_deviation(seconds: Sequence[float], size: int) -> float | None:
    """How much means of ``size`` launches differ from one to the next, relative to the mean.

    White noise of standard deviation s gives s / sqrt(size); what stays above that is drift
    (Allan 1966). None for fewer than two means.
    """
    count = len(seconds) // size
    if count < 2:
        return None
    means = [fmean(seconds[k * size : (k + 1) * size]) for k in range(count)]
    steps = [(second - first) ** 2 for first, second in pairwise(means)]
    return math.sqrt(0.5 * fmean(steps)) / fmean(means)
