"""Repeated calls of an objective: they end in time, and each fault keeps its own name."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from pytest_compileiq.checks import repetition
from pytest_compileiq.checks.timing import Stopwatch
from pytest_compileiq.errors import CiqError
from pytest_compileiq.isolation import child
from pytest_compileiq.measure import decide
from pytest_compileiq.subjects.objective import Objective, ObjectiveBench
from pytest_compileiq.toolchain.acf import Acf
from pytest_compileiq.toolchain.sidecar import Committed
from pytest_compileiq.verdict import Check, Verdict

ACF = Acf(Path("best.acf"), b"acf")


class Watch:
    """Of a stopwatch, what is needed here: one test, and coins that fall the same way always."""

    shared = staticmethod(lambda rule: rule)
    new_seed = staticmethod(lambda: 1)


def judged(function: Callable[[Any], Any], *, timeout: float, contained: bool = False) -> Verdict:
    bench = ObjectiveBench(
        Objective(function, contained=contained),
        objectives=1,
        timeout=timeout,
        in_all=lambda: timeout,
        ptxas=None,
    )
    rule, watch = decide.win(1.0), cast(Stopwatch, Watch())
    return repetition.judge(
        Check.WIN,
        bench,
        Committed(ACF, None),
        rule,
        watch,
        {"acf": ACF.name},
        remedy="search again",
        accept=False,
    )


def noisy(seconds: float, sd: float = 0.05) -> Callable[[Any], float]:
    chance = random.Random(3)

    def objective(config: Any) -> float:
        time.sleep(seconds)
        return chance.lognormvariate(0, sd)

    return objective


def test_it_ends_before_the_time_limit_and_says_so() -> None:
    began = time.monotonic()
    verdict = judged(noisy(0.1), timeout=1.0)
    assert time.monotonic() - began < 0.9
    assert (verdict.status, verdict.reason) == ("undecided", "undecided")
    assert "more calls are needed than time allows" in verdict.message
    assert verdict.remedy.startswith("raise --ciq-timeout, or")
    assert verdict.numbers["acf"] == "best.acf"


def test_what_an_isolated_test_has_used_is_not_there_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The whole test is killed after the limit, and 99 of these 100 seconds are over."""
    monkeypatch.setattr(child, "inside", lambda: True)
    monkeypatch.setattr(child, "elapsed", lambda: 99.0)
    began = time.monotonic()
    verdict = judged(noisy(0.1), timeout=100.0)
    assert time.monotonic() - began < 0.9
    assert "than time allows" in verdict.message


def test_more_time_is_not_asked_for_where_the_calls_are_used_up() -> None:
    verdict = judged(noisy(0.0, sd=0.5), timeout=100.0)
    assert verdict.status == "undecided"
    assert "time" not in verdict.message
    assert "--ciq-timeout" not in verdict.remedy
    assert verdict.numbers["calls"] == 2 + 8 + 60


def test_a_call_that_may_not_end_in_time_is_not_begun() -> None:
    """One call took 0.4 s of 1 s: a second one would not be over at 0.7 s."""
    verdict = judged(noisy(0.4), timeout=1.0)
    assert verdict.numbers["calls"] == 2 + 1


def going_bad(bad: Callable[[], Any], folder: Path) -> Callable[[Any], Any]:
    """Good on the baseline, and twice with the ACF."""
    good = noisy(0.0)
    calls = folder / "calls"  # each call is in a process of its own

    def objective(config: Any) -> Any:
        if not config:
            return good(config)
        with calls.open("a") as file:
            file.write(".")
        return bad() if len(calls.read_text()) > 2 else good(config)

    return objective


@pytest.mark.parametrize(
    ("bad", "reason", "message"),
    [
        (lambda: 1 / 0, "crashed", "raised ZeroDivisionError: division by zero on best.acf"),
        (lambda: None, "bad-shape", "on best.acf the objective returned None, at call"),
        (lambda: "*", "invalid-score", "on best.acf the objective returned '*'"),
    ],
    ids=["raises", "none", "invalid"],
)
def test_a_fault_of_a_repeated_call(
    bad: Callable[[], Any], reason: str, message: str, tmp_path: Path
) -> None:
    """Each is another thing to do, and each would end a search in its own way."""
    verdict = judged(going_bad(bad, tmp_path), timeout=20.0, contained=True)
    assert (verdict.status, verdict.reason) == ("fail", reason)
    assert message in verdict.message
    assert verdict.remedy
    assert verdict.samples


def test_a_repeated_call_that_hangs_is_not_tried_again(tmp_path: Path) -> None:
    began = time.monotonic()
    with pytest.raises(CiqError, match=r"within 1 s on best\.acf, at call") as raised:
        judged(going_bad(lambda: time.sleep(60), tmp_path), timeout=1.0, contained=True)
    assert time.monotonic() - began < 1.9
    assert raised.value.reason == "hung"
    assert "--ciq-timeout" in raised.value.remedy


def test_scores_without_a_ratio() -> None:
    chance = random.Random(1)
    verdict = judged(lambda config: chance.gauss(0, 1), timeout=20.0)
    assert (verdict.status, verdict.reason) == ("fail", "invalid-score")
    assert "scores at or below 0 have no ratio" in verdict.message


def test_a_search_gives_calls_the_second_half_of_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """After 150 s of a test that may take 100, and with --ciq-retune 200, there are 50 left."""
    in_all = [100.0]
    monkeypatch.setattr("pytest_compileiq.isolation.child.inside", lambda: True)
    monkeypatch.setattr("pytest_compileiq.isolation.child.elapsed", lambda: 150.0)
    objective = Objective(lambda config: 1.0, contained=False)
    bench = ObjectiveBench(
        objective, objectives=1, timeout=100, in_all=lambda: in_all[0], ptxas=None
    )
    assert bench.seconds_left() < 0
    in_all[0] = 200.0
    assert 40 < bench.seconds_left() <= 50
