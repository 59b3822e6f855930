"""A small run of ``benchmarks/errors.py``: false claims within alpha, launches as published."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from pytest_compileiq.measure.decide import Rule, canary_o0, not_slower
from tests.measure.support import most

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RUNS = 120
SCENES = ["iid", "quiet", "ci", "noisy", "stress", "placed", "ordered"]


@pytest.fixture
def errors(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module: ModuleType = pytest.importorskip("errors", reason="no benchmarks beside these tests")
    return module


@pytest.mark.parametrize("scene", SCENES)
def test_false_claims(scene: str, errors: ModuleType) -> None:
    rule = Rule(ratio=1.0, alpha_pass=0.05, alpha_fail=0.05)
    work = errors.Pairs(errors.noise.SCENARIOS[scene], 0.0, rule)
    rows = work(np.random.default_rng(1), RUNS)
    for claim in ("faster", "slower"):
        assert sum(row[claim] for row in rows) <= most(RUNS, 0.05)
    assert np.mean([row["cost"] for row in rows]) > 850


@pytest.mark.parametrize(
    ("scene", "effect", "launches"),
    [
        ("ci", 0.01, 90),
        ("placed", 0.02, 56),
        ("quiet", 0.05, 46),
        ("stress", -0.05, 50),
        ("ordered", 0.01, 225),
    ],
)
def test_power(scene: str, effect: float, launches: float, errors: ModuleType) -> None:
    rule = Rule(ratio=1.0, alpha_pass=0.05, alpha_fail=0.05)
    rows = errors.Pairs(errors.noise.SCENARIOS[scene], effect, rule)(np.random.default_rng(2), RUNS)
    assert all(row["faster" if effect > 0 else "slower"] for row in rows)
    assert np.mean([row["cost"] for row in rows]) <= launches


def test_both_canaries_of_a_healthy_kernel(errors: ModuleType) -> None:
    ci = errors.noise.SCENARIOS["ci"]
    o0 = errors.Pairs(ci, 1 / 2 - 1, canary_o0())(np.random.default_rng(3), RUNS)
    o3 = errors.Pairs(ci, 0.0, not_slower())(np.random.default_rng(4), RUNS)
    assert all(row["slower"] for row in o0)
    assert all(row["faster"] for row in o3)
    assert np.mean([row["cost"] for row in o0]) + np.mean([row["cost"] for row in o3]) <= 115
