"""The function given to ``compileiq.Search``, called as CompileIQ would call it."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from pytest_compileiq.isolation import child, contain, probes
from pytest_compileiq.toolchain.acf import Acf
from pytest_compileiq.verdict import BASELINE_ARM, Reason, in_words, one_line

INVALID = "*"
#: Of what is left of an isolated test: the part that a call may take.
_OF_TEST = 0.95


class Objective:
    """An opaque objective: a configuration goes in, a score comes out.

    ``function({})`` scores the baseline and ``function(hex)`` an ACF, given as CompileIQ gives
    it, as a string of hexadecimal digits. ``mix`` arranges the configuration of a mixed
    search space: it gets the hex string and returns the list that the search would hand over.
    ``problem_type`` is that of the search: with "min" the lower score wins. ``objectives`` is
    the number of scores; the mark ``ciq_objective`` may say it instead.

    Each call runs in a forked child (see ``isolation/contain.py``); ``contained=False`` calls
    the function in the test's own process, which it may then end.
    """

    def __init__(
        self,
        function: Callable[[Any], Any],
        *,
        name: str | None = None,
        problem_type: Literal["min", "max"] = "min",
        objectives: int = 1,
        mix: Callable[[str], list[Any]] | None = None,
        contained: bool = True,
    ) -> None:
        if problem_type not in ("min", "max"):
            raise ValueError(f'problem_type is "min" or "max", not {problem_type!r}')
        self.function = function
        self.name = one_line(name or getattr(function, "__name__", type(function).__name__))
        self.problem_type = problem_type
        self.objectives = objectives
        self.mix = mix
        self.contained = contained

    def configuration(self, acf: Acf | None) -> Any:
        if acf is None:
            return {}
        return acf.hex if self.mix is None else self.mix(acf.hex)


@dataclass(frozen=True, slots=True)
class Fault:
    reason: Reason
    message: str
    remedy: str


@dataclass(frozen=True, slots=True)
class Evaluation:
    """One call of an objective: either ``scores`` (one number an objective) or a ``fault``.

    ``refused`` says that the objective itself called the configuration invalid, by "*" or by
    an exception: the right answer to a damaged ACF.
    """

    scores: tuple[float, ...] = ()
    fault: Fault | None = None
    refused: bool = False


def evaluate(
    objective: Objective, acf: Acf | None, *, objectives: int, timeout: float, arm: str
) -> Evaluation:
    """Call the objective once with an ACF, or with ``{}``, and let CompileIQ judge the answer."""
    import compileiq.utils.validation  # noqa: F401  imported here, once, and not in each child

    configuration = objective.configuration(acf)
    task = functools.partial(_call_and_judge, objective, configuration, objectives)
    if objective.contained:
        outcome = contain.call(task, timeout=timeout)
    else:
        outcome = contain.call_here(task)
    if outcome.hung:
        fault = Fault(
            Reason.HUNG,
            f"the objective did not return within {timeout:g} s on {arm}",
            "end it by a time limit of its own, or raise --ciq-timeout",
        )
        return Evaluation(fault=fault)
    if outcome.died is not None:
        fault = Fault(
            Reason.CRASHED,
            f"the objective's process {outcome.died} on {arm}",
            'return "*" for a configuration that does not work; never exit',
        )
        return Evaluation(fault=fault)
    if outcome.error is not None:
        fault = _exception_fault(outcome.error, outcome.trace, arm, baseline=acf is None)
        return Evaluation(fault=fault, refused=True)
    kind, payload = outcome.value
    if kind == "fault":
        message, remedy = payload
        return Evaluation(
            fault=Fault(Reason.BAD_SHAPE, f"on {arm} the objective {message}", remedy),
        )
    if kind == "invalid":
        fault = Fault(
            Reason.INVALID_SCORE,
            f"on {arm} the objective returned {payload}",
            "run the configuration by hand: it failed, or its time or result was not finite",
        )
        return Evaluation(fault=fault, refused=True)
    return Evaluation(scores=tuple(payload))


def _call_and_judge(objective: Objective, configuration: Any, objectives: int) -> tuple[str, Any]:
    # Judged on this side of the fork: a value of another library may not pickle.
    return judge(objective.function(configuration), objectives)


def judge(value: Any, objectives: int) -> tuple[str, Any]:
    """What CompileIQ's own ``Score`` says of a returned value.

    ``("scores", [...])``, ``("invalid", text)`` for "*", NaN, infinity and beyond, or
    ``("fault", (message, remedy))``.
    """
    from compileiq.utils.validation import Score

    try:
        score = Score(score=value, params="", param_id=0, num_objectives=objectives).score
    except ValueError:
        return "fault", _name_fault(value, objectives)
    scores = list(score) if isinstance(score, list | tuple) else [score]
    if any(one == INVALID for one in scores):
        return "invalid", f"{_short(value)}, which CompileIQ records as invalid"
    if any(isinstance(one, int) and abs(one) > sys.float_info.max for one in scores):
        return "invalid", f"{_short(value)}, an int that no float holds"
    return "scores", [one.item() if hasattr(one, "item") else one for one in scores]


def _name_fault(value: Any, objectives: int) -> tuple[str, str]:
    """Say what is wrong with a value that ``Score`` refuses, and how to mend it."""
    wanted = "one number" if objectives == 1 else f"a list of {objectives} numbers"
    kind = f"{type(value).__module__}.{type(value).__qualname__}".removeprefix("builtins.")
    shown = f"{_short(value)} ({kind})"
    if value is None:
        return "returned None", f"end every path of it with `return` of {wanted}"
    if isinstance(value, bool):
        return f"returned the bool {value}", 'return a time or another number; "*" for failure'
    if isinstance(value, str):
        return f"returned the string {_short(value)}", 'return float(...); the only string is "*"'
    if isinstance(value, list | tuple):
        if objectives == 1:
            remedy = "return the number itself, without brackets or a comma behind it"
            if len(value) > 1:
                remedy = f"return one number, or say ciq_objective(objectives={len(value)})"
            return f"returned {shown} for one objective", remedy
        if len(value) != objectives:
            return (
                f"returned {len(value)} values, {_short(value)}, for {objectives} objectives",
                f"return {objectives} values, or say ciq_objective(objectives={len(value)})",
            )
        bad = next((one for one in value if judge(one, 1)[0] == "fault"), value)
        return f"returned {shown}, where {_name_fault(bad, 1)[0].removeprefix('returned ')}", (
            "let each value be an int or a float"
        )
    return f"returned {shown}", f'return {wanted}: int(...), float(...), or "*" for failure'


def _exception_fault(error: str, trace: str, arm: str, *, baseline: bool) -> Fault:
    if baseline and ("fromhex" in trace or "save_compiler_config" in trace):
        return Fault(
            Reason.CRASHED,
            f"on the baseline the objective used {{}} as if it were an ACF in hex: {error}",
            "write the ACF only `if config:`; {} means that no ACF is to be applied",
        )
    where = [line.strip() for line in trace.splitlines() if line.strip().startswith("File ")]
    at = f" ({where[-1]})" if where else ""
    if baseline and probes.cuda_is_started():
        return Fault(
            Reason.UNFIT,
            f"the objective raised {error} on {arm}{at}; it was called in a fork of a process "
            "that has started CUDA, where CUDA works no more",
            "give Objective(function, contained=False), or let nothing in this test start CUDA "
            "before the objective",
        )
    return Fault(
        Reason.CRASHED,
        f"the objective raised {error} on {arm}{at}",
        'catch what a bad configuration can raise and return "*"; mend the rest',
    )


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except Exception as error:
        text = f"<repr raised {type(error).__name__}>"
    return text if len(text) <= 80 else f"{text[:77]}..."


class ObjectiveBench:
    """An objective on the bench of one test. First answers are kept, repeats are new calls."""

    def __init__(
        self,
        objective: Objective,
        *,
        objectives: int,
        timeout: float,
        in_all: Callable[[], float],
        ptxas: str | None,
    ) -> None:
        """``timeout`` is for a call, ``in_all`` for those of an isolated test, in seconds."""
        self.objective = objective
        self.objectives = objectives
        self.ptxas = ptxas  # the version of the session's ptxas, where there is one
        self.timeout = timeout
        self._in_all = in_all
        self.longest = 0.0  # seconds of the longest call so far
        self._first: dict[str, Evaluation] = {}

    def seconds_left(self) -> float:
        """How long a call may take now.

        An isolated test is killed as a whole after the time limit. Its calls end before that, so
        that it is the call which is ended and named.
        """
        if not child.inside():
            return self.timeout
        return min(self.timeout, _OF_TEST * (self._in_all() - child.elapsed()))

    def evaluate(self, acf: Acf | None) -> Evaluation:
        key = "" if acf is None else acf.sha256
        if key not in self._first:
            self._first[key] = self.repeat(acf)
        return self._first[key]

    def repeat(self, acf: Acf | None) -> Evaluation:
        arm = BASELINE_ARM if acf is None else acf.name
        child.progress(arm, kernel=self.objective.name)
        began = time.monotonic()
        answer = evaluate(
            self.objective,
            acf,
            objectives=self.objectives,
            timeout=self.seconds_left(),
            arm=in_words(arm),
        )
        self.longest = max(self.longest, time.monotonic() - began)
        return answer
