"""Are the four blocks of a unit alike? CUDA graphs with and without others around them.

    python benchmarks/edges.py

Units of copies of 1, 8 and 16 MiB, which are short enough for CUDA graphs, and whose two sides are
the same code: without edges, with one graph before and one behind, and as shipped, in turns. A
warm cache has none as shipped. Takes half a minute.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from statistics import fmean, median, pstdev

sys.path.insert(0, str(Path(__file__).parent))

import effects
import kernels
import page
import runner
from runner import Record, Run

from pytest_compileiq.measure import timer
from pytest_compileiq.measure.audit import Deadline
from pytest_compileiq.measure.timer import Timer
from pytest_compileiq.measure.units import Coins, Side, log_ratio

SIZES = ("1MiB", "8MiB", "16MiB")
SHIPPED = timer._edges
EDGES = {"none": lambda form: (0, 0), "1 + 1": lambda form: (1, 1), "as shipped": SHIPPED}
#: A launch at the end of the last block is unlike the rest if it takes so much less.
LESS = 0.01


def measure(run: Run, size: str, deadline: Deadline) -> None:
    subject = kernels.Idle(kernels.idle_cubin(kernels.arch()), int(size.removesuffix("MiB")) << 20)
    pair = subject.pair(effects.FLOOR, effects.FLOOR)
    for cold, due in deadline.shared([True, False]):
        timed = Timer(run.driver, seed=run.args.seed, cold=cold)
        form = timed.add(size, pair).form
        if not form.graph:
            raise RuntimeError(f"a copy of {size} takes too long here for a CUDA graph")
        state = "cold" if cold else "warm"
        records = {
            name: run.record(f"copy {size}", f"{state}, edges: {name}", units=[])
            for name in EDGES
            if cold or EDGES[name] is not SHIPPED
        }
        coins = Coins(run.args.seed, size)
        for turn in range(run.args.sessions):
            if turn and due.left < 0:
                break
            for name, record in records.items():
                plan = coins.plan()
                timer._edges = EDGES[name]
                try:
                    began = time.perf_counter()
                    seconds = timed(size, plan).seconds
                    record["wall_seconds"].append(time.perf_counter() - began)
                finally:
                    timer._edges = SHIPPED
                last = timed._seconds(len(seconds), form)
                order = "".join(side.value for side in plan.order)
                record["units"].append({"order": order, "seconds": seconds, "last": last})


def tables(records: Sequence[Record]) -> list[str]:
    columns = (
        "kernel | L2 and edges | units | us | first | second | third | fourth"
        " | faster at its end | unit sd | wall a unit"
    )
    what = (
        "A block against the mean of its unit, median of all units; how many launches at the end of "
        f"the last block, but for the very last, take {LESS:.0%} less than a launch of the second "
        "block; the standard deviation of a unit's log-ratio."
    )
    return ["", what, *page.table(columns, [_row(record) for record in records])]


def _row(record: Record) -> list[str]:
    units = record["units"]
    places = [
        median(unit["seconds"][place] / fmean(unit["seconds"]) - 1 for unit in units)
        for place in range(4)
    ]
    launches = len(units[0]["last"])  # warm: one time for all
    from_end = (
        median(unit["last"][launch] / unit["seconds"][1] - 1 for unit in units)
        for launch in reversed(range(launches - 1))
    )
    less = [*takewhile(lambda one: one < -LESS, from_end)]
    ratios = [log_ratio([*map(Side, unit["order"])], unit["seconds"]) for unit in units]
    return [
        record["kernel"],
        record["check"],
        str(len(units)),
        f"{1e6 * median(fmean(unit['seconds']) for unit in units):.2f}",
        *(f"{one:+.1%}" for one in places),
        f"{len(less)} of {launches}" if launches > 1 else "",
        f"{pstdev(ratios):.2%}",
        f"{1e3 * median(record['wall_seconds']):.0f} ms",
    ]


def main() -> int:
    return runner.main(__doc__, "edges", SIZES, measure, tables, sessions=80)


if __name__ == "__main__":
    sys.exit(main())
