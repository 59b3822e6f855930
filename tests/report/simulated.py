"""Verdicts of timed checks without a GPU: the real statistics on simulated launches.

Also the demonstration suite of ``docs/img/make.py``.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from pytest_compileiq.measure import decide, samples
from pytest_compileiq.measure.decide import Rule
from pytest_compileiq.measure.opaque import OpaqueTest
from pytest_compileiq.measure.spread import SpreadTest
from pytest_compileiq.measure.units import Budget, Comparison, Health, Plan, Side, Timed, run
from pytest_compileiq.verdict import Check, Reason, Status, Verdict

#: A launch of the baseline, seconds.
BASE = 45e-6


def comparison(
    name: str,
    rule: Rule,
    *,
    speedup: float = 1.0,
    noise: float = 0.005,
    seed: int = 1,
    disturbed: float = 0.0,
    budget: int = 400,
) -> Comparison:
    """A decided comparison; ``noise`` is a relative deviation, ``disturbed`` a share of units."""
    rng = np.random.default_rng(seed)
    pilot = (BASE * np.exp(noise * rng.standard_normal(16))).tolist()
    one = Comparison(name, rule, pilot, seed)

    def time_unit(_: str, plan: Plan) -> Timed:
        seat = 0.2 * noise * rng.standard_normal()  # what the placement of both modules is worth
        seconds = tuple(
            BASE
            / (speedup if side is Side.CANDIDATE else 1)
            * math.exp(noise * rng.standard_normal() + seat)
            for side in plan.order
        )
        low = rng.random() < disturbed
        clocks = tuple(
            1500.0 - 15 * int(rng.integers(0, 2)) - 200 * low * (k > 1) for k in range(4)
        )
        return Timed(seconds, 1, 0.0015, Health(clocks))

    run([one], time_unit, budget=Budget(blocks=budget), pause=lambda _: None)
    return one


def win(
    kernel: str,
    *,
    speedup: float,
    min_speedup: float = 1.02,
    noise: float = 0.005,
    seed: int = 1,
    disturbed: float = 0.0,
    budget: int = 400,
) -> Verdict:
    """The verdict of ``ciq_beats_baseline`` on a kernel that really is faster by ``speedup``."""
    one = comparison(
        kernel,
        decide.win(min_speedup),
        speedup=speedup,
        noise=noise,
        seed=seed,
        disturbed=disturbed,
        budget=budget,
    )
    outcome = one.outcome
    assert outcome is not None
    low, high = outcome.interval
    figures = (
        f"{outcome.speedup:.4g}x [{low:.4g}, {high:.4g}] in {16 + 4 * len(one.units)} launches"
    )
    asked = f"min_speedup={min_speedup:g}"
    message, remedy = {
        Status.PASS: (f"best.acf: {figures}, {asked}", ""),
        Status.FAIL: (
            f"best.acf wins less than {asked}: {figures}",
            "search again for this kernel and this GPU, or lower min_speedup to what you rely on",
        ),
        Status.UNDECIDED: (
            f"best.acf: the budget is spent: {figures}, {asked}",
            "raise --ciq-budget, or lock the clocks",
        ),
    }[outcome.status]
    return Verdict(
        check=Check.WIN,
        kernel=kernel,
        status=outcome.status,
        reason=outcome.reason,
        message=message,
        remedy=remedy,
        numbers={**outcome.numbers(), "min_speedup": min_speedup, "seed": seed},
        samples=[samples.record_units(one)],
    )


def canary(kernel: str, *, seed: int = 1) -> Verdict:
    """A canary with two comparisons: O0 regresses, O3 does not."""
    arms = [
        comparison("O0.acf", decide.canary_o0(), speedup=0.55, seed=seed),
        comparison("O3.acf", decide.not_slower(), speedup=1.0, seed=seed + 1),
    ]
    return Verdict(
        check=Check.CANARY,
        kernel=kernel,
        status=Status.PASS,
        message="damage refused; O0.acf is slower, O3.acf is not",
        samples=[samples.record_units(one) for one in arms],
    )


def cv(kernel: str, *, noise: float = 0.01, limit: float = 0.05, seed: int = 1) -> Verdict:
    """The verdict of ``ciq_max_cv`` on launches that scatter by ``noise``."""
    rng = np.random.default_rng(seed)
    test = SpreadTest(limit)
    while test.outcome is None and len(test.seconds) < 2000:
        test.update(BASE * math.exp(noise * rng.standard_normal()))
    outcome = test.end()
    return Verdict(
        check=Check.CV,
        kernel=kernel,
        status=outcome.status,
        reason=outcome.reason,
        message=f"CV {outcome.short_cv:.2%} between neighbours, limit {limit:.0%}",
        remedy="" if outcome.status is Status.PASS else "lock the clocks, or raise the limit",
        numbers=outcome.numbers(),
        samples=[samples.record_spread(test)],
    )


def objective(name: str, *, speedup: float = 1.2, seed: int = 1) -> Verdict:
    """``ciq_beats_baseline`` on an objective that returns a noisy time."""
    rng = np.random.default_rng(seed)
    test = OpaqueTest([decide.win()], seed=seed)
    while (side := test.ask()) is not None:
        time = BASE / (speedup if side is Side.CANDIDATE else 1)
        test.tell([time * math.exp(0.01 * rng.standard_normal())])
    outcome = test.stop()
    return Verdict(
        check=Check.WIN,
        kernel=name,
        status=outcome.status,
        reason=outcome.reason,
        message="best.acf still beats the baseline",
        numbers={"min_speedup": 1.0},
        samples=[samples.record_opaque(test)],
    )


def static(kernel: str) -> Verdict:
    return Verdict(
        check=Check.RESOURCES,
        kernel=kernel,
        status=Status.PASS,
        message="80 registers, 536 spill bytes (baseline 80 and 1160)",
    )


def not_judged(kernel: str, check: Check = Check.CV) -> Verdict:
    return Verdict(
        check=check,
        kernel=kernel,
        status=Status.NOT_JUDGED,
        message="a CV limit of 5 % is a question about timings, and this run times nothing",
    )


def record(verdict: Verdict, nodeid: str = "test_k.py::test") -> dict[str, Any]:
    """The record as it is after a journey through JSON."""
    import json

    found: dict[str, Any] = json.loads(json.dumps(verdict.to_record(nodeid)))
    return found


__all__ = ["Reason", "canary", "cv", "not_judged", "objective", "record", "static", "win"]
