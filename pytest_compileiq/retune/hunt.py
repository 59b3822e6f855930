"""The search itself: plain data in, plain data out, so that another process can run it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pytest_compileiq.measure.opaque import ratio

_POOL_SIZE = 48


@dataclass(frozen=True, slots=True)
class Found:
    """What a search has found. ``best`` is an ACF in hex, or None when nothing beats the baseline.

    ``candidates`` were scored or failed, ``spent`` is the limit that ended it early, ``scores`` are
    the best's, and ``findings`` are those of ``diagnose`` where there is no best.
    """

    best: str | None
    candidates: int
    spent: str | None
    notes: Sequence[str]
    scores: Sequence[float] = ()
    findings: Sequence[str] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hunt:
    """A search over ``space``, a .bin file; ``limit`` (a candidate) and ``seconds`` are seconds.

    ``folder`` gets results.csv.
    """

    space: str
    folder: str
    generations: int
    problem_type: Literal["min", "max"]
    baseline: Sequence[float]
    limit: float
    seconds: float
    workers: int

    def run(self, score: Callable[[Any], Any]) -> Found:
        """Raises CiqError, and what CompileIQ raises."""
        from pytest_compileiq.diagnose import diagnose
        from pytest_compileiq.score_table import Table, score_columns
        from pytest_compileiq.search.engine import open_search

        folder = Path(self.folder)
        search = open_search(
            score,
            self.space,
            folder=folder,
            generations=self.generations,
            pool_size=_POOL_SIZE,
            problem_type=self.problem_type,
            objectives=len(self.baseline),
            workers=self.workers,
            task_timeout=self.limit,
            max_seconds=self.seconds,
            seed=None,  # it would change nothing: candidates of a .bin file differ each time
        )
        try:
            table = search.start().get_results()
        finally:
            search.close()
            with contextlib.suppress(OSError):
                (folder / "compileiq").rmdir()
        read = Table(table, score_columns(table), self.problem_type)
        gains = [  # that of NaN, a call without a score, is 0
            min(map(lambda b, a: ratio(b, a, self.problem_type), self.baseline, scores))
            for scores in read.scores.tolist()
        ]
        known = (len(gains), search.spent, search.notes)
        if not gains or max(gains) <= 1:
            told = diagnose(table, problem_type=self.problem_type, noise=search.noise)
            return Found(None, *known, findings=told.names)
        best = gains.index(max(gains))
        return Found(read.params[best], *known, read.scores[best].tolist())
