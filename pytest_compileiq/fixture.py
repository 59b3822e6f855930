"""CIQ, the object behind the fixture ``ciq``: it takes subjects, runs checks, raises verdicts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import pytest

from pytest_compileiq import marks as _marks
from pytest_compileiq.checks import canary, contract, proof, resources, stability, win
from pytest_compileiq.errors import CiqError, SettingsError
from pytest_compileiq.marks import Params
from pytest_compileiq.settings import Settings
from pytest_compileiq.subjects.kernel import Arm, Kernel, Workbench
from pytest_compileiq.subjects.objective import Objective, ObjectiveBench
from pytest_compileiq.toolchain import acf as _acf
from pytest_compileiq.toolchain import ptxas as _ptxas
from pytest_compileiq.toolchain import sidecar as _sidecar
from pytest_compileiq.toolchain.acf import Acf
from pytest_compileiq.toolchain.assembler import Assembler
from pytest_compileiq.toolchain.sidecar import Committed
from pytest_compileiq.verdict import Check, Status, Verdict


@dataclass(frozen=True, slots=True)
class Comparison:
    """Baseline and ACF side by side, without a judgement.

    Resources are None when the build reports none; ``same_code`` compares machine code.
    """

    kernel: str
    acf: str
    same_code: bool
    baseline: _ptxas.Resources | None
    tuned: _ptxas.Resources | None
    ptxas: str | None


class CiqFailure(AssertionError):
    """A negative verdict. ``verdicts`` are all that the call reached."""

    def __init__(self, text: str, verdicts: Sequence[Verdict]) -> None:
        super().__init__(text)
        self.verdicts = tuple(verdicts)


class CIQ:
    """The fixture ``ciq``: hand it a kernel or an objective.

    ``check`` runs the checks that the test's ``ciq_*`` marks name. Each mark has a verb that
    takes the same keywords. A negative verdict raises CiqFailure; an undecided one skips the
    test, or fails it under ``--ciq-strict``.
    """

    def __init__(
        self,
        *,
        folder: Path,
        marks: dict[str, Params],
        settings: Settings,
        assembler: Assembler,
        record: Callable[[Verdict], None],
    ) -> None:
        self.folder = folder
        self.settings = settings
        self._marks = marks
        self._assembler = assembler
        self._record = record
        #: What --ciq-accept writes when the whole test has passed, by the ACF's path.
        self.offers: dict[Path, _sidecar.Sidecar] = {}
        self._benches: dict[int, tuple[object, Workbench | ObjectiveBench]] = {}

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
        self, objective: Callable[[Any], Any] | Objective, **params: Any
    ) -> Verdict:
        """The verb of ``ciq_objective``."""
        __tracebackhide__ = True
        return self._verb(objective, "ciq_objective", (), params)

    def assert_canary(
        self, subject: Kernel | Callable[[Any], Any] | Objective, **params: Any
    ) -> Verdict:
        """The verb of ``ciq_canary``."""
        __tracebackhide__ = True
        return self._verb(subject, "ciq_canary", (), params)

    def assert_resources(self, kernel: Kernel, **params: Any) -> Verdict:
        """The verb of ``ciq_resources``."""
        __tracebackhide__ = True
        return self._verb(kernel, "ciq_resources", (), params)

    def assert_stable(
        self, subject: Kernel | Callable[[Any], Any] | Objective, percent: float
    ) -> Verdict:
        """The verb of ``ciq_max_cv``."""
        __tracebackhide__ = True
        return self._verb(subject, "ciq_max_cv", (percent,), {})

    def assert_beats_baseline(
        self,
        subject: Kernel | Callable[[Any], Any] | Objective,
        acf: str | Path = "best.acf",
        **params: Any,
    ) -> Verdict:
        """The verb of ``ciq_beats_baseline``."""
        __tracebackhide__ = True
        return self._verb(subject, "ciq_beats_baseline", (acf,), params)

    def compare(self, kernel: Kernel, acf: str | Path = "best.acf") -> Comparison:
        """Build a kernel with and without an ACF, prove arrival, and judge nothing.

        Raises CiqError when the ACF is refused or did not arrive.
        """
        bench = self._bench(kernel)
        if not isinstance(bench, Workbench):
            raise SettingsError("ciq.compare takes a kernel, not an objective")
        committed = self._committed(acf)
        shown = proof.proven(bench, Arm(committed.acf.name, committed.acf), committed.sidecar)
        return Comparison(
            kernel=kernel.name,
            acf=committed.acf.name,
            same_code=shown.same_code,
            baseline=kernel.resources_of(shown.baseline),
            tuned=kernel.resources_of(shown.build),
            ptxas=proof.ptxas_of(bench, shown.build),
        )

    # How a verdict comes about

    def _verb(
        self, subject: Any, name: str, args: tuple[Any, ...], params: dict[str, Any]
    ) -> Verdict:
        __tracebackhide__ = True
        return self._judge(subject, {name: _marks.params_of(name, args, params)})[0]

    def _judge(self, subject: Any, asked: dict[str, Params]) -> list[Verdict]:
        __tracebackhide__ = True
        bench = self._bench(subject, asked.get("ciq_objective"))
        verdicts: list[Verdict] = []
        for name, params in asked.items():
            check = _marks.MARKS[name][0]
            broken = next((v for v in verdicts if v.negative and v.check is Check.CANARY), None)
            if broken is not None:
                verdict = _not_judged(check, bench, f"the canary failed: {broken.reason}")
            elif self.settings.disable:
                verdict = self._run_once(check, bench)
            else:
                verdict = self._answer(check, bench, params, asked)
            verdicts.append(verdict)
            self._record(verdict)
        negative = [verdict for verdict in verdicts if verdict.negative]
        if negative:
            _raise(negative, verdicts, strict=self.settings.strict)
        judged = [verdict for verdict in verdicts if verdict.status is not Status.NOT_JUDGED]
        if not judged and not self.settings.disable:
            text = "; ".join(f"{verdict.check}: {verdict.message}" for verdict in verdicts)
            if self.settings.strict:
                raise CiqFailure(f"nothing could be judged: {text}", verdicts)
            pytest.skip(f"nothing could be judged: {text}")
        return verdicts

    def _answer(
        self,
        check: Check,
        bench: Workbench | ObjectiveBench,
        params: Params,
        asked: dict[str, Params],
    ) -> Verdict:
        """One check's verdict; an error on the way is a failing verdict with its reason."""
        try:
            if isinstance(bench, Workbench):
                return self._answer_for_kernel(bench, params, asked)
            return self._answer_for_objective(bench, params, asked)
        except SettingsError:
            raise  # a mistake in the test's own text, not an answer about its subject
        except CiqError as error:
            return Verdict(
                check=check,
                kernel=_name(bench),
                status=Status.FAIL,
                reason=error.reason,
                message=error.what,
                remedy=error.remedy,
                numbers={**error.numbers, "looked_at": list(error.looked_at)},
            )

    def _answer_for_kernel(
        self, bench: Workbench, params: Params, asked: dict[str, Params]
    ) -> Verdict:
        match params:
            case _marks.ObjectiveParams():
                raise SettingsError(
                    f"ciq_objective judges a function, and {_name(bench)} is a kernel",
                    remedy="hand over the function that is given to compileiq.Search",
                )
            case _marks.CanaryParams():
                known = self._known(params, asked)
                accept = self.settings.accept
                verdict = canary.judge_kernel(bench, known, params, accept=accept)
                if self.settings.debug_pack is None:  # NVIDIA's files are not the user's
                    for committed in (known.o0, known.o3):
                        self._offer(committed, verdict, arch=bench.kernel.arch())
                return verdict
            case _marks.ResourcesParams():
                committed = self._named(params.acf, asked)
                return resources.judge_kernel(bench, committed, params)
            case _marks.StabilityParams():
                return stability.not_timed(_name(bench), params)
            case _marks.WinParams():
                committed = self._committed(params.acf)
                accept = self.settings.accept
                verdict = win.judge_kernel(bench, committed, params, accept=accept)
                self._offer(committed, verdict, arch=bench.kernel.arch())
                return verdict

    def _answer_for_objective(
        self, bench: ObjectiveBench, params: Params, asked: dict[str, Params]
    ) -> Verdict:
        match params:
            case _marks.ObjectiveParams():
                committed = self._named(params.acf, asked)
                return contract.judge_objective(bench, committed.acf if committed else None)
            case _marks.CanaryParams():
                return canary.judge_objective(bench, self._known(params, asked), params)
            case _marks.ResourcesParams():
                raise SettingsError(
                    f"ciq_resources reads ptxas' report, and {_name(bench)} is an objective",
                    remedy="hand over the kernel: PtxKernel(...) or Kernel(build)",
                )
            case _marks.StabilityParams():
                return stability.not_timed(_name(bench), params)
            case _marks.WinParams():
                committed = self._committed(params.acf)
                verdict = win.judge_objective(bench, committed, params)
                self._offer(committed, verdict, arch=None)
                return verdict

    def _bench(self, subject: Any, params: Params | None = None) -> Workbench | ObjectiveBench:
        """The bench of a subject, the same one for all verbs of one test."""
        objectives = params.objectives if isinstance(params, _marks.ObjectiveParams) else None
        known = self._benches.get(id(subject))
        if known is not None and objectives in (None, getattr(known[1], "objectives", None)):
            return known[1]
        bench: Workbench | ObjectiveBench
        if isinstance(subject, Kernel):
            bench = Workbench(subject, self._assembler, self.folder)
        elif isinstance(subject, Objective) or callable(subject):
            objective = subject if isinstance(subject, Objective) else Objective(subject)
            marked = self._marks.get("ciq_objective")
            if objectives is None and isinstance(marked, _marks.ObjectiveParams):
                objectives = marked.objectives
            bench = ObjectiveBench(
                objective, objectives=objectives or 1, timeout=self.settings.timeout
            )
        else:
            raise SettingsError(
                f"ciq cannot test {subject!r} ({type(subject).__name__})",
                remedy="hand over a PtxKernel(...), a Kernel(build), or the objective function",
            )
        # The subject is kept with its bench: an id is unique only while its object lives.
        self._benches[id(subject)] = (subject, bench)
        return bench

    def _committed(self, path: str | Path) -> Committed:
        return _sidecar.load(self.folder / path)

    def _named(self, path: str | Path | None, asked: dict[str, Params]) -> Committed | None:
        """The ACF that a mark names itself, else that of ciq_beats_baseline, else none."""
        beats = asked.get("ciq_beats_baseline") or self._marks.get("ciq_beats_baseline")
        if path is None and isinstance(beats, _marks.WinParams):
            path = beats.acf
        return None if path is None else self._committed(path)

    def _known(self, params: _marks.CanaryParams, asked: dict[str, Params]) -> canary.KnownAcfs:
        """The debug pack's ACFs, else those that the mark names; and one to damage."""
        o0 = self._committed(params.o0) if params.o0 else None
        o3 = self._committed(params.o3) if params.o3 else None
        if self.settings.debug_pack is not None:
            pack = _acf.open_debug_pack(self.settings.debug_pack)
            o0 = Committed(pack.o0, None) if pack.o0 else o0
            o3 = Committed(pack.o3, None) if pack.o3 else o3
        sample: Acf | None = None
        if o0 is None and (named := self._named(None, asked)):
            sample = named.acf
        return canary.KnownAcfs(o0, o3, sample)

    def _offer(self, committed: Committed | None, verdict: Verdict, *, arch: str | None) -> None:
        """What --ciq-accept writes, should the whole test pass."""
        if not self.settings.accept or verdict.status is not Status.PASS:
            return
        if committed is None:
            return
        source = committed.acf.source
        new = _sidecar.describe(committed.acf, arch=arch, numbers=verdict.numbers)
        old = self.offers.get(source, committed.sidecar)
        self.offers[source] = _sidecar.refreshed(old, new)

    def _run_once(self, check: Check, bench: Workbench | ObjectiveBench) -> Verdict:
        """--ciq-disable: the subject has to run, and nothing is judged."""
        if isinstance(bench, Workbench):
            proof.baseline_build(bench)
        else:
            evaluation = bench.evaluate(None, "the baseline")
            if fault := evaluation.fault:
                raise CiqError(fault.message, remedy=fault.remedy, reason=fault.reason)
        return _not_judged(check, bench, "--ciq-disable")


def _name(bench: Workbench | ObjectiveBench) -> str:
    return bench.kernel.name if isinstance(bench, Workbench) else bench.objective.name


def _not_judged(check: Check, bench: Workbench | ObjectiveBench, why: str) -> Verdict:
    return Verdict(check=check, kernel=_name(bench), status=Status.NOT_JUDGED, message=why)


def _raise(negative: list[Verdict], verdicts: list[Verdict], *, strict: bool) -> NoReturn:
    __tracebackhide__ = True
    text = "\n".join(explain(verdict) for verdict in negative)
    if not strict and all(verdict.status is Status.UNDECIDED for verdict in negative):
        pytest.skip(text)
    raise CiqFailure(text, verdicts)


def explain(verdict: Verdict) -> str:
    """A negative verdict for people: what, what was looked at, what to do."""
    lines = [f"{verdict.check} of {verdict.kernel}: {verdict.reason}: {verdict.message}"]
    looked_at = verdict.numbers.get("looked_at")
    if isinstance(looked_at, list) and looked_at:
        lines += [f"  looked at: {entry}" for entry in looked_at]
    if verdict.remedy:
        lines.append(f"  to do: {verdict.remedy}")
    return "\n".join(lines)
