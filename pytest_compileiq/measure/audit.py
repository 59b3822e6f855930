"""Does the engine keep its word? A kernel against itself, again and again: who is "faster"?

A verdict on identical code is false by construction, so false verdicts can be counted, and on a
real device: placement, clocks, launch order and whatever nobody thought of are all in it.
"""

from __future__ import annotations

import itertools
import math
import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median, stdev
from typing import TypeVar

from pytest_compileiq.measure.decide import End, Rule
from pytest_compileiq.measure.timer import Pair, Timer
from pytest_compileiq.measure.units import (
    PILOT_LAUNCHES,
    Budget,
    Comparison,
    Plan,
    Timed,
    TimeUnit,
    Unit,
    run,
)
from pytest_compileiq.verdict import Status

#: Units of a session at most. Enough to find 1 %, and 200 sessions stay within minutes.
UNITS = 40

T = TypeVar("T")


class Deadline:
    """A limit of so many seconds from now on; infinity is none."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._end - time.monotonic()

    def shared(self, among: Sequence[T]) -> Iterator[tuple[T, Deadline]]:
        """Each with its share of what is left when its turn comes."""
        for index, one in enumerate(among):
            yield one, Deadline(self.left / (len(among) - index))


def rule_of(alpha: float) -> Rule:
    """ "Faster" and "slower" than the same, each with the chance ``alpha`` to be claimed."""
    return Rule(ratio=1.0, alpha_pass=alpha, alpha_fail=alpha)


@dataclass(frozen=True, slots=True)
class Audit:
    """What sessions of a kernel against itself came to.

    ``unit_sd``: standard deviation of one unit's log-ratio as it was judged, so without what the
    order of its blocks did. ``half_width``: of the interval at a session's end, log units, the
    median: a smaller difference is not to be told here.
    """

    name: str
    alpha: float
    sessions: int
    faster: int
    slower: int
    unit_sd: float
    half_width: float

    @property
    def allowed(self) -> int:
        """False verdicts a direction that chance may bring at this alpha, with 99 %."""
        return most(self.sessions, self.alpha)

    @property
    def kept(self) -> bool:
        return max(self.faster, self.slower) <= self.allowed


def most(trials: int, chance: float, confidence: float = 0.99) -> int:
    """The count that a binomial of so many trials exceeds with at most ``1 - confidence``."""
    below = 0.0
    for count in range(trials):
        below += math.comb(trials, count) * chance**count * (1 - chance) ** (trials - count)
        if below >= confidence:
            return count
    return trials


def on_device(
    name: str,
    pair: Pair,
    timer: Timer,
    *,
    seed: int,
    alpha: float,
    sessions: int,
    units: int = UNITS,
    deadline: Deadline | None = None,
) -> Iterator[Comparison]:
    """Sessions on the GPU, each with coins and a pilot of its own. None begins after the deadline,
    but one there always is. For an audit both builds must be equal."""
    for number in range(sessions):
        if number and deadline is not None and deadline.left <= 0:
            return
        pilot = timer.add(name, pair)
        yield one_session(
            f"{name}/{number}",
            lambda _, plan: timer(name, plan),
            pilot.seconds,
            seed=seed,
            alpha=alpha,
            units=units,
            block_seconds=pilot.block_seconds,
        )


def on_trace(
    name: str,
    recorded: Sequence[Comparison],
    *,
    seed: int,
    alpha: float,
    sessions: int,
    units: int = UNITS,
) -> Iterator[Comparison]:
    """Sessions on what earlier ones recorded, each with new coins.

    Labels of identical kernels are exchangeable, so a new coin may swap the two of any unit:
    its log-ratio changes the sign. A session is a stretch of units in the order of their time.
    """
    draw = random.Random(f"{seed}/trace")
    usable = [one for one in recorded if one.units]
    for number in range(sessions):
        source = draw.choice(usable)
        start = draw.randrange(len(source.units))
        following = itertools.cycle([*source.units[start:], *source.units[:start]])

        def time_unit(_: str, plan: Plan, following: Iterator[Unit] = following) -> Timed:
            # The four times as they came; which label they bear is what the plan's coin says.
            return replace(next(following).timed, gpu_seconds=0.0)

        yield one_session(
            f"{name}/{number}",
            time_unit,
            source.pilot,
            seed=seed,
            alpha=alpha,
            units=units,
            block_seconds=source.block_seconds,
        )


def one_session(
    name: str,
    time_unit: TimeUnit,
    pilot: Sequence[float],
    *,
    seed: int,
    alpha: float,
    units: int,
    block_seconds: float | None = None,
    pause: Callable[[float], object] = lambda seconds: None,
) -> Comparison:
    one = Comparison(name, rule_of(alpha), pilot, seed, block_seconds=block_seconds)
    budget = Budget(blocks=PILOT_LAUNCHES + 4 * units, gpu_seconds=math.inf)
    run([one], time_unit, budget=budget, pause=pause)
    return one


def summary(name: str, alpha: float, comparisons: Sequence[Comparison]) -> Audit:
    decided = [
        one.outcome.status
        for one in comparisons
        if one.outcome is not None and one.outcome.end is End.DECIDED
    ]
    ratios = [ratio for one in comparisons for ratio in one.judge.test.taken]
    widths = []
    for one in comparisons:
        low, high = one.judge.test.interval(alpha)
        if math.isfinite(low) and math.isfinite(high):
            widths.append(0.5 * (high - low))
    return Audit(
        name=name,
        alpha=alpha,
        sessions=len(comparisons),
        faster=decided.count(Status.PASS),
        slower=decided.count(Status.FAIL),
        unit_sd=stdev(ratios) if len(ratios) > 1 else math.nan,
        half_width=median(widths) if widths else math.nan,
    )
