"""``ciq_canary`` on an opaque objective: it refuses damage, O0 worsens its score, O3 does not."""

from __future__ import annotations

from dataclasses import replace

from pytest_compileiq.checks import repetition
from pytest_compileiq.checks.canary import NO_O0, OTHER_FLAGS, KnownAcfs
from pytest_compileiq.checks.repetition import listed, readable
from pytest_compileiq.checks.timing import Stopwatch
from pytest_compileiq.errors import ProofError
from pytest_compileiq.marks import CanaryParams
from pytest_compileiq.measure import decide
from pytest_compileiq.subjects.objective import ObjectiveBench
from pytest_compileiq.verdict import Check, Reason, Status, Verdict

_BLIND = (
    "the objective does not see what the compiler does: check that it measures the kernel that it "
    "builds"
)


def judge_objective(
    bench: ObjectiveBench,
    known: KnownAcfs,
    params: CanaryParams,
    *,
    accept: bool,
    stopwatch: Stopwatch | None = None,
) -> Verdict:
    if known.o0 is None:
        raise ProofError(
            f"{bench.objective.name}: there is no O0 ACF to try the objective with",
            remedy=NO_O0,
            reason=Reason.UNFIT,
        )
    damaged = known.o0.acf.damaged()
    answer = bench.evaluate(damaged)
    if not answer.refused and not answer.scores:  # crashed, hung or a bad shape is no refusal
        readable(answer, bench, None)
    if answer.scores:
        raise ProofError(
            f"{bench.objective.name} gave {damaged.name} the score {listed(answer.scores)}: it does not "
            "read the ACF, or hides that the build failed",
            remedy='hand the ACF to ptxas, and return "*" when the build fails',
            reason=Reason.NOT_APPLIED,
        )
    numbers: dict[str, object] = {
        "source": "acf",
        "refused": damaged.name,
        "margin": params.margin,
        "tolerance": params.tolerance,
    }
    o0 = repetition.judge(
        Check.CANARY,
        bench,
        known.o0,
        decide.canary_o0(params.margin),
        stopwatch,
        numbers,
        remedy=_BLIND,
        accept=accept,
    )
    if o0.status is not Status.PASS:
        return o0
    if known.o3 is None:
        return replace(o0, message=f"damage refused; {o0.message}; no O3 ACF to try")
    o3 = repetition.judge(
        Check.CANARY,
        bench,
        known.o3,
        decide.not_slower(params.tolerance),
        stopwatch,
        {**numbers, "o0": dict(o0.numbers)},
        remedy=OTHER_FLAGS,
        accept=accept,
    )
    return replace(
        o3,
        message=f"damage refused; {o0.message}; {o3.message}",
        samples=[*o0.samples, *o3.samples],
    )
