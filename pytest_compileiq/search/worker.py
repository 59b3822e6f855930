"""ForkWorker: a worker for CompileIQ that no objective can hang, kill or fool.

It needs no pytest:

    from compileiq.ciq import Search
    from pytest_compileiq import ForkWorker

    worker = ForkWorker.using(gpus=["GPU-5a3f...", "GPU-91c0..."])
    search = Search(
        objective_function=objective, search_space=space, search_config=config, worker_type=worker
    )
    result = search.start(num_workers=2, task_timeout=30)
    print(worker.tally.causes)  # {"hung": 3, "crashed": 1}

The first batch forks one server for each worker from this process, so the objective may be a
lambda or a closure, modules are imported once, and no ``if __name__ == "__main__"`` is needed.
CUDA must not have been started before.
"""

from __future__ import annotations

import json
import math
import os
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any, ClassVar

from compileiq.types import BASELINE_CONFIG, BaseTracker, ParamArg, Worker
from compileiq.utils.validation import Score

from pytest_compileiq.errors import CiqError
from pytest_compileiq.search.budget import Budget, BudgetSpentError
from pytest_compileiq.search.causes import Answer, Cause, Tally
from pytest_compileiq.search.lanes import Lane
from pytest_compileiq.verdict import Reason

_BASELINE = "baseline"  # the id that CompileIQ gives the baseline
_REASONS = {
    Cause.HUNG: Reason.HUNG,
    Cause.BAD_SHAPE: Reason.BAD_SHAPE,
    Cause.INVALID: Reason.INVALID_SCORE,
}


@dataclass(frozen=True, slots=True)
class Options:
    """What ``ForkWorker.using`` was given."""

    environment: Mapping[str, str] = field(default_factory=dict)
    gpus: Sequence[str] = ()
    budget: Budget = field(default_factory=Budget)


class ForkWorker(Worker):  # type: ignore[misc]
    """Runs each call of an objective in a child forked from a warm server, and scores it.

    What raises, hangs, crashes, exits or returns what no ``Score`` is gets ``"*"``, and is
    counted in ``tally`` by its cause. ``task_timeout`` (seconds) kills the call's process
    group and all its descendants. ``num_workers`` calls run at a time. Scores' metadata holds
    the cause, the seconds and the GPU of the call.
    """

    options: ClassVar[Options] = Options()
    tally: Tally

    @classmethod
    def using(
        cls,
        *,
        environment: Mapping[str, str] | None = None,
        gpus: Sequence[str] = (),
        budget: Budget | None = None,
    ) -> type[ForkWorker]:
        """The class for one search: pass it to ``Search`` as ``worker_type``.

        ``environment`` is set in each call's process, on top of this process's environment as
        it is at that moment. With ``gpus`` (UUIDs or indices), the workers are pinned to them,
        round robin, by CUDA_VISIBLE_DEVICES. ``budget`` ends the search by BudgetSpentError.
        """
        options = Options(dict(environment or {}), tuple(gpus), budget or Budget())
        return type(cls.__name__, (cls,), {"options": options, "tally": Tally()})

    def __init__(
        self,
        cache_folder: str | os.PathLike[str],
        normalize: bool = False,
        tracker: BaseTracker | None = None,
    ) -> None:
        super().__init__(
            cache_folder=cache_folder,
            normalize=normalize,
            tracker=tracker,
            respects_num_workers=True,
            supports_timeout=True,
        )
        if not hasattr(type(self), "tally"):
            self.tally = Tally()
        self._lanes: list[Lane] = []
        self._lanes_for: tuple[Any, int] | None = None  # a lane knows the function of its start
        # Also when nobody calls `close`, and at the interpreter's end.
        self._finalizer = weakref.finalize(self, _close, self._lanes)

    @classmethod
    def create(
        cls,
        cache_folder: str | os.PathLike[str],
        normalize: bool,
        tracker: BaseTracker | None,
    ) -> ForkWorker:
        return cls(cache_folder=cache_folder, normalize=normalize, tracker=tracker)

    @property
    def notes(self) -> list[str]:
        """What the fork servers found wrong with this process."""
        return list(dict.fromkeys(note for lane in self._lanes for note in lane.notes))

    def run(
        self,
        *,
        function: Callable[[Any], Any],
        params_pool: Sequence[ParamArg],
        params_ids: Sequence[int | str],
        num_function_returns: int = 1,
        num_workers: int = 1,
        task_timeout: float | None = None,
        **_: Any,
    ) -> list[Score]:
        """Score every configuration of the pool; with ``normalize``, the baseline first.

        Raises BudgetSpentError with the scores so far, and CiqError when the baseline that
        scores are to be divided by has none.
        """
        self.options.budget.start()
        timeout = _seconds(task_timeout)
        baseline: list[Score] = []
        known: Score | None = super().baseline_score
        if self.normalize and known is None:
            task = (_BASELINE, BASELINE_CONFIG)
            baseline = self._batch(function, [task], num_function_returns, 1, timeout)
            known = self.baseline_score = baseline[0]
        tasks = list(zip(params_ids, params_pool, strict=True))
        spent: BudgetSpentError | None = None
        try:
            scores = self._batch(function, tasks, num_function_returns, num_workers, timeout)
        except BudgetSpentError as error:
            spent, scores = error, error.scores
        scores = baseline + scores
        if known is not None:
            for score in scores:
                score.norm_score = (
                    Worker.invalidate_score(num_function_returns)
                    if score.failed
                    else self.normalize_scores(score.score, known.score)
                )
        if spent is not None:
            raise BudgetSpentError(spent.why, scores)
        return scores

    def evaluate(
        self,
        function: Callable[[Any], Any],
        params: ParamArg,
        *,
        objectives: int = 1,
        task_timeout: float | None = None,
    ) -> Answer:
        """Call the objective once, outside of any batch; it counts like any other call.

        Raises BudgetSpentError when the budget has no call left.
        """
        budget = self.options.budget
        budget.start()
        if not budget.grant():
            raise BudgetSpentError(budget.why, [])
        self._open(function, objectives, 1)
        answer = self._lanes[0].evaluate(params, min(_seconds(task_timeout), budget.seconds_left()))
        self.tally.add(answer)
        return answer

    def close(self) -> None:
        """End the fork servers; the next batch starts new ones."""
        _close(self._lanes)

    def _open(self, function: Callable[[Any], Any], objectives: int, workers: int) -> None:
        if self._lanes_for != (function, objectives):
            self.close()
            self._lanes_for = (function, objectives)
        gpus = self.options.gpus
        while len(self._lanes) < workers:
            environment = dict(self.options.environment)
            if gpus:
                environment["CUDA_VISIBLE_DEVICES"] = gpus[len(self._lanes) % len(gpus)]
            self._lanes.append(Lane(function, objectives, environment))

    def _batch(
        self,
        function: Callable[[Any], Any],
        tasks: list[tuple[int | str, Any]],
        objectives: int,
        workers: int,
        timeout: float,
    ) -> list[Score]:
        workers = max(1, min(workers, len(tasks)))
        self._open(function, objectives, workers)
        lanes = self._lanes[:workers]
        if workers == 1:  # here, not in a thread: Ctrl-C then ends the call in good order
            found = [self._one(lanes[0], task, objectives, timeout) for task in tasks]
        else:
            found = self._side_by_side(lanes, tasks, objectives, timeout)
        scores = [score for score in found if score is not None]
        if len(scores) < len(tasks):
            raise BudgetSpentError(self.options.budget.why, scores)
        return scores

    def _side_by_side(
        self,
        lanes: list[Lane],
        tasks: list[tuple[int | str, Any]],
        objectives: int,
        timeout: float,
    ) -> list[Score | None]:
        free: SimpleQueue[Lane] = SimpleQueue()
        for lane in lanes:
            free.put(lane)
        stopped = threading.Event()

        def one(task: tuple[int | str, Any]) -> Score | None:
            lane = free.get()
            try:
                return None if stopped.is_set() else self._one(lane, task, objectives, timeout)
            finally:
                free.put(lane)

        try:
            with ThreadPoolExecutor(len(lanes)) as pool:
                try:
                    return list(pool.map(one, tasks))
                except BaseException:
                    stopped.set()
                    for lane in lanes:
                        lane.stop()
                    raise
        except BaseException:
            self.close()  # lanes that were stopped run nothing any more
            raise

    def _one(
        self, lane: Lane, task: tuple[int | str, Any], objectives: int, timeout: float
    ) -> Score | None:
        """The score of one configuration, or None when the budget does not reach for it."""
        identity, params = task
        budget = self.options.budget
        if not budget.grant():
            return None
        left = budget.seconds_left()
        words = {"task_id": f"{self.current_generation}-{identity}"}
        self.tracker.pre_objective(params, **words)
        answer = lane.evaluate(params, min(timeout, left))
        if answer.cause is Cause.HUNG and left < timeout:
            return None  # the search's time was up, not the call's
        self.tally.add(answer)
        is_baseline = identity == _BASELINE
        if is_baseline and answer.cause is not None:
            raise CiqError(
                f"on the baseline {{}} the objective {answer.text} ({answer.cause}), and "
                "normalize=True divides by that score",
                looked_at=answer.details.splitlines()[-3:],
                remedy=answer.remedy
                or "let the objective score {}, or search with normalize=False",
                reason=_REASONS.get(answer.cause, Reason.CRASHED),
            )
        score = Score(
            score=_score(answer, objectives),
            metadata=json.dumps(_metadata(answer, lane)),
            params=params,
            param_id=identity,
            num_objectives=objectives,
            is_baseline=is_baseline,
        )
        self.tracker.post_objective(score.model_dump_json(), **words)
        return score


def _score(answer: Answer, objectives: int) -> Any:
    if answer.cause is not None:
        return Worker.invalidate_score(objectives)
    return answer.scores[0] if objectives == 1 else list(answer.scores)


def _metadata(answer: Answer, lane: Lane) -> dict[str, object]:
    found: dict[str, object] = {"seconds": round(answer.seconds, 4)}
    if answer.cause is not None:
        found |= {"cause": answer.cause.value, "text": answer.text}
    if gpu := lane.environment.get("CUDA_VISIBLE_DEVICES"):
        found["gpu"] = gpu
    return found


def _seconds(limit: float | None) -> float:
    return math.inf if limit is None else limit


def _close(lanes: list[Lane]) -> None:
    while lanes:
        lanes.pop().close()
