"""What workers do with objectives that misbehave, and how many calls they make a minute.

    python benchmarks/workers.py [--output FILE]        no GPU: both tables
    python benchmarks/workers.py --gpu [--output FILE]  calls a minute of a Triton objective

Every search of the first table runs in a process of its own, as CompileIQ's workers may end it.
Half of the objective's calls misbehave; each search asks for 6 candidates, with 2 workers, a
task_timeout of 1 s, and is given up after 25 s.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any

LIMIT = 25.0
WORKERS = ("fork", "native", "isolated")
HERE = Path(__file__).parent


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
        started = time.monotonic()
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
        seconds = time.monotonic() - started
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
    print(f"{objective:<20} {worker:<9} {seconds:5.1f} s  {told}", file=sys.stderr)
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


def rate(objective: Any, space: Any, worker: str, calls: int, workers: int) -> float:
    """Evaluations a minute of one generation, the start of the worker included."""
    with tempfile.TemporaryDirectory() as folder:
        made = search(
            objective, space, worker_type(worker), Path(folder), generations=1, pool_size=calls
        )
        started = time.monotonic()
        table = made.start(num_workers=workers, task_timeout=120).get_results()
        return len(table) / (time.monotonic() - started) * 60


def rates(objective: Any, space: Any, calls: tuple[int, int], workers: tuple[int, ...]) -> str:
    """Both workers after each other, in this process; ISOLATED by spawn, which CUDA needs."""
    os.environ["CIQ_PROCESS_MODE"] = "spawn"
    lines = [
        "| workers | ForkWorker | ISOLATED, spawn | ratio |",
        "|---|---|---|---|",
    ]
    for count in workers:
        ours = rate(objective, space, "fork", calls[0], count)
        theirs = rate(objective, space, "isolated", calls[1], count)
        lines.append(
            f"| {count} | {ours:.0f} a minute ({calls[0]} calls) | {theirs:.1f} a minute "
            f"({calls[1]} calls) | {ours / theirs:.1f} |"
        )
    return "\n".join(lines)


def machine() -> str:
    versions = f"Python {platform.python_version()}, compileiq {metadata.version('compileiq')}"
    return f"{versions}, {len(os.sched_getaffinity(0))} cores, load {os.getloadavg()[0]:.1f}"


def on_cpu() -> str:
    import hostile_objectives
    from compileiq.search_spaces import base as ss

    cells = [
        [objective.__name__, *(cell(objective.__name__, worker) for worker in WORKERS)]
        for objective in hostile_objectives.OBJECTIVES
    ]
    table = ["| objective | ForkWorker | NATIVE | ISOLATED (fork) |", "|---|---|---|---|"]
    table += [f"| {' | '.join(row)} |" for row in cells]
    space = {"x": ss.range(0, 100_000, 1)}
    minute = rates(hostile_objectives.ten_ms, space, (200, 12), (1, 2))
    return (
        f"# Workers and objectives that misbehave\n\n{machine()}. Made by "
        "`python benchmarks/workers.py`, whose docstring says how.\n\n"
        + "\n".join(table)
        + "\n\n## Evaluations a minute of an objective that takes 10 ms\n\n"
        + minute
        + "\n"
    )


def on_gpu() -> str:
    import triton_objective
    from compileiq.search_spaces.compilers import PtxasSearchSpace

    # The driver names the card: CUDA must not be started in this process.
    card = subprocess.run(
        ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True
    ).stdout.splitlines()[0]
    space = PtxasSearchSpace(version="13.3")
    minute = rates(triton_objective.objective, space, (32, 16), (1,))
    return (
        f"# Evaluations a minute of a Triton objective\n\n{card}, {machine()}. A checked "
        f"{triton_objective.SIZE}^3 fp16 product, compiled with an ACF and timed, on one GPU. "
        "Made by `python benchmarks/workers.py --gpu`.\n\n" + minute + "\n"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path.insert(0, str(HERE))
    if options.one:
        one_search(*options.one)
        return
    text = on_gpu() if options.gpu else on_cpu()
    print(text)
    if options.output:
        options.output.write_text(text)


if __name__ == "__main__":
    main()
