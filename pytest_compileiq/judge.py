"""Which check answers which mark for which subject, on the benches of one test."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_compileiq import marks as _marks
from pytest_compileiq.checks import (
    canary,
    canary_objective,
    contract,
    proof,
    resources,
    stability,
    win,
)
from pytest_compileiq.checks.timing import Stopwatch
from pytest_compileiq.errors import AcfError, CiqError, SettingsError, ToolchainError
from pytest_compileiq.marks import Params
from pytest_compileiq.settings import Settings
from pytest_compileiq.subjects.kernel import Kernel, Workbench
from pytest_compileiq.subjects.objective import Objective, ObjectiveBench
from pytest_compileiq.toolchain import acf as _acf
from pytest_compileiq.toolchain import caches as _caches
from pytest_compileiq.toolchain import sidecar as _sidecar
from pytest_compileiq.toolchain.acf import Acf
from pytest_compileiq.toolchain.assembler import Assembler
from pytest_compileiq.toolchain.sidecar import Committed
from pytest_compileiq.verdict import Check, Reason, Status, Verdict


class Judge:
    """Answers marks for the subjects of one test; each subject has one bench."""

    def __init__(
        self,
        *,
        folder: Path,
        marks: dict[str, Params],
        settings: Settings,
        assembler: Assembler,
        stopwatch: Stopwatch | None = None,
    ) -> None:
        self.folder = folder
        #: The GPU tier; None in a run without --ciq-gpu.
        self.stopwatch = stopwatch
        self.settings = settings
        self.marks = marks
        self._assembler = assembler
        #: ACFs and what --ciq-accept writes of them when the whole test has passed.
        self.offers: list[tuple[Path, _sidecar.Sidecar]] = []
        #: What an isolated test may take. --ciq-retune gives a second half, from the search on.
        self.seconds_in_all = settings.timeout
        self._benches: dict[int, tuple[object, Workbench | ObjectiveBench]] = {}
        self._read: list[Committed] = []  # the ACFs of the check that is being answered
        self._told: set[Path] = set()  # those whose ptxas a check has named, if it is another

    def answer(
        self,
        check: Check,
        bench: Workbench | ObjectiveBench,
        params: Params,
        asked: dict[str, Params],
    ) -> Verdict:
        """One check's verdict; an error on the way is a failing verdict with its reason."""
        if self.settings.disable:
            return self._guarded(check, bench, lambda: self._run_once(check, bench))
        self._read.clear()
        verdict = self._guarded(check, bench, lambda: self._answer(bench, params, asked))
        if self.settings.accept or not any(one.sidecar for one in self._read):
            return verdict
        told = self._told if verdict.status is Status.PASS else set()
        news = [one for one in self._read if one.acf.source not in told]
        self._told.update(one.acf.source for one in self._read)
        session = self._ptxas_version() if isinstance(bench, ObjectiveBench) else None
        return proof.with_other_ptxas(verdict, news, session)

    def retest(
        self, bench: Workbench | ObjectiveBench, found: Committed, params: _marks.WinParams
    ) -> Verdict:
        """Does this ACF, found by a search, win? Everything is measured anew."""
        return self._guarded(Check.WIN, bench, lambda: self._win(bench, found, params, accept=True))

    def _guarded(
        self, check: Check, bench: Workbench | ObjectiveBench, judge: Callable[[], Verdict]
    ) -> Verdict:
        try:
            verdict = judge()
        except CiqError as error:
            verdict = _failed(check, bench, error)
        except Exception as error:
            # What nobody foresaw still has to leave a record, and never a pass.
            where = traceback.extract_tb(error.__traceback__)[-1]
            verdict = Verdict(
                check=check,
                kernel=name_of(bench),
                status=Status.FAIL,
                reason=Reason.CRASHED,
                message=f"{type(error).__name__} in {Path(where.filename).name}:{where.lineno}: "
                f"{str(error)[:300]}",
                remedy="if the cause is not in your test, report it with this line",
            )
        # Asked now, as the subject has imported what it uses.
        if not verdict.negative or (unfit := _caches.unfit()) is None:
            return verdict
        return _with_doubt(verdict, unfit)

    def _answer(
        self, bench: Workbench | ObjectiveBench, params: Params, asked: dict[str, Params]
    ) -> Verdict:
        """The verdict of the check that takes such parameters. Raises CiqError."""
        if not isinstance(bench, Workbench) and self.stopwatch is not None:
            self.stopwatch.hold()  # whatever the objective launches, from its first call on
        accept, stopwatch = self.settings.accept, self.stopwatch
        match params:
            case _marks.ObjectiveParams():
                if isinstance(bench, Workbench):
                    raise SettingsError(
                        f"ciq_objective judges a function, and {name_of(bench)} is a kernel",
                        remedy="hand over the function that is given to compileiq.Search",
                    )
                return contract.judge_objective(bench, self._named(params.acf, asked))
            case _marks.CanaryParams():
                known = self._known(params, asked, bench)
                if isinstance(bench, Workbench):
                    verdict = canary.judge_kernel(
                        bench, known, params, accept=accept, stopwatch=stopwatch
                    )
                else:
                    verdict = canary_objective.judge_objective(
                        bench, known, params, accept=accept, stopwatch=stopwatch
                    )
                own = [self.folder / path for path in (params.o0, params.o3) if path]
                for committed in (known.o0, known.o3):
                    # Files of --ciq-debug-pack are NVIDIA's, not the user's.
                    if committed is not None and committed.acf.source in own:
                        self._offer(committed, verdict, bench)
                return verdict
            case _marks.ResourcesParams():
                if not isinstance(bench, Workbench):
                    raise SettingsError(
                        f"ciq_resources reads ptxas' report, and {name_of(bench)} is an objective",
                        remedy="hand over the kernel: PtxKernel(...) or Kernel(build)",
                    )
                named = self._named(params.acf, asked)
                verdict = resources.judge_kernel(bench, named, params, accept=accept)
                if named is not None:
                    self._offer(named, verdict, bench)
                return verdict
            case _marks.StabilityParams():
                if not isinstance(bench, Workbench):
                    return stability.of_objective(name_of(bench), params)
                if stopwatch is None:
                    return stability.not_timed(name_of(bench), params)
                return stability.judge_kernel(bench, params, stopwatch)
            case _marks.WinParams():
                committed = self.committed(params.acf)
                verdict = self._win(bench, committed, params, accept=accept)
                self._offer(committed, verdict, bench)
                return verdict

    def _win(
        self,
        bench: Workbench | ObjectiveBench,
        committed: Committed,
        params: _marks.WinParams,
        *,
        accept: bool,
    ) -> Verdict:
        watch = self.stopwatch
        if isinstance(bench, Workbench):
            return win.judge_kernel(bench, committed, params, accept=accept, stopwatch=watch)
        return win.judge_objective(bench, committed, params, accept=accept, stopwatch=watch)

    def bench(self, subject: Any, params: Params | None = None) -> Workbench | ObjectiveBench:
        """The bench of a subject, the same one for all verbs of one test."""
        __tracebackhide__ = True
        objectives = params.objectives if isinstance(params, _marks.ObjectiveParams) else None
        known = self._benches.get(id(subject))
        if known is not None and objectives in (None, getattr(known[1], "objectives", None)):
            return known[1]
        bench: Workbench | ObjectiveBench
        if isinstance(subject, Kernel):
            bench = Workbench(subject, self._assembler, self.folder)
        elif isinstance(subject, Objective) or callable(subject):
            objective = subject if isinstance(subject, Objective) else Objective(subject)
            marked = self.marks.get("ciq_objective")
            if objectives is None and isinstance(marked, _marks.ObjectiveParams):
                objectives = marked.objectives
            bench = ObjectiveBench(
                objective,
                objectives=objectives or objective.objectives,
                timeout=self.settings.timeout,
                in_all=lambda: self.seconds_in_all,
                ptxas=self._ptxas_version(),
            )
        else:
            raise SettingsError(
                f"ciq cannot test {subject!r} ({type(subject).__name__})",
                remedy="hand over a PtxKernel(...), a Kernel(build), or the objective function",
            )
        # The subject is kept with its bench: an id is unique only while its object lives.
        self._benches[id(subject)] = (subject, bench)
        return bench

    def _ptxas_version(self) -> str | None:
        """The session's ptxas; an objective may bring its own, and then need none here."""
        try:
            return str(self._assembler.ptxas())
        except ToolchainError:
            return None

    def committed(self, path: str | Path, *, instead: str = "") -> Committed:
        committed = _sidecar.load(self.folder / path, instead=instead)
        self._read.append(committed)
        return committed

    def _named(self, path: str | Path | None, asked: dict[str, Params]) -> Committed | None:
        """The ACF that a mark names itself, else that of ciq_beats_baseline, else none."""
        beats = asked.get("ciq_beats_baseline") or self.marks.get("ciq_beats_baseline")
        if path is None and isinstance(beats, _marks.WinParams):
            path = beats.acf
        return None if path is None else self.committed(path)

    def _known(
        self,
        params: _marks.CanaryParams,
        asked: dict[str, Params],
        bench: Workbench | ObjectiveBench,
    ) -> canary.KnownAcfs:
        """The debug pack's ACFs, else those that the mark names; and one to damage."""
        source = self.settings.debug_pack
        pack = None if source is None else _acf.open_debug_pack(source)
        flags = isinstance(bench, Workbench) and bench.kernel.takes_flags
        o0 = Committed(pack.o0, None) if pack and pack.o0 else None
        if params.o0:
            own = self.committed(params.o0, instead=canary.without_o0(o0, flags=flags))
            o0 = o0 or own
        o3 = Committed(pack.o3, None) if pack and pack.o3 else None
        if params.o3:
            own = self.committed(params.o3, instead=canary.without_o3(o0, o3, flags=flags))
            o3 = o3 or own
        sample: Acf | None = None
        if o0 is None:
            # That it is missing or unreadable is for the win to say, and for --ciq-retune to mend.
            with contextlib.suppress(AcfError):
                if (named := self._named(None, asked)) is not None:
                    sample = named.acf
                    self._read.remove(named)  # only a damaged copy of it is looked at
        return canary.KnownAcfs(o0, o3, sample)

    def _offer(
        self, committed: Committed, verdict: Verdict, bench: Workbench | ObjectiveBench
    ) -> None:
        """What --ciq-accept writes, should the whole test pass."""
        if not self.settings.accept or verdict.status is not Status.PASS:
            return
        arch, numbers = None, dict(verdict.numbers)
        if isinstance(bench, Workbench):
            arch = bench.kernel.arch()
            numbers["ptx_sha256"] = bench.kernel.ptx_sha256(bench.folder)
        else:
            numbers["ptxas"] = bench.ptxas
        new = _sidecar.describe(committed.acf, arch=arch, numbers=numbers)
        self.offers.append((committed.acf.source, new))

    def _run_once(self, check: Check, bench: Workbench | ObjectiveBench) -> Verdict:
        """--ciq-disable: the subject has to run, and what it answers is not judged."""
        if isinstance(bench, Workbench):
            proof.baseline_build(bench)
        else:
            if self.stopwatch is not None:
                self.stopwatch.hold()
            fault = bench.evaluate(None).fault
            if fault and fault.reason in (Reason.CRASHED, Reason.HUNG):
                raise CiqError(fault.message, remedy=fault.remedy, reason=fault.reason)
        return not_judged(check, bench, "--ciq-disable")


def name_of(bench: Workbench | ObjectiveBench) -> str:
    return bench.kernel.name if isinstance(bench, Workbench) else bench.objective.name


#: What a build from a cache, which knows of no ACF, looks like. Other faults have other causes.
_OF_A_CACHE = frozenset(
    {
        Reason.NOT_APPLIED,
        Reason.NO_EFFECT,
        Reason.SLOWER,
        Reason.NO_WIN,
        Reason.NOISY,
        Reason.UNDECIDED,
    }
)


def _with_doubt(verdict: Verdict, unfit: CiqError) -> Verdict:
    """A negative verdict on a build that a cache may have answered: both faults are told."""
    if verdict.reason not in _OF_A_CACHE:
        return replace(
            verdict,
            message=f"{verdict.message}; besides, {unfit.what}",
            remedy=f"{verdict.remedy}; and {unfit.remedy}",
        )
    return replace(
        verdict,
        status=Status.FAIL,
        reason=unfit.reason,
        message=f"{unfit.what}; this may be why: {verdict.reason}: {verdict.message}",
        remedy=unfit.remedy,
        numbers={**verdict.numbers, "looked_at": list(unfit.looked_at)},
    )


def _failed(check: Check, bench: Workbench | ObjectiveBench, error: CiqError) -> Verdict:
    return Verdict(
        check=check,
        kernel=name_of(bench),
        status=Status.FAIL,
        reason=error.reason,
        message=error.what,
        remedy=error.remedy,
        numbers={**error.numbers, "looked_at": list(error.looked_at)},
    )


def not_judged(check: Check, bench: Workbench | ObjectiveBench, why: str) -> Verdict:
    return Verdict(check=check, kernel=name_of(bench), status=Status.NOT_JUDGED, message=why)
