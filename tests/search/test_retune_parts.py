"""The parts of ``--ciq-retune`` that decide, without a search: goals, scores, limits, the best."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pandas
import pytest

from pytest_compileiq import Build, Kernel
from pytest_compileiq.errors import CiqError
from pytest_compileiq.isolation import child
from pytest_compileiq.retune import offer, scores
from pytest_compileiq.retune.hunt import Found, Hunt
from pytest_compileiq.retune.scores import Answered, Candidate
from pytest_compileiq.search import engine
from pytest_compileiq.settings import OPTIONS, Settings
from pytest_compileiq.subjects.kernel import Workbench
from pytest_compileiq.subjects.objective import Objective, ObjectiveBench
from pytest_compileiq.toolchain import sidecar
from pytest_compileiq.toolchain.acf import Acf
from pytest_compileiq.toolchain.assembler import Assembler
from pytest_compileiq.verdict import Check, Reason, Status, Verdict

LOG = """ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
    0 bytes stack frame, {} bytes spill stores, {} bytes spill loads
ptxas info    : Used 8 registers
"""


def settings_of(**values: object) -> Settings:
    return Settings({option.name: option.default for option in OPTIONS} | values, {})


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Callable[..., Workbench]]:
    """Kernels whose report is given for the baseline and for any ACF; no ptxas is run."""
    assembler = Assembler()

    def made(baseline: str | None, tuned: str | Exception | None = "") -> Workbench:
        def k(acf: Path | None) -> Build:
            told = baseline if acf is None else tuned
            if isinstance(told, Exception):
                raise told
            return Build(ptxas_log=told)

        return Workbench(Kernel(k), assembler, tmp_path)

    yield made
    assembler.close()


def objective(function: Callable[[Any], Any], **more: Any) -> ObjectiveBench:
    return ObjectiveBench(
        Objective(function, contained=False, **more),
        objectives=1,
        timeout=10,
        in_all=lambda: 10.0,
        ptxas=None,
    )


def goal(bench: Workbench | ObjectiveBench) -> scores.Goal:
    return scores.goal(bench, None, settings_of(), age=0.0)


def test_spills_are_lessened_where_there_are_any(bench: Callable[..., Workbench]) -> None:
    one = bench(LOG.format(8, 4), LOG.format(4, 4))
    found = goal(one)
    assert (found.what, found.problem_type, found.baseline) == ("spill bytes", "min", (12,))
    assert not found.timed
    assert scores.score(one, {}, None) == 12
    assert scores.score(one, "acf0", None) == 8


def test_where_nothing_can_be_lessened_no_search_begins(bench: Callable[..., Workbench]) -> None:
    with pytest.raises(CiqError, match="the baseline of k spills nothing, and without a GPU"):
        goal(bench(LOG.format(0, 0)))
    with pytest.raises(CiqError, match="k: the build has no report of ptxas -v"):
        goal(bench(None))
    with pytest.raises(
        CiqError, match="nothing to compare with: on the baseline the objective returned"
    ):
        goal(objective(lambda config: "*"))


def test_a_build_that_fails_has_no_score(bench: Callable[..., Workbench]) -> None:
    with pytest.raises(ZeroDivisionError):
        scores.score(bench(LOG.format(8, 4), ZeroDivisionError()), "acf0", None)


def test_a_mixed_objective_is_searched_by_its_acf_alone() -> None:
    one = objective(lambda config: 9 if config == {} else len(config[1]), mix=lambda h: [7, h])
    assert goal(one).baseline == (9,)
    assert scores.score(one, {}, None) == 9
    assert scores.score(one, "acf0", None) == 4


def test_a_candidate_answers_one_call_of_one_kernel(bench: Callable[..., Workbench]) -> None:
    one = bench(LOG.format(8, 4), LOG.format(4, 4))
    candidate = Candidate(2, "k", "acf0")
    candidate.answer(1, one, None)
    assert candidate.answers == []
    with pytest.raises(Answered):
        candidate.answer(2, one, None)
    assert candidate.answers == [8]
    with pytest.raises(CiqError, match="call 2 was for other, and is for k now"):
        Candidate(2, "other", "acf0").answer(2, one, None)


@pytest.mark.parametrize(
    ("reason", "curable"),
    [
        (Reason.SLOWER, True), (Reason.NO_WIN, True), (Reason.NO_EFFECT, True),
        (Reason.REJECTED, True), (Reason.KERNEL_CHANGED, True), (Reason.CRASHED, False),
        (Reason.WRONG_RESULT, False), (Reason.NOT_APPLIED, False), (Reason.UNFIT, False),
        (Reason.HUNG, False), (Reason.NOISY, False),
    ],
)  # fmt: skip
def test_what_another_acf_can_cure(reason: Reason, curable: bool) -> None:
    def verdict(check: Check, status: Status) -> Verdict:
        return Verdict(check=check, kernel="k", status=status, reason=reason, message="m")

    assert offer.is_curable(verdict(Check.WIN, Status.FAIL)) is curable
    assert not offer.is_curable(verdict(Check.CANARY, Status.FAIL))
    assert not offer.is_curable(verdict(Check.WIN, Status.UNDECIDED))


def test_a_search_leaves_time_to_test_its_winner(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = settings_of(timeout=100.0, retune=1)
    assert offer._seconds(chosen) == 75
    monkeypatch.setattr(child, "seconds_left", lambda: 120.0)
    assert offer._seconds(chosen) == 70
    monkeypatch.setattr(child, "seconds_left", lambda: 50.0)
    with pytest.raises(CiqError, match="no time is left for a search: the test has 200 s"):
        offer._seconds(chosen)


ROWS = [("{}", 1.0, 1.0), ("cc", "*", "*"), ("dd", 9.5, 1e12), ("aa", 8.0, 20.0), ("bb", 9.0, 9.0)]


def hunted(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    problem_type: Literal["min", "max"],
    baseline: tuple[float, float],
) -> tuple[Found, dict[str, Any]]:
    asked: dict[str, Any] = {}
    table = pandas.DataFrame(ROWS, columns=["params", "score_1", "score_2"])
    done = SimpleNamespace(spent=None, notes=[], noise=None, close=lambda: None)
    done.start = lambda: SimpleNamespace(get_results=lambda: table)
    monkeypatch.setattr(engine, "open_search", lambda *args, **more: asked.update(more) or done)
    hunt = Hunt(
        space="s.bin", folder=str(tmp_path), generations=3, problem_type=problem_type,
        baseline=baseline, limit=4.0, seconds=50.0, workers=2,
    )  # fmt: skip
    return hunt.run(lambda config: 1.0), asked


def test_the_best_has_to_be_better_in_every_score(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And neither a baseline's row nor one that failed is a candidate."""
    found, asked = hunted(monkeypatch, tmp_path, "min", (10.0, 10.0))
    assert (found.best, found.scores, found.candidates) == ("bb", [9.0, 9.0], 4)
    assert (asked["task_timeout"], asked["max_seconds"]) == (4.0, 50.0)
    assert (asked["generations"], asked["workers"], asked["objectives"]) == (3, 2, 2)
    found, _ = hunted(monkeypatch, tmp_path, "max", (7.0, 10.0))
    assert (found.best, found.scores) == ("aa", [8.0, 20.0])
    for equal in ((9.0, 9.0), (8.5, 8.5)):  # as good is not better
        assert hunted(monkeypatch, tmp_path, "min", equal)[0].best is None


def test_of_two_runs_at_once_each_writes_its_pair(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / "best.acf"
    written, threads = sidecar.write, []

    def take(content: bytes) -> None:
        described = sidecar.describe(Acf(place, content), arch=None, numbers={})
        offer._take(place, content, described)

    def write(acf: Path, described: sidecar.Sidecar) -> Path:
        if not threads:
            threads.append(threading.Thread(target=take, args=(b"second",)))
            threads[0].start()
            threads[0].join(0.5)  # it waits for this pair's end
        return written(acf, described)

    monkeypatch.setattr(sidecar, "write", write)
    take(b"first")
    threads[0].join()
    found = sidecar.load(place)
    assert found.acf.content == b"second"
    assert found.sidecar is not None
    assert found.sidecar.sha256 == found.acf.sha256


def test_a_kill_between_the_two_files_names_itself(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    place = tmp_path / "best.acf"
    offer._take(place, b"former", sidecar.describe(Acf(place, b"former"), arch=None, numbers={}))
    new = sidecar.describe(Acf(place, b"newest"), arch=None, numbers={})
    monkeypatch.setattr(sidecar, "write", lambda *_: os.kill(os.getpid(), signal.SIGKILL))
    if not (pid := os.fork()):
        offer._take(place, b"newest", new)
        os._exit(0)
    assert os.waitpid(pid, 0)[1] == signal.SIGKILL
    monkeypatch.undo()
    found = sidecar.load(place)
    assert found.acf.content == b"newest"
    assert found.sidecar is not None
    told = sidecar.altered(found.acf, found.sidecar)  # as each run asks
    assert told is not None
    assert "best.acf is not the file that its sidecar describes" in told


def test_a_report_s_folder_never_takes_another_s_place(tmp_path: Path) -> None:
    wanted = tmp_path / "reports" / "k"
    made = [offer._new_folder(wanted) for _ in range(3)]
    assert [one.name for one in made] == ["k", "k-2", "k-3"]
    (tmp_path / "gone").symlink_to(tmp_path / "purged")
    elsewhere = offer._new_folder(tmp_path / "gone" / "k")
    assert elsewhere.is_dir()
    elsewhere.rmdir()
