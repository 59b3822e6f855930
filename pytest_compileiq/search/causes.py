"""Why calls of an objective gave no score, counted."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Why a call is scored ``"*"``."""

    INVALID = "invalid"  # the objective said so: "*", NaN or infinity
    RAISED = "raised"  # an exception
    BAD_SHAPE = "bad-shape"  # a value that CompileIQ's Score refuses
    EXITED = "exited"  # sys.exit, os._exit, exec: the process ended by itself
    CRASHED = "crashed"  # a signal ended the process
    HUNG = "hung"  # the time limit did


@dataclass(frozen=True, slots=True)
class Answer:
    """One call of an objective: its ``scores``, or why there are none.

    ``text`` is one line, ``remedy`` what to do about it, ``details`` a traceback or the stacks
    of a process that crashed or hung, and ``seconds`` the time of the call with its process.
    """

    scores: tuple[float, ...] = ()
    cause: Cause | None = None
    text: str = ""
    remedy: str = ""
    details: str = ""
    seconds: float = 0.0


class Tally:
    """Calls of one search, by cause. Threads may count at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: Counter[Cause] = Counter()
        self._first: dict[Cause, Answer] = {}
        self._calls = 0

    @property
    def calls(self) -> int:
        """Calls that came to an end, with a score or without."""
        return self._calls

    @property
    def causes(self) -> dict[str, int]:
        """How many calls gave no score, by cause; causes that never occurred are left out."""
        return {cause.value: self._counts[cause] for cause in Cause if self._counts[cause]}

    def add(self, answer: Answer) -> None:
        with self._lock:
            self._calls += 1
            if answer.cause is not None:
                self._counts[answer.cause] += 1
                self._first.setdefault(answer.cause, answer)

    def lines(self) -> list[str]:
        """One line a cause, with its first example: ``3 of 18 calls hung: ...``."""
        return [
            f"{count} of {self._calls} calls {cause}: {self._first[Cause(cause)].text}"
            for cause, count in self.causes.items()
        ]
