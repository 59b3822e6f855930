"""The rules of others in ``benchmarks/rules.py`` decide as they are described."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module: ModuleType = pytest.importorskip("rules", reason="no benchmarks beside these tests")
    return module


class Clock:
    """Takes the place of ``rules.Bench``: launches are kernel times with 1 % of jitter."""

    def __init__(self, drift: float = 0.0) -> None:
        self._random = random.Random(2)
        self._now, self._drift = 0, drift

    def events(self, launches: Sequence[Callable[[], float]]) -> list[float]:
        return list(self._times(launches))

    def rounds(self, launch: Callable[[], float]) -> list[float]:
        return list(self._times([launch] * 20))

    def _times(self, launches: Sequence[Callable[[], float]]) -> Iterator[float]:
        for launch in launches:
            self._now += 1
            yield launch() * (1 + self._drift * self._now) * self._random.gauss(1, 0.01)


def claim(rule: Any, gain: float, drift: float = 0.0) -> str | None:
    found: str | None = rule(Clock(drift), lambda: 1.0, lambda: 1 / (1 + gain)).claim
    return found


def test_each_rule_finds_a_large_effect(rules: ModuleType) -> None:
    for name, rule in rules.peers().items():
        if "do_bench" in name:  # needs Triton
            continue
        fresh = rules.peers()[name]
        assert claim(rule, 0.2) == "faster", name
        assert claim(fresh, -0.2) == "slower", name


def test_drift_deceives_what_runs_one_after_the_other(rules: ModuleType) -> None:
    assert claim(rules.welch, 0.0, drift=1e-4) == "slower"
    assert claim(rules.interleaved, 0.0, drift=1e-4) is None


def test_a_threshold_is_blind_below_itself(rules: ModuleType) -> None:
    assert claim(rules.interleaved, 0.004) is None
    assert claim(rules.Stored(min, 0.05), 0.03) is None


def test_equal_times_are_no_division_by_zero(rules: ModuleType) -> None:
    class Same(Clock):
        def events(self, launches: Sequence[Callable[[], float]]) -> list[float]:
            return [launch() for launch in launches]

    assert rules.welch(Same(), lambda: 1.0, lambda: 1.0).claim is None


@pytest.mark.parametrize("name", ["peers", "effects", "verdict_time"])
def test_a_report_becomes_a_table(
    name: str, rules: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = pytest.importorskip(name)
    one = {
        "kernel": "k", "case": "identical", "rule": "r", "sessions": 4, "faster": 1, "slower": 0,
        "launches": 50.0, "blocks": 50.0, "wall_seconds": 0.1, "most_wall_seconds": 0.2,
        "effect": 0.01, "measured": 0.011, "found": 4, "wrong": 0, "aim": 100, "question": "q",
        "answers": {"pass": 4},
    }  # fmt: skip
    report = {
        "command": "c", "date": "d", "device": "g", "rows": [one],
        "statistics": {"us_a_unit": 30.0, "ms_an_interval": 2.0},
    }  # fmt: skip
    text = module.markdown(report)
    assert text.count("|") >= 18
    assert "0.100 s" in text
