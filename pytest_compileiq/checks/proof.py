"""Proofs that need no timing: the ACF was taken, it reached ptxas, it changed the code.

Each function raises a CiqError with the reason word, or returns what later steps need.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from pytest_compileiq.errors import AcfError, CiqError, ProofError
from pytest_compileiq.subjects.kernel import BASELINE, Arm, Build, Workbench
from pytest_compileiq.toolchain import sidecar as _sidecar
from pytest_compileiq.toolchain.acf import Acf, nonsense
from pytest_compileiq.toolchain.cubin import Cubin
from pytest_compileiq.toolchain.ptxas import acf_refusal
from pytest_compileiq.toolchain.sidecar import Committed, Sidecar
from pytest_compileiq.verdict import Reason, Verdict

_REDEFINED = "redefinition for option 'apply-controls'"
#: What to do about a build of which nothing can be seen without a GPU.
NO_CUBIN = "give Build.cubin, or run with --ciq-gpu=SPEC, where the kernel is timed"
_RETUNE = "search for a new ACF with this ptxas: --ciq-retune"
_KEEP = (
    "or keep this ACF: run once with --ciq-accept, and with --ciq-gpu to see that it still wins; or "
    "perhaps another test uses this file, too: each kernel needs an ACF of its own"
)


@dataclass(frozen=True, slots=True)
class Proven:
    """Two builds of one kernel, and the facts that were shown about them."""

    baseline: Build
    build: Build
    same_code: bool | None  # None: the build gives no cubin, so nothing is known


def baseline_build(bench: Workbench) -> Build:
    """The baseline, which must build and must not have any ACF applied."""
    (answer,) = bench.build([BASELINE])
    if isinstance(answer, CiqError):
        raise answer
    if isinstance(answer, Exception):
        raise ProofError(
            f"the baseline does not build: {in_one_line(answer)}",
            remedy="this is not the ACF's doing: mend build(None)",
            reason=Reason.CRASHED,
        ) from answer
    code = bench.kernel.code_of(answer)
    if code is not None and (paths := code.controls()):
        raise ProofError(
            f"the baseline has an ACF applied, {paths[-1]}, so nothing can be compared with it",
            looked_at=[f"ptxas' command line in the cubin: {code.command_line}"],
            remedy="take --apply-controls out of PTXAS_OPTIONS, NVCC_APPEND_FLAGS and build(None)",
            reason=Reason.UNFIT,
        )
    return answer


def built_with(bench: Workbench, arm: Arm, sidecar: Sidecar | None = None) -> Build:
    """The build of an arm that has to succeed; a refusal of the ACF is explained."""
    baseline = baseline_build(bench)
    (answer,) = bench.build([arm])
    if isinstance(answer, Build):
        return answer
    if isinstance(answer, CiqError) and not isinstance(answer, AcfError):
        raise answer
    refusal = answer.what if isinstance(answer, AcfError) else acf_refusal(_all_text(answer))
    if arm.acf is None or refusal is None:
        raise ProofError(
            f"{arm.name}: the baseline builds, but this arm does not: {in_one_line(answer)}",
            remedy="repeat the build by hand with this ACF; if it fails there too, drop the ACF",
            reason=Reason.CRASHED,
        ) from answer
    raise explain_refusal(arm.acf, refusal, ptxas_of(bench, baseline), sidecar) from answer


def explain_refusal(acf: Acf, refusal: str, ptxas: str | None, sidecar: Sidecar | None) -> AcfError:
    """Why ptxas refused an ACF: made for another ptxas, altered, or damaged."""
    here = f"ptxas {ptxas}" if ptxas else "this ptxas"
    looked_at = [f"{acf.source} ({len(acf.content)} bytes)", refusal]
    change = _sidecar.altered(acf, sidecar) if sidecar else None
    release = ".".join(ptxas.split(".")[:2]) if ptxas else None
    if sidecar and not change and sidecar.release and release and sidecar.release != release:
        return AcfError(
            f"{acf.name} was made for ptxas {sidecar.release}, and {here} refuses it: an ACF is "
            "bound to major.minor of its ptxas",
            looked_at=looked_at,
            remedy=f"use a ptxas {sidecar.release} (--ciq-ptxas), or {_RETUNE}",
        )
    if change:
        return AcfError(
            f"{change}, and {here} refuses it",
            looked_at=looked_at,
            remedy=f"restore {acf.name} from version control",
        )
    return AcfError(
        f"{here} refuses {acf.name}: the file is damaged, or was made for another ptxas than "
        f"{ptxas or 'this one'}",
        looked_at=[
            *looked_at,
            "no sidecar: which ptxas it was made for is unknown"
            if sidecar is None
            else "its sidecar",
        ],
        remedy=f"restore {acf.name} from version control, or {_RETUNE}",
    )


def arrived(bench: Workbench, arm: Arm, build: Build) -> Cubin | None:
    """ptxas' own note in the cubin names our staged ACF once. None when there is no cubin."""
    assert arm.acf is not None
    code = bench.kernel.code_of(build)
    if code is None:
        return None
    paths = code.controls()
    staged = str(bench.staged(arm.acf))
    if paths is None:
        raise ProofError(
            f"{arm.name}: the cubin holds no command line of ptxas, so arrival cannot be proven",
            remedy="give Build.cubin as ptxas wrote it, not stripped and not re-linked",
            reason=Reason.UNFIT,
        )
    line = f"ptxas' command line in the cubin: {code.command_line}"
    if not paths:
        raise ProofError(
            f"{arm.name} never reached ptxas: the cubin was made without --apply-controls",
            looked_at=[line],
            remedy="let build(acf) pass --apply-controls=<acf> to ptxas; "
            "or a cache served an older build: clear it, or key it by the ACF's path",
            reason=Reason.NOT_APPLIED,
        )
    # ptxas 13.3 notes only the last of several, which wins; a warning tells of the others.
    if len(paths) > 1 or _REDEFINED in (build.ptxas_log or ""):
        raise ProofError(
            f"{arm.name}: ptxas got --apply-controls more than once; the last one wins",
            looked_at=[line],
            remedy="remove the other one: PTXAS_OPTIONS, NVCC_APPEND_FLAGS, or a second hook",
            reason=Reason.NOT_APPLIED,
        )
    if paths[0] != staged:
        raise ProofError(
            f"{arm.name} never reached ptxas: the cubin was made with another ACF, {paths[0]}",
            looked_at=[line, f"expected {staged}"],
            remedy="a cache served a stale build, or build(acf) ignores its argument",
            reason=Reason.NOT_APPLIED,
        )
    return code


def proven(bench: Workbench, arm: Arm, sidecar: Sidecar | None = None) -> Proven:
    """Build the baseline and an ACF arm side by side and prove that the ACF arrived."""
    bench.build([BASELINE, arm])  # at once, so that a kernel that can builds them in parallel
    baseline = baseline_build(bench)
    build = built_with(bench, arm, sidecar)
    code = arrived(bench, arm, build)
    base_code = bench.kernel.code_of(baseline)
    entry = bench.kernel.entry
    same = (
        None
        if code is None or base_code is None
        else code.fingerprint(entry) == base_code.fingerprint(entry)
    )
    return Proven(baseline, build, same)


def same_code(bench: Workbench, arm: Arm) -> bool:
    """Is the machine code of an arm the baseline's? False where it is not known."""
    codes = [
        bench.kernel.code_of(answer) if isinstance(answer, Build) else None
        for answer in bench.build([BASELINE, arm])
    ]
    prints = {None if code is None else code.fingerprint(bench.kernel.entry) for code in codes}
    return len(prints) == 1 and None not in prints


def refused(bench: Workbench, acf: Acf | None) -> str:
    """A damaged ACF must make the build fail; returns the name of the file that was tried."""
    damaged = acf.damaged() if acf is not None else nonsense()
    (answer,) = bench.build([Arm(damaged.name, damaged)])
    if isinstance(answer, Build):
        raise ProofError(
            f"{damaged.name} was taken without an error: the build does not read the ACF",
            looked_at=[f"build({bench.staged(damaged)})"],
            remedy="let build(acf) pass --apply-controls=<acf> to ptxas and raise when it fails",
            reason=Reason.NOT_APPLIED,
        )
    if isinstance(answer, CiqError) and answer.reason in (Reason.CRASHED, Reason.HUNG):
        raise answer
    return damaged.name


def ptxas_of(bench: Workbench, build: Build) -> str | None:
    """Version of the ptxas that made a build, such as ``13.3.73``, read from its cubin."""
    code = bench.kernel.code_of(build)
    if code is None or code.tool_version is None:
        return None
    return code.tool_version.rpartition("V")[2] or None


def check_sidecar(
    acf: Acf, sidecar: Sidecar | None, bench: Workbench | None = None, *, accept: bool
) -> None:
    """The ACF and the kernel are those that the sidecar describes; skipped under --ciq-accept."""
    if not accept and (found := mismatch(acf, sidecar, bench)) is not None:
        raise found


def mismatch(acf: Acf, sidecar: Sidecar | None, bench: Workbench | None) -> CiqError | None:
    """In what the ACF, or the kernel on the bench, differs from what the sidecar describes."""
    if sidecar is None:
        return None
    looked_at = [str(_sidecar.path_of(acf.source))]
    if change := _sidecar.altered(acf, sidecar):
        return AcfError(
            f"{change}; ptxas takes it, but nobody has accepted it",
            looked_at=looked_at,
            remedy="run once with --ciq-accept if the new ACF is meant; else restore the old one",
        )
    if bench is None:
        return None
    ptx = bench.kernel.ptx_sha256(bench.folder)
    if ptx and sidecar.ptx_sha256 and ptx != sidecar.ptx_sha256:
        return ProofError(
            f"{acf.name} was made for another kernel, or another version of this one: its PTX "
            f"hashes to {ptx[:12]}, the sidecar says {sidecar.ptx_sha256[:12]}",
            looked_at=looked_at,
            remedy=f"search again: --ciq-retune; {_KEEP}",
            reason=Reason.KERNEL_CHANGED,
        )
    arch = bench.kernel.arch()
    if arch and sidecar.arch and arch != sidecar.arch:
        return ProofError(
            f"{acf.name} was made for {sidecar.arch}, and this kernel is built for {arch}",
            looked_at=looked_at,
            remedy=f"search again for {arch}: --ciq-retune; {_KEEP}",
            reason=Reason.KERNEL_CHANGED,
        )
    return None


#: What another release may make of an ACF that it takes and that arrives.
_OF_ANOTHER_PTXAS = frozenset({Reason.SLOWER, Reason.NO_WIN, Reason.NO_EFFECT, Reason.WRONG_RESULT})


def with_other_ptxas(verdict: Verdict, known: Iterable[Committed], session: str | None) -> Verdict:
    """The verdict, with the releases named where an ACF is of another ptxas than it was judged by.

    It is no fault while the proofs hold, and may be why other code is slower, wrong or the same.
    ``session`` is the version of the run's ptxas, for what gives no cubin.
    """
    here = verdict.numbers.get("ptxas") or session
    notes = [
        f"{acf.name} is of ptxas {sidecar.ptxas}, and this is {here}"
        for acf, sidecar in {one.acf: one.sidecar for one in known}.items()
        if sidecar and sidecar.release and not _sidecar.altered(acf, sidecar)
        if here and sidecar.release != ".".join(str(here).split(".")[:2])
    ]
    if not notes or verdict.reason is Reason.REJECTED:  # which says it itself
        return verdict
    doubt = ", which may be why" if verdict.reason in _OF_ANOTHER_PTXAS else ""
    return replace(verdict, message=f"{verdict.message}; {'; '.join(notes)}{doubt}")


def refused_by_objective(
    acf: Acf, sidecar: Sidecar | None, said: str, ptxas: str | None
) -> AcfError | None:
    """Why an objective could not use an ACF, when its sidecar tells: altered, another ptxas."""
    if sidecar is None:
        return None
    release = ".".join(ptxas.split(".")[:2]) if ptxas else None
    if _sidecar.altered(acf, sidecar) or (release and sidecar.release not in (None, release)):
        return explain_refusal(acf, said, ptxas, sidecar)
    return None


def _all_text(error: BaseException) -> str:
    """An exception's text with what a failed process wrote: CalledProcessError hides it."""
    parts = [str(error)]
    for name in ("stderr", "stdout"):
        text = getattr(error, name, None)
        parts.append(text.decode(errors="replace") if isinstance(text, bytes) else str(text or ""))
    if error.__cause__ is not None:
        parts.append(_all_text(error.__cause__))
    return "\n".join(parts)


def in_one_line(error: BaseException) -> str:
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return text if len(text) <= 400 else f"{text[:397]}..."
