"""Known effects on a real GPU: idle cycles are added to a kernel; are they found, and when?

    python benchmarks/effects.py --limit 120

For each effect, sessions on three kernels that copy 1, 16 and 96 MiB: the baseline idles for so
many cycles more that it is slower by 0.5, 1, 2, 5 or 10 %. "aim" is twice the launches of the
simulation (`errors.py`, 1 % jitter). Takes about a minute and a half.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median

sys.path.insert(0, str(Path(__file__).parent))

import kernels
import page
import runner
from runner import Record, Run

from pytest_compileiq.measure.audit import Deadline
from pytest_compileiq.measure.timer import Pair

#: Effects, and the launches of the simulation at each (scenario "ci"), alpha 0.05.
SIMULATED = {0.005: 177, 0.01: 71, 0.02: 47, 0.05: 42, 0.10: 43}
#: Both sides idle for this long, so that only the difference in cycles tells them apart.
FLOOR = 4000
SIZES = ("1MiB", "16MiB", "96MiB")
#: Units of a session at most: the product's 1000 blocks.
UNITS = 246


class Known:
    """A copy of so many MiB whose baseline can be made slower by a known share."""

    def __init__(self, run: Run, size: str) -> None:
        self._subject = kernels.Idle(
            kernels.idle_cubin(kernels.arch()), int(size.removesuffix("MiB")) << 20
        )
        self._cycles = self._cycles_of(run)

    def pair(self, effect: float) -> Pair:
        return self._subject.pair(FLOOR + round(effect * self._cycles), FLOOR)

    def _cycles_of(self, run: Run) -> float:
        """SM cycles of the kernel: its time in the form it is timed in, times the clock."""
        pilot = run.timer.add("cycles", self._subject.pair(FLOOR, FLOOR))
        launch = self._subject.build(FLOOR).launch
        assert launch is not None
        launch()  # loads the code, which would wait for ever behind a closed gate
        clocks: list[float] = []
        for _ in range(5):
            run.driver.close_gate()
            run.driver.probe(0)
            for _ in range(50):
                launch()
            run.driver.probe(1)
            run.driver.open_gate()
            clocks.append(run.driver.mhz(0, 1))
        # Where no clock can be told the effects are other ones, and "measured" says which.
        mhz = median([one for one in clocks if one] or [1500.0])
        return median(pilot.seconds) * mhz * 1e6


def measure(run: Run, size: str, deadline: Deadline) -> None:
    known = Known(run, size)
    for (effect, aim), due in deadline.shared(list(SIMULATED.items())):
        record = run.record(f"copy {size}", f"+{effect:.1%}", effect=effect, aim=2 * aim)
        for _ in run.sessions(record, known.pair(effect), due, units=UNITS):
            pass


def tables(records: Sequence[Record]) -> list[str]:
    return page.table(
        "kernel | added | measured | found | wrong | blocks | aim | wall a verdict",
        [_row(record) for record in records if record["samples"]],
    )


def _row(record: Record) -> list[str]:
    samples = record["samples"]
    claims = [runner.claim(one) for one in samples]
    return [
        record["kernel"],
        f"{record['effect']:.1%}",
        f"{median(one['outcome']['speedup'] or math.nan for one in samples) - 1:.2%}",
        f"{claims.count('faster')} / {len(samples)}",
        str(claims.count("slower")),
        f"{fmean(map(runner.blocks, samples)):.0f}",
        f"<= {record['aim']}",
        f"{median(record['wall_seconds']):.3f} s",
    ]


def main() -> int:
    return runner.main(__doc__, "effects", SIZES, measure, tables, sessions=20)


if __name__ == "__main__":
    sys.exit(main())
