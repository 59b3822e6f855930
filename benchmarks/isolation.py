"""What a process of its own costs a test: ``python benchmarks/isolation.py [--items N]``.

Runs a suite of empty tests that use ``ciq``, isolated and not, with a test module that imports
nothing, numpy, or torch. Prints a table: milliseconds a test (median, 95th percentile), what
isolation adds to the median, what it adds in CPU time (all processes; this one stays true on a
busy machine), and the private memory of zygote and child.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

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
        before = os.times()
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=True
        )
        after = os.times()
    found = json.loads(done.stdout.partition("TIMES ")[2].splitlines()[0])
    memory = re.search(r"MEMORY (\S+) (\S+)", done.stdout)
    assert memory is not None
    cpu = after.children_user + after.children_system
    cpu -= before.children_user + before.children_system
    return found | {
        "cpu": cpu * 1000 / items,
        "zygote": float(memory[1]),
        "child": float(memory[2]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--items", type=int, default=200)
    parser.add_argument("--runs", type=int, default=3, help="the best of so many is taken")
    options = parser.parse_args()
    print(f"Python {sys.version.split()[0]}, {options.items} tests, best of {options.runs} runs")
    print(
        "| module imports | isolated, median / p95 | in one process | added | added CPU | zygote / child |"
    )
    print("|---|---|---|---|---|---|")
    for module in ("", "numpy", "torch"):
        if module and find_spec(module) is None:
            print(f"| {module} | not installed | | | | |")
            continue

        def best(isolate: str, module: str = module) -> dict[str, float]:
            runs = [measure(module, options.items, isolate) for _ in range(options.runs)]
            return min(runs, key=lambda run: run["median"])

        alone, plain = best("require"), best("off")
        print(
            f"| {module or 'nothing'} | {alone['median']:.1f} / {alone['p95']:.1f} ms "
            f"| {plain['median']:.1f} ms | {alone['median'] - plain['median']:.1f} ms "
            f"| {alone['cpu'] - plain['cpu']:.1f} ms "
            f"| {alone['zygote']:.0f} / {alone['child']:.0f} MB |"
        )


if __name__ == "__main__":
    main()
