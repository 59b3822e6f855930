"""Objectives that give one score a call: few, dear calls, each a seat of its own.

An :class:`OpaqueTest` says which configuration to score next and is told the score:

1. one throw-away call of each side, to fill caches;
2. four calls of each side in completely random order. If all scores of one side beat all of
   the other, chance did that once in 70 (Fisher's exact test);
3. pairs of calls, the order within each by a coin, judged by the betting test.

Stages 2 and 3 are joined by multiplying e-values. Stage 2's is ``weight * 70 + 1 - weight`` on
complete separation and ``1 - weight`` otherwise, whose mean is 1 when the sides are equal. The
weight is such that separation decides at once where alpha allows it (alpha > 1/70), and the
rest of alpha, 0.036 of 0.05, is what stage 3 needs.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, mean, median
from typing import Literal

from pytest_compileiq.measure.decide import End, Judge, Outcome, Rule, exact
from pytest_compileiq.measure.scale import MAD_TO_SD
from pytest_compileiq.measure.units import Side
from pytest_compileiq.verdict import Reason, Status

#: Calls of each side in stage 2, and the number of orders that chance chooses from: (8 over 4).
CALLS_A_SIDE = 4
ORDERS = math.comb(2 * CALLS_A_SIDE, CALLS_A_SIDE)
#: Pairs of calls at most in stage 3.
PAIRS = 30
#: Weight of stage 2 where separation alone cannot decide: two or three pairs then do.
_SHARED_WEIGHT = 0.6
#: The median of four distances from a median is low by this factor, for normal noise.
_FEW = 1.36


@dataclass(frozen=True, slots=True)
class OpaqueOutcome:
    """The answer for an objective with one or more scores.

    ``outcomes`` has one entry a score, None where the test ended before it was judged, and
    intervals from the pairs of stage 3 alone; ``speedups`` are ratios of the sides' medians,
    ``mean_speedups`` of their geometric means, throw-away calls left out;
    ``blame`` is the side whose configuration was invalid, if one was; ``calls`` counts all
    calls, throw-away and invalid ones included. ``exact`` says that the scores did not vary
    and were compared as they are; ``same_score`` that both sides' first scores were equal bit
    for bit, which is often a cache that answers instead of the compiler.
    """

    status: Status
    reason: Reason | None
    calls: int
    outcomes: tuple[Outcome | None, ...] = ()
    speedups: tuple[float | None, ...] = ()
    mean_speedups: tuple[float | None, ...] = ()
    exact: bool = False
    same_score: bool = False
    blame: Side | None = None

    def numbers(self) -> dict[str, object]:
        return {
            "status": self.status.value,
            "reason": None if self.reason is None else self.reason.value,
            "calls": self.calls,
            "exact": self.exact,
            "same_score": self.same_score,
            "blame": None if self.blame is None else self.blame.value,
            "speedups": list(self.speedups),
            "mean_speedups": list(self.mean_speedups),
            "objectives": [None if one is None else one.numbers() for one in self.outcomes],
        }


class OpaqueTest:
    """Asks for calls with :meth:`ask`, is told scores with :meth:`tell`, ends in ``outcome``.

    ``rules`` has one rule a score: all have to pass, and one refuted fails (red side corrected
    by e-Bonferroni; all-must-pass needs no correction: Berger 1982). ``problem_type`` as for
    ``compileiq.Search``. Scores that did not vary in five calls of each side are compared
    exactly. Of two values that come by chance five times each is always the same, and the sides
    differ, in at most 0.1 % of tests in either direction.

    ::

        while (side := test.ask()) is not None:
            test.tell(objective(config_of(side)))
            if test.more_calls is not None and test.more_calls * seconds_a_call > seconds_left:
                test.stop()
    """

    def __init__(
        self,
        rules: Sequence[Rule],
        *,
        seed: int,
        problem_type: Literal["min", "max"] = "min",
        pairs: int = PAIRS,
    ) -> None:
        if not rules:
            raise ValueError("an objective has at least one score")
        self.rules = tuple(rule.among(len(rules)) for rule in rules)
        self.given_rules = tuple(rules)
        self.seed = seed
        self.problem_type = problem_type
        self.pairs = pairs
        self.outcome: OpaqueOutcome | None = None
        self.calls: list[tuple[Side, tuple[float, ...] | None]] = []
        self._coins = random.Random(f"{seed}/opaque")
        self._judges: list[Judge] = []
        self._good: list[tuple[Side, tuple[float, ...]]] = []
        self._invalid_candidates = 0
        mixed = [Side.BASE, Side.CANDIDATE] * CALLS_A_SIDE
        self._coins.shuffle(mixed)
        self._order = [Side.BASE, Side.CANDIDATE, *mixed]

    def ask(self) -> Side | None:
        """Whose configuration to score next; None when there is an outcome."""
        if self.outcome is not None:
            return None
        if len(self._good) == len(self._order):
            first = Side.BASE if self._coins.getrandbits(1) else Side.CANDIDATE
            self._order += [first, first.other]
        return self._order[len(self._good)]

    def tell(self, scores: Sequence[float] | None) -> OpaqueOutcome | None:
        """Take in the scores of the call that :meth:`ask` asked for; None if it was invalid.

        An invalid candidate is called once more; an invalid baseline ends the test.
        """
        side = self.ask()
        if side is None:
            raise ValueError("this test has decided; its first decision stands")
        if scores is not None and len(scores) != len(self.rules):
            raise ValueError(f"{len(self.rules)} scores are judged and {len(scores)} were told")
        if scores is None or not all(map(_finite, scores)):
            self.calls.append((side, None))
            self._invalid_candidates += side is Side.CANDIDATE
            if side is Side.BASE or self._invalid_candidates == 2:
                self._close(Status.FAIL, Reason.INVALID_SCORE, blame=side)
            return self.outcome
        told = tuple(map(float, scores))
        self.calls.append((side, told))
        self._good.append((side, told))
        stage_2_ends = 2 + 2 * CALLS_A_SIDE
        if len(self._good) == stage_2_ends:
            self._end_stage_2()
        elif len(self._good) > stage_2_ends and len(self._good) % 2 == 0:
            self._feed_pair()
        return self.outcome

    def stop(self) -> OpaqueOutcome:
        """End for lack of time, with the answer that there is."""
        return self.outcome or self._end(End.STOPPED)

    @property
    def more_calls(self) -> int | None:
        """Projected calls until all scores are judged; None if that cannot be told yet."""
        if self.outcome is not None:
            return 0
        needs = [judge.more_units for judge in self._judges if judge.outcome is None]
        known = [need for need in needs if need is not None]
        return 2 * max(known) if known and len(known) == len(needs) else None

    def _column(self, index: int, side: Side, *, skip: int = 0) -> list[float]:
        return [told[index] for who, told in self._good[skip:] if who is side]

    def _speedup(self, base: float, candidate: float) -> float:
        return ratio(base, candidate, self.problem_type)

    def _end_stage_2(self) -> None:
        sides = [self._column(index, side) for index in range(len(self.rules)) for side in Side]
        if all(len(set(column)) == 1 for column in sides):
            self._compare_exactly()
            return
        if min(map(min, sides)) <= 0:
            # Noisy scores around zero have no ratio that a speed-up could be read from.
            self._close(Status.FAIL, Reason.INVALID_SCORE)
            return
        for index, rule in enumerate(self.rules):
            base, candidate = (
                [self._cost(one) for one in self._column(index, side, skip=2)] for side in Side
            )
            shifted = [one + rule.delta for one in candidate]
            prior = (
                _stage_2(max(shifted) < min(base), rule.alpha_above),
                _stage_2(min(shifted) > max(base), rule.alpha_below),
            )
            self._judges.append(Judge(rule, _pair_scale(base, candidate), prior=prior))
        self._settle()

    def _feed_pair(self) -> None:
        pair = dict(self._good[-2:])
        for index, judge in enumerate(self._judges):
            if judge.outcome is None:
                base, candidate = (self._cost(pair[side][index]) for side in Side)
                judge.feed(base - candidate)
        self._settle()

    def _speedups(self, center: Callable[[list[float]], float]) -> tuple[float | None, ...]:
        speedups: list[float | None] = []
        for index in range(len(self.rules)):
            columns = [self._column(index, side, skip=2) for side in Side]
            ratio = self._speedup(*map(center, columns)) if all(columns) else math.inf
            speedups.append(ratio if math.isfinite(ratio) else None)
        return tuple(speedups)

    def _cost(self, score: float) -> float:
        """Log of a positive score, the lower the better; NaN for a score without a logarithm."""
        if score <= 0:
            return math.nan
        return math.log(score) if self.problem_type == "min" else -math.log(score)

    def _settle(self) -> None:
        outcomes = [judge.outcome for judge in self._judges]
        failed = next((one for one in outcomes if one and one.status is Status.FAIL), None)
        if failed is not None:
            self._close(Status.FAIL, failed.reason)
        elif all(one is not None for one in outcomes):
            self._end(End.DECIDED)
        elif len(self._good) >= 2 + 2 * CALLS_A_SIDE + 2 * self.pairs:
            self._end(End.BUDGET)

    def _end(self, why: End) -> OpaqueOutcome:
        outcomes = [judge.end(why) for judge in self._judges]
        if not outcomes:
            return self._close(Status.UNDECIDED, Reason.UNDECIDED)
        for status in (Status.FAIL, Status.UNDECIDED):
            for one in outcomes:
                if one.status is status:
                    return self._close(status, one.reason)
        return self._close(Status.PASS, None)

    def _compare_exactly(self) -> None:
        ratios = [
            self._speedup(*(self._column(index, side)[0] for side in Side))
            for index in range(len(self.rules))
        ]
        answers = [exact(*both) for both in zip(self.rules, ratios, strict=True)]
        failed = [reason for status, reason in answers if status is Status.FAIL]
        # A score that stays equal spoils neither the win of another nor that O0 worsens it.
        lost = [one for one in failed if one not in (Reason.NO_WIN, Reason.NO_EFFECT)]
        speedups = tuple(one if math.isfinite(one) else None for one in ratios)
        if not lost and len(failed) < len(answers):
            self._close(Status.PASS, None, speedups=speedups, exact=True)
            return
        # Nothing won at all is another thing to mend than too little of it.
        nothing = set(ratios) == {1.0} and not self.rules[0].slower_passes
        reason = Reason.NO_WIN if nothing else (lost or failed)[0]
        self._close(Status.FAIL, reason, speedups=speedups, exact=True)

    def _close(
        self,
        status: Status,
        reason: Reason | None,
        *,
        blame: Side | None = None,
        speedups: tuple[float | None, ...] = (),
        exact: bool = False,
    ) -> OpaqueOutcome:
        outcomes = tuple(judge.outcome for judge in self._judges)
        first = [told for _, told in self._good[:2]]
        self.outcome = OpaqueOutcome(
            status=status,
            reason=reason,
            calls=len(self.calls),
            outcomes=outcomes,
            speedups=speedups or self._speedups(median),
            mean_speedups=self._speedups(_geometric_mean),
            exact=exact,
            same_score=len(first) == 2 and first[0] == first[1],
            blame=blame,
        )
        return self.outcome


def ratio(before: float, after: float, problem_type: str) -> float:
    """How many times better ``after`` is; above 1 is better, whichever way the scores run.

    A score that falls to 0 is infinitely better, one that stays 0 is 1. Scores below 0 are
    negated ones of the other kind, as a throughput that is minimised: -100 to -101 is 1.01. Scores
    of different sign have no ratio: better is infinite then, and worse is 0.
    """
    if problem_type == "max":
        before, after = after, before
    if before == after:
        return 1.0
    if before > 0 and after > 0:
        return before / after
    if before < 0 and after < 0:
        return after / before
    return math.inf if before > after else 0.0


def _finite(score: float) -> bool:
    try:
        return math.isfinite(score)
    except OverflowError:  # an int that no float holds
        return False


def _geometric_mean(scores: list[float]) -> float:
    if min(scores) <= 0:
        return mean(scores)  # not fmean: it overflows where the mean does not
    return math.exp(fmean(map(math.log, scores)))


def _stage_2(separated: bool, alpha: float) -> float:
    """Logarithm of stage 2's e-value for one direction."""
    weight = (1 / alpha - 1) / (ORDERS - 1)
    if weight >= 1:
        weight = _SHARED_WEIGHT
    elif separated:
        return math.log(1 / alpha)
    return math.log(ORDERS * weight + 1 - weight) if separated else math.log1p(-weight)


def _pair_scale(base: Sequence[float], candidate: Sequence[float]) -> float:
    """Standard deviation of a pair's difference, from stage 2's scores within each side."""
    distances = [abs(one - median(column)) for column in (base, candidate) for one in column]
    return _FEW * MAD_TO_SD * median(distances) * math.sqrt(2)
