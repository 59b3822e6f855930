"""False claims and power of the shipped verdicts, by simulation and on recorded traces.

    python benchmarks/errors.py --runs 2000 --jobs 2 --only pairs,cv

Every run goes through the shipped code, one call a unit: ``Comparison`` and ``run`` draw the
coins, judge and stop. Only the times are simulated, or taken from a trace of one kernel timed
against itself (``traces/``), for which fresh coins say which launch was whose. Null cells of the
models get four times the runs, thresholds of the canaries twice as many as the other cells.
Writes ``benchmarks/results/errors-<date>.json`` and ``.md`` unless ``--no-write``; with ``--only``
the other tables of these files stay.
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
from typing import Any

import noise
import numpy as np
import page

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
#: Launches at 0.5 / 1 / 2 / 5 / 10 %, alpha = 0.05, of the study that this design comes from
#: (2000 runs a cell, so about 2 % of standard error at 0.5 %), and power where below 99.5 %.
REFERENCE = {
    "iid": (152, 63, 43, 40, 40),
    "quiet": (72, 47, 43, 43, 43),
    "ci": (177, 71, 47, 42, 43),
    "noisy": (799, 367, 112, 50, 43),
    "stress": (231, 85, 51, 45, 45),
    "placed": (258, 87, 50, 43, 43),
}
REFERENCE_POWER = {"noisy": (40, 97, 100, 100, 100)}
REFERENCE_01 = {"ci": (253, 97, 59, 51, 51)}

_TITLES = {
    "pairs": 'Models of noise: launches of a 100 us kernel until "faster", at most 1000',
    "traces": "Recorded: one kernel against itself on an H200, clocks not locked",
    "gate": "Gate at min_speedup = 1.02, alpha_pass = 0.05, alpha_fail = 0.01",
    "canary O0": "O0 canary: passes if shown slower by more than 5 %",
    "canary O3": "O3 canary: passes if shown not slower by more than 5 %",
    "opaque": "Opaque objective: calls until decided (two throw-away calls not counted)",
    "cv": "CV check, limit 2 %: true CV as a share of the limit",
}
_NOTE = (
    "False claims are on identical kernels, which put the truth on the boundary: the worst case, "
    "in which a test should run to its budget. A cell of n runs has a standard error of "
    "sqrt(p (1 - p) / n)."
)
_AS_RECORDED = (
    "With the coins that they were recorded with, one session a process, alpha = 0.05: "
    '{faster} false "faster" and {slower} false "slower" in {sessions} sessions.'
)


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
                "no_win": one.outcome.reason is Reason.NO_WIN
                or one.outcome.end is decide.End.AT_THRESHOLD,
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


def cells(runs: int) -> Iterator[Cell]:
    scenes: dict[str, Any] = dict(noise.SCENARIOS)
    recorded: dict[str, Any] = {}
    for kind in ("gated", "ungated"):
        found = noise.read_traces(kind)
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
            ("canary O0", decide.canary_o0(), (1.0, 1.03, 1.05, 1.1, 2.0)),
            ("canary O3", decide.not_slower(), (1.0, 1.03, 1.05, 1.08)),
        ):
            for factor in slow:
                work = Pairs(scenes[name], 1 / factor - 1, rule)
                n = runs if factor == 1.05 else runs // 2
                yield Cell(table, name, f"{factor:g}x slower", work, n)
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


def as_recorded() -> dict[str, Any]:
    """Each process of the gated trace as one session, with the coins it was recorded with."""
    count = {"sessions": 0, "faster": 0, "slower": 0}
    for trace in noise.read_traces("gated").values():
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


def merged(known: dict[str, Any], now: dict[str, Any]) -> dict[str, Any]:
    """A report with its tables that were computed again in the place of the old ones."""
    anew = {cell["table"] for cell in now["cells"]}
    order = list(dict.fromkeys(cell.table for cell in cells(1)))
    kept = [cell for cell in known["cells"] if cell["table"] not in anew]
    found = sorted(kept + now["cells"], key=lambda cell: order.index(cell["table"]))
    return now | {"runs": known["runs"] + now["runs"], "cells": found}


def markdown(report: dict[str, Any]) -> str:
    out = [
        "# Error rates and power of the shipped verdicts",
        "",
        *(
            "`{command}`, {date}, {seconds} s, numpy {numpy}.\n".format(**one)
            for one in report["runs"]
        ),
        _NOTE,
    ]
    groups: dict[str, list[dict[str, Any]]] = {}
    for cell in report["cells"]:
        groups.setdefault(cell["table"], []).append(cell)
    for table, group in groups.items():
        kind = next(title for title in _TITLES if table.startswith(title))
        alpha = table.removeprefix(kind).strip()
        out += ["", f"## {_TITLES[kind]}" + (f", alpha = {alpha}" if "0.0" in alpha else "")]
        out += _effects(group, table) if kind in ("pairs", "traces", "opaque") else _rates(group)
    out += ["", _AS_RECORDED.format(**report["as_recorded"])]
    return "\n".join(out) + "\n"


def _effects(group: list[dict[str, Any]], table: str) -> list[str]:
    cases = [c for c in dict.fromkeys(cell["case"] for cell in group) if c != "0 %"]
    shown = " / ".join(case.removesuffix(" %") for case in cases)
    rows = []
    for scene in dict.fromkeys(cell["scene"] for cell in group):
        found = {cell["case"]: cell for cell in group if cell["scene"] == scene}
        null, effects = found["0 %"], [found[case] for case in cases if case in found]
        false = f"{_percent(null, 'faster')} / {_percent(null, 'slower')}"
        power = " / ".join(_percent(cell, "faster") for cell in effects) or "-"
        cost = " / ".join(f"{cell['cost']:.0f}" for cell in [null, *effects])
        rows.append([scene, null["runs"], false, power, cost])
        aim = {"pairs 0.05": REFERENCE, "pairs 0.01": REFERENCE_01}.get(table, {}).get(scene)
        if aim:
            powers = REFERENCE_POWER if table == "pairs 0.05" else {}
            power, cost = (
                " / ".join(map(str, one)) for one in (powers.get(scene, (100,) * 5), aim)
            )
            rows.append(["*aim*", "", "", f"*{power}*", f"*- / {cost}*"])
    return page.table(
        f"| runs | false faster / slower, % | power at {shown} %, % | cost at 0 / {shown} %", rows
    )


def _rates(group: list[dict[str, Any]]) -> list[str]:
    spread = "classic" in group[0]
    shares = ("faster", "slower", "classic" if spread else "no_win")
    names = (
        "below, % | above, % | classic n = 100 says below, %"
        if spread
        else "shown faster, % | shown slower, % | at the threshold, %"
    )
    return page.table(
        f"| truth | runs | {names} | launches",
        [
            [cell["scene"], cell["case"], cell["runs"]]
            + [_percent(cell, name) for name in shares]
            + [f"{cell['cost']:.0f}"]
            for cell in group
        ],
    )


def _percent(cell: dict[str, Any], name: str) -> str:
    value = 100 * cell[name]
    return f"{value:.1f}" if 0 < value < 99.95 else f"{value:.0f}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=2000)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="tables to compute, by their first word")
    parser.add_argument("--no-write", action="store_true")
    args = parser.parse_args()
    only = set(filter(None, args.only.split(",")))
    wanted = [c for c in cells(args.runs) if not only or c.table.split()[0] in only]
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
            one = summary(cell, rows, time.time() - start)
            results.append(one)
            print(
                f"{cell.table:12s} {cell.scene:18s} {cell.case:12s} "
                f"faster {_percent(one, 'faster'):>6} slower {_percent(one, 'slower'):>6} "
                f"cost {one['cost']:6.1f} +- {one['cost_se']:.1f}  ({one['seconds']:.0f} s)",
                flush=True,
            )
    date = datetime.date.today().isoformat()
    base = page.RESULTS / f"errors-{date}"
    mine = {
        "command": page.command(),
        "date": date,
        "seconds": round(time.time() - began),
        "numpy": np.__version__,
    }
    report = {"runs": [mine], "cells": results, "as_recorded": as_recorded()}
    if only and (known := base.with_suffix(".json")).exists():
        report = merged(json.loads(known.read_text()), report)
    text = markdown(report)
    print(text)
    if not args.no_write:
        base.with_suffix(".json").write_text(json.dumps(report, indent=1) + "\n")
        base.with_suffix(".md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
