"""How long does an answer take, after the builds? The example's kernel and its ACFs on a GPU.

    python benchmarks/verdict_time.py --out benchmarks/results

Clear questions (a min_speedup far from the truth on either side), both canaries, and the CV check
at half its limit, 20 times each; then what the statistics alone cost. Under a minute.
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import kernels

from pytest_compileiq import PtxKernel, selfcheck
from pytest_compileiq.checks.timing import Claim, Stopwatch
from pytest_compileiq.measure import decide
from pytest_compileiq.measure.betting import BettingTest
from pytest_compileiq.subjects.kernel import BASELINE, Arm, Workbench
from pytest_compileiq.toolchain import acf
from pytest_compileiq.toolchain.assembler import Assembler

EXAMPLE = Path(__file__).parents[1] / "examples" / "ptx"
REPEAT = 20


def sgemm() -> PtxKernel:
    import torch

    n = 2048
    a, b = (torch.rand(n, n, device="cuda") for _ in "ab")
    c = torch.empty_like(a)
    return PtxKernel(
        EXAMPLE / "sgemm.ptx",
        arch=kernels.arch(),
        grid=(n // 128, n // 128),
        block=256,
        args=(c, a, b, n),
    )


def timed(
    stopwatch: Stopwatch, bench: Workbench, claims: list[Claim], times: int = REPEAT
) -> list[dict[str, Any]]:
    """Compare so many times, each with new coins and a new pilot."""
    found = []
    for _ in range(times):
        began = time.perf_counter()
        measured = stopwatch.compare(bench, claims)
        found.append(
            {
                "wall_seconds": time.perf_counter() - began,
                "blocks": sum(one.blocks for one in measured),
                "statuses": [one.outcome.status.value for one in measured],
                "speedups": [one.outcome.speedup for one in measured],
                "warm_up_seconds": sum(one.pilot.warm_up_seconds for one in measured),
            }
        )
    return found


def cv(stopwatch: Stopwatch, bench: Workbench) -> tuple[list[dict[str, Any]], float]:
    """The CV check at twice the spread that a first look found."""
    first = stopwatch.spread(bench, BASELINE, 0.05).end()
    limit = 2 * max(first.short_cv or 0.0, 1e-4)
    found = []
    for _ in range(REPEAT):
        began = time.perf_counter()
        outcome = stopwatch.spread(bench, BASELINE, limit).end()
        found.append(
            {
                "wall_seconds": time.perf_counter() - began,
                "blocks": outcome.launches,
                "statuses": [outcome.status.value],
            }
        )
    return found, limit


def statistics() -> dict[str, float]:
    """Microseconds a unit, and milliseconds for an interval of 250 units."""
    draw = random.Random(1)
    values = [draw.gauss(0, 0.01) for _ in range(250)]
    began = time.perf_counter()
    for _ in range(20):
        test = BettingTest(0.0, 0.01)
        for one in values:
            test.update(one)
            _ = test.log_above, test.log_below
    unit = (time.perf_counter() - began) / (20 * len(values))
    began = time.perf_counter()
    for _ in range(20):
        test.interval(0.05)
    return {"us_a_unit": 1e6 * unit, "ms_an_interval": 1e3 * (time.perf_counter() - began) / 20}


def row(question: str, found: list[dict[str, Any]]) -> dict[str, Any]:
    statuses = [tuple(one["statuses"]) for one in found]
    return {
        "question": question,
        "times": len(found),
        "wall_seconds": median(one["wall_seconds"] for one in found),
        "most_wall_seconds": max(one["wall_seconds"] for one in found),
        "blocks": median(one["blocks"] for one in found),
        "answers": {" + ".join(key): statuses.count(key) for key in dict.fromkeys(statuses)},
        "each": found,
    }


def markdown(report: dict[str, Any]) -> str:
    lines = [
        "# How long an answer takes",
        "",
        f"`{report['command']}`, {report['date']}, {report['device']}.",
        "",
        "| question | answers | wall, median | wall, most | blocks, median |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {one['question']} | {one['answers']} | {one['wall_seconds']:.3f} s | "
        f"{one['most_wall_seconds']:.3f} s | {one['blocks']:.0f} |"
        for one in report["rows"]
    ]
    cost = report["statistics"]
    unit, interval = f"{cost['us_a_unit']:.0f} us", f"{cost['ms_an_interval']:.1f} ms"
    lines += ["", f"Statistics: {unit} a unit, {interval} an interval of 250 units."]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="0")
    parser.add_argument("--clocks", default="observe", choices=("auto", "require", "observe"))
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    args = parser.parse_args()
    assembler = Assembler()
    try:
        with selfcheck.held(args.gpu, args.clocks) as held:
            bench = Workbench(sgemm(), assembler, EXAMPLE)
            best = Arm("best.acf", acf.load(EXAMPLE / "best.acf"))
            o0, o3 = Arm("raw -O0", flags=("-O0",)), best
            bench.build([BASELINE, best, o0])
            stopwatch = Stopwatch(lambda: nullcontext(held), budget_seconds=2.0)
            first = timed(stopwatch, bench, [Claim(best, decide.win(1.0))], 1)
            rows = [row("the first of the process, warm-up and CUDA modules included", first)]
            rows += [
                row(
                    f"best.acf, min_speedup {least:g}",
                    timed(stopwatch, bench, [Claim(best, rule)]),
                )
                for least, rule in ((least, decide.win(least)) for least in (1.0, 1.02, 1.2))
            ]
            canary = [Claim(o0, decide.canary_o0()), Claim(o3, decide.not_slower())]
            rows.append(row("canary, O0 and O3", timed(stopwatch, bench, canary)))
            found, limit = cv(stopwatch, bench)
            rows.append(row(f"CV at half of {limit:.2%}", found))
            device = f"{held.gpu}, clocks {held.state}"
    finally:
        assembler.close()
    report = {
        "command": "python benchmarks/verdict_time.py",
        "date": datetime.date.today().isoformat(),
        "device": device,
        "rows": rows,
        "statistics": statistics(),
    }
    args.out.mkdir(parents=True, exist_ok=True)
    base = args.out / f"verdict_time-{report['date']}"
    base.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
    base.with_suffix(".md").write_text(markdown(report))
    print(markdown(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
