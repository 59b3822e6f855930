"""CiqSearch, the object behind the fixture ``ciq_search``."""

from __future__ import annotations

import math
import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from pytest_compileiq import device, records
from pytest_compileiq.diagnose import Diagnosis, diagnose
from pytest_compileiq.isolation import child
from pytest_compileiq.search.engine import GuardedSearch, open_search
from pytest_compileiq.settings import Settings
from pytest_compileiq.subjects.objective import Objective

#: Of --ciq-timeout, which ends the whole of an isolated test: what one call may take there, and
#: what a search leaves of it.
_PART_OF_A_CALL, _RESERVE = 0.25, 0.2


class CiqSearch:
    """The fixture ``ciq_search``: call it to get a ``compileiq.ciq.Search`` of this test."""

    def __init__(self, request: pytest.FixtureRequest, settings: Settings) -> None:
        self._request = request
        self._settings = settings
        # Compileiq's own switch, which it reads at its import only.
        kept = os.environ.get("CIQ_KEEP_CACHE", "").upper() in ("1", "YES", "TRUE")
        self._keep = settings.keep or kept
        self._folder = (
            Path(tempfile.mkdtemp(prefix="ciq-search-"))
            if self._keep
            else request.getfixturevalue("tmp_path") / "ciq-search"
        )
        self._folder.mkdir(exist_ok=True)
        self._gpus: list[str] = []
        self._held = ExitStack()
        self.searches: list[GuardedSearch] = []

    def __call__(
        self,
        objective: Callable[[Any], Any] | Objective,
        space: Any,
        *,
        generations: int,
        workers: int = 1,
        task_timeout: float | None = None,
        max_seconds: float | None = None,
        **more: Any,
    ) -> GuardedSearch:
        """A search, configured and not yet started; ``more`` is what ``open_search`` takes.

        ``task_timeout`` is ``--ciq-timeout`` unless given, or a quarter of it in an isolated
        test, whose searches end a fifth of it before the test would be killed, whatever
        ``max_seconds`` allows. A relative path
        of a search space is relative to the test file. On GPUs there are no more workers than
        GPUs that are free: two of them on one GPU would time each other.
        """
        timeout = self._settings.timeout
        if task_timeout is None:
            task_timeout = timeout * (_PART_OF_A_CALL if child.inside() else 1)
        left = child.seconds_left() - _RESERVE * timeout  # infinity outside of isolation
        if not math.isinf(left):
            max_seconds = (
                max(left, 1.0) if max_seconds is None else min(max_seconds, max(left, 1.0))
            )
        gpus = self._hold(workers)
        folder = self._folder / f"search{len(self.searches)}"
        folder.mkdir(exist_ok=True)  # a call that was refused has left it
        search = open_search(
            objective,
            space,
            folder=folder,
            base=self._request.path.parent,
            generations=generations,
            workers=min(workers, len(gpus)) if gpus else workers,
            task_timeout=task_timeout,
            max_seconds=max_seconds,
            gpus=gpus,
            keep=self._keep,
            **more,
        )
        if gpus and len(gpus) < workers:
            search.notes.append(f"{len(gpus)} workers, not {workers}: so many GPUs were free")
        self.searches.append(search)
        return search

    def _hold(self, workers: int) -> list[str]:
        """The UUIDs of this test's GPUs, held from its first search on; none without --ciq-gpu."""
        if self._settings.gpu is not None and not self._gpus:
            request = self._request
            pool = device.pool(request.config, request.node, self._settings, workers)
            self._gpus = self._held.enter_context(pool)
        return self._gpus

    def diagnose(self, result: Any, **known: Any) -> Diagnosis:
        """What is wrong with a result, or with a results.csv; see ``diagnose.diagnose``.

        For a result of this test's searches, the generations and the noise are known already.
        """
        for search in self.searches:
            if getattr(search, "_result", None) is result:
                known = {"generations": search.generations, "noise": search.noise, **known}
                known.setdefault("problem_type", str(getattr(result, "problem_type", "min")))
                # The file has every row; 1.0 leaves repeated ones out of the result.
                return diagnose(search.dump_results, **known)
        return diagnose(result, **known)

    @property
    def left(self) -> list[tuple[str, object]]:
        """For the report: what may mislead whoever reads the results, and the folder if kept."""
        left: list[tuple[str, object]] = [
            (records.NOTE, note) for search in self.searches for note in search.notes
        ]
        if self._keep and self.searches:
            left.append((records.KEPT, str(self._folder)))
        return left

    def close(self) -> None:
        """End all searches, and give the GPUs back. Raises GpuError."""
        with self._held:
            for search in self.searches:
                search.close()
        self._gpus = []
