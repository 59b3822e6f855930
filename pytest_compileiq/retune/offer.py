"""What becomes of a win that failed: an offer of another ACF, or word of why there is none.

What a search finds is tested again, by the very check that failed, before it is offered: a
search's own best score is the luckiest of hundreds. Nothing that the user keeps is written to
without ``--ciq-accept``, and then the former files are kept in the report folder.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import os
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pytest_compileiq.errors import AcfError, CiqError
from pytest_compileiq.files import write_whole
from pytest_compileiq.isolation import child, probes
from pytest_compileiq.judge import Judge, name_of
from pytest_compileiq.marks import WinParams
from pytest_compileiq.retune import scores
from pytest_compileiq.retune.again import Again
from pytest_compileiq.retune.hunt import Found, Hunt
from pytest_compileiq.settings import Settings
from pytest_compileiq.subjects.kernel import Workbench
from pytest_compileiq.subjects.objective import ObjectiveBench
from pytest_compileiq.toolchain import sidecar as _sidecar
from pytest_compileiq.toolchain.acf import Acf
from pytest_compileiq.toolchain.sidecar import Committed, Sidecar
from pytest_compileiq.verdict import Check, Reason, Status, Verdict

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
#: Of --ciq-timeout: what a search may take, and what it leaves of an isolated test's time (twice
#: --ciq-timeout), so that its winner can be tested before the process is killed.
_SEARCH, _RESERVE = 0.75, 0.5


def is_curable(verdict: Verdict) -> bool:
    """Can another ACF end this failure?"""
    failed = verdict.check is Check.WIN and verdict.status is Status.FAIL
    return failed and verdict.reason in _CURABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class Retuning:
    """One failed win: what it was asked of, by what, and where the search's files go.

    ``number`` is that of the test's call of ``ciq``, ``again`` what can run the test anew, and
    ``report`` the folder that gets best.acf, its sidecar and results.csv, or, if it is there
    already, the next with a number.
    """

    bench: Workbench | ObjectiveBench
    params: WinParams
    judging: Judge
    report: Path
    number: int
    again: Again | None


def retune(verdict: Verdict, asked: Retuning) -> Verdict:
    """The failed verdict with an offer in its remedy, or, with --ciq-accept, what was written."""
    folder = _new_folder(asked.report)
    asked.judging.seconds_in_all = asked.judging.settings.test_timeout
    try:
        path, space = _space(asked)
        judging, age = asked.judging, 0.0 if asked.again is None else asked.again.age
        goal = scores.goal(asked.bench, judging.stopwatch, judging.settings, age=age)
        found = _search(asked, goal, path, folder)
    except CiqError as error:
        _remove_if_empty(folder)
        seen = f" ({'; '.join(error.looked_at)})" if error.looked_at else ""
        return _with_remedy(verdict, f"--ciq-retune: {error.what}{seen}; {error.remedy}", None, {})
    except Exception as error:  # of compileiq, of a build: the verdict that stands is the failure
        _remove_if_empty(folder)
        said = f"--ciq-retune: the search failed with {type(error).__name__}: {error}"
        return _with_remedy(verdict, said, None, {})
    except BaseException:
        _remove_if_empty(folder)
        if folder.exists():
            print(f"--ciq-retune: interrupted; what was found until then is in {folder}")
        raise
    told = f"a search of {found.candidates} candidates for {goal.what}"
    numbers = {
        "candidates": found.candidates,
        "spent": found.spent,
        "notes": list(found.notes),
        "search_space": {"tag": space.resolved_tag, "sha256": space.sha256},
    }
    if found.best is None:
        told += f" found nothing better than the baseline ({', '.join(found.findings)})"
        more = 4 * (judging.settings.retune or 1)
        told += f"; more generations may, as in --ciq-retune={more}{_notes(numbers)}"
        return _with_remedy(verdict, told, folder, {**numbers, "won": False})
    told += f" ({_plain(goal.baseline)} -> {_plain(found.scores)})"
    try:
        return _offer(verdict, asked, folder, bytes.fromhex(found.best), told, numbers, space)
    except OSError as error:  # a full disk
        told += f" found one that cannot be kept: {error}"
        return _with_remedy(verdict, told, folder, {**numbers, "won": False})


def _space(asked: Retuning) -> tuple[Path, Any]:
    """The search space of this ptxas: of the tag that the ACF's sidecar names, else the latest.

    Returns its .bin file, and what CompileIQ knows of it.
    Raises CiqError when it cannot be had.
    """
    from compileiq.search_spaces.compilers import PtxasSearchSpace

    bench = asked.bench
    release = (
        bench.assembler.ptxas().release
        if isinstance(bench, Workbench)
        else ".".join((bench.ptxas or "13.3").split(".")[:2])
    )
    known = _sidecar_at(asked.judging.folder / asked.params.acf)
    pinned = known.search_space_tag if known is not None and known.release == release else None
    provider = PtxasSearchSpace(version=release, tag=pinned or "latest")
    try:
        path = provider.retrieve()
    except Exception as error:  # whatever a mirror, GitHub and the network come up with
        which = f", tag {pinned} as in the sidecar," if pinned else ""
        raise CiqError(
            f"no search space for ptxas {release}{which} could be had: {error}",
            remedy="set CIQ_SEARCH_SPACES_DIR to a mirror, or see to the network"
            + ("; without the sidecar the latest tag is taken" if pinned else ""),
        ) from error
    return path, provider.resolution_metadata


def _search(asked: Retuning, goal: scores.Goal, space: Path, folder: Path) -> Found:
    settings = asked.judging.settings
    child.progress("the search for a new ACF", kernel=name_of(asked.bench))
    hunt = Hunt(
        space=str(space),
        folder=str(folder),
        generations=settings.retune or 0,
        problem_type=goal.problem_type,
        baseline=goal.baseline,
        limit=goal.limit,
        seconds=_seconds(settings),
        workers=1 if settings.gpu else len(os.sched_getaffinity(0)),
    )
    if goal.timed:
        if asked.again is None:
            raise CiqError(
                "the test could not be made ready to be run again for each candidate",
                remedy="make ciq an argument of the test, not of request.getfixturevalue; and see "
                "whether this machine is out of processes or memory",
            )
        assert asked.judging.stopwatch is not None
        asked.judging.stopwatch.hold()  # the candidates then neither wait for it nor lock its clocks
    # What this process has started (CUDA, a watch over the GPU) does not work in its forks.
    if asked.again is not None and (goal.timed or probes.cuda_is_started()):
        return asked.again.search(asked.number, name_of(asked.bench), hunt)
    return hunt.run(functools.partial(scores.score, asked.bench, stopwatch=None))


def _seconds(settings: Settings) -> float:
    """What the search may take. Raises CiqError when no time is left."""
    left = child.seconds_left() - _RESERVE * settings.timeout
    if left <= 0:
        raise CiqError(
            f"no time is left for a search: the test has {settings.test_timeout:g} s",
            remedy="raise --ciq-timeout",
        )
    return min(_SEARCH * settings.timeout, left)


def _offer(
    verdict: Verdict,
    asked: Retuning,
    folder: Path,
    content: bytes,
    told: str,
    numbers: Mapping[str, object],
    space: Any,
) -> Verdict:
    """Test the winner anew; offer it, or, with --ciq-accept, put it in its place."""
    bench, judging = asked.bench, asked.judging
    found = folder / "best.acf"
    write_whole(found, content)
    acf = Acf(found, content)
    place = judging.folder / asked.params.acf
    child.progress("best.acf of the search", kernel=name_of(bench))
    again = judging.retest(bench, Committed(acf, _sidecar_at(place)), asked.params)
    if again.status is not Status.PASS:
        told = f"{told} found one that is no win when it is tested again: {again.message}"
        told += _notes(numbers)
        return _with_remedy(verdict, told, folder, {**numbers, "won": False})
    arch = bench.kernel.arch() if isinstance(bench, Workbench) else None
    ptxas = {} if isinstance(bench, Workbench) else {"ptxas": bench.ptxas}
    described = replace(
        _sidecar.describe(acf, arch=arch, numbers={**again.numbers, **ptxas}),
        search_space_tag=space.resolved_tag,
        search_space_sha256=space.sha256,
    )
    _sidecar.write(found, described)
    won = f"{told} found one that wins ({again.message}){_notes(numbers)}"
    if not judging.settings.accept:
        pairs = [(found, place), (_sidecar.path_of(found), _sidecar.path_of(place))]
        command = " && ".join(f"cp {_word(source)} {_word(target)}" for source, target in pairs)
        return _with_remedy(verdict, f"{won}. Take it: {command}", folder, {**numbers, "won": True})
    formers = [file for file in (place, _sidecar.path_of(place)) if file.exists()]
    try:
        for former in formers:
            shutil.copy2(former, folder / f"former-{former.name}")
        _take(place, content, described)
    except OSError as error:
        told = f"{won}, and {place} cannot be written ({error.strerror}): it is as it was"
        return _with_remedy(verdict, told, folder, {**numbers, "won": True})
    # Not a pass: with tests that share the file, those before this one were judged on the former.
    took = f"{won}; --ciq-accept wrote {place.name}"
    took += f", its former content is in {_word(folder)}" if formers else ""
    took += ": run once more, so that each test of it is judged on it"
    return _with_remedy(verdict, took, folder, {**numbers, "won": True})


def _take(place: Path, content: bytes, described: Sidecar) -> None:
    """Write an ACF and its sidecar, or neither of them. Raises OSError."""
    folder = os.open(place.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)  # of two runs at once, each writes its pair
        former = place.read_bytes() if place.exists() else None
        write_whole(place, content)
        try:
            _sidecar.write(place, described)
        except BaseException:  # Ctrl-C too
            if former is None:
                place.unlink()
            else:
                write_whole(place, former)
            raise
    finally:
        os.close(folder)


def _notes(numbers: Mapping[str, Any]) -> str:
    """What may mislead whoever reads the search's result, as CiqSearch would tell it."""
    return "".join(f"; {note}" for note in numbers["notes"])


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


def _new_folder(wanted: Path) -> Path:
    """A folder that was not there before: what earlier runs have left stays."""
    with contextlib.suppress(OSError):  # read-only: a search of minutes must not be lost for that
        wanted.parent.mkdir(parents=True, exist_ok=True)
        for number in itertools.count(1):
            folder = wanted if number == 1 else wanted.with_name(f"{wanted.name}-{number}")
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                return folder
    return Path(tempfile.mkdtemp(prefix="ciq-report-"))


def _remove_if_empty(folder: Path) -> None:
    """Folders that CompileIQ made and left without a file are empty, too."""
    if not any(path.is_file() for path in folder.rglob("*")):
        shutil.rmtree(folder, ignore_errors=True)


def _plain(values: Iterable[float]) -> str:
    return ", ".join(f"{value:g}" for value in values)


def _word(path: Path) -> str:
    """A path as a word for the shell, short where it is below the current folder."""
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))
