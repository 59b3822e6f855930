"""What can be known of an objective before hundreds of calls of it are paid for."""

from __future__ import annotations

import inspect
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from pytest_compileiq.errors import CiqError
from pytest_compileiq.search.causes import Answer, Cause
from pytest_compileiq.verdict import Reason

#: Calls of the objective on the first sample beyond the first one.
REPEATS = 2
#: Calls the objective for one configuration.
Evaluate = Callable[[Any], Answer]


@dataclass(frozen=True, slots=True)
class Sane:
    """``noise``: relative sd of the calls on one configuration; None when it is not known."""

    noise: float | None
    notes: tuple[str, ...]


def check(evaluate: Evaluate, sample: Any, *, baseline: bool) -> Sane:
    """The contract, on a sample (three times) and, where there is one, on the baseline ``{}``.

    Raises CiqError for a value that CompileIQ cannot read: every call would return one. A
    sample that raises, hangs or crashes proves nothing, since some ACFs do.
    """
    notes = []
    noise: float | None = None
    first = evaluate(sample)
    _refuse_bad_shape(first, "the first sample")
    if first.cause is not None:
        notes.append(f"on the first sample the objective {first.text} ({first.cause})")
    else:
        again = [evaluate(sample) for _ in range(REPEATS)]
        failed = next((answer for answer in again if answer.cause is not None), None)
        if failed is not None:
            notes.append(
                "the objective scored the first sample once, and when called again it "
                f"{failed.text} ({failed.cause})"
            )
        else:
            columns = zip(first.scores, *(answer.scores for answer in again), strict=True)
            noise = max(_spread(column) for column in columns)
            if noise > 0:
                notes.append(
                    f"{1 + REPEATS} calls on the first sample differ: their relative "
                    f"standard deviation is {noise:.2g}"
                )
    if baseline:
        answer = evaluate({})
        _refuse_bad_shape(answer, "the baseline {}")
        if answer.cause is not None:
            notes.append(
                f"on the baseline {{}} the objective {answer.text} ({answer.cause}): no result of "
                "this search can be compared with it"
            )
    return Sane(noise, tuple(notes))


def _refuse_bad_shape(answer: Answer, what: str) -> None:
    if answer.cause is Cause.BAD_SHAPE:
        raise CiqError(
            f"on {what} the objective {answer.text}, which CompileIQ cannot read",
            remedy=answer.remedy,
            reason=Reason.BAD_SHAPE,
        )


def _spread(scores: tuple[float, ...]) -> float:
    """Standard deviation in units of the largest magnitude."""
    largest = max(map(abs, scores))
    return statistics.stdev(scores) / largest if largest else 0.0


def autotuned(function: Callable[..., Any]) -> list[str]:
    """Triton kernels in reach of the objective that choose their configuration by themselves.

    With more than one configuration the tuner may choose another one for each ACF, and the
    score then compares configurations, not ACFs. Only what the function's globals, closure and
    defaults name is seen.
    """
    return sorted({name for name, value in _in_reach(function) if _chooses(value)})


def _chooses(value: Any) -> bool:
    kind = type(value)
    is_tuner = kind.__name__ == "Autotuner" and kind.__module__.startswith("triton.")
    return is_tuner and len(getattr(value, "configs", ())) > 1


def _in_reach(function: Any) -> Iterator[tuple[str, Any]]:
    function = inspect.unwrap(getattr(function, "func", function))  # functools.partial
    function = getattr(function, "__func__", function)
    if not inspect.isfunction(function):
        return
    names = set(function.__code__.co_names)
    yield from ((name, value) for name, value in function.__globals__.items() if name in names)
    found = inspect.getclosurevars(function)
    yield from found.nonlocals.items()
    for parameter in inspect.signature(function).parameters.values():
        yield parameter.name, parameter.default
