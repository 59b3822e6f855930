"""A small run of ``benchmarks/errors.py``: false claims within alpha, launches as published."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

from pytest_compileiq.marks import CanaryParams
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


@pytest.mark.parametrize("scene", ["quiet", "noisy"])
def test_both_canaries_at_their_thresholds(scene: str, errors: ModuleType) -> None:
    """Where the truth is the margin, or the tolerance, of a mark that gives none."""
    for rule, passed, failed in (
        (canary_o0(), "slower", "faster"),
        (not_slower(), "faster", "slower"),
    ):
        work = errors.Pairs(errors.noise.SCENARIOS[scene], 1 / 1.05 - 1, rule)
        rows = work(np.random.default_rng(5), RUNS)
        assert sum(row[passed] for row in rows) <= most(RUNS, 0.05)
        assert sum(row[failed] for row in rows) <= most(RUNS, 0.01)


def test_the_table_has_a_row_at_each_threshold_of_the_shipped_marks(errors: ModuleType) -> None:
    shipped = CanaryParams()
    assert (canary_o0(), not_slower()) == (canary_o0(shipped.margin), not_slower(shipped.tolerance))
    cells = list(errors.cells(8))
    for table, worst in (("canary O0", shipped.margin), ("canary O3", 1 + shipped.tolerance)):
        found = {
            cell.scene for cell in cells if (cell.table, cell.case) == (table, f"{worst:g}x slower")
        }
        assert found == {"quiet", "ci", "noisy", "placed"}
    assert sum("H200" in cell.scene for cell in cells) == 2 * (4 * 6 + 4)


def test_both_canaries_of_a_healthy_kernel(errors: ModuleType) -> None:
    ci = errors.noise.SCENARIOS["ci"]
    o0 = errors.Pairs(ci, 1 / 2 - 1, canary_o0())(np.random.default_rng(3), RUNS)
    o3 = errors.Pairs(ci, 0.0, not_slower())(np.random.default_rng(4), RUNS)
    assert all(row["slower"] for row in o0)
    assert all(row["faster"] for row in o3)
    assert np.mean([row["cost"] for row in o0]) + np.mean([row["cost"] for row in o3]) <= 115
