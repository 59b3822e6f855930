"""What a search may cost: calls of the objective and seconds."""

from __future__ import annotations

import threading
import time
from typing import Any

from compileiq.types import Worker
from compileiq.utils.validation import Score


class BudgetSpentError(Exception):
    """Ends a search from inside its worker. ``scores`` are those of the unfinished batch."""

    def __init__(self, why: str, scores: list[Score]) -> None:
        super().__init__(why)
        self.why = why
        self.scores = scores


class Budget:
    """``max_calls`` calls and ``max_seconds`` seconds, counted from ``start``. None: no limit."""

    def __init__(self, max_calls: int | None = None, max_seconds: float | None = None) -> None:
        self.max_calls = max_calls
        self.max_seconds = max_seconds
        self._lock = threading.Lock()
        self._calls = 0
        self._end: float | None = None

    def start(self) -> None:
        """Start the clock; only the first call does."""
        if self.max_seconds is not None and self._end is None:
            self._end = time.monotonic() + self.max_seconds

    def seconds_left(self) -> float:
        return float("inf") if self._end is None else self._end - time.monotonic()

    def grant(self, calls: int = 1) -> int:
        """Take up to so many calls; returns how many there were left, 0 when time is up."""
        with self._lock:
            if self.seconds_left() <= 0:
                return 0
            if self.max_calls is not None:
                calls = min(calls, self.max_calls - self._calls)
            self._calls += calls
            return calls

    @property
    def why(self) -> str:
        """Which limit was reached."""
        if self.seconds_left() <= 0:
            return f"max_seconds={self.max_seconds:g}"
        return f"max_calls={self.max_calls}"


def limited(worker: type[Worker], budget: Budget) -> type[Worker]:
    """A worker class of CompileIQ's under a budget, which it can only keep between batches."""

    class Limited(worker):  # type: ignore[misc]
        def run(self, *, params_pool: Any, params_ids: Any, **more: Any) -> list[Score]:
            granted = budget.grant(len(params_pool))
            scores: list[Score] = []
            if granted:
                pool, ids = params_pool[:granted], params_ids[:granted]
                scores = super().run(params_pool=pool, params_ids=ids, **more)
            if granted < len(params_pool):
                raise BudgetSpentError(budget.why, scores)
            return scores

    Limited.__name__ = worker.__name__  # CompileIQ's messages show it
    return Limited
