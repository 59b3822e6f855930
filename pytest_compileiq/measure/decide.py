"""From evidence to an answer: the rule of each check, and the judge that applies it.

A :class:`Judge` is fed one log-ratio a unit and holds an :class:`Outcome` as soon as the
evidence decides, or when whoever feeds it says why it has to end. No clock, no I/O: the same
log-ratios give the same outcome.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from enum import StrEnum

from pytest_compileiq.measure.betting import BettingTest, e_value
from pytest_compileiq.measure.scale import Scale
from pytest_compileiq.verdict import Reason, Status

#: Chance of a wrong pass and of a wrong failure. A red build costs people time, so it is rarer.
ALPHA_PASS = 0.05
ALPHA_FAIL = 0.01
#: How near to the boundary "no measurable difference" is: 0.5 %.
NEAR = math.log1p(0.005)
#: An interval is looked at every so many units, since it costs a millisecond.
_UNITS_BETWEEN_LOOKS = 16


class End(StrEnum):
    """Why a judge stopped being fed."""

    DECIDED = "decided"
    AT_THRESHOLD = "at-threshold"  # the interval is narrow and still holds the boundary
    BUDGET = "budget"
    STOPPED = "stopped"  # the caller has no time left
    THROTTLED = "throttled"  # too many units rejected
    BROKEN = "broken"  # too many units without a usable time


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """What is claimed, and how sure an answer has to be.

    The claim is "the speed-up is above ``ratio``", or below it if ``slower_passes``.
    ``near`` is the half-width (log units) about the boundary inside which an interval means
    "at the threshold"; with ``stop_near`` that ends the measuring at once, without it the
    whole budget is spent first and the answer is a failure for ``no-win``. ``fail_reason`` is
    the reason when the claim is refuted. Use the functions below; they hold the constants.
    """

    ratio: float
    slower_passes: bool = False
    alpha_pass: float = ALPHA_PASS
    alpha_fail: float = ALPHA_FAIL
    near: float = NEAR
    stop_near: bool = False
    fail_reason: Reason = Reason.SLOWER

    def __post_init__(self) -> None:
        if not 0 < self.ratio < math.inf:
            raise ValueError(f"a ratio of times is a positive number, not {self.ratio!r}")
        for alpha in (self.alpha_pass, self.alpha_fail):
            if not 0 < alpha < 1:
                raise ValueError(f"alpha lies between 0 and 1, not at {alpha!r}")

    @property
    def delta(self) -> float:
        return math.log(self.ratio)

    @property
    def alpha_above(self) -> float:
        """Error rate of "the speed-up is above the boundary"."""
        return self.alpha_fail if self.slower_passes else self.alpha_pass

    @property
    def alpha_below(self) -> float:
        return self.alpha_pass if self.slower_passes else self.alpha_fail

    @property
    def minimum_units(self) -> int:
        """Units without which no verdict can be reached: coins are the only source of proof."""
        alpha = max(self.alpha_pass, self.alpha_fail)
        test = BettingTest(0.0, 1.0)
        while test.log_above < math.log(1 / alpha):
            test.update(math.inf)
        return test.n

    def among(self, tests: int) -> Rule:
        """This rule as one of ``tests``: any wrong failure among them stays within alpha_fail.

        e-Bonferroni. Passes are claims about one kernel each and keep their alpha.
        """
        return replace(self, alpha_fail=self.alpha_fail / max(1, tests))


def win(min_speedup: float = 1.0, *, alpha_pass: float = ALPHA_PASS) -> Rule:
    """A committed ACF is faster than the baseline by more than ``min_speedup``."""
    return Rule(ratio=min_speedup, alpha_pass=alpha_pass)


def canary_o0(margin: float = 1.05) -> Rule:
    """O0 is slower by more than ``margin``, a ratio. If not, the test sees no compiler."""
    return Rule(
        ratio=1 / margin,
        slower_passes=True,
        near=math.log(margin) / 4,
        stop_near=True,
        fail_reason=Reason.NO_EFFECT,
    )


def not_slower(tolerance: float = 0.05) -> Rule:
    """O3, or a committed ACF against its parent, is not slower by more than ``tolerance``."""
    return Rule(ratio=1 / (1 + tolerance), near=math.log1p(tolerance) / 4, stop_near=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """A rule's answer after ``units`` units.

    ``log_above`` and ``log_below`` are the logarithms of the e-values; ``speedup`` is Huber's
    location of t_base / t_candidate and ``interval`` its time-uniform interval of coverage
    ``1 - 2 * interval_alpha``, in ratios. ``mean_speedup`` is the geometric mean, which rare slow
    launches do move: a candidate that adds some shows here.
    ``more_units`` projects what an undecided test still needs, None if that cannot be told.
    """

    status: Status
    reason: Reason | None
    end: End
    units: int
    log_above: float
    log_below: float
    speedup: float | None
    mean_speedup: float | None
    interval: tuple[float | None, float | None]
    interval_alpha: float
    more_units: int | None

    def numbers(self) -> dict[str, object]:
        """Plain numbers for a report or a record; the floats survive JSON exactly."""
        return {
            "status": self.status.value,
            "reason": None if self.reason is None else self.reason.value,
            "end": self.end.value,
            "units": self.units,
            "log_e_above": self.log_above,
            "log_e_below": self.log_below,
            "e_above": e_value(self.log_above),
            "e_below": e_value(self.log_below),
            "speedup": self.speedup,
            "mean_speedup": self.mean_speedup,
            "speedup_interval": list(self.interval),
            "interval_alpha": self.interval_alpha,
            "more_units": self.more_units,
        }


class Judge:
    """Applies ``rule`` to log-ratios, one a unit, until it is decided.

    ``scale`` and ``prior`` as for :class:`~pytest_compileiq.measure.betting.BettingTest`;
    evidence that already decides gives an ``outcome`` before the first unit. Feeding a decided
    judge is an error: the first decision stands.
    """

    def __init__(
        self, rule: Rule, scale: float | Scale, *, prior: tuple[float, float] = (0.0, 0.0)
    ) -> None:
        self.rule = rule
        self.test = BettingTest(rule.delta, scale, prior=prior)
        self.outcome: Outcome | None = None
        self._need_above = math.log(1 / rule.alpha_above)
        self._need_below = math.log(1 / rule.alpha_below)
        self._minimum_units = rule.minimum_units
        self._decide()

    @property
    def may_stop(self) -> bool:
        """A budget that ends before this could never have given an answer."""
        return self.test.n >= self._minimum_units

    def feed(self, d: float) -> Outcome | None:
        """Take in one log-ratio (NaN: a unit without a usable time)."""
        if self.outcome is not None:
            raise ValueError("this judge has decided; its first decision stands")
        self.test.update(d)
        self._decide()
        if (
            self.outcome is None
            and self.rule.stop_near
            and self.test.n
            and self.test.n % _UNITS_BETWEEN_LOOKS == 0
            and self._near()
        ):
            self._close(Status.UNDECIDED, Reason.UNDECIDED, End.AT_THRESHOLD)
        return self.outcome

    def end(self, why: End) -> Outcome:
        """Answer with what is there. Does nothing to a decided judge."""
        if self.outcome is not None:
            return self.outcome
        if why in (End.THROTTLED, End.BROKEN):
            return self._close(Status.UNDECIDED, Reason.UNFIT, why)
        if why is End.BUDGET and not self.rule.stop_near and self._near():
            return self._close(Status.FAIL, Reason.NO_WIN, why)
        return self._close(Status.UNDECIDED, Reason.UNDECIDED, why)

    @property
    def more_units(self) -> int | None:
        """Units that the leading side still needs if evidence grows as it did.

        None when nothing leads yet.
        """
        needs = [
            self.test.n * (need / log - 1)
            for log, need in (
                (self.test.log_above, self._need_above),
                (self.test.log_below, self._need_below),
            )
            if log > 0.5
        ]
        return max(0, math.ceil(min(needs))) if needs else None

    def _decide(self) -> None:
        if self.test.log_above >= self._need_above:
            self._decided(passes=not self.rule.slower_passes)
        elif self.test.log_below >= self._need_below:
            self._decided(passes=self.rule.slower_passes)

    def _decided(self, *, passes: bool) -> None:
        if passes:
            self._close(Status.PASS, None, End.DECIDED)
        else:
            self._close(Status.FAIL, self.rule.fail_reason, End.DECIDED)

    def _near(self) -> bool:
        """Whether the interval lies within ``near`` of the boundary.

        At the stricter alpha, since "no win" is an answer that fails a build: the chance to
        give it to a speed-up beyond ``near`` is at most alpha_fail.
        """
        low, high = self.test.interval(min(self.rule.alpha_pass, self.rule.alpha_fail))
        return self.rule.delta - self.rule.near <= low and high <= self.rule.delta + self.rule.near

    def _close(self, status: Status, reason: Reason | None, end: End) -> Outcome:
        alpha = max(self.rule.alpha_pass, self.rule.alpha_fail)
        low, high = self.test.interval(alpha)
        self.outcome = Outcome(
            status=status,
            reason=reason,
            end=end,
            units=self.test.n,
            log_above=self.test.log_above,
            log_below=self.test.log_below,
            speedup=_ratio(self.test.estimate),
            mean_speedup=_ratio(self.test.mean),
            interval=(_ratio(low), _ratio(high)),
            interval_alpha=alpha,
            more_units=None if status is not Status.UNDECIDED else self.more_units,
        )
        return self.outcome


def _ratio(log: float) -> float | None:
    return math.exp(log) if math.isfinite(log) else None


def exact(rule: Rule, ratio: float) -> tuple[Status, Reason | None]:
    """A rule's answer to a speed-up known without error, such as a ratio of spill bytes.

    ``ratio`` may be 0 or infinite. A boundary that is met exactly is met, but a win of
    nothing is no win.
    """
    if math.isnan(ratio):
        return Status.FAIL, Reason.INVALID_SCORE
    if rule.slower_passes:
        good = ratio <= rule.ratio
    elif ratio == 1 == rule.ratio:
        return Status.FAIL, Reason.NO_WIN
    else:
        good = ratio >= rule.ratio
    return (Status.PASS, None) if good else (Status.FAIL, rule.fail_reason)
