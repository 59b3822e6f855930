"""``ciq_resources``: registers, spills and memory, as ``ptxas -v`` reports them."""

from __future__ import annotations

from dataclasses import replace

from pytest_compileiq.checks import proof
from pytest_compileiq.errors import CiqError
from pytest_compileiq.marks import ResourcesParams
from pytest_compileiq.subjects.kernel import BASELINE, Arm, Build, Workbench
from pytest_compileiq.toolchain import ptxas as _ptxas
from pytest_compileiq.toolchain.sidecar import Committed
from pytest_compileiq.verdict import Check, Reason, Status, Verdict, in_words

_COMPARED = ("registers", "spill_bytes")


def judge_kernel(
    bench: Workbench, committed: Committed | None, params: ResourcesParams, *, accept: bool
) -> Verdict:
    """Check the kernel with its ACF, or the baseline when the test names no ACF."""
    if committed is None:
        if params.no_worse:
            raise CiqError(
                "no_worse=True compares an ACF with the baseline, and the test names no ACF",
                remedy="add ciq_beats_baseline(...) to the test, or acf= to ciq_resources",
            )
        baseline = build = proof.baseline_build(bench)
        arm = BASELINE.name
    else:
        acf = committed.acf
        shown = proof.proven(bench, Arm(acf.name, acf), committed.sidecar)
        if shown.same_code is None:
            raise CiqError(
                f"the build gives no cubin, so it is not known whether {acf.name} arrived",
                remedy="give Build.cubin, or limit the baseline in a test that names no ACF",
            )
        proof.check_sidecar(acf, committed.sidecar, bench, accept=accept)
        baseline, build, arm = shown.baseline, shown.build, acf.name
    constant = params.max_constant_bytes is not None
    used = _report(bench, build, arm, constant=constant).as_numbers()
    before = _report(bench, baseline, BASELINE.name).as_numbers()
    numbers: dict[str, object] = {
        "arm": arm,
        "ptxas": proof.ptxas_of(bench, build),
        **used,
        "baseline": before,
    }
    excess: list[str] = []
    not_kept_before: list[str] = []
    for limit_name, limit in params.limits().items():
        name = limit_name.removeprefix("max_")
        if limit is None or used[name] <= limit:
            continue
        beside = "" if committed is None else f" (the baseline {before[name]})"
        excess.append(f"{used[name]} {_words(name)} where at most {limit} are allowed{beside}")
        if before[name] > limit:
            not_kept_before.append(f"{limit_name}={limit}")
    if params.no_worse:
        excess += [
            f"{used[name]} {_words(name)} where the baseline has {before[name]}"
            for name in _COMPARED
            if used[name] > before[name]
        ]
    if excess:
        raise CiqError(
            f"{in_words(arm)} needs {' and '.join(excess)}",
            remedy=_remedy(committed, not_kept_before),
            reason=Reason.SLOWER,
            numbers=numbers,
        )
    change = (
        ""
        if committed is None
        else f" (baseline {before['registers']} and {before['spill_bytes']})"
    )
    return Verdict(
        check=Check.RESOURCES,
        kernel=bench.kernel.name,
        status=Status.PASS,
        message=f"{used['registers']} registers, {used['spill_bytes']} spill bytes{change}",
        numbers=numbers,
    )


def _remedy(committed: Committed | None, not_kept_before: list[str]) -> str:
    """``not_kept_before``: the limits that the baseline breaks as well."""
    if committed is None:
        return "allow more in ciq_resources, change the kernel, or name an ACF that keeps the limit"
    if not_kept_before:
        return (
            f"the baseline does not keep {' and '.join(not_kept_before)} either, so the limit or "
            "the kernel is to change; or search for another ACF"
        )
    return "search for another ACF, or allow more in ciq_resources if the kernel has to grow"


def _report(
    bench: Workbench, build: Build, arm: str, *, constant: bool = False
) -> _ptxas.Resources:
    """``constant``: the bytes of constant memory are limited, so they have to be known."""
    found = bench.kernel.resources_of(build)
    if found is None:
        raise CiqError(
            f"the build of {in_words(arm)} has no report of ptxas -v, so its resources are not known",
            looked_at=[f"Build.ptxas_log of {len(build.ptxas_log or '')} characters"],
            remedy="pass -v to ptxas and its output as Build.ptxas_log; a cache that skips "
            "ptxas also skips its report",
        )
    code = bench.kernel.code_of(build)
    # ptxas 13.3 no longer prints constant memory, and silence is not zero: the cubin tells.
    if code is not None:
        return replace(found, constant_bytes=code.constant_size(bench.kernel.entry))
    if constant:
        raise CiqError(
            f"the build of {in_words(arm)} gives no cubin, and constant memory is read from nothing else",
            remedy="give Build.cubin, or leave max_constant_bytes= out",
            reason=Reason.UNFIT,
        )
    return found


def _words(name: str) -> str:
    return name.replace("_", " ")
