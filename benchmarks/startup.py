"""What the plugin adds to the start of pytest, and to one static check.

    python benchmarks/startup.py            # on a quiet machine, with bytecode caching on

Start: ``pytest --collect-only -q`` on one trivial test with and without the plugin, 61
alternating pairs after two warm-ups; medians. Between two runs that both lack the plugin stands
the machine's own noise, so that is measured in the same loop and printed beside it. Check: the canary, resources and win of
examples/ptx, against the time of its ptxas runs alone.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import page

from pytest_compileiq.checks import canary, resources, win
from pytest_compileiq.marks import CanaryParams, ResourcesParams, WinParams
from pytest_compileiq.subjects.kernel import Workbench
from pytest_compileiq.subjects.ptx import PtxKernel
from pytest_compileiq.toolchain import ptxas, sidecar
from pytest_compileiq.toolchain.assembler import Assembler

EXAMPLE = Path(__file__).parent.parent / "examples" / "ptx"


def start_up(pairs: int = 61) -> Iterator[str]:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_trivial.py").write_text("def test_trivial(): pass\n")
        env = {name: value for name, value in os.environ.items() if name[:6] != "PYTHON"}

        def seconds(*more: str) -> float:
            started = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "pytest", "--collect-only", "-q", *more],
                cwd=folder, env=env, check=True, stdout=subprocess.DEVNULL,
            )  # fmt: skip
            return time.perf_counter() - started

        seconds()
        seconds("-p", "no:compileiq")
        off = ("-p", "no:compileiq")
        measured = [(seconds(), seconds(*off), seconds(*off)) for _ in range(pairs)]
    bare = statistics.median(1000 * b for _, b, _ in measured)
    for name, runs in (
        ("start-up", [(with_it, without) for with_it, without, _ in measured]),
        ("noise (without against without)", [(one, other) for _, one, other in measured]),
    ):
        added = [1000 * (a - b) for a, b in runs]
        low, middle, high = statistics.quantiles(added)
        ratio = statistics.median(a / b for a, b in runs)
        yield (
            f"{name}: {middle:+.1f} ms (quartiles {low:+.1f} and {high:+.1f}), {ratio:.3f}x of "
            f"{bare:.0f} ms, {pairs} pairs\n"
        )


def one_check(repeats: int = 7) -> Iterator[str]:
    found = ptxas.find()
    overheads = []
    for _ in range(repeats):
        runs: list[float] = []
        assembler = Assembler(explicit=found.path)
        bench = Workbench(PtxKernel("sgemm.ptx", arch="sm_90"), assembler, EXAMPLE)
        with timed_ptxas(runs):
            started = time.perf_counter()
            best, worst = sidecar.load(EXAMPLE / "best.acf"), sidecar.load(EXAMPLE / "worst.acf")
            known = canary.KnownAcfs(worst, best, None)
            canary.judge_kernel(bench, known, CanaryParams(), accept=False)
            resources.judge_kernel(bench, best, ResourcesParams(no_worse=True), accept=False)
            win.judge_kernel(bench, best, WinParams(), accept=False)
            total = time.perf_counter() - started
        assembler.close()
        # What the runs take side by side is at least the longest of them.
        side_by_side = max(max(runs), sum(runs) / len(os.sched_getaffinity(0)))
        overheads.append(1000 * (total - side_by_side))
    yield (
        f"three checks of sgemm: {len(runs)} runs of ptxas, "
        f"{statistics.median(overheads):.0f} ms beside them (median of {repeats})\n"
    )


@contextlib.contextmanager
def timed_ptxas(runs: list[float]) -> Iterator[None]:
    """Note the seconds of each assembly in ``runs``."""
    real = ptxas.assemble

    def timed(*args: Any, **kwargs: Any) -> Any:
        started = time.perf_counter()
        try:
            return real(*args, **kwargs)
        finally:
            runs.append(time.perf_counter() - started)

    ptxas.assemble = timed
    try:
        yield
    finally:
        ptxas.assemble = real


if __name__ == "__main__":
    page.main(__doc__, lambda args: itertools.chain(start_up(), one_check()))
