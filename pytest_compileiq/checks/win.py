"""``ciq_beats_baseline``: the committed ACF still wins over the baseline."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Literal

from pytest_compileiq.checks import proof, repetition, timing
from pytest_compileiq.checks.timing import Claim, Measured, Stopwatch
from pytest_compileiq.errors import AcfError, CiqError, ProofError
from pytest_compileiq.marks import WinParams
from pytest_compileiq.measure import decide
from pytest_compileiq.measure.opaque import ratio
from pytest_compileiq.subjects.kernel import Arm, Workbench
from pytest_compileiq.subjects.objective import Evaluation, ObjectiveBench
from pytest_compileiq.toolchain import sidecar as _sidecar
from pytest_compileiq.toolchain.acf import Acf
from pytest_compileiq.toolchain.sidecar import Committed, Sidecar
from pytest_compileiq.verdict import Check, Reason, Status, Verdict

_SEARCH_OR_LOWER = "search again for this kernel, or lower min_speedup to a number you rely on"


def judge_kernel(
    bench: Workbench,
    committed: Committed,
    params: WinParams,
    *,
    accept: bool,
    stopwatch: Stopwatch | None = None,
) -> Verdict:
    """The ACF is taken, arrives, changes the code, fits the kernel; with a GPU: and wins."""
    acf, sidecar = committed.acf, committed.sidecar
    shown = proof.proven(bench, Arm(acf.name, acf), sidecar)
    ptx = bench.kernel.ptx_sha256(bench.folder)
    if shown.same_code:
        raise _no_effect(acf, sidecar)
    arch = bench.kernel.arch()
    proof.check_sidecar(acf, sidecar, accept=accept, ptx_sha256=ptx, arch=arch)
    numbers: dict[str, object] = {
        "acf": acf.name,
        "acf_sha256": acf.sha256,
        "ptxas": proof.ptxas_of(bench, shown.build),
        "ptx_sha256": ptx,
        "has_sidecar": sidecar is not None,
        "min_speedup": params.min_speedup,
        "timed": False,
    }
    if stopwatch is not None:
        minimum = minimum_ratio(params, committed, "speedup", accept=accept)
        return _timed(bench, acf, minimum, shown.same_code, numbers, stopwatch)
    if shown.same_code is None:
        return Verdict(
            check=Check.WIN,
            kernel=bench.kernel.name,
            status=Status.NOT_JUDGED,
            message="the build gives no cubin, so neither arrival nor effect can be shown",
            remedy=proof.NO_CUBIN,
            numbers=numbers,
        )
    return Verdict(
        check=Check.WIN,
        kernel=bench.kernel.name,
        status=Status.PASS,
        message=f"{acf.name} is taken, arrives and changes the code; "
        + (
            "speed not measured"
            if params.min_speedup == 1
            else f"min_speedup={params.min_speedup} was not measured"
        )
        + (
            ""
            if sidecar or accept
            else "; no sidecar says for which kernel: --ciq-accept writes one"
        ),
        numbers=numbers,
    )


def _timed(
    bench: Workbench,
    acf: Acf,
    minimum: float,
    same_code: bool | None,
    numbers: dict[str, object],
    stopwatch: Stopwatch,
) -> Verdict:
    arm = Arm(acf.name, acf)
    name = bench.kernel.name
    if (why := stopwatch.obstacle(bench, [arm])) is not None:
        return timing.unfit(Check.WIN, name, why, numbers)
    (measured,) = stopwatch.compare(bench, [Claim(arm, decide.win(minimum))])
    numbers |= {**measured.numbers(), "min_speedup": minimum}
    message, remedy = told(acf.name, minimum, measured)
    if same_code is None:
        message += "; the build gives no cubin, so that the ACF arrived is not proven"
    return timing.verdict(Check.WIN, name, [measured], message, remedy, numbers)


def told(acf: str, minimum: float, measured: Measured) -> tuple[str, str]:
    """What a timed win says, and what to do about it."""
    outcome = measured.outcome
    asked = "" if minimum == 1 else f", min_speedup={minimum:g}"
    if outcome.status is Status.PASS:
        return f"{acf}: {measured}{asked}", ""
    if outcome.status is Status.UNDECIDED:
        why, remedy = measured.why_undecided()
        return f"{acf}: {why}: {measured}{asked}", remedy
    if outcome.reason is Reason.NO_WIN:
        if minimum == 1:
            return (
                f"{acf}: no measurable difference from the baseline: {measured}",
                "drop the ACF, or search again",
            )
        return (
            f"{acf}: no measurable difference from min_speedup={minimum:g}: {measured}",
            _SEARCH_OR_LOWER,
        )
    slow = outcome.speedup is not None and outcome.speedup < 1
    return (
        f"{acf} is slower than the baseline: {measured}{asked}"
        if slow
        else f"{acf} wins less than min_speedup={minimum:g}: {measured}",
        _SEARCH_OR_LOWER,
    )


def _no_effect(acf: Acf, sidecar: Sidecar | None) -> ProofError:
    change = _sidecar.altered(acf, sidecar) if sidecar else None
    return ProofError(
        f"{acf.name} reached ptxas and changed nothing: the machine code is the baseline's"
        + (f"; {change}" if change else ""),
        remedy="drop the ACF, or search for one that does something for this kernel; an ACF for "
        "nvcc's own stage is taken by ptxas, too, and does nothing there",
        reason=Reason.NO_EFFECT,
    )


def judge_objective(
    bench: ObjectiveBench,
    committed: Committed,
    params: WinParams,
    *,
    accept: bool,
    stopwatch: Stopwatch | None = None,
) -> Verdict:
    """Compare deterministic scores exactly, and others by repetition where there is a GPU."""
    acf = committed.acf
    name = bench.objective.name
    minimum = minimum_ratio(params, committed, "score_ratio", accept=accept)
    # Two calls of each tell a deterministic score (spill bytes, a model's estimate) from a time.
    (base, base_again), (tuned, tuned_again) = (
        [readable(call(config), bench, known) for call in (bench.evaluate, bench.repeat)]
        for config, known in ((None, None), (acf, committed))
    )
    proof.check_sidecar(acf, committed.sidecar, accept=accept)
    numbers: dict[str, object] = {
        "acf": acf.name,
        "acf_sha256": acf.sha256,
        "baseline_scores": list(base),
        "acf_scores": list(tuned),
        "min_speedup": minimum,
        "deterministic": base == base_again and tuned == tuned_again,
    }
    if not numbers["deterministic"] and stopwatch is not None:
        rule = decide.win(minimum)
        first = {None: base, acf: tuned}
        return repetition.judge(
            Check.WIN, bench, acf, rule, first, stopwatch, numbers, remedy=_SEARCH_OR_LOWER
        )
    if not numbers["deterministic"]:
        return Verdict(
            check=Check.WIN,
            kernel=name,
            status=Status.UNDECIDED,
            reason=Reason.UNDECIDED,
            message=f"the scores change from call to call ({base} then {base_again} on the "
            f"baseline, {tuned} then {tuned_again} with {acf.name}), so one call proves nothing",
            remedy="run with --ciq-gpu, where the scores are repeated, or return one that does not "
            "vary, such as spill bytes or a model's estimate",
            numbers=numbers,
        )
    ratios = [
        ratio(before, after, bench.objective.problem_type)
        for before, after in zip(base, tuned, strict=True)
    ]
    # A score that fell to 0 has no finite ratio, and JSON no infinity.
    finite = [one if math.isfinite(one) else None for one in ratios]
    numbers["score_ratio"] = min(ratios) if None not in finite else None
    numbers["score_ratios"] = finite
    text = f"{_scores(base)} on the baseline, {_scores(tuned)} with {acf.name}"
    worst = min(ratios)
    if worst < 1:
        raise CiqError(
            f"{acf.name} is worse than the baseline: {text}",
            remedy="restore the ACF that won, or search again and commit the winner",
            reason=Reason.SLOWER,
            numbers=numbers,
        )
    if max(ratios) == 1:
        raise CiqError(
            f"{acf.name} wins nothing: {text}",
            remedy="drop the ACF, or search again for this kernel and this ptxas",
            reason=Reason.NO_WIN,
            numbers=numbers,
        )
    if worst < minimum:
        raise CiqError(
            f"{acf.name} wins by {worst:.4g}x, less than min_speedup={minimum:g}: {text}",
            remedy=_SEARCH_OR_LOWER,
            reason=Reason.SLOWER,
            numbers=numbers,
        )
    return Verdict(check=Check.WIN, kernel=name, status=Status.PASS, message=text, numbers=numbers)


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


def minimum_ratio(
    params: WinParams,
    committed: Committed,
    recorded: Literal["speedup", "score_ratio"],
    *,
    accept: bool,
) -> float:
    """``min_speedup`` as a ratio; "recorded" is half of the win that the sidecar records.

    Half of the win is taken in log terms: 1.21 recorded asks for 1.10. With ``accept`` an ACF of
    which no win is recorded has to win at all.
    """
    if not isinstance(params.min_speedup, str):
        return float(params.min_speedup)
    sidecar = committed.sidecar
    win = getattr(sidecar, recorded, None)
    if accept and (win is None or (sidecar and _sidecar.altered(committed.acf, sidecar))):
        return 1.0
    if win is None:
        raise AcfError(
            f'min_speedup="recorded", but the sidecar of {committed.acf.name} records no '
            f"{recorded}",
            looked_at=[str(_sidecar.path_of(committed.acf.source))],
            remedy="run once with --ciq-accept where the win can be measured, or give a number",
            reason=Reason.UNFIT,
        )
    return math.sqrt(win)


def _scores(scores: tuple[float, ...]) -> str:
    return f"{scores[0]:g}" if len(scores) == 1 else "(" + ", ".join(f"{s:g}" for s in scores) + ")"
