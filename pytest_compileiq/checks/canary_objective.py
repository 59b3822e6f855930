"""``ciq_canary`` on an opaque objective: it refuses damage, O0 worsens its score, O3 does not."""

from __future__ import annotations

from dataclasses import replace

from pytest_compileiq.checks import proof, repetition
from pytest_compileiq.checks.canary import NO_O0, OTHER_FLAGS, KnownAcfs
from pytest_compileiq.checks.timing import Stopwatch
from pytest_compileiq.checks.win import readable
from pytest_compileiq.errors import CiqError, ProofError
from pytest_compileiq.marks import CanaryParams
from pytest_compileiq.measure import decide
from pytest_compileiq.measure.opaque import ratio
from pytest_compileiq.subjects.objective import ObjectiveBench
from pytest_compileiq.toolchain.acf import Acf
from pytest_compileiq.verdict import BASELINE_ARM, Check, Reason, Status, Verdict, in_words

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
    o0_acf = known.o0.acf
    damaged = o0_acf.damaged()
    answer = bench.evaluate(damaged)
    if not answer.refused and not answer.scores:  # crashed, hung or a bad shape is no refusal
        readable(answer, bench, None)
    if answer.scores:
        raise ProofError(
            f"{bench.objective.name} gave {damaged.name} the score {_list(answer.scores)}: it does not "
            "read the ACF, or hides that the build failed",
            remedy='hand the ACF to ptxas, and return "*" when the build fails',
            reason=Reason.NOT_APPLIED,
        )
    baseline = readable(bench.evaluate(None), bench, None)
    o0 = readable(bench.evaluate(o0_acf), bench, known.o0)
    for committed in (known.o0, known.o3):
        if committed is not None:
            proof.check_sidecar(committed.acf, committed.sidecar, accept=accept)
    numbers: dict[str, object] = {
        "source": "acf",
        "refused": damaged.name,
        "baseline": list(baseline),
        "o0": list(o0),
        "margin": params.margin,
        "tolerance": params.tolerance,
    }
    if (change := _variation(bench, o0_acf, baseline, o0)) is not None:
        if stopwatch is None or len(baseline) > 1:
            return _undecided(bench, change, numbers)
        return _repeated(bench, known, params, numbers, {"baseline": baseline, "o0": o0}, stopwatch)
    kind = bench.objective.problem_type
    worse = [ratio(after, before, kind) for before, after in zip(baseline, o0, strict=True)]
    if max(worse) < params.margin:
        raise CiqError(
            f"{o0_acf.name} makes no score worse by {params.margin:g}x: {list(baseline)} on the "
            f"baseline, {list(o0)} with it",
            remedy=_BLIND,
            reason=Reason.NO_EFFECT,
            numbers=numbers,
        )
    if known.o3 is not None:
        o3 = readable(bench.evaluate(known.o3.acf), bench, known.o3)
        numbers["o3"] = list(o3)
        worst = max(ratio(after, before, kind) for before, after in zip(baseline, o3, strict=True))
        if worst > 1 + params.tolerance:
            raise CiqError(
                f"{known.o3.acf.name} makes the score worse by {worst:.3g}x: {list(baseline)} on the "
                f"baseline, {list(o3)} with it",
                remedy=OTHER_FLAGS,
                reason=Reason.SLOWER,
                numbers=numbers,
            )
    return Verdict(
        check=Check.CANARY,
        kernel=bench.objective.name,
        status=Status.PASS,
        message=f"damage refused; {o0_acf.name}: score {_list(baseline)} -> {_list(o0)}"
        + ("" if known.o3 is not None else "; no O3 ACF to try"),
        numbers=numbers,
    )


def _variation(
    bench: ObjectiveBench, o0: Acf, baseline: tuple[float, ...], slow: tuple[float, ...]
) -> str | None:
    """How the scores change from call to call, or None: only then can one call decide."""
    told = []
    for name, acf, first in ((in_words(BASELINE_ARM), None, baseline), (o0.name, o0, slow)):
        again = readable(bench.repeat(acf), bench, None)
        if again != first:
            told.append(f"{_list(first)} then {_list(again)} on {name}")
    return ", ".join(told) or None


def _undecided(bench: ObjectiveBench, change: str, numbers: dict[str, object]) -> Verdict:
    several = "a single score, or " if bench.objectives > 1 else ""
    return Verdict(
        check=Check.CANARY,
        kernel=bench.objective.name,
        status=Status.UNDECIDED,
        reason=Reason.UNDECIDED,
        message=f"the scores change from call to call ({change}), so one call proves nothing",
        remedy=f"return {several}a score that does not vary, or run with --ciq-gpu, where calls "
        "are repeated until it is decided",
        numbers=numbers,
    )


def _repeated(
    bench: ObjectiveBench,
    known: KnownAcfs,
    params: CanaryParams,
    numbers: dict[str, object],
    first: dict[str, tuple[float, ...]],
    stopwatch: Stopwatch,
) -> Verdict:
    assert known.o0 is not None
    rule = decide.canary_o0(params.margin)
    scores = {None: first["baseline"], known.o0.acf: first["o0"]}
    answer = repetition.judge(
        Check.CANARY, bench, known.o0.acf, rule, scores, stopwatch, numbers, remedy=_BLIND
    )
    if answer.status is not Status.PASS or known.o3 is None:
        return answer
    o3 = known.o3.acf
    scores = {None: first["baseline"], o3: readable(bench.evaluate(o3), bench, known.o3)}
    rule = decide.not_slower(params.tolerance)
    so_far = {**numbers, "o0": answer.numbers}
    last = repetition.judge(
        Check.CANARY, bench, o3, rule, scores, stopwatch, so_far, remedy=OTHER_FLAGS
    )
    return replace(
        last,
        message=f"{answer.message}; {last.message}",
        samples=[*answer.samples, *last.samples],
    )


def _list(scores: tuple[float, ...]) -> str:
    return ", ".join(f"{score:g}" for score in scores)
