"""Units of measurement: a new seat, then one ABBA or BAAB quad; everything in order of a coin.

This module draws the coins, turns four times into one log-ratio, throws away disturbed units
and shares the time among comparisons. It knows no GPU: what a unit needs is asked of a
``TimeUnit``, which re-loads both modules, moves the buffers and times four blocks.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from pytest_compileiq.measure.decide import End, Judge, Outcome, Rule
from pytest_compileiq.measure.order import OrderEffect
from pytest_compileiq.measure.scale import RunningScale, pilot_scale, scale_floor

#: Launches of the baseline that give the pilot scale; they are the end of the warm-up.
PILOT_LAUNCHES = 16
#: Units that each comparison gets before the undecided ones take turns.
FIRST_ROUND = 8

#: NVML clock event reasons that disturb a unit. Not the software power cap (0x4), which is the
#: normal state of a large matrix product.
_DISTURBING = {
    0x8: "hardware slowdown",
    0x20: "software thermal slowdown",
    0x40: "hardware thermal slowdown",
    0x80: "power brake",
}
#: Clocks of a unit's blocks may differ by this much.
_CLOCK_SPREAD = 0.02
_CLOCK_CHANGE = "clock change"
#: Units after which clocks are first looked at, where no fewer can bring a verdict.
_FIRST_LOOK = 4
_ATTEMPTS_BEFORE_PAUSE = 10
_PAUSES = 3


class Side(StrEnum):
    BASE = "A"
    CANDIDATE = "B"

    @property
    def other(self) -> Side:
        return Side.CANDIDATE if self is Side.BASE else Side.BASE


@dataclass(frozen=True, slots=True)
class Plan:
    """What the coins say of one unit: who is loaded, captured and launched first.

    ``load`` and ``capture`` are two sides, ``order`` is four: ABBA or BAAB.
    """

    load: tuple[Side, ...]
    capture: tuple[Side, ...]
    order: tuple[Side, ...]


@dataclass(frozen=True, slots=True)
class Health:
    """How the device did during a unit, without a label and without a time.

    ``mhz``: SM clock of each block in the order of the launches, empty if unknown. ``reasons``:
    NVML clock event reasons seen, as a mask.
    """

    mhz: tuple[float, ...] = ()
    reasons: int = 0


@dataclass(frozen=True, slots=True)
class Timed:
    """What a unit's four blocks took, in the order of the launches.

    ``seconds``: per launch, four numbers; ``launches``: launches in a block; ``gpu_seconds``:
    what the unit cost, everything included.
    """

    seconds: tuple[float, ...]
    launches: int = 1
    gpu_seconds: float = 0.0
    health: Health = Health()


TimeUnit = Callable[[str, Plan], Timed]
#: Says why a unit is to be thrown away, or None. It sees neither times nor labels, so the coin
#: stays fair among the units that are kept.
Reject = Callable[[Health], str | None]


@dataclass(frozen=True, slots=True)
class Unit:
    plan: Plan
    timed: Timed
    rejected: str | None = None

    @property
    def log_ratio(self) -> float:
        return log_ratio(self.plan.order, self.timed.seconds)

    @property
    def sign(self) -> int:
        """What a unit's coin says: 1 for ABBA and -1 for BAAB."""
        return 1 if self.plan.order[0] is Side.BASE else -1


@dataclass(frozen=True, slots=True)
class Budget:
    """When an undecided comparison ends: after ``blocks`` timed blocks (a block of a graph is
    one) or ``gpu_seconds``, pilot included, but never before a verdict was possible."""

    blocks: int = 1000
    gpu_seconds: float = 2.0


class Coins:
    """Fair coins from a logged seed; each name has its own row of them."""

    def __init__(self, seed: int, name: str) -> None:
        self._random = random.Random(f"{seed}/{name}")

    def heads(self) -> bool:
        return bool(self._random.getrandbits(1))

    def plan(self) -> Plan:
        load, capture, first = (
            Side.BASE if self.heads() else Side.CANDIDATE for _ in ("load", "capture", "launch")
        )
        return Plan(
            load=(load, load.other),
            capture=(capture, capture.other),
            order=(first, first.other, first.other, first),
        )


def log_ratio(order: Sequence[Side], seconds: Sequence[float]) -> float:
    """Mean log time of the baseline's blocks less that of the candidate's.

    The logarithm of the speed-up. ABBA and BAAB cancel drift that is linear in time. NaN if a
    time is not a positive number: such a unit says nothing.
    """
    if len(seconds) != len(order):
        raise ValueError(f"{len(order)} blocks were asked for and {len(seconds)} timed")
    if not all(0 < one < math.inf for one in seconds):
        return math.nan
    signs = [1 if side is Side.BASE else -1 for side in order]
    total = math.fsum(sign * math.log(one) for sign, one in zip(signs, seconds, strict=True))
    return 2 * total / len(order)


def reject(health: Health) -> str | None:
    """The shipped rule: a hardware slowdown, or clocks that differ inside the unit."""
    for bit, name in _DISTURBING.items():
        if health.reasons & bit:
            return name
    return _CLOCK_CHANGE if _differ(health.mhz) else None


def _differ(clocks: Sequence[float]) -> bool:
    known = [one for one in clocks if one > 0]
    return bool(known) and max(known) > (1 + _CLOCK_SPREAD) * min(known)


@dataclass
class Comparison:
    """One candidate against its baseline: a rule, a judge, and every unit that was timed.

    ``pilot``: seconds of the baseline's last warm-up launches in a row. ``block_seconds``: how
    long a block lasts, for the resolution of the clock; taken from the pilot if not given.
    ``order_effect``: judge units without what the order of their blocks does to them, as all are
    but those of old records.
    """

    name: str
    rule: Rule
    pilot: Sequence[float]
    seed: int
    block_seconds: float | None = None
    order_effect: bool = True
    units: list[Unit] = field(default_factory=list, init=False)

    def __post_init__(self) -> None:
        if self.block_seconds is None:
            middle = sorted(self.pilot)[len(self.pilot) // 2] if self.pilot else math.nan
            self.block_seconds = middle
        self._blocks = len(self.pilot)
        self._gpu_seconds = math.fsum(self.pilot)
        self._coins = Coins(self.seed, self.name)
        #: Clocks change so often that it is this card's way, and no reason to reject. A matrix
        #: product at the power limit moves its own clock by 2 % within most units (9 of 14 on an
        #: H200). To throw those away is an economy, not a need: the coin is as fair in them, and
        #: fairer where the candidate itself moves the clock.
        self.clocks_move = False
        self._begin()

    def _begin(self) -> None:
        assert self.block_seconds is not None
        scale = RunningScale(pilot_scale(self.pilot), scale_floor(self.block_seconds))
        self.judge = Judge(self.rule, scale)
        self._order_effect = OrderEffect()
        self.kept = 0

    @property
    def outcome(self) -> Outcome | None:
        return self.judge.outcome

    def plan(self) -> Plan:
        """The next unit's coins; each call draws new ones."""
        return self._coins.plan()

    def add(self, unit: Unit) -> None:
        """Store a unit and, unless it was rejected, judge it."""
        self.units.append(unit)
        self._blocks += len(unit.timed.seconds)
        self._gpu_seconds += unit.timed.gpu_seconds
        self._judge(unit)

    def _judge(self, unit: Unit) -> None:
        if unit.rejected is not None:
            return
        self.kept += 1
        d = unit.log_ratio
        known = self._order_effect.current if self.order_effect else 0.0
        self.judge.feed(d - unit.sign * known)
        if not math.isnan(d):
            self._order_effect.add(unit.sign, d)

    def look_at_clocks(self) -> None:
        """Reject no more for moving clocks once half of the first four units, or a fifth of ten
        or more, were rejected for that.

        After four, where two or fewer could bring no verdict, all is judged anew, with those units.
        """
        if self.clocks_move or self.outcome is not None:
            return
        timed, moved = len(self.units), self.rejected_for(_CLOCK_CHANGE)
        early = timed == _FIRST_LOOK <= self.rule.minimum_units
        if early and 2 * moved >= timed:
            self.clocks_move = True
            self.units = [
                replace(one, rejected=None) if one.rejected == _CLOCK_CHANGE else one
                for one in self.units
            ]
            self._begin()
            for unit in self.units:
                self._judge(unit)
        elif timed >= _ATTEMPTS_BEFORE_PAUSE and moved > 0.2 * timed:
            self.clocks_move = True

    def rejected_for(self, cause: str) -> int:
        return sum(unit.rejected == cause for unit in self.units)

    @property
    def lowest_clocks(self) -> dict[Side, int]:
        """Units in which clocks moved, by the label of the block with the lowest.

        If the counts differ, the candidate itself draws the clocks down or up: see
        :attr:`power_coupled`.
        """
        counts = dict.fromkeys(Side, 0)
        for unit in self.units:
            clocks = unit.timed.health.mhz
            if _differ(clocks):
                lowest = min(one for one in clocks if one > 0)
                counts[unit.plan.order[clocks.index(lowest)]] += 1
        return counts

    @property
    def power_coupled(self) -> bool:
        """Whether the lowest clock is one label's more often than a fair coin explains, at 1 %."""
        few, many = sorted(self.lowest_clocks.values())
        n = few + many
        at_most_few: int = sum(math.comb(n, k) for k in range(few + 1))
        return 2 * at_most_few < 0.01 * 2.0**n

    def spent(self, budget: Budget) -> bool:
        return self.judge.may_stop and (
            self._blocks + 4 > budget.blocks or self._gpu_seconds >= budget.gpu_seconds
        )


def run(
    comparisons: Iterable[Comparison],
    time_unit: TimeUnit,
    *,
    budget: Budget | None = None,
    reject: Reject = reject,
    pause: Callable[[float], object] = time.sleep,
) -> None:
    """Time units until every comparison has an outcome.

    Each comparison gets eight units, then those still undecided take turns, so that their
    units are spread over time. Of units rejected for their clocks see
    :meth:`Comparison.look_at_clocks`. More than a fifth rejected for another cause: pause for
    0.5, 1 and 2 seconds, and if more than half are rejected after that, the answer is
    ``unfit``. What ``time_unit`` raises goes through.
    """
    budget = budget or Budget()
    waiting = [one for one in comparisons if one.outcome is None]
    pauses = dict.fromkeys((id(one) for one in waiting), 0)
    turn = FIRST_ROUND
    while waiting:
        for one in waiting:
            for _ in range(turn):
                plan = one.plan()
                timed = time_unit(one.name, plan)
                cause = reject(timed.health)
                tolerated = cause == _CLOCK_CHANGE and one.clocks_move
                one.add(Unit(plan, timed, None if tolerated else cause))
                one.look_at_clocks()
                _end_if_due(one, budget, pauses, pause)
                if one.outcome is not None:
                    break
        waiting = [one for one in waiting if one.outcome is None]
        turn = 1


def _end_if_due(
    one: Comparison,
    budget: Budget,
    pauses: dict[int, int],
    pause: Callable[[float], object],
) -> None:
    attempts, lost = len(one.units), len(one.units) - one.kept
    if one.clocks_move:
        lost -= one.rejected_for(_CLOCK_CHANGE)
    if lost and one.units[-1].rejected is not None and attempts >= _ATTEMPTS_BEFORE_PAUSE:
        if pauses[id(one)] < _PAUSES and lost > 0.2 * attempts:
            pause(0.5 * 2 ** pauses[id(one)])
            pauses[id(one)] += 1
        elif lost > 0.5 * attempts:
            one.judge.end(End.THROTTLED)
    if one.outcome is not None:
        return
    missing = one.judge.test.missing
    if missing >= FIRST_ROUND and missing > one.judge.test.n:
        one.judge.end(End.BROKEN)
    elif one.spent(budget):
        one.judge.end(End.BUDGET)
