"""What a search for a new ACF improves: time where the kernel runs, else spills, or a score."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pytest_compileiq.checks import proof
from pytest_compileiq.checks.timing import Claim, Stopwatch
from pytest_compileiq.errors import CiqError
from pytest_compileiq.judge import name_of
from pytest_compileiq.measure import decide
from pytest_compileiq.settings import Settings
from pytest_compileiq.subjects.kernel import BASELINE, Arm, Workbench
from pytest_compileiq.subjects.objective import ObjectiveBench
from pytest_compileiq.toolchain.acf import Acf

#: A candidate may take so many times what the baseline takes: some ACFs unroll without end.
_TIMES_BASELINE = 5.0
#: Seconds that a candidate on a GPU gets beyond what the whole test has taken until now, and the
#: seconds for which it is timed at most.
_ON_GPU, TIMED = 10.0, 0.5


@dataclass(frozen=True, slots=True)
class Goal:
    """What a search improves. ``baseline`` are the baseline's scores.

    ``limit`` is in seconds for one candidate. ``timed``: it is measured on a GPU, in a process
    that has to start CUDA itself.
    """

    what: str
    problem_type: Literal["min", "max"]
    baseline: tuple[float, ...]
    limit: float
    timed: bool = False


def goal(
    bench: Workbench | ObjectiveBench,
    stopwatch: Stopwatch | None,
    settings: Settings,
    *,
    age: float,
) -> Goal:
    """``age``: seconds since the test began. Raises CiqError when nothing can be improved."""
    started = time.monotonic()
    if isinstance(bench, ObjectiveBench):
        baseline = bench.repeat(None)
        if baseline.fault is not None:
            raise CiqError(
                f"nothing to compare with: {baseline.fault.message}", remedy=baseline.fault.remedy
            )
        what, problem_type = f"the score of {bench.objective.name}", bench.objective.problem_type
        return Goal(what, problem_type, baseline.scores, _limit(started, settings))
    if _is_timed(bench, stopwatch):
        limit = min(settings.timeout, _ON_GPU + age)
        return Goal("the speed-up", "max", (1.0,), limit, timed=True)
    before = _spill_bytes(bench, BASELINE)
    if before == 0:
        raise CiqError(
            f"the baseline of {bench.kernel.name} spills nothing, and without a GPU spills are "
            "all that a search could lessen",
            remedy="run with --ciq-gpu, where time is lessened; or search with an objective of "
            "your own, and test it by ciq.check(objective)",
        )
    return Goal("spill bytes", "min", (before,), _limit(started, settings))


def _limit(started: float, settings: Settings) -> float:
    # The baseline may have come from the assembler's memory, and tells little of ptxas' time.
    baseline = time.monotonic() - started
    return min(settings.timeout, settings.ptxas_timeout + _TIMES_BASELINE * baseline)


def score(bench: Workbench | ObjectiveBench, config: Any, stopwatch: Stopwatch | None) -> Any:
    """The score of a configuration as CompileIQ gives it: ``{}`` or an ACF in hex.

    Raises what the build raises, and CiqError for a wrong result.
    """
    if isinstance(bench, ObjectiveBench):
        objective = bench.objective
        mixed = objective.mix is not None and isinstance(config, str)
        return objective.function(objective.mix(config) if mixed else config)  # type: ignore[misc]
    arm = Arm("candidate", Acf(Path("candidate.acf"), bytes.fromhex(config))) if config else None
    if not _is_timed(bench, stopwatch):
        return _spill_bytes(bench, arm or BASELINE)
    assert stopwatch is not None
    return 1.0 if arm is None else _speedup(bench, arm, stopwatch)


def _is_timed(bench: Workbench, stopwatch: Stopwatch | None) -> bool:
    return stopwatch is not None and stopwatch.obstacle(bench) is None


def _speedup(bench: Workbench, arm: Arm, stopwatch: Stopwatch) -> float:
    """Times of the baseline over those of the candidate, which has to be right and to arrive."""
    if proof.proven(bench, arm).same_code:
        return 1.0  # the luckiest of hundreds must not be one that differs in nothing
    (measured,) = stopwatch.compare(bench, [Claim(arm, decide.win(1.0))])
    if measured.outcome.speedup is None:
        why, remedy = measured.why_undecided()
        raise CiqError(f"not timed: {why}", remedy=remedy)
    return measured.outcome.speedup


def _spill_bytes(bench: Workbench, arm: Arm) -> int:
    kernel = bench.kernel
    (answer,) = kernel.build_all([arm], bench.assembler, bench.folder)
    if isinstance(answer, Exception):
        raise answer
    found = kernel.resources_of(answer)
    if found is None:
        raise CiqError(
            f"{kernel.name}: the build has no report of ptxas -v, so there is nothing to lessen",
            remedy="pass -v to ptxas, and its output as Build.ptxas_log",
        )
    return found.spill_bytes


class Answered(BaseException):
    """Ends a test that is run for the score of one candidate, and has told it."""


class Candidate:
    """A configuration whose score is wanted of the test's ``number``-th call of a verb."""

    def __init__(self, number: int, kernel: str, config: Any) -> None:
        self.number = number
        self.answers: list[Any] = []
        self._kernel = kernel
        self._config = config

    def answer(
        self, number: int, bench: Workbench | ObjectiveBench, stopwatch: Stopwatch | None
    ) -> None:
        """At that call, note the score and raise Answered; at others do nothing."""
        if number != self.number:
            return
        if name_of(bench) != self._kernel:
            raise CiqError(f"call {number} was for {self._kernel}, and is for {name_of(bench)} now")
        self.answers.append(score(bench, self._config, stopwatch))
        raise Answered
