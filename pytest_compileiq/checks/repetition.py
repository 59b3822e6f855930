"""Objectives whose scores vary: called again and again, in an order of chance, until decided."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from pytest_compileiq.checks.timing import Stopwatch
from pytest_compileiq.errors import CiqError
from pytest_compileiq.measure.decide import Rule
from pytest_compileiq.measure.opaque import OpaqueTest
from pytest_compileiq.measure.samples import record_opaque
from pytest_compileiq.measure.units import Side
from pytest_compileiq.subjects.objective import Fault, ObjectiveBench
from pytest_compileiq.toolchain.acf import Acf
from pytest_compileiq.verdict import Check, Reason, Status, Verdict

#: Share of the time that is left to the test which repetitions may use; the rest is for other
#: checks, and for a last call that takes longer than all before.
_SHARE = 0.7


def judge(
    check: Check,
    bench: ObjectiveBench,
    acf: Acf,
    rule: Rule,
    first: Mapping[Acf | None, Sequence[float]],
    stopwatch: Stopwatch,
    numbers: Mapping[str, object],
    *,
    remedy: str,
) -> Verdict:
    """Repeat calls until ``rule`` is decided for every score, or time runs out.

    ``first`` holds the scores of one call of each side: they were in no order of chance, and
    serve as the throw-away calls. The verdict has ``numbers``, the calls to replay it, and
    ``remedy`` where the rule is refuted. Raises CiqError for a call that hangs.
    """
    test = OpaqueTest(
        [stopwatch.shared(rule)] * bench.objectives,
        seed=stopwatch.new_seed(),
        problem_type=bench.objective.problem_type,
    )
    configurations = {Side.BASE: None, Side.CANDIDATE: acf}
    began = time.monotonic()
    end = began + _SHARE * bench.seconds_left()
    calls, late = 0, False
    fault: Fault | None = None
    while (side := test.ask()) is not None:
        if len(test.calls) < len(first):
            test.tell(first[configurations[side]])
            continue
        now = time.monotonic()
        more = test.more_calls
        if now + bench.longest >= end or (more and now + more * (now - began) / calls > end):
            late = True
            test.stop()
            break
        answer = bench.repeat(configurations[side])
        fault = answer.fault
        if fault is not None and fault.reason is Reason.HUNG:  # a second try would hang as long
            raise CiqError(
                f"{fault.message}, at call {len(test.calls) + 1}",
                remedy=fault.remedy,
                reason=fault.reason,
                numbers=numbers,
            )
        test.tell(answer.scores or None)
        calls += 1
    outcome = test.outcome
    assert outcome is not None
    ratios = ", ".join("?" if one is None else f"{one:.4g}x" for one in outcome.speedups)
    text = f"{acf.name} scores {ratios} as well as the baseline in {outcome.calls} calls"
    if outcome.same_score:
        text += "; the first scores were equal to the last bit, as if a cache had answered"
    reason = outcome.reason
    if outcome.blame is not None and fault is not None:
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
        samples=[record_opaque(test)],
    )
