"""``ciq_beats_baseline``: the committed ACF still wins over the baseline."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

from pytest_compileiq.checks import proof, repetition, timing
from pytest_compileiq.checks.timing import Claim, Measured, Stopwatch
from pytest_compileiq.errors import AcfError, CiqError, ProofError
from pytest_compileiq.marks import WinParams
from pytest_compileiq.measure import decide
from pytest_compileiq.subjects.kernel import Arm, Workbench
from pytest_compileiq.subjects.objective import ObjectiveBench
from pytest_compileiq.toolchain import sidecar as _sidecar
from pytest_compileiq.toolchain.acf import Acf
from pytest_compileiq.toolchain.sidecar import Committed
from pytest_compileiq.verdict import Check, Reason, Status, Verdict

_SEARCH_OR_DROP = "drop the ACF, or search again for this kernel and this ptxas"
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
    if shown.same_code:
        raise _no_effect(acf, proof.mismatch(acf, sidecar, bench))
    proof.check_sidecar(acf, sidecar, bench, accept=accept)
    numbers: dict[str, object] = {
        "acf": acf.name,
        "acf_sha256": acf.sha256,
        "ptxas": proof.ptxas_of(bench, shown.build),
        "ptx_sha256": bench.kernel.ptx_sha256(bench.folder),
        "has_sidecar": sidecar is not None,
        "min_speedup": params.min_speedup,
        "timed": False,
    }
    if stopwatch is not None or (sidecar and sidecar.speedup is not None):
        minimum = minimum_ratio(params, committed, "speedup", accept=accept)
    if stopwatch is not None:
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
                _SEARCH_OR_DROP,
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
        _SEARCH_OR_DROP if minimum == 1 else _SEARCH_OR_LOWER,
    )


def _no_effect(acf: Acf, cause: CiqError | None) -> ProofError:
    """``cause``: what the sidecar tells of the file or the kernel, and may be why."""
    what = f"{acf.name} reached ptxas and changed nothing: the machine code is the baseline's"
    return ProofError(
        what if cause is None else f"{what}; {cause.what}",
        looked_at=() if cause is None else cause.looked_at,
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
    """The scores with the ACF beat the baseline's; see ``checks/repetition.py`` for the calls."""
    acf = committed.acf
    minimum = minimum_ratio(params, committed, "score_ratio", accept=accept)
    numbers: dict[str, object] = {
        "acf": acf.name,
        "acf_sha256": acf.sha256,
        "min_speedup": minimum,
    }
    verdict = repetition.judge(
        Check.WIN,
        bench,
        committed,
        decide.win(minimum),
        stopwatch,
        numbers,
        remedy=_SEARCH_OR_DROP if minimum == 1 else _SEARCH_OR_LOWER,
        accept=accept,
    )
    if not verdict.numbers["exact"]:
        return verdict
    # A score that fell to 0 has no finite ratio, and JSON no infinity.
    ratios: Any = verdict.numbers["speedups"]
    recorded = None if None in ratios else min(ratios)
    remedy = _SEARCH_OR_DROP if verdict.reason is Reason.NO_WIN else verdict.remedy
    return replace(verdict, remedy=remedy, numbers={**verdict.numbers, "score_ratio": recorded})


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
    altered = sidecar is not None and _sidecar.altered(committed.acf, sidecar)
    if win is not None and win >= 1 and not (accept and altered):
        return math.sqrt(win)
    if not accept:
        raise AcfError(
            f'min_speedup="recorded", but the sidecar of {committed.acf.name} records '
            + (f"no {recorded}" if win is None else f"a {recorded} of {win:g}, which is no win"),
            looked_at=[str(_sidecar.path_of(committed.acf.source))],
            remedy="run once with --ciq-accept where the win can be measured, or give a number",
            reason=Reason.UNFIT,
        )
    return 1.0
