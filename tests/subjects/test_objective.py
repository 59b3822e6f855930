"""Objectives, judged by CompileIQ's own Score; each usual fault is named."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pytest_compileiq.subjects.objective import Evaluation, Objective, evaluate, judge
from pytest_compileiq.toolchain.acf import Acf
from pytest_compileiq.verdict import Reason

ACF = Acf(Path("x.acf"), b"\x01\xab")


@pytest.mark.parametrize(
    ("value", "objectives", "scores"),
    [
        (3, 1, [3]),
        (1.5, 1, [1.5]),
        (np.float64(2.5), 1, [2.5]),
        ([1, 2.5], 2, [1, 2.5]),
        ((1, 2), 2, [1, 2]),
    ],
)
def test_good_shapes(value: Any, objectives: int, scores: list[float]) -> None:
    assert judge(value, objectives) == ("scores", scores)


@pytest.mark.parametrize(
    "value", [np.int64(3), np.float32(2.5), np.array(4.0), Fraction(1, 2), Decimal("1.5")]
)
def test_numbers_of_other_libraries_follow_compileiq(value: Any) -> None:
    """Whatever this compileiq's Score says is the answer, and a plain number comes out."""
    kind, payload = judge(value, 1)
    if kind == "scores":
        assert [type(one) in (int, float) for one in payload] == [True]
    else:
        assert f"({type(value).__module__}.{type(value).__qualname__})" in payload[0]


@pytest.mark.parametrize(
    ("value", "objectives"),
    [
        ("*", 1),
        (float("nan"), 1),
        (float("inf"), 1),
        (-float("inf"), 1),
        (10**400, 1),
        (["*", 1.0], 2),
        ([1.0, float("nan")], 2),
        ([1, -(10**400)], 2),
        ("*", 3),
    ],
)
def test_invalid_scores(value: Any, objectives: int) -> None:
    assert judge(value, objectives)[0] == "invalid"


@pytest.mark.parametrize(
    ("value", "objectives", "message", "remedy"),
    [
        ((1.0,), 1, "returned (1.0,) (tuple) for one objective", "without brackets or a comma"),
        ([1.0], 1, "returned [1.0] (list) for one objective", "without brackets"),
        ([1, 2], 1, "returned [1, 2] (list) for one objective", "objectives=2"),
        (None, 1, "returned None", "`return` of one number"),
        (None, 2, "returned None", "`return` of a list of 2 numbers"),
        (True, 1, "returned the bool True", "return a time"),
        ("1.5", 1, "returned the string '1.5'", "float(...)"),
        ("", 1, "returned the string ''", "float(...)"),
        (1.0, 2, "returned 1.0 (float)", "a list of 2 numbers"),
        ([1.0], 2, "returned 1 values, [1.0], for 2 objectives", "objectives=1"),
        ([1, 2, 3], 2, "returned 3 values", "return 2 values"),
        ([1.0, None], 2, "where None", "int or a float"),
        ([1.0, True], 2, "where the bool True", "int or a float"),
        ({"t": 1.0}, 1, "returned {'t': 1.0} (dict)", "return one number"),
        (1j, 1, "(complex)", "float(...)"),
        (object, 2, "returned <class 'object'> (type)", "list of 2 numbers"),
    ],
)
def test_faults_are_named(value: Any, objectives: int, message: str, remedy: str) -> None:
    kind, payload = judge(value, objectives)
    assert kind == "fault"
    assert message in payload[0]
    assert remedy in payload[1]


def run(function: Callable[[Any], Any], acf: Acf | None = None, **more: Any) -> Evaluation:
    settings = {"objectives": 1, "timeout": 20.0, "arm": "the baseline" if acf is None else "x"}
    return evaluate(Objective(function, **more), acf, **settings)  # type: ignore[arg-type]


def test_what_the_objective_is_given() -> None:
    assert run(lambda config: 1 if config == {} else 2).scores == (1,)
    assert run(lambda config: 1 if config == "01ab" else 2, ACF).scores == (1,)
    mixed = run(lambda c: len(c) if c[0] == {"n": 4} else 9, ACF, mix=lambda h: [{"n": 4}, h])
    assert mixed.scores == (2,)


class Odd:
    """Neither pickles nor prints."""

    def __reduce__(self) -> Any:
        raise RuntimeError("no")

    def __repr__(self) -> str:
        raise RuntimeError("no")


def raise_type_error(config: Any) -> float:
    return float(bytes.fromhex(config)[0])


@pytest.mark.parametrize(
    ("function", "reason", "message"),
    [
        (lambda c: sys.exit(0), Reason.CRASHED, "objective's process ended by SystemExit: 0"),
        (lambda c: os._exit(0), Reason.CRASHED, "objective's process exited with status 0"),
        (lambda c: os.kill(os.getpid(), signal.SIGSEGV), Reason.CRASHED, "was killed by SIGSEGV"),
        (lambda c: 1 / 0, Reason.CRASHED, "raised ZeroDivisionError: division by zero"),
        (raise_type_error, Reason.CRASHED, "used {} as if it were an ACF in hex"),
        (lambda c: Odd(), Reason.BAD_SHAPE, "<repr raised RuntimeError>"),
        (lambda c: float("nan"), Reason.INVALID_SCORE, "returned nan"),
    ],
)
def test_calls_that_go_wrong(function: Callable[[Any], Any], reason: Reason, message: str) -> None:
    fault = run(function).fault
    assert fault is not None
    assert fault.reason is reason
    assert message in fault.message
    assert "the baseline" in fault.message
    assert fault.remedy


def test_a_hang_ends_by_the_time_limit() -> None:
    objective = Objective(lambda c: time.sleep(300))
    started = time.monotonic()
    answer = evaluate(objective, None, objectives=1, timeout=0.5, arm="the baseline")
    assert answer.fault is not None
    assert answer.fault.reason is Reason.HUNG
    assert time.monotonic() - started < 5


def test_ten_megabytes_of_output(capfd: pytest.CaptureFixture[str]) -> None:
    assert run(lambda c: (sys.stdout.write("x" * 10_000_000), 1)[1]).scores == (1,)
    assert len(capfd.readouterr().out) == 10_000_000


def test_uncontained_runs_here() -> None:
    seen = []
    assert run(lambda c: seen.append(os.getpid()) or 1, contained=False).scores == (1,)
    assert seen == [os.getpid()]
    fault = run(lambda c: 1 / 0, contained=False).fault
    assert fault is not None
    assert fault.reason is Reason.CRASHED


def test_a_bad_problem_type() -> None:
    with pytest.raises(ValueError, match='"min" or "max", not \'maximum\''):
        Objective(lambda c: 1, problem_type="maximum")  # type: ignore[arg-type]
