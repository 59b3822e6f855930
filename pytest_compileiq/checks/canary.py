"""``ciq_canary``: the test can see a bad ACF. If it cannot, its other answers mean nothing.

Three steps that need no GPU: *refusal* (a damaged ACF must be refused), *arrival* (ptxas got
each ACF) and *effect* (O0 worsens a deterministic cost, O3 does not). With a GPU both are timed,
too: O0 has to be slower than the baseline, and O3 must not be.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_compileiq.checks import proof, timing
from pytest_compileiq.checks.timing import Claim, Measured, Stopwatch
from pytest_compileiq.errors import CiqError, ProofError
from pytest_compileiq.marks import CanaryParams
from pytest_compileiq.measure import decide
from pytest_compileiq.measure.opaque import ratio
from pytest_compileiq.subjects.kernel import BASELINE, Arm, Build, Workbench
from pytest_compileiq.toolchain.acf import Acf, nonsense
from pytest_compileiq.toolchain.sidecar import Committed
from pytest_compileiq.verdict import Check, Reason, Status, Verdict

NO_O0 = (
    "give the mark o0=, an ACF that makes the kernel worse (a search for the worst score finds one), "
    "or the run --ciq-debug-pack=DIR|ZIP, an asset of CompileIQ's releases with O0.acf and O3.acf"
)
OTHER_FLAGS = (
    "plain ptxas is an -O3 already: look for other flags in the baseline's build, or correct o3="
)
_BLIND = (
    "this test does not see what the compiler does: launch() may run another build, or "
    "something else than this kernel takes the time"
)


@dataclass(frozen=True, slots=True)
class KnownAcfs:
    """``o0`` has to make things worse, ``o3`` must not; ``sample`` is only damaged here."""

    o0: Committed | None
    o3: Committed | None
    sample: Acf | None


def without_o0(o0: Committed | None, *, flags: bool) -> str:
    """What to do without the mark's o0=. ``o0`` is that of the debug pack."""
    if o0 is not None:
        return f"leave o0= out: {o0.acf.name} of --ciq-debug-pack is tried then"
    if flags:
        return "leave o0= out: raw -O0 is tried then"
    return (
        "search for the worst score, or leave o0= out and run with --ciq-debug-pack=DIR|ZIP: "
        "the subject takes no ptxas flags"
    )


def without_o3(o0: Committed | None, o3: Committed | None, *, flags: bool) -> str:
    """What to do without the mark's o3=. ``o3`` is that of the debug pack."""
    if o3 is not None:
        return f"leave o3= out: {o3.acf.name} of --ciq-debug-pack is tried then"
    if o0 is None and flags:
        return "leave o3= out: raw -O3 is tried then"
    return "leave o3= out: no O3 is tried then"


def judge_kernel(
    bench: Workbench,
    known: KnownAcfs,
    params: CanaryParams,
    *,
    accept: bool,
    stopwatch: Stopwatch | None = None,
) -> Verdict:
    """``accept`` takes an O0 or O3 ACF that its sidecar does not describe."""
    kernel = bench.kernel
    o0, o3 = _arms(bench, known)
    sample = known.o0.acf if known.o0 else known.sample
    damaged = sample.damaged() if sample else nonsense()
    arms = [o0] if o3 is None else [o0, o3]
    bench.build([BASELINE, Arm(damaged.name, damaged), *arms])  # all at once: parallel
    baseline = proof.baseline_build(bench)
    numbers: dict[str, object] = {
        "source": " and ".join(arm.name for arm in arms),
        "refused": proof.refused(bench, sample),
        "ptxas": proof.ptxas_of(bench, baseline),
        "margin": params.margin,
        "tolerance": params.tolerance,
    }
    if kernel.code_of(baseline) is None and stopwatch is None:
        return Verdict(
            check=Check.CANARY,
            kernel=kernel.name,
            status=Status.NOT_JUDGED,
            message="a damaged ACF is refused; the build gives no cubin to see the effect in",
            remedy=proof.NO_CUBIN,
            numbers=numbers,
        )
    known_arms = [(o0, known.o0)] if o3 is None else [(o0, known.o0), (o3, known.o3)]
    if kernel.code_of(baseline) is None:
        for arm, committed in known_arms:
            _built(bench, arm, committed, accept=accept)
        text = "a damaged ACF is refused"
    else:
        timed = stopwatch is not None
        text = _effects(bench, baseline, known_arms, params, numbers, accept=accept, timed=timed)
    if stopwatch is not None:
        return _timed(bench, [arm for arm, _ in known_arms], params, text, numbers, stopwatch)
    return Verdict(
        check=Check.CANARY,
        kernel=kernel.name,
        status=Status.PASS,
        message=text + ("" if o3 is not None else "; no O3 ACF to try"),
        numbers=numbers,
    )


def _arms(bench: Workbench, known: KnownAcfs) -> tuple[Arm, Arm | None]:
    """O0 and O3: the files that are known, else raw flags; a known O0 alone is enough."""
    kernel = bench.kernel
    given = None if known.o3 is None else Arm(known.o3.acf.name, known.o3.acf)
    if known.o0 is not None:
        return Arm(known.o0.acf.name, known.o0.acf), given
    if not kernel.takes_flags:
        raise ProofError(
            f"{kernel.name}: there is no O0 ACF, and this kernel takes no ptxas flags instead",
            remedy=NO_O0,
            reason=Reason.UNFIT,
        )
    return Arm("raw -O0", flags=("-O0",)), given or Arm("raw -O3", flags=("-O3",))


def _effects(
    bench: Workbench,
    baseline: Build,
    arms: Sequence[tuple[Arm, Committed | None]],
    params: CanaryParams,
    numbers: dict[str, object],
    *,
    accept: bool,
    timed: bool,
) -> str:
    """O0 worsens a deterministic cost and O3, if there is one, does not. Raises CiqError.

    ``timed``: what counts is how long they take, and costs are only told.
    """
    (o0, o0_committed), *rest = arms
    cost = _costs(bench, baseline)
    numbers["baseline"] = cost
    numbers["o0"] = after = _costs_of(bench, o0, o0_committed, accept=accept)
    worst = _regression(cost, after)
    same = timed and proof.same_code(bench, o0)
    if same or (worst < params.margin and not timed):
        raise CiqError(
            f"{o0.name} makes nothing worse by {params.margin:g}x: {_compared(cost, after)}",
            remedy=("check that it is an O0 ACF of this ptxas; " if o0_committed else "")
            + "a kernel of a few instructions needs a lower margin=",
            reason=Reason.NO_EFFECT,
            numbers=numbers,
        )
    for o3, committed in rest:
        numbers["o3"] = tame = _costs_of(bench, o3, committed, accept=accept)
        growth = _regression(cost, tame)
        if growth > 1 + params.tolerance and not timed:
            raise CiqError(
                f"{o3.name} makes the code worse by {growth:.3g}x, more than the tolerance of "
                f"{params.tolerance:.0%}: {_compared(cost, tame)}",
                remedy=OTHER_FLAGS,
                reason=Reason.SLOWER,
                numbers=numbers,
            )
    return f"damage refused; {o0.name}: {_compared(cost, after)}"


def _timed(
    bench: Workbench,
    arms: Sequence[Arm],
    params: CanaryParams,
    text: str,
    numbers: dict[str, object],
    stopwatch: Stopwatch,
) -> Verdict:
    """Time O0 and O3, in turns. An O3 that is the baseline's very code needs no timing."""
    name = bench.kernel.name
    if (why := stopwatch.obstacle(bench, arms)) is not None:
        return timing.unfit(Check.CANARY, name, why, numbers)
    rules = [decide.canary_o0(params.margin), decide.not_slower(params.tolerance)]
    claims = [Claim(*both) for both in zip(arms, rules, strict=False)]
    if len(claims) == 2 and proof.same_code(bench, arms[1]):
        del claims[1]
        text += f"; {arms[1].name} is the baseline's code"
    measured = stopwatch.compare(bench, claims)
    remedies = []
    for key, claim, one in zip(("timed_o0", "timed_o3"), claims, measured, strict=False):
        numbers[key] = one.numbers()
        told, remedy = _told(claim.arm, one, params, is_o0=key == "timed_o0")
        text += f"; {told}"
        remedies += [remedy] if remedy else []
    return timing.verdict(Check.CANARY, name, measured, text, "; ".join(remedies), numbers)


def _told(arm: Arm, measured: Measured, params: CanaryParams, *, is_o0: bool) -> tuple[str, str]:
    status = measured.outcome.status
    if status is Status.UNDECIDED:
        why, remedy = measured.why_undecided()
        return f"{arm.name}: {why}: {measured}", remedy
    if status is Status.PASS:
        return f"{arm.name} runs at {measured}", ""
    if is_o0:
        return (
            f"{arm.name} is not slower by {params.margin:g}x: it runs at {measured}",
            _BLIND,
        )
    return (
        f"{arm.name} is slower by more than {params.tolerance:.0%}: it runs at {measured}",
        OTHER_FLAGS,
    )


def _costs(bench: Workbench, build: Build) -> dict[str, int]:
    """Deterministic costs of a build: bytes of code, and of spills where they are reported."""
    code = bench.kernel.code_of(build)
    resources = bench.kernel.resources_of(build)
    costs = {} if resources is None else {"spill_bytes": resources.spill_bytes}
    return costs if code is None else {**costs, "code_bytes": code.code_size(bench.kernel.entry)}


def _costs_of(
    bench: Workbench, arm: Arm, committed: Committed | None, *, accept: bool
) -> dict[str, int]:
    return _costs(bench, _built(bench, arm, committed, accept=accept))


def _built(bench: Workbench, arm: Arm, committed: Committed | None, *, accept: bool) -> Build:
    """The build of an arm, whose ACF has to arrive and to be that of its sidecar."""
    sidecar = committed.sidecar if committed else None
    build = proof.built_with(bench, arm, sidecar)
    if arm.acf is not None:
        proof.arrived(bench, arm, build)
        proof.check_sidecar(arm.acf, sidecar, bench, accept=accept)
    return build


def _regression(before: dict[str, int], after: dict[str, int]) -> float:
    """By what factor ``after`` is worse, in the cost that is worsened most.

    Either cost alone would miss one: -O0 keeps values in memory by plain loads and stores and
    may report no spill at all, and an ACF that spills more may make shorter code. Spills of a
    kernel that had none are set against its code, as 4 bytes are no infinite regression.
    """
    worse = []
    for name in before.keys() & after.keys():
        none = before["code_bytes"] if name == "spill_bytes" and not before[name] else 0
        worse.append(ratio(after[name] + none, before[name] + none, "min"))
    return max(worse)


def _compared(before: dict[str, int], after: dict[str, int]) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {before[name]} -> {after[name]}"
        for name in before
        if name in after
    )
