"""False claims and power of the shipped verdicts, by simulation and on recorded traces.

    python benchmarks/errors.py [--runs 2000] [--jobs 2] [--traces DIR] [--only pairs,cv,...]

Every run goes through the shipped code, one call a unit: ``Comparison`` and ``run`` draw the
coins, judge and stop. Only the times are simulated, or taken from a trace of one kernel timed
against itself, for which fresh coins say which launch was whose. Null cells of the models get
four times the runs.
Writes ``benchmarks/results/errors-<date>.json`` and ``.md`` unless ``--no-write``.
"""

from __future__ import annotations

import argparse
import datetime
import json
import math
import multiprocessing
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import noise
import numpy as np
import tables

from pytest_compileiq.measure import decide
from pytest_compileiq.measure.decide import Rule
from pytest_compileiq.measure.opaque import OpaqueTest
from pytest_compileiq.measure.spread import SpreadTest, classic_cv
from pytest_compileiq.measure.units import Budget, Comparison, Plan, Side, Timed, Unit, run
from pytest_compileiq.verdict import Reason, Status

UNITS = 246  # 16 pilot launches and 4 a unit in a budget of 1000
ALPHAS = (0.05, 0.01)
EFFECTS = (0.0, 0.005, 0.01, 0.02, 0.05, 0.10)
CHUNK = 250


@dataclass(frozen=True)
class Cell:
    table: str
    scene: str
    case: str
    simulate: Callable[[np.random.Generator, int], list[dict[str, Any]]]
    runs: int


def compare(
    draw: noise.Sessions, effect: float, rule: Rule, rng: np.random.Generator, runs: int
) -> list[dict[str, Any]]:
    """Sessions of one candidate that is ``1 + effect`` times as fast as its baseline."""
    rows = []
    shift = {Side.BASE: 0.0, Side.CANDIDATE: math.log1p(effect)}
    for pilot, quads, seats in zip(*draw(rng, runs), strict=True):
        place = {side: seats[:, k] for k, side in enumerate(Side)}
        unit = iter(range(len(quads)))

        def time_unit(
            _: str,
            plan: Plan,
            unit: Iterator[int] = unit,
            quads: noise.Floats = quads,
            place: dict[Side, noise.Floats] = place,
        ) -> Timed:
            k = next(unit)
            moved = [place[side][k] - shift[side] for side in plan.order]
            return Timed(tuple(np.exp(quads[k] + moved).tolist()))

        one = Comparison("kernel", rule, np.exp(pilot).tolist(), int(rng.integers(2**62)))
        run([one], time_unit, budget=Budget(gpu_seconds=math.inf))
        assert one.outcome is not None
        above = rule.slower_passes
        rows.append(
            {
                "faster": one.outcome.status is (Status.FAIL if above else Status.PASS)
                and one.outcome.reason is not Reason.NO_WIN,
                "slower": one.outcome.status is (Status.PASS if above else Status.FAIL)
                and one.outcome.reason is not Reason.NO_WIN,
                "no_win": one.outcome.reason is Reason.NO_WIN,
                "cost": 16 + 4 * one.outcome.units,
            }
        )
    return rows


def call(
    scene: noise.Scenario, effect: float, alpha: float, rng: np.random.Generator, runs: int
) -> list[dict[str, Any]]:
    rows = []
    rule = decide.Rule(ratio=1.0, alpha_pass=alpha, alpha_fail=alpha)
    for path in noise.calls(rng, scene, runs, 70):
        test = OpaqueTest([rule], seed=int(rng.integers(2**62)))
        scores = iter(path)
        while (side := test.ask()) is not None:
            faster = math.log1p(effect) if side is Side.CANDIDATE else 0.0
            test.tell([math.exp(next(scores) - faster)])
        assert test.outcome is not None
        verdict = test.outcome
        rows.append(
            {
                "faster": verdict.status is Status.PASS,
                "slower": verdict.reason is Reason.SLOWER,
                "no_win": verdict.reason is Reason.NO_WIN,
                "cost": verdict.calls - 2,  # the study did not count the two throw-away calls
            }
        )
    return rows


def spread(
    scene: noise.Scenario, limit: float, alpha: float, rng: np.random.Generator, runs: int
) -> list[dict[str, Any]]:
    """ "faster" is "below the limit", "slower" is "above"; "classic" is the usual n = 100."""
    rows = []
    for path in noise.sessions(rng, scene, runs, 1200):
        test = SpreadTest(limit, alpha_pass=alpha, alpha_fail=alpha)
        times = np.exp(path).tolist()
        for one in times:
            if test.update(one):
                break
        outcome = test.end()
        rows.append(
            {
                "faster": outcome.status is Status.PASS,
                "slower": outcome.status is Status.FAIL,
                "classic": (classic_cv(times[:100]) or 0) <= limit,
                "cost": outcome.launches,
            }
        )
    return rows


# Cells hold functions that a worker process can receive: classes, not closures.
@dataclass(frozen=True)
class Pairs:
    scene: noise.Scenario | noise.Trace
    effect: float
    rule: Rule

    def __call__(self, rng: np.random.Generator, runs: int) -> list[dict[str, Any]]:
        if isinstance(self.scene, noise.Trace):
            draw = noise.recorded(self.scene, UNITS)
        else:
            draw = noise.modelled(self.scene, UNITS)
        return compare(draw, self.effect, self.rule, rng, runs)


@dataclass(frozen=True)
class Other:
    function: Callable[..., list[dict[str, Any]]]
    arguments: tuple[Any, ...]

    def __call__(self, rng: np.random.Generator, runs: int) -> list[dict[str, Any]]:
        return self.function(*self.arguments, rng, runs)


def cells(runs: int, traces: Path | None) -> Iterator[Cell]:
    scenes: dict[str, Any] = dict(noise.SCENARIOS)
    recorded: dict[str, Any] = {}
    for kind in ("gated", "ungated"):
        if traces is not None:
            found = noise.read_traces(traces / f"h200_aa_seats_{kind}.json.gz")
            recorded |= {f"H200 {name}, {kind}": trace for name, trace in found.items()}
    for alpha in ALPHAS:
        rule = decide.Rule(ratio=1.0, alpha_pass=alpha, alpha_fail=alpha)
        for table, group in (("pairs", scenes), ("traces", recorded)):
            for name, scene in group.items():
                for effect in EFFECTS if "ungated" not in name else (0.0,):
                    work = Pairs(scene, effect, rule)
                    n = 4 * runs if table == "pairs" and effect == 0 else runs
                    yield Cell(f"{table} {alpha}", name, f"{100 * effect:g} %", work, n)
    for name in ("quiet", "ci", "noisy", "placed"):
        for speedup in (0.5, 0.98, 1.0, 1.01, 1.02, 1.03, 1.05):
            work = Pairs(scenes[name], speedup - 1, decide.win(1.02))
            yield Cell("gate 1.02", name, f"{speedup:g}x", work, runs // 2)
        for table, rule, slow in (
            ("canary O0", decide.canary_o0(), (1.0, 1.03, 1.1, 2.0)),
            ("canary O3", decide.not_slower(), (1.0, 1.03, 1.06)),
        ):
            for factor in slow:
                work = Pairs(scenes[name], 1 / factor - 1, rule)
                yield Cell(table, name, f"{factor:g}x slower", work, runs // 2)
    for name in ("quiet", "ci", "noisy"):
        for effect in (0.0, 0.01, 0.02, 0.05, 0.10, 0.5):
            other = Other(call, (scenes[name], effect, 0.05))
            yield Cell("opaque 0.05", name, f"{100 * effect:g} %", other, runs)
    for outliers in (0.0, 0.01):
        for true in (0.5, 0.7, 0.9, 1.0, 1.1, 1.5):
            scene = replace(scenes["ci"], jitter=true * 0.02, fast=0.0, outliers=outliers)
            other = Other(spread, (scene, 0.02, 0.05))
            yield Cell("cv 0.05", f"{100 * outliers:g} % outliers", f"{true:g}", other, runs)


def simulate(job: tuple[Cell, int, int]) -> list[dict[str, Any]]:
    cell, chunk, runs = job
    name = zlib.crc32(f"{cell.table}/{cell.scene}/{cell.case}".encode())
    return cell.simulate(np.random.default_rng([20261130, name, chunk]), runs)


def summary(cell: Cell, rows: list[dict[str, Any]], seconds: float) -> dict[str, Any]:
    cost = np.array([row["cost"] for row in rows])
    shares: dict[str, Any] = {
        name: float(np.mean([row[name] for row in rows]))
        for name in ("faster", "slower", "no_win", "classic")
        if name in rows[0]
    }
    return {
        "table": cell.table,
        "scene": cell.scene,
        "case": cell.case,
        "runs": len(rows),
        **shares,
        "cost": float(cost.mean()),
        "cost_se": float(cost.std() / math.sqrt(len(cost))),
        "cost_p95": float(np.percentile(cost, 95)),
        "seconds": seconds,
    }


def as_recorded(traces: Path) -> dict[str, Any]:
    """Each process of the gated trace as one session, with the coins it was recorded with."""
    count = {"sessions": 0, "faster": 0, "slower": 0}
    for trace in noise.read_traces(traces / "h200_aa_seats_gated.json.gz").values():
        for process in trace.quads:
            pilot = np.exp(np.concatenate([quad for _, quad in process[:4]])).tolist()
            one = Comparison("kernel", decide.Rule(ratio=1.0, alpha_fail=0.05), pilot, 0)
            for order, quad in process[4:]:
                if one.outcome is None:
                    plan = Plan(tuple(Side), tuple(Side), tuple(map(Side, order)))
                    one.add(Unit(plan, Timed(tuple(np.exp(quad).tolist()))))
            end = one.judge.end(decide.End.BUDGET)
            count["sessions"] += 1
            count["faster"] += end.status is Status.PASS
            count["slower"] += end.reason is Reason.SLOWER
    return count


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--traces", type=Path, help="folder of h200_aa_seats_*.json.gz")
    parser.add_argument("--only", default="", help="tables to compute, by their first word")
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    only = set(filter(None, args.only.split(",")))
    wanted = [c for c in cells(args.runs, args.traces) if not only or c.table.split()[0] in only]
    began = time.time()
    results = []
    with multiprocessing.Pool(args.jobs) as pool:
        for cell in wanted:
            start = time.time()
            jobs = [
                (cell, k, min(CHUNK, cell.runs - k * CHUNK))
                for k in range(math.ceil(cell.runs / CHUNK))
            ]
            rows = [row for part in pool.imap(simulate, jobs) for row in part]
            results.append(summary(cell, rows, time.time() - start))
            print(tables.line(results[-1]), flush=True)
    folder = [] if args.traces is None else [str(args.traces), f"--traces={args.traces}"]
    words = [
        {0: "DIR", 1: "--traces=DIR"}[folder.index(one)] if one in folder else one
        for one in sys.argv[1:]
    ]
    command = " ".join(["python benchmarks/errors.py", *words])
    report = {
        "command": command,
        "date": datetime.date.today().isoformat(),
        "seconds": round(time.time() - began),
        "numpy": np.__version__,
        "cells": results,
    }
    if args.traces is not None:
        report["as_recorded"] = as_recorded(args.traces)
    text = tables.markdown(report)
    print(text)
    if not args.no_write:
        base = Path(__file__).parent / "results" / f"errors-{report['date']}"
        base.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
        base.with_suffix(".md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
