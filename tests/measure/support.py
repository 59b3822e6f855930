"""What the tests of the statistics share: exact binomial bounds and simulated sessions."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from pytest_compileiq.measure import audit
from pytest_compileiq.measure.decide import Rule
from pytest_compileiq.measure.units import (
    Budget,
    Comparison,
    Plan,
    Reject,
    Timed,
    reject,
    run,
)
from pytest_compileiq.verdict import Reason, Status

#: Log seconds of a unit's four blocks, given what the coins say of it.
Model = Callable[[np.random.Generator, Plan], list[float]]


def most(n: int, p: float) -> int:
    """The count that a binomial (n, p) does not exceed with 99.9 %."""
    return audit.most(n, p, 0.999)


def false_claims(
    model: Model, sessions: int, *, units: int = 40, reject: Reject = reject, alpha: float = 0.05
) -> tuple[int, int]:
    """How many of ``sessions`` on identical kernels claim "faster", and how many "slower"."""
    rng = np.random.default_rng(20261130)
    rule = Rule(ratio=1.0, alpha_pass=alpha, alpha_fail=alpha)
    faster = slower = 0
    for seed in range(sessions):
        # The pilot of the models below: 1 % of jitter.
        pilot = np.exp(0.01 * rng.standard_normal(16) - 9).tolist()
        one = Comparison("kernel", rule, pilot, seed)

        def time_unit(_: str, plan: Plan) -> Timed:
            return Timed(tuple(math.exp(log - 9) for log in model(rng, plan)))

        run([one], time_unit, budget=Budget(blocks=16 + 4 * units), reject=reject, pause=_no_pause)
        assert one.outcome is not None
        faster += one.outcome.status is Status.PASS
        slower += one.outcome.reason is Reason.SLOWER
    return faster, slower


def _no_pause(_: float) -> None:
    pass


def jitter(rng: np.random.Generator, _: Plan) -> list[float]:
    """Launches that differ by 1 % and nothing else."""
    return [0.01 * float(one) for one in rng.standard_normal(4)]
