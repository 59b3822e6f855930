"""Objectives whose scores vary: called again and again, in an order of chance, until decided."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from pytest_compileiq.checks.timing import Stopwatch
from pytest_compileiq.isolation import child
from pytest_compileiq.measure.decide import Rule
from pytest_compileiq.measure.opaque import OpaqueTest
from pytest_compileiq.measure.replay import record_opaque
from pytest_compileiq.measure.units import Side
from pytest_compileiq.subjects.objective import ObjectiveBench
from pytest_compileiq.toolchain.acf import Acf
from pytest_compileiq.verdict import Check, Reason, Status, Verdict

#: Share of the time limit that repetitions may use, and the share that an isolated test keeps
#: until it would be killed: what came before has used some of it.
_SHARE, _RESERVE = 0.7, 0.1


def judge(
    bench: ObjectiveBench,
    acf: Acf,
    rule: Rule,
    first: Mapping[Acf | None, Sequence[float]],
    stopwatch: Stopwatch,
) -> OpaqueTest:
    """Repeat calls until ``rule`` is decided for every score, or time runs out.

    ``first`` holds the scores of one call of each side: they were in no order of chance, and
    serve as the throw-away calls. Raises GpuError.
    """
    stopwatch.hold()
    test = OpaqueTest(
        [stopwatch.shared(rule)] * bench.objectives,
        seed=stopwatch.new_seed(),
        problem_type=bench.objective.problem_type,
    )
    began = time.monotonic()
    configurations = {Side.BASE: None, Side.CANDIDATE: acf}
    names = {Side.BASE: "the baseline", Side.CANDIDATE: acf.name}
    calls = 0
    while (side := test.ask()) is not None:
        if len(test.calls) < len(first):
            test.tell(first[configurations[side]])
            continue
        scores = bench.repeat(configurations[side], names[side]).scores
        test.tell(scores or None)
        calls += 1
        spent = time.monotonic() - began
        more = test.more_calls
        left = min(_SHARE * bench.timeout - spent, child.seconds_left() - _RESERVE * bench.timeout)
        if left <= 0 or (more is not None and more * spent / calls > left):
            test.stop()
    return test


def verdict(
    check: Check,
    bench: ObjectiveBench,
    acf: Acf,
    test: OpaqueTest,
    numbers: Mapping[str, object],
) -> Verdict:
    """What repeated scores say of an ACF, with the calls to replay it."""
    outcome = test.outcome
    assert outcome is not None
    ratios = ", ".join("?" if one is None else f"{one:.4g}x" for one in outcome.speedups)
    text = f"{acf.name} scores {ratios} as well as the baseline in {outcome.calls} calls"
    if outcome.same_score:
        text += "; the first scores were equal to the last bit, as if a cache had answered"
    remedy = ""
    if outcome.reason is Reason.INVALID_SCORE:
        blamed = "scores at or below 0 have no ratio"
        if outcome.blame is not None:
            blamed = "the baseline" if outcome.blame is Side.BASE else acf.name
            blamed += " gave no valid score when called again"
        text = f"{blamed}, after {outcome.calls} calls"
        remedy = "let the objective return a positive number for what works, every time"
    elif outcome.status is Status.FAIL:
        remedy = "search again, or lower min_speedup to what you rely on"
    elif outcome.status is Status.UNDECIDED:
        text += "; more calls are needed than time allows"
        remedy = "raise --ciq-timeout, or hand over the kernel itself, which is timed 100x faster"
    return Verdict(
        check=check,
        kernel=bench.objective.name,
        status=outcome.status,
        reason=outcome.reason,
        message=text,
        remedy=remedy,
        numbers={**numbers, **outcome.numbers(), "seed": test.seed},
        samples=[record_opaque(test)],
    )
