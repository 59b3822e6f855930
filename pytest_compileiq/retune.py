"""``--ciq-retune``: where an ACF wins no more, search for one that does, and offer it.

What a search finds is tested again, by the very check that failed, before it is offered: a
search's own best score is the luckiest of hundreds. Nothing that the user keeps is written to
without ``--ciq-accept``, and then the former files are kept in the report folder.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import tempfile
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pytest_compileiq.checks.win import ratio
from pytest_compileiq.errors import AcfError, CiqError
from pytest_compileiq.files import write_whole
from pytest_compileiq.isolation import child
from pytest_compileiq.judge import Judge, name_of
from pytest_compileiq.marks import WinParams
from pytest_compileiq.subjects.kernel import BASELINE, Arm, Kernel, Workbench
from pytest_compileiq.subjects.objective import ObjectiveBench
from pytest_compileiq.toolchain import sidecar as _sidecar
from pytest_compileiq.toolchain.acf import Acf
from pytest_compileiq.toolchain.sidecar import Committed, Sidecar
from pytest_compileiq.verdict import Reason, Status, Verdict

#: Failures that another ACF can end. The others are the kernel's, the objective's, the machine's.
_CURABLE = frozenset(
    {
        Reason.SLOWER,
        Reason.NO_WIN,
        Reason.NO_EFFECT,
        Reason.REJECTED,
        Reason.KERNEL_CHANGED,
    }
)
_POOL_SIZE = 48
#: A call of the objective may take so many times the baseline's, and at least so many seconds:
#: some ACFs unroll without end.
_TIMES_BASELINE = 5.0
#: Part of --ciq-timeout that the search may take: an isolated test is killed after the whole.
_PART_OF_TIMEOUT = 0.75


@dataclass(frozen=True, slots=True)
class _Cost:
    """What the search minimises or maximises, and what the baseline has of it."""

    function: Callable[[Any], Any]
    problem_type: Literal["min", "max"]
    baseline: tuple[float, ...]
    seconds: float
    what: str


def retune(
    verdict: Verdict,
    bench: Workbench | ObjectiveBench,
    params: WinParams,
    judging: Judge,
    report: Path,
) -> Verdict:
    """The failed verdict with an offer in its remedy; with --ciq-accept, the winner's verdict.

    ``report`` is the folder that gets best.acf, its sidecar and results.csv, or, if it is there
    already, the next with a number.
    """
    if verdict.reason not in _CURABLE:
        return verdict
    folder, number = _new_folder(report)
    try:
        best, told = _search(bench, _cost(bench), judging, folder, seed=number)
    except CiqError as error:
        _remove_if_empty(folder)
        return _with_remedy(verdict, f"--ciq-retune: {error.what}; {error.remedy}", None, {})
    except Exception as error:  # of compileiq, of a build: the verdict that stands is the failure
        _remove_if_empty(folder)
        said = f"--ciq-retune: the search failed with {type(error).__name__}: {error}"
        return _with_remedy(verdict, said, None, {})
    except BaseException:
        print(f"--ciq-retune: interrupted; what was found until then is in {folder}/results.csv")
        raise
    if best is None:
        return _with_remedy(verdict, told, folder, {"won": False})
    return _offer(verdict, bench, params, judging, folder, best, told)


def _search(
    bench: Workbench | ObjectiveBench, cost: _Cost, judging: Judge, folder: Path, *, seed: int
) -> tuple[bytes | None, str]:
    """The best ACF that is better than the baseline, or None, and the search in words."""
    from compileiq.search_spaces.compilers import PtxasSearchSpace

    from pytest_compileiq.diagnose import diagnose
    from pytest_compileiq.search.engine import open_search

    settings = judging.settings
    generations = settings.retune or 1
    child.progress("the search for a new ACF", kernel=name_of(bench))
    # The baseline may have come from the assembler's memory, and tells little of ptxas' time.
    limit = min(settings.timeout, settings.ptxas_timeout + _TIMES_BASELINE * cost.seconds)
    try:
        search = open_search(
            cost.function,
            PtxasSearchSpace(version=_release(bench)),
            folder=folder,
            generations=generations,
            pool_size=_POOL_SIZE,
            problem_type=cost.problem_type,
            objectives=len(cost.baseline),
            workers=1 if settings.gpu else len(os.sched_getaffinity(0)),
            task_timeout=limit,
            max_seconds=_PART_OF_TIMEOUT * settings.timeout,
            seed=seed,
        )
    except CiqError:
        raise
    except Exception as error:  # whatever a mirror, GitHub and the network come up with
        raise CiqError(
            f"no search space for ptxas {_release(bench)} could be had: {error}",
            remedy="set CIQ_SEARCH_SPACES_DIR to a mirror, or see to the network",
        ) from error
    try:
        table = search.start().get_results()
    finally:
        search.close()
        with contextlib.suppress(OSError):
            (folder / "compileiq").rmdir()
    from pytest_compileiq.results import Table, score_columns

    read = Table(table, score_columns(table), cost.problem_type)
    gains = [
        min(map(lambda b, a: ratio(b, a, cost.problem_type), cost.baseline, scores)) if ok else 0.0
        for scores, ok in zip(read.scores.tolist(), read.valid, strict=True)
    ]
    told = f"a search of {len(gains)} candidates for {cost.what}"
    if not gains or max(gains) <= 1:
        found = diagnose(table, problem_type=cost.problem_type, noise=search.noise)
        told = f"{told} found nothing better than the baseline ({', '.join(found.names)})"
        return None, f"{told}; more generations may, as in --ciq-retune={4 * generations}"
    best = gains.index(max(gains))
    change = f"{_plain(cost.baseline)} -> {_plain(read.scores[best].tolist())}"
    return bytes.fromhex(table["params"].iloc[best]), f"{told} ({change})"


def _offer(
    verdict: Verdict,
    bench: Workbench | ObjectiveBench,
    params: WinParams,
    judging: Judge,
    folder: Path,
    content: bytes,
    told: str,
) -> Verdict:
    """Test the winner anew; offer it, or, with --ciq-accept, put it in its place."""
    found = folder / "best.acf"
    write_whole(found, content)
    acf = Acf(found, content)
    place = judging.folder / params.acf
    child.progress("best.acf of the search", kernel=name_of(bench))
    again = judging.retest(bench, Committed(acf, _sidecar_at(place)), params)
    if again.status is not Status.PASS:
        told = f"{told} found one that is no win when it is tested again: {again.message}"
        return _with_remedy(verdict, told, folder, {"won": False})
    arch = bench.kernel.arch() if isinstance(bench, Workbench) else None
    ptxas = {} if isinstance(bench, Workbench) else {"ptxas": bench.ptxas}
    described = _sidecar.describe(acf, arch=arch, numbers={**again.numbers, **ptxas})
    _sidecar.write(found, described)
    won = f"{told} found one that wins ({again.message})"
    if not judging.settings.accept:
        pairs = [(found, place), (_sidecar.path_of(found), _sidecar.path_of(place))]
        command = " && ".join(f"cp {_word(source)} {_word(target)}" for source, target in pairs)
        return _with_remedy(verdict, f"{won}. Take it: {command}", folder, {"won": True})
    formers = [file for file in (place, _sidecar.path_of(place)) if file.exists()]
    try:
        for former in formers:
            shutil.copy2(former, folder / f"former-{former.name}")
        write_whole(place, content)
        _sidecar.write(place, described)
    except OSError as error:
        told = f"{won}, and {place} cannot be written ({error.strerror})"
        return _with_remedy(verdict, told, folder, {"won": True})
    return replace(
        again,
        message=f"{won}; --ciq-accept wrote {place.name}"
        + (f", its former content is in {_word(folder)}" if formers else ""),
        numbers={**again.numbers, "retuned": {"won": True, "folder": str(folder)}},
    )


def _cost(bench: Workbench | ObjectiveBench) -> _Cost:
    """Raises CiqError when there is nothing that a search could improve."""
    started = time.monotonic()
    if isinstance(bench, ObjectiveBench):
        objective = bench.objective
        baseline = bench.repeat(None, "the baseline")
        if baseline.fault is not None:
            raise CiqError(
                f"nothing to compare with: {baseline.fault.message}", remedy=baseline.fault.remedy
            )

        def score(config: Any) -> Any:
            mixed = objective.mix is not None and isinstance(config, str)
            return objective.function(objective.mix(config) if mixed else config)  # type: ignore[misc]

        seconds = time.monotonic() - started
        return _Cost(
            score,
            objective.problem_type,
            baseline.scores,
            seconds,
            f"the score of {objective.name}",
        )

    def spills(config: Any) -> int:
        if not config:
            return _spill_bytes(bench, BASELINE)
        acf = Acf(Path("candidate.acf"), bytes.fromhex(config))
        return _spill_bytes(bench, Arm("candidate", acf))

    before = _spill_bytes(bench, BASELINE)
    seconds = time.monotonic() - started
    if before == 0:
        raise CiqError(
            f"the baseline of {bench.kernel.name} spills nothing, and spills are all of a "
            "kernel that this search lessens",
            remedy="search with an objective of your own, and test it by ciq.check(objective)",
        )
    return _Cost(spills, "min", (before,), seconds, "spill bytes")


def _spill_bytes(bench: Workbench, arm: Arm) -> int:
    kernel: Kernel = bench.kernel
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


def _release(bench: Workbench | ObjectiveBench) -> str:
    if isinstance(bench, Workbench):
        return bench.assembler.ptxas().release
    return ".".join((bench.ptxas or "13.3").split(".")[:2])


def _sidecar_at(place: Path) -> Sidecar | None:
    try:
        return _sidecar.read(place)
    except AcfError:
        return None  # an unreadable one may be what the test failed for


def _with_remedy(
    verdict: Verdict, text: str, folder: Path | None, numbers: dict[str, object]
) -> Verdict:
    retuned = {**numbers, "folder": None if folder is None else str(folder)}
    where = "" if folder is None else f" (everything is in {_word(folder)})"
    return replace(
        verdict, remedy=f"{text}{where}", numbers={**verdict.numbers, "retuned": retuned}
    )


def _new_folder(wanted: Path) -> tuple[Path, int]:
    """A folder that was not there before, and its number: what earlier runs have left stays."""
    try:
        wanted.parent.mkdir(parents=True, exist_ok=True)
        number = 1
        while True:
            folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
            try:
                folder.mkdir()
                return folder, number
            except FileExistsError:
                number += 1
    except OSError:  # read-only: a search of minutes must not be lost for that
        return Path(tempfile.mkdtemp(prefix="ciq-report-")), 1


def _remove_if_empty(folder: Path) -> None:
    """Folders that CompileIQ made and left without a file are empty, too."""
    if not any(path.is_file() for path in folder.rglob("*")):
        shutil.rmtree(folder, ignore_errors=True)


def _plain(scores: Iterable[float]) -> str:
    return ", ".join(f"{score:g}" for score in scores)


def _word(path: Path) -> str:
    """A path as a word for the shell, short where it is below the current folder."""
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
