"""Are the four blocks of a unit alike? CUDA graphs with and without others around them.

    python benchmarks/edges.py

Units of copies of 1, 8 and 16 MiB, which are short enough for CUDA graphs, and whose two sides are
the same code: without edges, with one graph before and one behind, and as shipped, in turns. A
warm cache has none as shipped. Takes a quarter of a minute.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from statistics import fmean, median, pstdev
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).parent))

import effects
import kernels
import page
import runner
from runner import Record, Run

from pytest_compileiq.measure.audit import Deadline
from pytest_compileiq.measure.blocks import Form
from pytest_compileiq.measure.timer import Timer
from pytest_compileiq.measure.units import Coins, Side, log_ratio

SIZES = ("1MiB", "8MiB", "16MiB")
SHIPPED = Form.edges
EDGES = {
    "none": property(lambda form: (0, 0)),
    "1 + 1": property(lambda form: (1, 1)),
    "as shipped": SHIPPED,
}
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
                with patch.object(Form, "edges", EDGES[name]):
                    seconds = timed(size, plan).seconds
                last = timed._seconds(len(seconds), form)
                order = "".join(side.value for side in plan.order)
                record["units"].append({"order": order, "seconds": seconds, "last": last})


def tables(records: Sequence[Record]) -> list[str]:
    columns = (
        "kernel | L2 and edges | units | us | first | second | third | fourth | order effect"
        " | faster at its end | unit sd"
    )
    what = (
        "A block against the mean of its unit, median of all units. Order effect: the first and the "
        "fourth against the others, mean of all units and its standard error. How many launches at "
        f"the end of the last block, but for the very last, take {LESS:.0%} less than one of the "
        "second block: where that is all, there are more. The standard deviation of a log-ratio."
    )
    return ["", what, *page.table(columns, [_row(record) for record in records])]


def _row(record: Record) -> list[str]:
    units = [unit for unit in record["units"] if all(map(math.isfinite, unit["seconds"]))]
    places = [
        median(unit["seconds"][place] / fmean(unit["seconds"]) - 1 for unit in units)
        for place in range(4)
    ]
    launches = min(len(unit["last"]) for unit in units)  # warm: one time for all
    from_end = (
        median(unit["last"][-1 - launch] / unit["seconds"][1] - 1 for unit in units)
        for launch in range(1, launches)
    )
    less = [*takewhile(lambda one: one < -LESS, from_end)]
    order = [log_ratio([*map(Side, "ABBA")], unit["seconds"]) for unit in units]
    error = pstdev(order) / math.sqrt(len(order))
    ratios = [log_ratio([*map(Side, unit["order"])], unit["seconds"]) for unit in units]
    return [
        record["kernel"],
        record["check"],
        str(len(units)),
        f"{1e6 * median(fmean(unit['seconds']) for unit in units):.2f}",
        *(f"{one:+.1%}" for one in places),
        f"{fmean(order):+.2%} ± {error:.2%}",
        f"{len(less)} of {launches}" if launches > 1 else "",
        f"{pstdev(ratios):.2%}",
    ]


def main() -> int:
    return runner.main(__doc__, "edges", SIZES, measure, tables, sessions=80)


if __name__ == "__main__":
    sys.exit(main())
