"""See conftest.py; ``docs/img/make.py`` runs it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.report import simulated as sim

Simulated = Callable[..., None]
LONG = "causal_attention_backward_dkdv"


def test_one(simulated: Simulated) -> None:
    simulated(sim.canary("softmax"), sim.cv("softmax"), sim.win("softmax", speedup=1.06))


@pytest.mark.parametrize("rows", [512, 8192])
def test_few_softmax(simulated: Simulated, rows: int) -> None:
    simulated(
        sim.static("softmax"),
        sim.canary("softmax", seed=rows),
        sim.win("softmax", speedup=1.05 + rows / 1e6, seed=rows),
    )


def test_few_slower(simulated: Simulated) -> None:
    simulated(sim.cv("matmul"), sim.win("matmul", speedup=0.98, noise=0.01))


def test_few_undecided(simulated: Simulated) -> None:
    simulated(sim.win("layer_norm", speedup=1.021, noise=0.05, disturbed=0.05))


def test_few_not_judged(simulated: Simulated) -> None:
    simulated(sim.static("sgemm"), sim.not_judged("sgemm"))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_few_long(simulated: Simulated, dtype: str) -> None:
    name = f"{LONG}[batch=16-heads=32-seqlen=4096-headdim=128-dtype={dtype}-alibi]"
    simulated(sim.cv(name), sim.win(name, speedup=1.1))


def test_few_noisy(simulated: Simulated) -> None:
    simulated(sim.cv("scan", noise=0.09), sim.objective("objective"))


@pytest.mark.parametrize("n", range(40))
def test_forty(simulated: Simulated, n: int) -> None:
    verdict = sim.win("gemm", speedup=1.0 + n / 300, noise=0.004, seed=n)
    simulated(replace(verdict, kernel=f"gemm_{n:02}_m4096n4096k{64 << n % 6}"))
