"""What a process of its own costs a test: ``python benchmarks/isolation.py [--items N ...]``.

Runs suites of N empty tests that use ``ciq``, isolated and not, with a test module that imports
nothing, numpy, or torch. Prints a table: milliseconds a test (median, 95th percentile), the same
in one process, what isolation adds to the median, and the private memory of zygote and child.
In one process only the largest suite is run: the first test there pays imports for all.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import page

CONFTEST = """
import json, statistics, time
import pytest
TIMES = []
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    start = time.perf_counter()
    result = yield
    if "test_empty" in item.name:
        TIMES.append((time.perf_counter() - start) * 1000)
    return result
def pytest_sessionfinish():
    TIMES.sort()
    line = {"median": statistics.median(TIMES), "p95": TIMES[int(len(TIMES) * 0.95)]}
    print("TIMES", json.dumps(line))
"""

SUITE = """
import os, re
import pytest
IMPORT
@pytest.mark.parametrize("n", range(ITEMS))
def test_empty(ciq, n): pass
def own(pid):
    text = open(f"/proc/{pid}/smaps_rollup").read()
    return sum(int(kb) for kb in re.findall(r"Private_\\w+: +(\\d+) kB", text)) / 1024
def test_memory(ciq): print("MEMORY", own(os.getppid()), own(os.getpid()))
"""


def measure(module: str, items: int, isolate: str) -> dict[str, float]:
    """Run the suite once. Times in ms, memory in MB."""
    with tempfile.TemporaryDirectory() as folder:
        suite = SUITE.replace("ITEMS", str(items))
        suite = suite.replace("IMPORT", f"import {module}" if module else "")
        Path(folder, "conftest.py").write_text(CONFTEST)
        Path(folder, "test_it.py").write_text(suite)
        Path(folder, "pytest.ini").write_text("[pytest]\n")
        command = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider"]
        command += ["-p", "compileiq", f"--ciq-isolate={isolate}"]
        environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
    found = json.loads(done.stdout.partition("TIMES ")[2].splitlines()[0])
    memory = re.search(r"MEMORY (\S+) (\S+)", done.stdout)
    assert memory is not None
    return found | {"zygote": float(memory[1]), "child": float(memory[2])}


def best(module: str, items: int, isolate: str, runs: int) -> dict[str, float]:
    """The run with the smallest median, as other work on the machine only adds."""
    found = [measure(module, items, isolate) for _ in range(runs)]
    return min(found, key=lambda run: run["median"])


def table(args: argparse.Namespace) -> Iterator[str]:
    yield f"Python {sys.version.split()[0]}, best of {args.runs} runs\n"
    columns = "module imports | tests | isolated, median / p95 | in one process | added"
    yield "\n".join(page.table(f"{columns} | zygote / child", [])) + "\n"
    for module in ("", "numpy", "torch"):
        if module and find_spec(module) is None:
            yield page.row([module, "not installed", *[""] * 4]) + "\n"
            continue
        plain = best(module, max(args.items), "off", args.runs)["median"]
        for items in args.items:
            alone = best(module, items, "require", args.runs)
            cells = [
                module or "nothing",
                items,
                f"{alone['median']:.1f} / {alone['p95']:.1f} ms",
                f"{plain:.1f} ms",
                f"{alone['median'] - plain:.1f} ms",
                f"{alone['zygote']:.0f} / {alone['child']:.0f} MB",
            ]
            yield page.row(cells) + "\n"


if __name__ == "__main__":
    items = {"type": int, "nargs": "+", "default": [200], "help": "tests of a suite"}
    runs = {"type": int, "default": 3, "help": "the best of so many is taken"}
    page.main(__doc__, table, {"--items": items, "--runs": runs})
