"""``ciq_max_cv``: the timings are steady. Spread is a property of timings: it needs a GPU."""

from __future__ import annotations

import math
from statistics import median

from pytest_compileiq.checks import proof, timing
from pytest_compileiq.checks.timing import Stopwatch
from pytest_compileiq.marks import StabilityParams
from pytest_compileiq.measure.samples import record_spread
from pytest_compileiq.measure.spread import LAUNCHES, SpreadOutcome
from pytest_compileiq.subjects.kernel import BASELINE, Workbench
from pytest_compileiq.verdict import Check, Status, Verdict

_CURES = {
    "jitter": "lock the clocks (--ciq-clocks=require), or raise the limit",
    "outliers": "look for other work on this GPU or in launch(), or raise the limit",
    "drift": "lock the clocks at what the GPU can hold (--ciq-sm-mhz), or raise the limit",
}


def not_timed(kernel: str, params: StabilityParams) -> Verdict:
    return _not_judged(kernel, params, "this run times nothing")


def of_objective(kernel: str, params: StabilityParams) -> Verdict:
    remedy = "hand the kernel over, or drop ciq_max_cv"
    return _not_judged(kernel, params, "an objective times itself", remedy)


def _not_judged(kernel: str, params: StabilityParams, why: str, remedy: str = "") -> Verdict:
    return Verdict(
        check=Check.CV,
        kernel=kernel,
        status=Status.NOT_JUDGED,
        message=f"a CV limit of {params.percent:g} % is a question about timings, and {why}",
        remedy=remedy,
        numbers={"limit_percent": params.percent},
    )


def judge_kernel(bench: Workbench, params: StabilityParams, stopwatch: Stopwatch) -> Verdict:
    """Time the baseline until it is decided whether its launches differ by more than allowed."""
    name = bench.kernel.name
    numbers: dict[str, object] = {"limit_percent": params.percent}
    proof.baseline_build(bench)
    if (why := stopwatch.obstacle(bench)) is not None:
        return timing.unfit(Check.CV, name, why, numbers)
    test, pilot = stopwatch.spread(bench, BASELINE, params.percent / 100)
    outcome = test.end()
    told = pilot.numbers()
    numbers |= outcome.numbers() | {
        key: told[key] for key in ("kernel_seconds", "overhead_seconds", "cuda_graph", "l2")
    }
    what = "launches" if test.events else "blocks"
    message = f"{_percents(outcome)}, limit {params.percent:g} %, {outcome.launches} {what}"
    remedy = ""
    if outcome.clock_step is not None:
        seconds = median(test.seconds)
        share = outcome.clock_step / seconds
        alike = "no two launches read differently, and " if len(set(test.seconds)) == 1 else ""
        message += (
            f"; {alike}events step by {'up to ' if alike else ''}{1e9 * outcome.clock_step:.0f} ns, "
            f"{100 * share:.2g} % of a launch of {1e6 * seconds:.3g} us, which hides a CV as small "
            "as the limit"
        )
        remedy = f"raise the limit to {math.ceil(1000 * share) / 10:g} %, or give it more work"
    elif outcome.status is Status.FAIL:
        message += f"; above it: {outcome.cause or 'jitter'}"
        remedy = _CURES[outcome.cause or "jitter"]
    elif outcome.status is Status.UNDECIDED:
        message += "; the true CV is too near to the limit for the budget"
        remedy = "move the limit"
        if outcome.launches < LAUNCHES:
            remedy = f"raise --ciq-budget, or {remedy}"
    return Verdict(
        check=Check.CV,
        kernel=name,
        status=outcome.status,
        reason=outcome.reason,
        message=message,
        remedy=remedy,
        numbers=numbers,
        samples=[record_spread(test)],
    )


def _percents(outcome: SpreadOutcome) -> str:
    short, classic = outcome.short_cv, outcome.classic_cv
    told = "no usable times" if short is None else f"CV {short:.2%} between neighbours"
    return told + ("" if classic is None else f", std/mean {classic:.2%}")
