"""Objectives of two equal kernels whose times are quantised, so that calls often agree by chance.

That an ACF was asked once, or twice with equal answers, proves nothing about it.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_compileiq.checks import canary_objective, win
from pytest_compileiq.checks.canary import KnownAcfs
from pytest_compileiq.checks.timing import Stopwatch
from pytest_compileiq.marks import CanaryParams, WinParams
from pytest_compileiq.measure.samples import replay
from pytest_compileiq.subjects.objective import Objective, ObjectiveBench
from pytest_compileiq.toolchain.acf import Acf
from pytest_compileiq.toolchain.sidecar import Committed
from pytest_compileiq.verdict import Status, Verdict
from tests.measure.support import most

RUNS = 150
BEST = Committed(Acf(Path("best.acf"), b"best" * 20), None)
O0 = Committed(Acf(Path("O0.acf"), b"zero" * 20), None)
Score = Callable[[Acf | None], float]


class Watch:
    """Of a stopwatch, what is needed here: one test, and a seed of its own for each run."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    shared = staticmethod(lambda rule: rule)

    def new_seed(self) -> int:
        return self._seed


@pytest.fixture(autouse=True)
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same coins in each run of these tests, also without a stopwatch."""
    monkeypatch.setattr(Stopwatch, "new_seed", itertools.count(1).__next__)


def judged(
    check: str, score: Score, watch: Watch | None, seconds: Callable[[], float] = lambda: 1e6
) -> Verdict:
    known = {one.acf.hex: one.acf for one in (BEST, O0)}

    def objective(config: Any) -> float | str:
        return "*" if config and config not in known else score(known.get(config or ""))

    bench = ObjectiveBench(
        Objective(objective, contained=False),
        objectives=1,
        timeout=1e6,
        in_all=seconds,
        ptxas=None,
    )
    stopwatch = cast("Stopwatch | None", watch)
    if check == "win":
        return win.judge_objective(bench, BEST, WinParams(), accept=False, stopwatch=stopwatch)
    return canary_objective.judge_objective(
        bench, KnownAcfs(O0, BEST, None), CanaryParams(), accept=False, stopwatch=stopwatch
    )


def quantised(values: tuple[float, float], share: float, seed: int, o0: float) -> Score:
    """One of two values a call, the second one with the chance ``share``; O0 is slower."""
    chance = random.Random(seed)
    return lambda acf: values[chance.random() < share] * (o0 if acf == O0.acf else 1)


@pytest.mark.parametrize("gpu", [True, False], ids=["gpu", "no gpu"])
@pytest.mark.parametrize("share", [0.5, 0.2])
def test_a_win_of_nothing_over_nothing(share: float, gpu: bool) -> None:
    """6.144 or 6.176 us, two ticks of a GPU's clock for the same kernel."""
    found: Counter[str] = Counter()
    for seed in range(RUNS):
        score = quantised((6.144e-3, 6.176e-3), share, seed, 1.0)
        verdict = judged("win", score, Watch(seed) if gpu else None)
        found[verdict.reason or "pass"] += 1
    assert found["pass"] <= most(RUNS, 0.05 if gpu else 0.001)
    assert found["slower"] <= most(RUNS, 0.01 if gpu else 0.001)
    if not gpu:  # ten equal calls are as good as no noise: then it is said that nothing is won
        assert set(found) <= {"undecided", "no-win", "pass", "slower"}
        assert found["no-win"] <= most(RUNS, (1 - share) ** 10 + share**10)


@pytest.mark.parametrize("gpu", [True, False], ids=["gpu", "no gpu"])
@pytest.mark.parametrize("share", [0.5, 0.2])
@pytest.mark.parametrize("o0", [5.0, 1.0], ids=["sees O0", "blind"])
def test_a_canary_whose_o3_is_the_baseline(share: float, gpu: bool, o0: float) -> None:
    """9.5 us told in ms with three digits: 0.009 or 0.010, 11 % apart."""
    found: Counter[str] = Counter()
    for seed in range(RUNS):
        score = quantised((0.009, 0.010), share, seed, o0)
        verdict = judged("canary", score, Watch(seed) if gpu else None)
        found[verdict.reason or "pass"] += 1
    assert found["slower"] <= most(RUNS, 0.01 if gpu else 0.001)
    if o0 == 1:
        assert found["pass"] <= most(RUNS, 0.05 if gpu else 0.001)
    else:
        assert found["no-effect"] <= most(RUNS, 0.01 if gpu else 0.001)


def test_what_does_not_vary_takes_ten_calls_a_comparison() -> None:
    """The baseline's first call serves both of the canary's; one more is that of a damaged ACF."""
    for check, calls in (("win", 10), ("canary", 10 + 9)):
        asked: list[Acf | None] = []

        def spills(acf: Acf | None, asked: list[Acf | None] = asked) -> float:
            asked.append(acf)
            return {None: 940.0, BEST.acf: 536.0, O0.acf: 5628.0}[acf]

        for watch in (Watch(1), None):
            asked.clear()
            verdict = judged(check, spills, watch)
            assert verdict.status is Status.PASS
            assert verdict.numbers["exact"] is True
            assert len(asked) == calls
            assert not [one for sample in verdict.samples if (one := replay(sample)).differences]
    assert verdict.message == (
        "damage refused; 940 on the baseline, 5628 with O0.acf, the same in five calls each; "
        "940 on the baseline, 536 with best.acf, the same in five calls each"
    )


@pytest.mark.parametrize("late", range(3, 11))
@pytest.mark.parametrize("scores", [(100.0, 80.0), (-100.0, -80.0)])
def test_without_a_gpu_the_first_difference_ends_it(scores: tuple[float, float], late: int) -> None:
    """Also at the tenth call, which would be the last, and for scores that have no ratio."""
    base, tuned = scores
    made: list[float] = []

    def score(acf: Acf | None) -> float:
        made.append((tuned if acf else base) + (len(made) == late - 1))
        return made[-1]

    verdict = judged("win", score, None)
    assert (verdict.status, verdict.reason) == ("undecided", "undecided")
    assert len(made) == late
    assert verdict.message.startswith("the scores change from call to call (")


def test_calls_in_an_isolated_test_share_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its time ran out at the eighth call, and a healthy objective was `hung`."""
    monkeypatch.setattr("pytest_compileiq.isolation.child.inside", lambda: True)
    now = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: now[0])

    def score(acf: Acf | None) -> float:
        now[0] += 1.0
        return 80.0 if acf else 100.0

    verdict = judged("win", score, None, seconds=lambda: 8.0)
    assert (verdict.status, verdict.reason) == ("undecided", "undecided")
    assert verdict.remedy.startswith("raise --ciq-timeout")


@pytest.mark.parametrize("gpu", [True, False], ids=["gpu", "no gpu"])
def test_o3_is_looked_at_as_often_as_the_others(gpu: bool) -> None:
    """O3 alone varies: one call says 6 % slower, and the median says that it is the same."""
    calls = iter([106.0, *[100.0, 100.1] * 200])
    score: Score = lambda acf: {None: 100.0, O0.acf: 500.0}.get(acf) or next(calls)  # noqa: E731
    verdict = judged("canary", score, Watch(1) if gpu else None)
    assert verdict.status is (Status.PASS if gpu else Status.UNDECIDED)
