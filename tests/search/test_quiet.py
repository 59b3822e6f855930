"""Nothing of compileiq's reaches the user: no warning, traceback, or process, in any kind of run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

TEST = """
import multiprocessing, os, signal, sys, time
import pytest
from compileiq.search_spaces import base as ss

def objective(config):
    print("a word of the objective")
    if config["x"] % 3 == 0:
        os.kill(os.getpid(), signal.SIGSEGV)
    return config["x"]

@pytest.mark.parametrize("n", range(2))
def test_search(ciq_search, n):
    search = ciq_search(objective, {"x": ss.range(0, 60, 1)}, generations=1, pool_size=6, seed=n,
                        workers=2, task_timeout=5, mutate_rate=0.3, exit_on_failure=False)
    assert len(search.start().get_results()) > 3  # compileiq 1.0 leaves repeated ones out
    assert multiprocessing.get_start_method() == METHOD

def test_opened_and_never_started(ciq_search):
    ciq_search(objective, {"x": ss.range(0, 60, 1)}, generations=2, pool_size=6)

METHOD = multiprocessing.get_start_method()
"""

RUNS = {
    "errors for warnings": ["-W", "error"],
    "no capturing": ["-W", "error", "-s"],
    "xdist": ["-W", "error", "-n", "1"],
    "isolated": ["-W", "error", "--ciq-isolate=require"],
}


@pytest.mark.parametrize("arguments", RUNS.values(), ids=RUNS)
def test_nothing_reaches_the_user(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, arguments: list[str]
) -> None:
    pytester.makepyfile(TEST)
    monkeypatch.setenv("HOME", str(pytester.path / "home"))
    result = pytester.runpytest_subprocess(*arguments, "-p", "no:cacheprovider", timeout=120)
    result.assert_outcomes(passed=3)
    text = result.stdout.str() + result.stderr.str()
    for word in (
        "Traceback",
        "Warning:",
        "Exception ignored",
        "Generation",
        "Segmentation",
        "leak",
    ):
        assert word not in text, word
    if arguments[-1] == "-s":
        assert "a word of the objective" in text
    assert not (pytester.path / "home" / ".cache").exists()
    ours = {path.name for path in pytester.path.iterdir() if "pytest-" not in path.name}
    assert ours <= {"test_nothing_reaches_the_user.py", "home", "__pycache__", "stdout", "stderr"}


def test_a_script_that_never_closes_its_search_ends_without_a_word(tmp_path: Path) -> None:
    """compileiq's own Search.__del__ prints an ImportError's traceback there."""
    code = f"""
import pathlib
from compileiq.search_spaces import base as ss
from pytest_compileiq import open_search
search = open_search(lambda config: config["x"], {{"x": ss.range(0, 60, 1)}},
                     folder=pathlib.Path({str(tmp_path)!r}), generations=1, pool_size=6, workers=2)
print(len(search.start().get_results()) > 0)
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compileiq", "results.csv"]
    assert not list((tmp_path / "compileiq").iterdir())


@pytest.mark.parametrize("by", ["option", "variable"])
def test_what_is_kept_is_printed(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    pytester.makepyfile(TEST)
    if by == "variable":
        monkeypatch.setenv("CIQ_KEEP_CACHE", "1")
    options = ["--ciq-keep"] if by == "option" else []
    result = pytester.runpytest_subprocess("-k", "test_search and 0", *options)
    (line,) = [line for line in result.outlines if "results are in" in line]
    folder = Path(line.rpartition(" ")[2])
    assert (folder / "search0" / "results.csv").exists()
    assert len(list((folder / "search0" / "compileiq").iterdir())) == 1
    subprocess.run(["rm", "-r", str(folder)], check=True)


def test_notes_are_told_at_the_end_and_ride_through_xdist(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("""
        from compileiq.search_spaces import base as ss
        def test(ciq_search):
            ciq_search(lambda c: c["x"], {"x": ss.range(0, 60, 1)}, generations=9, pool_size=6,
                       max_calls=10).start()
    """)
    result = pytester.runpytest_subprocess("-n", "1")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["*= compileiq =*", "*.py::test: ended early: max_calls=10 is spent"]
    )
