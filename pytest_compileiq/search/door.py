"""CiqSearch, the object behind the fixture ``ciq_search``."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from compileiq.types import TrackerConfig, Worker, WorkerTypes

from pytest_compileiq.diagnose import Diagnosis, diagnose
from pytest_compileiq.search.engine import GuardedSearch, open_search
from pytest_compileiq.subjects.objective import Objective


class CiqSearch:
    """The fixture ``ciq_search``: call it to get a ``compileiq.ciq.Search`` of this test.

    ``gpus`` gives the UUIDs of up to so many GPUs for a search's workers, and () without any.
    ``seconds_left`` says how long a search may take that begins now, or infinity.
    """

    def __init__(
        self,
        *,
        base: Path,
        folder: Path,
        task_timeout: float,
        seconds_left: Callable[[], float],
        keep: bool,
        gpus: Callable[[int], Sequence[str]],
    ) -> None:
        self._base = base
        self._folder = folder
        self._task_timeout = task_timeout
        self._seconds_left = seconds_left
        self._keep = keep
        self._gpus = gpus
        self.searches: list[GuardedSearch] = []

    def __call__(
        self,
        objective: Callable[[Any], Any] | Objective,
        space: Any,
        *,
        generations: int,
        pool_size: int | None = None,
        problem_type: Literal["min", "max"] | None = None,
        objectives: int | None = None,
        worker: WorkerTypes | type[Worker] | str | None = None,
        workers: int = 1,
        task_timeout: float | None = None,
        max_calls: int | None = None,
        max_seconds: float | None = None,
        seed: int | None = 0,
        tracker: TrackerConfig | str | None = None,
        environment: Mapping[str, str] | None = None,
        **more: Any,
    ) -> GuardedSearch:
        """A search, configured and not yet started; see ``engine.open_search`` for the words.

        ``task_timeout`` is ``--ciq-timeout`` unless given, or a quarter of it in an isolated
        test, whose searches end a fifth of it before the test would be killed. A relative path of a search space is
        relative to the test file. On GPUs there are no more workers than GPUs that are free:
        two of them on one GPU would time each other.
        """
        if isinstance(objective, Objective):
            problem_type = problem_type or objective.problem_type
            objectives = objectives or objective.objectives
            objective = objective.function
        gpus = self._gpus(workers)
        folder = self._folder / f"search{len(self.searches)}"
        folder.mkdir()
        search = open_search(
            objective,
            space,
            folder=folder,
            base=self._base,
            generations=generations,
            pool_size=pool_size,
            problem_type=problem_type or "min",
            objectives=objectives or 1,
            worker=worker,
            workers=min(workers, len(gpus)) if gpus else workers,
            task_timeout=task_timeout or self._task_timeout,
            max_calls=max_calls,
            max_seconds=max_seconds or self._left(),
            seed=seed,
            tracker=tracker,
            environment=environment,
            gpus=gpus,
            keep=self._keep,
            **more,
        )
        if gpus and len(gpus) < workers:
            search.notes.append(f"{len(gpus)} workers, not {workers}: so many GPUs were free")
        self.searches.append(search)
        return search

    def _left(self) -> float | None:
        left = self._seconds_left()
        return None if math.isinf(left) else max(left, 1.0)

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
    def notes(self) -> list[str]:
        """What may mislead whoever reads the results of this test's searches."""
        return [note for search in self.searches for note in search.notes]

    def close(self) -> None:
        for search in self.searches:
            search.close()
