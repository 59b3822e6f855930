"""What workers do with objectives that misbehave, and how many calls they make a minute.

    python benchmarks/workers.py [--output FILE]        no GPU: both tables
    python benchmarks/workers.py --gpu [--output FILE]  calls a minute of a Triton objective

Each figure is printed, and written to FILE, as soon as it is known, so a run that is cut short
keeps those it had. With ``--limit SECONDS`` no figure is begun after so many.

Every search of the first table runs in a process of its own, as CompileIQ's workers may end it.
Half of the objective's calls misbehave; each search asks for 6 candidates, with 2 workers, a
task_timeout of 1 s, and is given up after 25 s. In the other tables the time of a search is that
of its one generation, the start of the worker included.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import page

LIMIT = 25.0
LATE = "not begun: --limit"
WORKERS = ("fork", "native", "isolated")


def worker_type(name: str) -> Any:
    """A ForkWorker's class, or the member of WorkerTypes with that name."""
    from compileiq.types import WorkerTypes

    from pytest_compileiq import ForkWorker

    return ForkWorker.using() if name == "fork" else WorkerTypes(name)


def search(objective: Any, space: Any, worker: Any, folder: Path, **config: Any) -> Any:
    from compileiq.ciq import Search

    seeded = "engine" in Search.model_fields
    return Search(
        objective_function=objective,
        search_space=space,
        search_config=config,
        worker_type=worker,
        cache_folder=folder,
        disable_progress_bar=True,
        **({"engine": {"name": "amber", "options": {"seed": 1}}} if seeded else {}),
    )


def one_search(objective: str, worker: str) -> None:
    """Runs in the process that may die: prints what came of the search as JSON."""
    import hostile_objectives
    from compileiq.search_spaces import base as ss

    chosen = worker_type(worker)
    with tempfile.TemporaryDirectory() as folder:
        made = search(
            getattr(hostile_objectives, objective),
            {"x": ss.range(0, 1000, 1)},
            chosen,
            Path(folder),
            generations=1,
            pool_size=6,
        )
        try:
            table = made.start(num_workers=2, task_timeout=1).get_results()
            invalid = int((table["score_1"].map(str).isin(["*", "nan"])).sum())
            told = f"{len(table)} candidates, {invalid} of them `*`"
        except Exception as error:
            told = f"the search ends with {type(error).__name__}"
        if worker == "fork" and chosen.tally.causes:
            counted = ", ".join(f"{count} {name}" for name, count in chosen.tally.causes.items())
            told += f" ({counted})"
    print("TOLD " + json.dumps(told), flush=True)


def cell(objective: str, worker: str) -> str:
    """What becomes of a search in a process of its own, and what it leaves."""
    mark = uuid.uuid4().hex
    command = [sys.executable, __file__, "--one", objective, worker]
    with tempfile.TemporaryFile("w+") as out:
        process = subprocess.Popen(
            command,
            stdout=out,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env={**os.environ, "CIQ_BENCHMARK": mark},
        )
        try:
            status: int | None = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            status = None
        time.sleep(0.2)  # for what ends with its parent
        left = marked(mark) - ({process.pid} if status is None else set())
        for pid in marked(mark):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        process.wait()
        out.seek(0)
        lines = [line for line in out.read().splitlines() if line.startswith("TOLD ")]
    told = json.loads(lines[-1][5:]) if lines else "no result"
    if status is None:
        told += f"; **the process does not end** within {LIMIT:g} s"
    elif status < 0:
        told += f"; **the process dies** by {signal.Signals(-status).name}"
    elif not lines:
        told += f"; **the process is gone**, with exit status {status}"
    if left:
        told += f"; **{len(left)} process{'es' if len(left) > 1 else ''} left behind**"
    return told


def marked(mark: str) -> set[int]:
    """Ids of living processes that have inherited the mark in their environment."""
    found = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                alive = ") Z" not in (entry / "stat").read_text()
                if alive and mark.encode() in (entry / "environ").read_bytes():
                    found.add(int(entry.name))
    return found


def rate(objective: Any, space: Any, worker: str, calls: int, workers: int) -> tuple[int, float]:
    """Evaluations of one generation, and the seconds that they took."""
    with tempfile.TemporaryDirectory() as folder:
        # One for all calls of a search: what Triton compiles for itself is no matter of an ACF.
        cache = Path(folder, "triton")
        cache.mkdir()
        os.environ["TRITON_CACHE_DIR"] = str(cache)
        made = search(
            objective, space, worker_type(worker), Path(folder), generations=1, pool_size=calls
        )
        started = time.monotonic()
        table = made.start(num_workers=workers, task_timeout=60).get_results()
        return len(table), time.monotonic() - started


def rates(
    objective: Any, space: Any, calls: dict[str, int], workers: tuple[int, ...], ends: float
) -> Iterator[str]:
    """Both workers after each other, in this process; ISOLATED by spawn, which CUDA needs."""
    os.environ["CIQ_PROCESS_MODE"] = "spawn"
    yield "| workers | ForkWorker | ISOLATED, spawn | ratio |\n|---|---|---|---|\n"
    for count in workers:
        yield f"| {count} |"
        a_minute = []
        for worker, pool in calls.items():
            if time.monotonic() > ends:
                yield f" {LATE} |"
                continue
            made, seconds = rate(objective, space, worker, pool, count)
            a_minute.append(60 * made / seconds)
            yield f" {a_minute[-1]:.1f} a minute ({made} calls in {seconds:.1f} s) |"
        yield f" {a_minute[0] / a_minute[1]:.1f} |\n" if len(a_minute) == 2 else " |\n"


def machine() -> str:
    versions = f"Python {platform.python_version()}, compileiq {metadata.version('compileiq')}"
    return f"{versions}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}"


def on_cpu(ends: float) -> Iterator[str]:
    import hostile_objectives
    from compileiq.search_spaces import base as ss

    yield (
        f"# Workers and objectives that misbehave\n\n{machine()}. Made by "
        "`python benchmarks/workers.py`, whose docstring says how.\n\n"
        "| objective | ForkWorker | NATIVE | ISOLATED (fork) |\n|---|---|---|---|\n"
    )
    for objective in hostile_objectives.OBJECTIVES:
        yield f"| {objective.__name__} |"
        for worker in WORKERS:
            late = time.monotonic() > ends
            yield f" {LATE if late else cell(objective.__name__, worker)} |"
        yield "\n"
    yield "\n## Evaluations a minute of an objective that takes 10 ms\n\n"
    space = {"x": ss.range(0, 100_000, 1)}
    calls = {"fork": 200, "isolated": 12}
    yield from rates(hostile_objectives.ten_ms, space, calls, (1, 2), ends)


def on_gpu(ends: float) -> Iterator[str]:
    import triton_objective
    from compileiq.search_spaces.compilers import PtxasSearchSpace

    # The driver names the card: CUDA must not be started in this process.
    card = subprocess.run(
        ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True
    ).stdout.splitlines()[0]
    yield (
        f"# Evaluations a minute of a Triton objective\n\n{card}, {machine()}. A checked "
        f"{triton_objective.SIZE}^3 fp16 product, compiled with an ACF and timed, on one GPU. "
        "The start of each worker is counted. Made by `python benchmarks/workers.py --gpu`.\n\n"
    )
    space, calls = PtxasSearchSpace(version="13.3"), {"fork": 12, "isolated": 6}
    yield from rates(triton_objective.objective, space, calls, (1,), ends)


def parts(args: argparse.Namespace) -> Iterator[str]:
    if args.one:
        one_search(*args.one)
        return iter(())
    return (on_gpu if args.gpu else on_cpu)(time.monotonic() + args.limit)


if __name__ == "__main__":
    page.main(
        __doc__,
        parts,
        {
            "--gpu": {"action": "store_true"},
            "--limit": {"type": float, "default": math.inf, "help": "seconds"},
            "--one": {"nargs": 2, "help": argparse.SUPPRESS},
        },
    )
