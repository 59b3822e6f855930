"""CIQ, the object behind the fixture ``ciq``: it takes subjects, runs checks, raises verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import pytest

from pytest_compileiq import marks as _marks
from pytest_compileiq.checks import proof
from pytest_compileiq.errors import SettingsError
from pytest_compileiq.isolation import child
from pytest_compileiq.judge import Judge, name_of, not_judged
from pytest_compileiq.marks import Params, WinParams
from pytest_compileiq.report.failure import explain
from pytest_compileiq.subjects.kernel import Arm, Kernel, Workbench
from pytest_compileiq.subjects.objective import Objective, ObjectiveBench
from pytest_compileiq.toolchain import ptxas as _ptxas
from pytest_compileiq.toolchain.sidecar import Sidecar
from pytest_compileiq.verdict import Check, Status, Verdict

if TYPE_CHECKING:
    from pytest_compileiq.report.ncu import Ncu
    from pytest_compileiq.retune.again import Again
    from pytest_compileiq.retune.scores import Candidate

_NO_TIER = "run with --ciq-gpu=SPEC, or leave this test out (pytest -k, -m) where there is no GPU"


@dataclass(frozen=True, slots=True)
class Comparison:
    """Baseline and ACF side by side.

    ``verdict`` is what ``ciq_beats_baseline`` answers, and may be negative. Resources are None
    when the build reports none. ``same_code`` compares machine code; it is None when the build
    gives no cubin, and then arrival is not proven either. ``speedup`` is a ratio of times with
    its interval, None in a run without ``--ciq-gpu``.
    """

    kernel: str
    acf: str
    same_code: bool | None
    baseline: _ptxas.Resources | None
    tuned: _ptxas.Resources | None
    ptxas: str | None
    verdict: Verdict

    @property
    def speedup(self) -> float | None:
        value = self.verdict.numbers.get("speedup")
        return value if isinstance(value, float) else None

    @property
    def interval(self) -> tuple[float | None, float | None] | None:
        """Time-uniform, of coverage 0.9; an end that the units cannot yet bound is None."""
        found = self.verdict.numbers.get("speedup_interval")
        return (found[0], found[1]) if isinstance(found, list) else None


class CiqFailure(AssertionError):
    """A negative verdict. ``verdicts`` are all that the call reached."""

    def __init__(self, text: str, verdicts: Sequence[Verdict]) -> None:
        super().__init__(text)
        self.verdicts = tuple(verdicts)


#: Pytest prints it before each message, and a line of 80 columns is soon full.
CiqFailure.__module__ = "pytest_compileiq"


class CIQ:
    """The fixture ``ciq``: hand it a kernel or an objective.

    ``check`` runs the checks that the test's ``ciq_*`` marks name. Each mark has a verb that
    takes the same keywords. A negative verdict raises CiqFailure; an undecided one skips the
    test, or fails it under ``--ciq-strict``.
    """

    def __init__(
        self,
        judging: Judge,
        *,
        record: Callable[..., None],
        ncu: Ncu | None = None,
        report: Path,
        again: Again | None = None,
        candidate: Candidate | None = None,
    ) -> None:
        self._judging = judging
        self._settings = judging.settings
        self._marks = judging.marks
        self._report = report  # what --ciq-retune finds goes there
        self._record = record
        self._ncu = ncu
        self._again = again
        self._candidate = candidate
        self._calls = 0
        #: Marks of this test that were really judged.
        self.answered: set[str] = set()
        #: Those of them whose failure was raised; a test that passes all the same has hidden it.
        self.failed: set[str] = set()

    @property
    def on_gpu(self) -> bool:
        """Whether this run has a GPU (``--ciq-gpu``), so that kernels are launched and timed."""
        return self._judging.stopwatch is not None

    def close(self) -> None:
        """Give back the GPU, if one was held."""
        if self._judging.stopwatch is not None:
            self._judging.stopwatch.close()

    @property
    def offers(self) -> list[tuple[Path, Sidecar]]:
        """ACFs and what --ciq-accept writes of them when the whole test has passed."""
        return self._judging.offers

    # The verbs

    def check(self, subject: Kernel | Callable[[Any], Any] | Objective) -> list[Verdict]:
        """Run every check that a mark of this test names; returns their verdicts."""
        __tracebackhide__ = True
        if not self._marks:
            raise SettingsError(
                "ciq.check: this test has no ciq_* mark, so there is nothing to check",
                remedy=f"add a mark ({', '.join(_marks.MARKS)}), or call a verb: "
                "ciq.assert_canary(...), ciq.assert_beats_baseline(...)",
            )
        return self._judge(subject, self._marks)

    def assert_objective(
        self,
        objective: Callable[[Any], Any] | Objective,
        *,
        objectives: int = 1,
        acf: str | Path | None = None,
    ) -> Verdict:
        """CompileIQ can read what the objective answers to ``{}``, an ACF and a damaged one."""
        __tracebackhide__ = True
        return self._verb(objective, "ciq_objective", objectives=objectives, acf=acf)

    def assert_canary(
        self,
        subject: Kernel | Callable[[Any], Any] | Objective,
        *,
        margin: float = 1.05,
        tolerance: float = 0.05,
        o0: str | Path | None = None,
        o3: str | Path | None = None,
    ) -> Verdict:
        """A damaged ACF is refused, O0 is worse by the factor ``margin``, O3 is not worse.

        ``tolerance`` is a fraction. ACFs are those of ``--ciq-debug-pack``, else ``o0`` and
        ``o3``, else raw -O0 and -O3 for a kernel that takes ptxas flags.
        """
        __tracebackhide__ = True
        return self._verb(subject, "ciq_canary", margin=margin, tolerance=tolerance, o0=o0, o3=o3)

    def assert_resources(
        self,
        kernel: Kernel,
        *,
        max_registers: int | None = None,
        max_spill_bytes: int | None = None,
        max_stack_bytes: int | None = None,
        max_shared_bytes: int | None = None,
        max_constant_bytes: int | None = None,
        max_barriers: int | None = None,
        no_worse: bool = False,
        acf: str | Path | None = None,
    ) -> Verdict:
        """Registers a thread and bytes stay within limits, and within the baseline's."""
        __tracebackhide__ = True
        return self._verb(
            kernel,
            "ciq_resources",
            max_registers=max_registers,
            max_spill_bytes=max_spill_bytes,
            max_stack_bytes=max_stack_bytes,
            max_shared_bytes=max_shared_bytes,
            max_constant_bytes=max_constant_bytes,
            max_barriers=max_barriers,
            no_worse=no_worse,
            acf=acf,
        )

    def assert_stable(
        self, subject: Kernel | Callable[[Any], Any] | Objective, percent: float
    ) -> Verdict:
        """Neighbouring launches differ by a CV below ``percent``; slow drift is only told."""
        __tracebackhide__ = True
        return self._verb(subject, "ciq_max_cv", percent=percent)

    def assert_beats_baseline(
        self,
        subject: Kernel | Callable[[Any], Any] | Objective,
        acf: str | Path = "best.acf",
        *,
        min_speedup: float | Literal["recorded"] = 1.0,
    ) -> Verdict:
        """The committed ACF still wins, by the ratio ``min_speedup``."""
        __tracebackhide__ = True
        return self._verb(subject, "ciq_beats_baseline", acf=acf, min_speedup=min_speedup)

    def compare(
        self,
        kernel: Kernel,
        acf: str | Path = "best.acf",
        *,
        min_speedup: float | Literal["recorded"] = 1.0,
    ) -> Comparison:
        """Build a kernel with and without an ACF, prove arrival, and with a GPU time both.

        Raises CiqError, whose ``reason`` is the word, when a build fails, or the ACF is refused,
        did not arrive or is not its sidecar's. Leaves no record, and answers no mark.
        """
        asked = {"acf": acf, "min_speedup": min_speedup}
        params = _marks.params_of("ciq_beats_baseline", (), asked)
        assert isinstance(params, WinParams)
        bench = self._judging.bench(kernel)
        if not isinstance(bench, Workbench):
            raise SettingsError("ciq.compare takes a kernel, not an objective")
        committed = self._judging.committed(acf)
        shown = proof.proven(bench, Arm(committed.acf.name, committed.acf), committed.sidecar)
        proof.check_sidecar(committed.acf, committed.sidecar, accept=self._settings.accept)
        return Comparison(
            kernel=kernel.name,
            acf=committed.acf.name,
            same_code=shown.same_code,
            baseline=kernel.resources_of(shown.baseline),
            tuned=kernel.resources_of(shown.build),
            ptxas=proof.ptxas_of(bench, shown.build),
            verdict=self._judging.answer(Check.WIN, bench, params, {}),
        )

    # How a verdict comes about

    def _verb(self, subject: Any, name: str, **params: Any) -> Verdict:
        __tracebackhide__ = True
        return self._judge(subject, {name: _marks.params_of(name, (), params)})[0]

    def _judge(self, subject: Any, asked: dict[str, Params]) -> list[Verdict]:
        __tracebackhide__ = True
        bench = self._judging.bench(subject, asked.get("ciq_objective"))
        win = asked.get("ciq_beats_baseline")
        acf = win.acf if isinstance(win, WinParams) else None
        self._calls += 1
        if self._candidate is not None:
            self._candidate.answer(self._calls, bench, self._judging.stopwatch)
            why = "the test is run for the score of a candidate"
            return [not_judged(_marks.MARKS[name][0], bench, why) for name in asked]
        if self._ncu is not None and self._ncu.under_it:
            return self._show(bench, acf, [_marks.MARKS[name][0] for name in asked])
        verdicts: list[Verdict] = []
        own = {name for name, params in asked.items() if self._marks.get(name) == params}
        for name, params in asked.items():
            check = _marks.MARKS[name][0]
            child.progress("", kernel=name_of(bench), check=check)
            broken = next((v for v in verdicts if v.negative and v.check is Check.CANARY), None)
            if broken is not None:
                verdict = not_judged(check, bench, f"the canary failed: {broken.reason}")
            else:
                verdict = self._judging.answer(check, bench, params, asked)
            self._record(verdict)
            final = self._retuned(verdict, bench, params)
            if self._ncu is not None:
                final = self._ncu.beside(final, bench, Path(acf or "").name)
            if final is not verdict:  # the first one stood while the process could have died
                self._record(final, instead=True)
            verdicts.append(final)
        self.answered |= own  # a verb with other limits answers no mark
        child.progress("", kernel="", check="")
        try:
            self._raise(verdicts)
        except (CiqFailure, pytest.skip.Exception):
            answers = zip(asked, verdicts, strict=True)
            self.failed |= {n for n, v in answers if n in own and v.status is not Status.PASS}
            raise
        return verdicts

    def _raise(self, verdicts: list[Verdict]) -> None:
        """Fail or skip the test where not all of its questions have a good answer."""
        __tracebackhide__ = True
        bad = [verdict for verdict in verdicts if verdict.negative]
        unjudged = [verdict for verdict in verdicts if verdict.status is Status.NOT_JUDGED]
        if self._settings.strict:  # what could have been answered, had test and build let it
            bad += [verdict for verdict in unjudged if verdict.remedy]
        if bad:
            text = explain(*bad)
            if self._settings.strict or any(verdict.status is Status.FAIL for verdict in bad):
                raise CiqFailure(text, verdicts)
            pytest.skip(text)
        if len(unjudged) == len(verdicts) and not self._settings.disable:
            text = "; ".join(f"{verdict.check}: {verdict.message}" for verdict in verdicts)
            if self._settings.strict:
                raise CiqFailure(f"nothing could be judged: {text}\n  to do: {_NO_TIER}", verdicts)
            pytest.skip(f"nothing could be judged: {text}")

    def _show(
        self, bench: Workbench | ObjectiveBench, acf: str | Path | None, checks: list[Check]
    ) -> list[Verdict]:
        """Under Nsight Compute: launch both arms of the one kernel, and judge nothing."""
        assert self._ncu is not None
        if isinstance(bench, Workbench) and acf is not None and self._ncu.wants(bench):
            self._ncu.launch_arms(bench, self._judging.committed(acf).acf)
            pytest.exit("both arms are profiled", returncode=0)
        return [not_judged(check, bench, "under Nsight Compute") for check in checks]

    def _retuned(
        self, verdict: Verdict, bench: Workbench | ObjectiveBench, params: Params
    ) -> Verdict:
        settings = self._settings
        if settings.retune is None or settings.disable or not isinstance(params, WinParams):
            return verdict
        from pytest_compileiq.retune import offer

        if not offer.is_curable(verdict):
            return verdict
        asked = offer.Retuning(
            bench=bench,
            params=params,
            judging=self._judging,
            report=self._report,
            number=self._calls,
            again=self._again,
        )
        return offer.retune(verdict, asked)
