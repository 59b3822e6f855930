"""``benchmarks/workers.py --gpu`` on a machine without one: it keeps each figure that it had."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ..conftest import ROOT

BENCHMARK = ROOT / "benchmarks" / "workers.py"
pytestmark = [
    pytest.mark.skipif(
        not os.environ.get("CIQ_SEARCH_SPACES_DIR"), reason="needs CIQ_SEARCH_SPACES_DIR"
    ),
    pytest.mark.skipif(not BENCHMARK.exists(), reason="no benchmarks beside these tests"),
]

#: In a process of ISOLATED's, whose parent is the benchmark, it does what a time limit does.
OBJECTIVE = """
import multiprocessing, os, pathlib, signal
SIZE = 1
def objective(config):
    folder = pathlib.Path(os.environ["TRITON_CACHE_DIR"])
    if multiprocessing.parent_process() is not None:
        assert not list(folder.iterdir()), "the cache of another search"
        os.kill(os.getppid(), signal.SIGKILL)
    (folder / str(os.getpid())).touch()
    return 1.0 / len(list(folder.iterdir()))
"""


def benchmark(folder: Path, *options: str) -> tuple[int, str, str]:
    """The exit status, what was printed, and what was written."""
    for name in ("workers.py", "page.py"):
        shutil.copy(BENCHMARK.with_name(name), folder)
    (folder / "triton_objective.py").write_text(OBJECTIVE)
    (folder / "nvidia-smi").write_text("#!/bin/sh\necho A stand-in\n")
    (folder / "nvidia-smi").chmod(0o755)
    process = subprocess.Popen(
        [sys.executable, "workers.py", "--gpu", "--output", "page.md", *options],
        cwd=folder,
        env={
            **os.environ,
            "PATH": f"{folder}:{os.environ['PATH']}",
            "PYTHONPATH": str(ROOT),
            "TMPDIR": str(folder),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    try:
        printed, _ = process.communicate(timeout=120)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # what a killed CompileIQ leaves
    return process.returncode, printed, (folder / "page.md").read_text()


def test_a_figure_outlives_the_kill_of_the_benchmark(tmp_path: Path) -> None:
    status, printed, written = benchmark(tmp_path)
    assert status == -signal.SIGKILL
    assert re.search(r"^\| 1 \| [\d.]+ a minute \(\d+ calls in [\d.]+ s\) \|$", written, re.M)
    assert "A stand-in" in written
    assert printed == written


def test_after_its_limit_no_figure_is_begun(tmp_path: Path) -> None:
    status, printed, written = benchmark(tmp_path, "--limit=0")
    assert status == 0
    assert written.endswith("| 1 | not begun: --limit | not begun: --limit | |\n")
    assert printed == written
