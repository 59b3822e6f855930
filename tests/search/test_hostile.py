"""Objectives that do what an objective must not do: the search ends, and pytest lives.

Every search runs inside the process of this test, so an objective that got out would end it.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
from compileiq.ciq import Search
from compileiq.search_spaces import base as ss

from pytest_compileiq import CiqError, ForkWorker
from pytest_compileiq.isolation import probes
from pytest_compileiq.search.budget import Budget
from pytest_compileiq.search.causes import Answer, Cause
from pytest_compileiq.search.lanes import Lane
from pytest_compileiq.search.sanity import REPEATS
from pytest_compileiq.searching import CiqSearch

SPACE = {"x": ss.range(0, 1000, 1)}
#: Seconds for a call that hangs, and for all others: a machine under load needs them.
TIMEOUT, ENOUGH = 2.0, 30.0


def spin() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        pass


def escape(folder: Path) -> Callable[[], int]:
    """A grandchild in a session of its own that would live for minutes."""

    def objective() -> int:
        code = "import time; time.sleep(300)"
        grandchild = subprocess.Popen([sys.executable, "-c", code], start_new_session=True)
        (folder / f"pid-{grandchild.pid}").touch()
        return 1

    return objective


def kill_the_server() -> None:
    os.kill(os.getppid(), signal.SIGKILL)
    time.sleep(60)


def close_everything() -> None:
    os.closerange(0, 4096)
    os._exit(0)


#: What half of the calls do, and the cause that is counted for them.
HOSTILE: dict[str, tuple[Callable[[], Any], str]] = {
    "raises": (lambda: 1 / 0, "raised"),
    "hangs": (lambda: time.sleep(300), "hung"),
    "spins, deaf to signals": (spin, "hung"),
    "segfaults": (lambda: ctypes.string_at(0), "crashed"),
    "aborts": (os.abort, "crashed"),
    "os._exit(0)": (lambda: os._exit(0), "exited"),
    "sys.exit(0)": (lambda: sys.exit(0), "exited"),
    "execs": (lambda: os.execv("/bin/true", ["true"]), "exited"),
    "KeyboardInterrupt": (lambda: signal.raise_signal(signal.SIGINT), "exited"),
    "1-tuple": (lambda: (1.0,), "bad-shape"),
    "None": (lambda: None, "bad-shape"),
    "not picklable": (lambda: lambda: 1, "bad-shape"),
    "NaN": (lambda: float("nan"), "invalid"),
    "*": (lambda: "*", "invalid"),
    "kills the server": (kill_the_server, "crashed"),
    "closes everything": (close_everything, "exited"),
}


def half(deed: Callable[[], Any], folder: Path) -> Callable[[dict[str, int]], Any]:
    """Does the deed for every second new number, and not yet in the calls before the search."""

    def objective(config: dict[str, int]) -> Any:
        if len(list(folder.glob("early-*"))) < 1 + REPEATS:
            (folder / f"early-{os.getpid()}").touch()
            return config["x"]
        seen = folder / f"x-{config['x']}"
        if not seen.exists():
            seen.write_text(str(len(list(folder.glob("x-*")))))
        if not is_bad(config, folder):
            return config["x"]
        (folder / f"bad-{os.getpid()}").touch()
        return deed()

    return objective


def bad_calls(folder: Path) -> int:
    """Each call has a process. Rows would not do: 1.0 leaves repeated candidates out."""
    return len(list(folder.glob("bad-*")))


def is_bad(config: dict[str, int], folder: Path) -> bool:
    """By order of appearance: 1.0 takes no seed, and parity alone would by chance be all or none."""
    return int((folder / f"x-{config['x']}").read_text()) % 2 == 0


def descendants() -> set[int]:
    """Process ids of all that this process has started, and that they have."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            parents[int(entry.name)] = int(stat.rpartition(")")[2].split()[1])
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Any:
    before, method = descendants(), multiprocessing.get_start_method()
    descriptors = len(os.listdir("/proc/self/fd"))
    yield
    assert descendants() <= before
    assert multiprocessing.get_start_method() == method
    assert len(os.listdir("/proc/self/fd")) <= descriptors


@pytest.mark.parametrize(("deed", "cause"), HOSTILE.values(), ids=HOSTILE)
def test_half_of_the_calls(
    ciq_search: CiqSearch, tmp_path: Path, deed: Callable[[], Any], cause: str
) -> None:
    search = ciq_search(
        half(deed, tmp_path), SPACE, generations=1, pool_size=6, workers=2,
        task_timeout=TIMEOUT if cause == "hung" else ENOUGH, max_calls=16, max_seconds=60,
    )  # fmt: skip
    result = search.start()
    ciq_search.close()
    assert search.spent in (None, "max_calls=16")  # no call was waited for until the end of time
    table = result.get_results()
    bad = table["params"].map(lambda params: is_bad(params, tmp_path))
    assert search.causes == {cause: search.causes[cause]}
    assert search.causes[cause] == bad_calls(tmp_path) >= bad.sum() > 0
    # "*" in 1.1, NaN in 1.0
    assert pandas.to_numeric(table["score_1"][bad], errors="coerce").isna().all()
    assert (table["score_1"][~bad] == table["params"][~bad].map(lambda p: p["x"])).all()
    assert all(f'"cause": "{cause}"' in text for text in table["metadata"][bad])


def test_always_failing_ends_at_once_and_says_why(ciq_search: CiqSearch) -> None:
    search = ciq_search(lambda config: os._exit(3), SPACE, generations=50, pool_size=6, workers=2)
    with pytest.raises(CiqError) as info:
        search.start()
    ciq_search.close()
    assert "failed in the first gen" in info.value.what
    assert info.value.looked_at == ("7 of 7 calls exited: exited with status 3",)


def test_always_failing_by_wish_ends_with_the_budget(ciq_search: CiqSearch) -> None:
    search = ciq_search(
        lambda config: "*", SPACE, generations=2, pool_size=6, workers=2, exit_on_failure=False
    )
    result = search.start()
    ciq_search.close()
    assert search.calls == 36  # three times what was asked for
    assert search.spent == "max_calls=36"
    assert ciq_search.diagnose(result).names[0] == "all-invalid"


def test_failing_from_the_second_generation_on(ciq_search: CiqSearch, tmp_path: Path) -> None:
    def objective(config: dict[str, int]) -> Any:
        if len(list(tmp_path.glob("call-*"))) > 9:
            return "*"
        (tmp_path / f"call-{os.getpid()}").touch()
        return config["x"]

    search = ciq_search(objective, SPACE, generations=20, pool_size=6, max_calls=40)
    search.start()
    ciq_search.close()
    assert search.calls == 40
    assert search.causes["invalid"] == 30


def test_alternating_shapes(ciq_search: CiqSearch, tmp_path: Path) -> None:
    def alternating() -> Any:
        turn = len(list(tmp_path.glob("turn-*")))
        (tmp_path / f"turn-{turn}").touch()
        return 3 if turn % 2 else (1.0,)

    search = ciq_search(half(alternating, tmp_path), SPACE, generations=3, pool_size=8)
    table = search.start().get_results()
    ciq_search.close()
    turns = len(list(tmp_path.glob("turn-*")))
    assert search.causes == {"bad-shape": (turns + 1) // 2}
    bad = table["params"].map(lambda params: is_bad(params, tmp_path))
    scores = pandas.to_numeric(table["score_1"], errors="coerce")
    assert (scores[~bad] == table["params"][~bad].map(lambda p: p["x"])).all()
    assert set(scores[bad].dropna()) == {3}
    assert scores[bad].isna().any()


def test_grandchildren_die_with_their_call(ciq_search: CiqSearch, tmp_path: Path) -> None:
    deed = escape(tmp_path)
    search = ciq_search(lambda config: deed(), SPACE, generations=1, pool_size=6)
    assert len(search.start().get_results()) == 6
    assert search.causes == {}
    pids = [int(path.name.removeprefix("pid-")) for path in tmp_path.glob("pid-*")]
    assert len(pids) >= 6
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
    ciq_search.close()


def test_each_call_sees_the_environment_of_its_moment(
    ciq_search: CiqSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not that of the server's start, and what a call sets, the next does not see."""
    calls = []

    class Watching(ForkWorker):
        def run(self, **more: Any) -> Any:
            calls.append(1)
            monkeypatch.setenv("CIQ_TEST_BATCH", str(len(calls)))
            return super().run(**more)

    def objective(config: dict[str, int]) -> float:
        assert os.environ.pop("CIQ_TEST_OWN") == "yes"
        os.environ["CIQ_TEST_OWN"] = "changed"
        return float(os.environ.get("CIQ_TEST_BATCH", "0"))

    search = ciq_search(
        objective, SPACE, generations=3, pool_size=6, worker=Watching,
        environment={"CIQ_TEST_OWN": "yes"},
    )  # fmt: skip
    table = search.start().get_results()
    ciq_search.close()
    assert search.causes == {}
    assert sorted(set(table["score_1"])) == [1, 2, 3][: len(set(table["score_1"]))]
    assert table["score_1"].nunique() == len(calls) >= 2


# 1.0's own Search leaves a socket open.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_workers_are_pinned_to_gpus(tmp_path: Path) -> None:
    """Outside of the fixture, as a script would: one GPU a worker, and both are used."""
    worker = ForkWorker.using(gpus=["GPU-a", "GPU-b"])

    def objective(config: dict[str, int]) -> int:
        time.sleep(0.05)
        return int(os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-b")

    search = Search(
        objective_function=objective,
        search_space=SPACE,
        search_config={"generations": 1, "pool_size": 8},
        worker_type=worker,
        cache_folder=tmp_path,
        disable_progress_bar=True,
    )
    table = search.start(num_workers=2, task_timeout=20).get_results()
    assert set(table["score_1"]) == {0, 1}
    for score, metadata in zip(table["score_1"], table["metadata"], strict=True):
        assert f'"gpu": "GPU-{"ab"[int(score)]}"' in metadata
    assert worker.tally.calls == 8
    search.__del__()


def test_each_function_is_called_by_a_worker_that_knows_it(tmp_path: Path) -> None:
    """Also with another number of scores, and also one that is a coroutine's."""

    async def third(config: Any) -> float:
        return 3.0

    worker = ForkWorker(tmp_path)
    found = []
    for function, returns in [
        (lambda config: 1.0, 1), (lambda config: 2.0, 1), (lambda config: (3.0, 4.0), 2), (third, 1),
    ]:  # fmt: skip
        (score,) = worker.run(
            function=function, params_ids=[1], params_pool=[{"x": 1}],
            num_function_returns=returns, num_workers=1, task_timeout=60,
        )  # fmt: skip
        found.append(score.score)
    worker.close()
    assert found == [1.0, 2.0, (3.0, 4.0), 3.0]


def test_what_a_worker_was_given_holds_in_a_search(ciq_search: CiqSearch) -> None:
    """``ForkWorker.using(...)`` as ``worker=``: its GPUs, environment and budget."""
    worker = ForkWorker.using(
        gpus=["GPU-a"], environment={"CIQ_A": "1", "CIQ_B": "1"}, budget=Budget(max_calls=9)
    )

    def objective(config: dict[str, int]) -> int:
        assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-a"
        return 10 * int(os.environ["CIQ_A"]) + int(os.environ["CIQ_B"])

    search = ciq_search(
        objective, SPACE, generations=3, pool_size=6, worker=worker, environment={"CIQ_B": "2"},
        max_calls=100,
    )  # fmt: skip
    table = search.start().get_results()
    ciq_search.close()
    assert set(table["score_1"]) == {12}
    assert (search.causes, search.spent) == ({}, "max_calls=9")
    assert search.calls == 9
    assert worker.tally.calls == 0  # each search counts its own


def test_a_lane_whose_server_cannot_be_replaced_is_closed_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lane = Lane(lambda config: 1, 1, {})
    os.kill(lane._link.pid, signal.SIGKILL)
    monkeypatch.setattr(probes, "cuda_is_started", lambda: True)
    with pytest.raises(CiqError, match="CUDA has been started in this process"):
        lane.evaluate({}, 5)
    lane.close()
    lane.close()


def test_a_lane_is_closed_under_a_call(tmp_path: Path) -> None:
    """By a thread that knows nothing of the other one: both go on at once."""

    def objective(config: object) -> None:
        (tmp_path / "called").touch()
        time.sleep(300)

    lane = Lane(objective, 1, {})
    answers: list[Answer] = []
    thread = threading.Thread(target=lambda: answers.append(lane.evaluate({}, 100)), daemon=True)
    thread.start()
    deadline = time.monotonic() + ENOUGH
    while not (tmp_path / "called").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    lane.close()
    thread.join(ENOUGH)
    assert [answer.cause for answer in answers] == [Cause.CRASHED]
    assert "was stopped" in lane.evaluate({}, 100).text


def test_ctrl_c_between_two_calls_ends_the_next_one(
    ciq_search: CiqSearch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both workers have looked whether to go on, and their next calls have not begun yet."""
    first, stopped = threading.Lock(), threading.Event()
    evaluate, stop = Lane.evaluate, Lane.stop

    def late(lane: Lane, params: Any, timeout: float | None) -> Any:
        if threading.current_thread() is threading.main_thread():  # the calls before the search
            return evaluate(lane, params, timeout)
        if first.acquire(blocking=False):
            os.kill(os.getpid(), signal.SIGINT)
        stopped.wait(ENOUGH)
        return evaluate(lane, {"x": -1}, timeout)

    def stop_lane(lane: Lane) -> None:
        stop(lane)
        stopped.set()

    monkeypatch.setattr(Lane, "evaluate", late)
    monkeypatch.setattr(Lane, "stop", stop_lane)
    search = ciq_search(
        lambda config: 1 if config["x"] >= 0 else time.sleep(2 * ENOUGH),
        SPACE, generations=1, pool_size=6, workers=2,
    )  # fmt: skip
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        search.start()
    ciq_search.close()
    assert time.monotonic() - began < ENOUGH


@pytest.mark.parametrize("workers", [1, 2])
def test_ctrl_c_ends_a_search_and_its_calls(tmp_path: Path, workers: int) -> None:
    code = f"""
import os, pathlib, time
from compileiq.search_spaces import base as ss
from pytest_compileiq import open_search
folder = pathlib.Path({str(tmp_path)!r})
def objective(config):
    if len(list(folder.glob("first-*"))) < 3:  # the calls before the search
        return (folder / f"first-{{os.getpid()}}").touch() or 1
    (folder / f"pid-{{os.getpid()}}").touch()
    time.sleep(300)
search = open_search(objective, {{"x": ss.range(0, 100, 1)}}, folder=folder,
    generations=1, pool_size=6, workers={workers}, task_timeout=None)
search.start()
"""
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", code],
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    deadline = time.monotonic() + 30
    while len(list(tmp_path.glob("pid-*"))) < workers and time.monotonic() < deadline:
        time.sleep(0.05)
    pids = [int(path.name.removeprefix("pid-")) for path in tmp_path.glob("pid-*")]
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert errors.rstrip().endswith("KeyboardInterrupt")
    assert len(pids) == workers
    assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
