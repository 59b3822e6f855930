"""Objectives are called again and again, in an order of chance, until a rule is decided.

A score that does not vary (spill bytes, a model's estimate) needs ten calls, five of each side,
and is compared exactly. A score that varies is evidence call by call, which takes a GPU that
nobody else uses: without one the first difference between two calls ends the check.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from pytest_compileiq.checks import proof
from pytest_compileiq.checks.timing import Stopwatch
from pytest_compileiq.errors import CiqError
from pytest_compileiq.isolation import child
from pytest_compileiq.measure.decide import Rule
from pytest_compileiq.measure.opaque import OpaqueOutcome, OpaqueTest
from pytest_compileiq.measure.samples import record_opaque
from pytest_compileiq.measure.units import Side
from pytest_compileiq.subjects.objective import Evaluation, Fault, ObjectiveBench
from pytest_compileiq.toolchain.acf import Acf
from pytest_compileiq.toolchain.sidecar import Committed
from pytest_compileiq.verdict import BASELINE_ARM, Check, Reason, Status, Verdict, in_words

#: Share of the time that is left to the test which repetitions may use; the rest is for other
#: checks, and for a last call that takes longer than all before.
_SHARE = 0.7


def readable(
    evaluation: Evaluation,
    bench: ObjectiveBench,
    committed: Committed | None,
    numbers: Mapping[str, object] | None = None,
) -> tuple[float, ...]:
    """The scores of a call that has to succeed. Raises CiqError with the call's fault.

    When the sidecar tells why the ACF could not be used, that is the fault.
    """
    fault = evaluation.fault
    if fault is None:
        return evaluation.scores
    if committed is not None and evaluation.refused:
        said = f"the objective: {fault.message}"
        cause = proof.refused_by_objective(committed.acf, committed.sidecar, said, bench.ptxas)
        if cause is not None:
            raise cause
    raise CiqError(fault.message, remedy=fault.remedy, reason=fault.reason, numbers=numbers)


def listed(scores: Sequence[float]) -> str:
    return ", ".join(f"{score:g}" for score in scores)


def judge(
    check: Check,
    bench: ObjectiveBench,
    committed: Committed,
    rule: Rule,
    stopwatch: Stopwatch | None,
    numbers: Mapping[str, object],
    *,
    remedy: str,
    accept: bool,
) -> Verdict:
    """Repeat calls until ``rule`` is decided for every score, or time runs out.

    The first call of each side, which other checks may have made, is in no order of chance and
    serves as the throw-away call. Without a stopwatch, and for O0 with several scores, only what
    does not vary is decided. The verdict has ``numbers``, the calls to replay it, and ``remedy``
    where the rule is refuted. Raises CiqError for a first call that fails, for an ACF that is not
    its sidecar's unless ``accept``, and for a call that hangs.
    """
    acf = committed.acf
    first = {
        Side.BASE: readable(bench.evaluate(None), bench, None, numbers),
        Side.CANDIDATE: readable(bench.evaluate(acf), bench, committed, numbers),
    }
    proof.check_sidecar(acf, committed.sidecar, accept=accept)
    numbers = {
        **numbers,
        "baseline_scores": list(first[Side.BASE]),
        "acf_scores": list(first[Side.CANDIDATE]),
    }
    repeats = stopwatch is not None and not (rule.slower_passes and bench.objectives > 1)
    test = OpaqueTest(
        [rule if stopwatch is None else stopwatch.shared(rule)] * bench.objectives,
        seed=(stopwatch or Stopwatch).new_seed(),
        problem_type=bench.objective.problem_type,
    )
    began = time.monotonic()
    end = began + _SHARE * bench.seconds_left()
    calls, late, change = 0, False, ""
    fault: Fault | None = None
    while (side := test.ask()) is not None:
        if len(test.calls) < len(first):
            test.tell(first[side])
            continue
        now = time.monotonic()
        more = test.more_calls
        # What does not vary needs few calls. Outside of an isolated test, whose time they share,
        # each has a time limit of its own.
        if (repeats or child.inside()) and (
            now + bench.longest >= end or (more and now + more * (now - began) / calls > end)
        ):
            late = True
            test.stop()
            break
        answer = bench.repeat(acf if side is Side.CANDIDATE else None)
        fault = answer.fault
        if fault is not None and fault.reason is Reason.HUNG:  # a second try would hang as long
            raise CiqError(
                f"{fault.message}, at call {len(test.calls) + 1}",
                remedy=fault.remedy,
                reason=fault.reason,
                numbers=numbers,
            )
        if answer.scores and answer.scores != first[side] and not repeats:
            arm = acf.name if side is Side.CANDIDATE else in_words(BASELINE_ARM)
            change = f"{listed(first[side])}, then {listed(answer.scores)} on {arm}"
            test.stop()
            break
        test.tell(answer.scores or None)
        calls += 1
    outcome = test.outcome
    assert outcome is not None
    reason = outcome.reason
    text = told(rule, outcome, acf, first)
    if change:
        text = f"the scores change from call to call ({change}), so one call proves nothing"
        remedy = "return a score that does not vary, such as spill bytes or a model's estimate" + (
            ", or run with --ciq-gpu, where calls are repeated until it is decided"
            if stopwatch is None
            else ", or a single score"
        )
    elif outcome.blame is not None and fault is not None:
        reason, remedy = fault.reason, fault.remedy
        text = f"{fault.message}, at call {outcome.calls}"
    elif reason is Reason.INVALID_SCORE:
        text = f"scores at or below 0 have no ratio, after {outcome.calls} calls"
        remedy = "let the objective return a positive number for what works, every time"
    elif outcome.status is Status.UNDECIDED:
        text += "; more calls are needed" + (" than time allows" if late else "")
        remedy = "hand over the kernel itself, which is timed 100x faster"
        if late:
            remedy = f"raise --ciq-timeout, or {remedy}"
    return Verdict(
        check=check,
        kernel=bench.objective.name,
        status=outcome.status,
        reason=reason,
        message=text,
        remedy="" if outcome.status is Status.PASS else remedy,
        numbers={**numbers, **outcome.numbers(), "seed": test.seed},
        # Scores that do not vary are no timings: the numbers have them.
        samples=[] if outcome.exact else [record_opaque(test)],
    )


def told(
    rule: Rule, outcome: OpaqueOutcome, acf: Acf, first: Mapping[Side, Sequence[float]]
) -> str:
    """What was found, in words: scores that do not vary themselves, and ratios of others."""
    if outcome.exact:
        found = (
            f"{listed(first[Side.BASE])} on the baseline, {listed(first[Side.CANDIDATE])} with "
            f"{acf.name}, the same in five calls each"
        )
    else:
        ratios = ", ".join("?" if one is None else f"{one:.4g}x" for one in outcome.speedups)
        found = f"{acf.name} scores {ratios} as well as the baseline in {outcome.calls} calls"
        if outcome.same_score:
            found += "; the first scores were equal to the last bit, as if a cache had answered"
    known = [one for one in outcome.speedups if one is not None]
    worst = min(known, default=0.0)
    if outcome.status is not Status.FAIL:
        return found
    if outcome.reason is Reason.NO_EFFECT:
        return f"{acf.name} makes no score worse by {1 / rule.ratio:g}x: {found}"
    if outcome.reason is Reason.NO_WIN:
        near = rule.ratio if not outcome.exact else 1.0
        what = "wins nothing" if near == 1 else f"shows no difference from min_speedup={near:g}"
        return f"{acf.name} {what}: {found}"
    if rule.ratio < 1:
        by = "" if worst == 0 else f" by {1 / worst:.3g}x"
        return f"{acf.name} makes the score worse{by}: {found}"
    if worst < 1:
        return f"{acf.name} is worse than the baseline: {found}"
    return f"{acf.name} wins by {worst:.4g}x, less than min_speedup={rule.ratio:g}: {found}"
