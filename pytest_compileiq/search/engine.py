"""CompileIQ's ``Search``, with a worker that ends, a budget, and no traces in its process."""

from __future__ import annotations

import shutil
import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from compileiq.ciq import Search
from compileiq.results import SearchResult
from compileiq.types import SearchConfiguration, TrackerConfig, Worker, WorkerTypes
from pydantic import PrivateAttr

from pytest_compileiq.errors import CiqError, SettingsError
from pytest_compileiq.search import core, sanity, spaces, theirs
from pytest_compileiq.search.budget import Budget, BudgetSpentError, limited
from pytest_compileiq.search.causes import Answer, Tally
from pytest_compileiq.search.quiet import start_method_kept, warnings_as_notes
from pytest_compileiq.search.worker import ForkWorker
from pytest_compileiq.subjects.objective import Objective
from pytest_compileiq.verdict import Reason

#: Calls that a search may make for each that its configuration names: CompileIQ replaces failed
#: candidates, without end in 1.0, and by 50 batches a generation in 1.1.
REFILL_FACTOR = 3


@dataclass
class _Plan:
    """What a search was opened with, and what is known of it since."""

    tally: Tally
    workers: int
    task_timeout: float | None
    is_fork_worker: bool
    keep: bool
    notes: list[str] = field(default_factory=list)
    spent: str | None = None
    noise: float | None = None
    started: bool = False


class GuardedSearch(Search):  # type: ignore[misc]
    """A ``compileiq.ciq.Search`` that was made by ``open_search``.

    ``start()`` takes what ``Search.start`` takes, and uses what was said at the opening. It
    checks the objective on a sample first, ends within its budget with the results so far, and
    leaves no process behind.
    """

    _plan: _Plan = PrivateAttr()

    @property
    def calls(self) -> int:
        """Calls of the objective that ended; 0 for CompileIQ's own workers, which hide it."""
        return self._plan.tally.calls

    @property
    def causes(self) -> dict[str, int]:
        """Calls without a score, by cause: hung, crashed, exited, raised, bad-shape, invalid."""
        return self._plan.tally.causes

    @property
    def generations(self) -> int:
        """Generations that were asked for."""
        return int(self._search_config.generations)

    @property
    def notes(self) -> list[str]:
        """What may mislead whoever reads the result, a line each."""
        return self._plan.notes

    @property
    def spent(self) -> str | None:
        """The limit that ended the search early, such as ``max_calls=60``, or None."""
        return self._plan.spent

    @property
    def noise(self) -> float | None:
        """Relative sd of three calls on one configuration before the search; None when unknown."""
        return self._plan.noise

    def start(
        self, num_workers: int | None = None, task_timeout: float | None = None, **more: Any
    ) -> SearchResult:
        """Run the search. Raises CiqError when the objective breaks its contract, or always fails.

        A search runs once: CompileIQ 1.0 would run anew at a second call, and 1.1 would not.
        """
        plan = self._plan
        if plan.started:
            raise SettingsError(
                "this search has run already", remedy="open a new one: ciq_search(...)"
            )
        plan.started = True
        workers = plan.workers if num_workers is None else num_workers
        # None means 1 to CompileIQ, and spares those of its workers that take no number a warning.
        chosen = workers if plan.is_fork_worker or workers != 1 else None
        timeout = plan.task_timeout if task_timeout is None else task_timeout
        try:
            with (
                start_method_kept(theirs=not plan.is_fork_worker),
                warnings_as_notes(plan.notes, all_of_them=plan.is_fork_worker),
            ):
                self._look_before(timeout)
                return super().start(num_workers=chosen, task_timeout=timeout, **more)
        except BudgetSpentError as spent:
            return self._ended_early(spent)
        except RuntimeError as error:
            raise self._explained(error) from error
        finally:
            self._end()

    def _look_before(self, timeout: float | None) -> None:
        plan, config = self._plan, self._search_config
        for name in sanity.autotuned(self.objective_function):
            plan.notes.append(
                f"{name} is autotuned: it may take another configuration with each ACF, and the "
                "scores then compare configurations. Pin one (kernel.fn, or a single Config)"
            )
        if not plan.is_fork_worker:
            return
        worker: ForkWorker = self._worker
        sample = self.sample(1)[0]
        core.release(self, ended=False)

        def evaluate(params: Any) -> Answer:
            return worker.evaluate(
                self.objective_function,
                params,
                objectives=config.num_objectives,
                task_timeout=timeout,
            )

        sane = sanity.check(evaluate, sample, baseline=spaces.makes_acfs(self.search_space))
        plan.noise = sane.noise
        plan.notes += [*worker.notes, *sane.notes]

    def _ended_early(self, spent: BudgetSpentError) -> SearchResult:
        """The results so far, those of the unfinished batch included."""
        plan = self._plan
        plan.spent = spent.why
        result: SearchResult | None = getattr(self, "_result", None)
        if result is None:  # 1.0 makes it at the start, which sanity did not reach
            raise CiqError(
                f"the budget of the search, {spent.why}, was spent before its first batch",
                looked_at=plan.tally.lines(),
                remedy="raise max_calls or max_seconds",
            )
        for score in spent.scores:
            generation = self._worker.current_generation
            result.add_result(score, generation, self._search_config.normalize)
        plan.notes.append(f"ended early: {spent.why} is spent")
        if self.dump_results is not None:
            result.save(self.dump_results)
        return result

    def _explained(self, error: RuntimeError) -> Exception:
        """An error of CompileIQ's with the causes that were counted, when calls failed."""
        lines = self._plan.tally.lines()
        if isinstance(error, CiqError) or not lines:
            return error
        return CiqError(
            f"compileiq ended the search: {error}",
            looked_at=lines,
            remedy="mend the first cause above; run the objective by hand on search.sample(1)",
            reason=Reason.INVALID_SCORE,
        )

    def _end(self) -> None:
        worker: Worker | None = getattr(self, "_worker", None)
        if isinstance(worker, ForkWorker):
            worker.close()
        core.release(self, ended=True)

    def close(self) -> None:
        """Let go of everything, as ``Search.__del__`` would at some time or other."""
        if getattr(self, "_worker", None) is not None:
            self._end()
            super().__del__()

    def _clean_files(self) -> None:
        if not self._plan.keep:
            super()._clean_files()

    def __del__(self) -> None:
        # At the interpreter's end, CompileIQ's would import modules that are gone.
        if not sys.is_finalizing() and getattr(self, "__pydantic_private__", None):
            self.close()


def open_search(
    objective: Callable[[Any], Any] | Objective,
    space: Any,
    *,
    folder: Path,
    base: Path | None = None,
    generations: int,
    pool_size: int | None = None,
    problem_type: Literal["min", "max"] | None = None,
    objectives: int | None = None,
    worker: WorkerTypes | type[Worker] | str | None = None,
    workers: int = 1,
    task_timeout: float | None = 600.0,
    max_calls: int | None = None,
    max_seconds: float | None = None,
    seed: int | None = 0,
    tracker: TrackerConfig | None = None,
    environment: Mapping[str, str] | None = None,
    gpus: Sequence[str] = (),
    keep: bool = False,
    **more: Any,
) -> GuardedSearch:
    """A configured search; ``start()`` runs it.

    Its cache and ``results.csv`` are under ``folder``; the path of a search space is relative to
    ``base``, or to the current folder. ``problem_type`` and ``objectives`` are those of an
    ``Objective``, else "min" and 1. ``task_timeout`` and ``max_seconds`` are in seconds.
    ``max_calls`` is three times the configured number of evaluations unless given. ``seed`` has
    an effect with compileiq 1.1 or newer, and none on the candidates of a .bin file. ``worker``
    is a ForkWorker unless one of CompileIQ's is named; the class of ``ForkWorker.using`` keeps
    what that was given, and the lower limit holds. ``environment`` and ``gpus`` are as there.
    ``more`` are fields of ``SearchConfiguration`` or of ``Search``. Raises SettingsError.
    """
    limits = {"task_timeout": task_timeout, "max_calls": max_calls, "max_seconds": max_seconds}
    for name, limit in limits.items():
        if limit is not None and not limit > 0:  # NaN is not, either
            raise SettingsError(
                f"{name}={limit} leaves the search nothing: it has to be above 0",
                remedy=f"raise it, or leave {name} out for its default",
            )
    if isinstance(objective, Objective):
        problem_type = problem_type or objective.problem_type
        objectives = objectives or objective.objectives
        objective = objective.function
    known = SearchConfiguration.model_fields
    config_fields = {name: more.pop(name) for name in list(more) if name in known}
    unknown = sorted(set(more) - set(Search.model_fields))
    if unknown:
        raise SettingsError(
            f"ciq_search knows no {', '.join(unknown)}",
            looked_at=[f"Search: {', '.join(sorted(Search.model_fields))}"],
            remedy="see SearchConfiguration and Search of your compileiq for what may be given",
        )
    resolved = spaces.resolve(space, base or Path.cwd())
    config = SearchConfiguration(
        problem_type=problem_type or "min",
        num_objectives=objectives or 1,
        generations=generations,
        pool_size=pool_size,
        **config_fields,
    )
    if max_calls is None:
        max_calls = REFILL_FACTOR * generations * config.pool_size
    notes = spaces.notes_on(resolved)
    if seed is not None:
        if "engine" in Search.model_fields:
            more.setdefault("engine", {"name": "amber", "options": {"seed": seed}})
        elif seed:
            notes.append("seed= has no effect: this compileiq takes none (1.1 and newer do)")
    more.setdefault("dump_results", folder / "results.csv")
    more.setdefault("disable_progress_bar", True)
    if tracker is not None:
        more["tracker_config"] = tracker
    ours = ForkWorker if worker is None else worker
    chosen: type[Worker]
    if is_fork_worker := isinstance(ours, type) and issubclass(ours, ForkWorker):
        given = ours.options  # those of ForkWorker.using(...), given as worker=
        chosen = ours.using(
            environment={**given.environment, **(environment or {})},
            gpus=given.gpus or gpus,
            budget=Budget(
                _least(max_calls, given.budget.max_calls),
                _least(max_seconds, given.budget.max_seconds),
            ),
        )
        tally = chosen.tally
    else:
        tally = Tally()
        with start_method_kept(theirs=False):
            chosen, traps = theirs.worker_class(worker, objective)
        chosen = limited(chosen, Budget(max_calls, max_seconds))
        notes += traps
    cache = core.cache_folder(folder)
    with start_method_kept(theirs=not is_fork_worker), warnings_as_notes(notes, all_of_them=True):
        search = GuardedSearch(
            objective_function=objective,
            search_space=resolved,
            search_config=config,
            worker_type=chosen,
            cache_folder=cache,
            **more,
        )
    core.watch(search)
    search._plan = _Plan(tally, workers, task_timeout, is_fork_worker, keep, notes)
    elsewhere = cache.parent != folder
    if not keep:
        gone = cache if elsewhere else search.cache_folder
        weakref.finalize(search, shutil.rmtree, str(gone), True)
    elif elsewhere:
        notes.append(f"CompileIQ's own files are in {cache}: 1.0 cannot read {folder}")
    return search


def _least(*limits: Any) -> Any:
    return min((one for one in limits if one is not None), default=None)
