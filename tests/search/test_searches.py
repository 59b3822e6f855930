"""Real searches with the installed compileiq, through the fixture."""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from compileiq.ciq import Search
from compileiq.search_spaces import base as ss
from compileiq.types import LoguruTrackerConfig, WorkerTypes

from pytest_compileiq import searching
from pytest_compileiq.errors import CiqError, SettingsError
from pytest_compileiq.isolation import child
from pytest_compileiq.searching import CiqSearch
from pytest_compileiq.verdict import Reason

from ..conftest import EXAMPLE

needs_spaces = pytest.mark.skipif(
    not os.environ.get("CIQ_SEARCH_SPACES_DIR"),
    reason="needs CIQ_SEARCH_SPACES_DIR, a folder with CompileIQ's search spaces",
)
SEEDED = "engine" in Search.model_fields
GRID = {"x": ss.range(0, 30, 1), "y": ss.range(0, 30, 1)}


def bowl(config: dict[str, int]) -> int:
    return (config["x"] - 7) ** 2 + (config["y"] - 20) ** 2


def test_a_dict_space_and_what_is_left(ciq_search: CiqSearch, tmp_path: Path) -> None:
    before = multiprocessing.get_start_method()
    search = ciq_search(bowl, GRID, generations=4, pool_size=8, workers=2)
    assert isinstance(search, Search)
    result = search.start()
    scores = [int(value) for value in result.get_results()["score_1"]]
    assert len(scores) >= (12 if SEEDED else 8)  # 1.0 leaves duplicates out, as chance has them
    assert min(scores) == result.get_best_result()["score_1"] < sorted(scores)[len(scores) // 2]
    assert all(bowl(row["params"]) == row["score_1"] for _, row in result.get_results().iterrows())
    assert search.calls >= len(scores) + 3  # three were spent on the first sample
    assert (search.causes, search.notes, search.spent, search.noise) == ({}, [], None, 0.0)
    assert multiprocessing.get_start_method() == before
    (csv,) = tmp_path.rglob("results.csv")
    assert ciq_search.diagnose(csv).healthy
    assert ciq_search.diagnose(result).healthy
    with pytest.raises(SettingsError, match="has run already"):
        search.start()
    ciq_search.close()
    assert [
        path.name for path in (tmp_path / "ciq-search" / "search0" / "compileiq").iterdir()
    ] == []


@pytest.mark.skipif(not SEEDED, reason="this compileiq takes no seed")
def test_a_seed_repeats_a_search(ciq_search: CiqSearch) -> None:
    def scores(seed: int) -> list[int]:
        search = ciq_search(bowl, GRID, generations=2, pool_size=6, seed=seed)
        return list(search.start().get_results()["score_1"])

    assert scores(3) == scores(3) != scores(4)


@pytest.mark.skipif(SEEDED, reason="this compileiq takes a seed")
def test_a_seed_that_does_nothing_is_named(ciq_search: CiqSearch) -> None:
    search = ciq_search(bowl, GRID, generations=2, pool_size=6, seed=3)
    assert any("seed= has no effect" in note for note in search.notes)


def test_a_max_problem(ciq_search: CiqSearch) -> None:
    search = ciq_search(
        lambda config: -bowl(config), GRID, generations=3, pool_size=8, problem_type="max"
    )
    result = search.start()
    scores = [int(value) for value in result.get_results()["score_1"]]
    assert result.get_best_result()["score_1"] == max(scores) > min(scores)


def test_two_objectives_have_a_pareto_front(ciq_search: CiqSearch) -> None:
    def both(config: dict[str, int]) -> list[float]:
        return [config["x"], 100 / (1 + config["x"]) + config["y"]]

    result = ciq_search(both, GRID, generations=3, pool_size=8, objectives=2).start()
    rows = result.get_results()[["score_1", "score_2"]].to_numpy(dtype=float)
    front = [(row["score_1"], row["score_2"]) for row in result.get_best_result()]
    assert front
    for one in front:
        # CompileIQ's front keeps points that tie in one objective and lose in the other.
        assert not any((row < one).all() for row in rows)


@needs_spaces
def test_spill_bytes_over_the_ptxas_space(ciq_search: CiqSearch, ciq_ptxas: Path) -> None:
    from compileiq.search_spaces.compilers import PtxasSearchSpace

    objective = spill_bytes(ciq_ptxas)
    baseline = objective({})
    assert baseline == 940
    search = ciq_search(
        objective, PtxasSearchSpace(version="13.3"), generations=2, pool_size=8, workers=2,
        task_timeout=2,
    )  # fmt: skip
    best = search.start().get_best_result()
    assert best["score_1"] < baseline
    assert re.fullmatch("[0-9a-f]{1000,}", best["params"])
    assert objective(best["params"]) == best["score_1"]
    assert not any("network" in note for note in search.notes)


@needs_spaces
def test_a_mixed_list_and_a_bin_file(ciq_search: CiqSearch, ciq_ptxas: Path) -> None:
    spill = spill_bytes(ciq_ptxas)

    def objective(config: Any) -> float:
        acf, other = config if config else ({}, {"maxrregcount": 255})
        return spill(acf, f"-maxrregcount={other['maxrregcount']}")

    space = Path(os.environ["CIQ_SEARCH_SPACES_DIR"]) / "ptxas13.3_search_space.bin"
    search = ciq_search(
        objective, [space, {"maxrregcount": ss.choice([64, 80, 255])}], generations=1,
        pool_size=6, workers=2, task_timeout=2,
    )  # fmt: skip
    result = search.start()
    acf, other = result.get_best_result()["params"]
    assert re.fullmatch("[0-9a-f]{1000,}", acf)
    assert other["maxrregcount"] in (64, 80, 255)
    assert any(note.startswith("mixed space") for note in search.notes)


def spill_bytes(ptxas: Path) -> Any:
    def objective(config: Any, *flags: str) -> Any:
        out = Path(os.environ["TMPDIR_OF_TEST"], str(os.getpid()))
        command = [ptxas, "-v", "-arch=sm_90", EXAMPLE / "sgemm.ptx", "-o", f"{out}.cubin", *flags]
        if config:
            Path(f"{out}.acf").write_bytes(bytes.fromhex(config))
            command.append(f"--apply-controls={out}.acf")
        done = subprocess.run(command, capture_output=True, text=True)
        found = re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", done.stderr)
        return int(found[1]) + int(found[2]) if found and done.returncode == 0 else "*"

    return objective


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR_OF_TEST", str(tmp_path))


# Budgets and ends


def test_max_calls_ends_a_search_with_its_results(ciq_search: CiqSearch) -> None:
    search = ciq_search(bowl, GRID, generations=9, pool_size=6, max_calls=16, workers=2)
    result = search.start()
    assert search.calls == 16
    assert len(result.get_results()) == 13  # three were spent on the first sample
    assert search.spent == "max_calls=16"
    assert "exhausted" in ciq_search.diagnose(result).names
    assert [note for note in search.notes if "max_calls=16 is spent" in note]


def test_max_seconds_ends_a_search(ciq_search: CiqSearch) -> None:
    def slow(config: dict[str, int]) -> int:
        if config["x"] % 2:
            __import__("time").sleep(100)
        return bowl(config)

    search = ciq_search(slow, GRID, generations=9, pool_size=6, max_seconds=3, task_timeout=60)
    search.start()
    assert search.spent == "max_seconds=3"


@pytest.mark.parametrize("asked", [None, 60.0, 3.0])
def test_an_isolated_test_is_not_killed_in_its_search(
    ciq_search: CiqSearch, monkeypatch: pytest.MonkeyPatch, asked: float | None
) -> None:
    """Whatever max_seconds allows, a fifth of --ciq-timeout stays of the test's own time."""
    timeout = ciq_search._settings.timeout
    monkeypatch.setattr(child, "seconds_left", lambda: 5.0 + 0.2 * timeout)
    given: dict[str, Any] = {}
    opened = SimpleNamespace(notes=[], close=lambda: None)
    monkeypatch.setattr(searching, "open_search", lambda *_, **more: given.update(more) or opened)
    ciq_search(bowl, GRID, generations=2, max_seconds=asked)
    assert given["max_seconds"] == pytest.approx(min(asked or 5.0, 5.0))


@pytest.mark.parametrize("name", ["task_timeout", "max_seconds", "max_calls"])
@pytest.mark.parametrize("limit", [0, -1.0, math.nan])
def test_nothing_is_not_taken_for_no_limit(ciq_search: CiqSearch, name: str, limit: Any) -> None:
    for _ in range(2):
        with pytest.raises(SettingsError, match=f"{name}={limit} leaves the search nothing"):
            ciq_search(bowl, GRID, generations=2, **{name: limit})


def test_the_budget_holds_between_batches_of_other_workers(ciq_search: CiqSearch) -> None:
    search = ciq_search(bowl, GRID, generations=9, pool_size=6, max_calls=8, worker="isolated")
    assert len(search.start().get_results()) == 8
    assert any("ISOLATED ends the whole search" in note for note in search.notes)


def test_a_space_that_runs_out(ciq_search: CiqSearch) -> None:
    space = {"x": ss.range(0, 6, 1)}
    search = ciq_search(lambda config: config["x"], space, generations=14, pool_size=6)
    result = search.start()
    assert len(result.get_results()) <= 7  # each once, whatever the release tries
    if SEEDED:  # 1.0 tries old ones again, and may come upon the seventh at the very end
        assert "exhausted" in ciq_search.diagnose(result).names


# What is passed through


def test_config_and_search_fields_pass_through(ciq_search: CiqSearch, tmp_path: Path) -> None:
    csv = tmp_path / "mine.csv"
    search = ciq_search(
        lambda config: bowl(config) + 1 if config else 100, GRID, generations=1, pool_size=6,
        normalize=True, dump_results=csv, mutate_rate=0.5,
    )  # fmt: skip
    best = search.start().get_best_result()
    assert math.isclose(best["norm_score_1"], best["score_1"] / 100)
    assert "norm_score_1" in csv.read_text().splitlines()[0]
    if SEEDED:  # 1.1 ignores mutate_rate, and its warning becomes a note
        assert any("mutate_rate" in note for note in search.notes)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"worker": "threads"}, "there is no worker 'threads'"),
        ({"worker": "ray"}, "RAY is for a cluster, and none is given"),
        ({"poolsize": 8}, "ciq_search knows no poolsize"),
    ],
)
def test_mistakes_are_named(ciq_search: CiqSearch, more: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingsError, match=message):
        ciq_search(bowl, GRID, generations=1, **more)


@pytest.mark.parametrize("space", ["none.bin", 7, [{"x": ss.choice([1])}, "none.bin"]])
def test_a_space_that_is_none_is_named(ciq_search: CiqSearch, space: Any) -> None:
    with pytest.raises(SettingsError, match=r"is not a file|is no search space"):
        ciq_search(bowl, space, generations=1)


def test_the_loguru_tracker_sees_every_call(ciq_search: CiqSearch, tmp_path: Path) -> None:
    log = tmp_path / "search.log"
    search = ciq_search(
        bowl, GRID, generations=1, pool_size=6, workers=2,
        tracker=LoguruTrackerConfig(sink=str(log), enqueue=False),
    )  # fmt: skip
    search.start()
    text = log.read_text()
    assert text.count("Executing objective function with") == 6
    assert text.count("Scored: ") == 6


async def later(config: dict[str, int]) -> int:
    return bowl(config)


def test_the_async_worker_runs(ciq_search: CiqSearch) -> None:
    before = multiprocessing.get_start_method()
    search = ciq_search(later, GRID, generations=1, pool_size=6, worker=WorkerTypes.ASYNC)
    assert len(search.start().get_results()) >= 5
    assert any("ASYNC" in note for note in search.notes)
    assert multiprocessing.get_start_method() == before


NATIVE = """
import multiprocessing, os
from compileiq.search_spaces import base as ss
def objective(config):
    assert config["x"]
    return config["x"]
def test(ciq_search):
    before = multiprocessing.get_start_method()
    search = ciq_search(objective, {"x": ss.range(0, 9, 1)}, generations=1, pool_size=6,
                        worker="native", workers=2)
    assert len(search.start(task_timeout=20).get_results()) >= 5
    assert multiprocessing.get_start_method() == before
"""


def test_the_native_worker_runs(pytester: pytest.Pytester) -> None:
    """In a pytest of its own: NATIVE leaves a fork server until its process ends."""
    pytester.makepyfile(NATIVE)
    result = pytester.runpytest_subprocess("-W", "error")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*NATIVE cannot end a call*"])


# Sanity before a search


@pytest.mark.parametrize(
    ("answer", "message"),
    [((1.0,), "for one objective"), (None, "returned None"), (True, "the bool True")],
)
def test_a_bad_shape_ends_a_search_before_it_begins(
    ciq_search: CiqSearch, answer: Any, message: str
) -> None:
    search = ciq_search(lambda config: answer, GRID, generations=9, pool_size=8)
    with pytest.raises(CiqError, match=message) as info:
        search.start()
    assert info.value.reason is Reason.BAD_SHAPE
    assert search.calls == 1


def test_normalize_needs_a_baseline(ciq_search: CiqSearch) -> None:
    search = ciq_search(bowl, GRID, generations=1, pool_size=6, normalize=True)
    with pytest.raises(CiqError, match=r"on the baseline \{\} the objective raised KeyError: 'x'"):
        search.start()


def test_a_noisy_objective_is_measured(ciq_search: CiqSearch) -> None:
    """Each call has a process of its own, so its number is as good as noise."""
    search = ciq_search(lambda config: 1e6 + os.getpid(), GRID, generations=1, pool_size=6)
    search.start()
    assert search.noise is not None
    assert 0 < search.noise < 0.1
    assert any("3 calls on the first sample differ" in note for note in search.notes)
