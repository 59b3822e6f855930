"""Known effects on a real GPU: idle cycles are added to a kernel; are they found, and when?

    python benchmarks/effects.py --out benchmarks/results

For each effect, sessions on three kernels that copy 1, 16 and 96 MiB: the baseline idles for so
many cycles more that it is slower by 0.5, 1, 2, 5 or 10 %. "aim" is twice the launches of the
simulation (`errors.py`, 1 % jitter). Takes about two minutes.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import sys
import time
from pathlib import Path
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import kernels

from pytest_compileiq import selfcheck
from pytest_compileiq.measure import units
from pytest_compileiq.measure.cuda import CudaDriver
from pytest_compileiq.measure.decide import Rule
from pytest_compileiq.measure.timer import Timer
from pytest_compileiq.measure.units import Budget, Comparison
from pytest_compileiq.verdict import Status

EFFECTS = (0.005, 0.01, 0.02, 0.05, 0.10)
#: Launches of the simulation at these effects (scenario "ci"), alpha 0.05.
SIMULATED = (177, 71, 47, 42, 43)
#: Both sides idle for this long, so that only the difference in cycles tells them apart.
FLOOR = 4000
SIZES = (1 << 20, 16 << 20, 96 << 20)


def cycles_of(driver: CudaDriver, timer: Timer, subject: kernels.Idle) -> float:
    """SM cycles that the kernel takes: its time in the form it is timed in, times the clock."""
    pilot = timer.add("cycles", subject.pair(FLOOR, FLOOR))
    launch = subject.build(FLOOR).launch
    assert launch is not None
    clocks = []
    for _ in range(5):
        driver.close_gate()
        driver.probe(0)
        for _ in range(50):
            launch()
        driver.probe(1)
        driver.open_gate()
        clocks.append(driver.mhz(0, 1))
    return median(pilot.seconds) * median(clocks) * 1e6


def sessions(
    timer: Timer, subject: kernels.Idle, cycles: float, effect: float, count: int, seed: int
) -> list[tuple[Comparison, float]]:
    found = []
    rule = Rule(ratio=1.0, alpha_pass=0.05, alpha_fail=0.05)
    pair = subject.pair(FLOOR + round(effect * cycles), FLOOR)
    for number in range(count):
        began = time.perf_counter()
        pilot = timer.add("k", pair)
        one = Comparison("k", rule, pilot.seconds, seed + number, block_seconds=pilot.block_seconds)
        units.run([one], timer, budget=Budget(gpu_seconds=math.inf))
        found.append((one, time.perf_counter() - began))
    return found


def row(
    name: str, effect: float, aim: int, found: list[tuple[Comparison, float]]
) -> dict[str, Any]:
    outcomes = [one.outcome for one, _ in found if one.outcome is not None]
    return {
        "kernel": name,
        "effect": effect,
        "sessions": len(outcomes),
        "found": sum(one.status is Status.PASS for one in outcomes),
        "wrong": sum(one.status is Status.FAIL and one.end == "decided" for one in outcomes),
        "blocks": fmean(len(one.pilot) + 4 * len(one.units) for one, _ in found),
        "aim": 2 * aim,
        "measured": median(one.speedup or math.nan for one in outcomes) - 1,
        "wall_seconds": median(seconds for _, seconds in found),
        "rejected": sum(unit.rejected is not None for one, _ in found for unit in one.units),
    }


def markdown(report: dict[str, Any]) -> str:
    lines = [
        "# Known effects",
        "",
        f"`{report['command']}`, {report['date']}, {report['device']}.",
        "",
        "| kernel | added | measured | found | wrong | blocks | aim | wall a verdict |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {one['kernel']} | {one['effect']:.1%} | {one['measured']:.2%} | "
        f"{one['found']} / {one['sessions']} | {one['wrong']} | {one['blocks']:.0f} | "
        f"<= {one['aim']} | {one['wall_seconds']:.3f} s |"
        for one in report["rows"]
    ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="0")
    parser.add_argument("--sessions", type=int, default=20)
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    args = parser.parse_args()
    rows = []
    with selfcheck.held(args.gpu) as held:
        driver = CudaDriver()
        timer = Timer(driver, seed=args.seed, reasons=held.monitor.reasons)
        cubin = kernels.idle_cubin(kernels.arch())
        samples: dict[str, list[Comparison]] = {}
        for size in SIZES:
            subject = kernels.Idle(cubin, size)
            cycles = cycles_of(driver, timer, subject)
            for effect, aim in zip(EFFECTS, SIMULATED, strict=True):
                found = sessions(timer, subject, cycles, effect, args.sessions, args.seed)
                rows.append(row(subject.kernel.name, effect, aim, found))
                print(rows[-1], flush=True)
                samples[f"{subject.kernel.name} + {effect:.1%}"] = [one for one, _ in found]
        report = {
            "command": "python benchmarks/effects.py",
            "date": datetime.date.today().isoformat(),
            "device": f"{held.gpu}, clocks {held.state}",
            "rows": rows,
        }
    base = args.out / f"effects-{report['date']}"
    args.out.mkdir(parents=True, exist_ok=True)
    base.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    base.with_suffix(".md").write_text(markdown(report))
    selfcheck.write(
        args.out / f"effects-{report['date']}.samples.json.gz",
        args.seed, report["device"], {}, samples,
    )  # fmt: skip
    print(markdown(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
