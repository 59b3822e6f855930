"""Who is right about two kernels? All rules in one process, on identical code and on known gains.

    python benchmarks/peers.py --limit 500
    python benchmarks/peers.py --kernels idle0.5,idle2 --sessions 60
    python benchmarks/peers.py --read benchmarks/results/peers-*.json.gz

On identical kernels every claim is false. "idle" is a copy of 96 MiB whose baseline idles for
0.5 % or 2 % longer: there a claim "faster" is true. In each session our rule is asked, in every
third all of them, in a new random order. A session of our rule on identical kernels is one of
``selfcheck``, so the table of its audit comes from the same sessions. All raw times are kept, and
all tables made from them alone. The four kernels take about six minutes; clocks are left as they
are, so that all rules meet what a user's would (--clocks=auto to lock them).
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean, median

sys.path.insert(0, str(Path(__file__).parent))

import effects
import kernels
import page
import rules
import runner
from runner import Record, Run

from pytest_compileiq import selfcheck
from pytest_compileiq.measure import audit
from pytest_compileiq.measure.audit import Deadline
from pytest_compileiq.measure.samples import comparison_of
from pytest_compileiq.measure.units import Side

#: Our rule by the schema of its samples.
OURS = {
    1: "seats, coins and bets, alpha = 5 %",
    2: "seats, coins and bets, order effects taken off, alpha = 5 %",
}
IDENTICAL = "identical"
GAINS = {"idle0.5": 0.005, "idle2": 0.02}
_NOTE = (
    "The other rules time each launch by itself, from Python, without gate or CUDA graph, as their "
    "users do, so what the host takes can be in their times. An earlier study on an H200 (60 "
    "sessions, its raw times are not kept) had in places other numbers: Welch 77 % on the softmax and "
    "90 % on the small kernel, interleaved medians 0 % on the small kernel. In its traces, those of "
    "benchmarks/traces, the small kernel runs in CUDA graphs of 40 launches. For the softmax no such "
    "difference is known: this is what a rule says of one card on one day."
)


def measure(run: Run, kernel: str, deadline: Deadline) -> None:
    if kernel in GAINS:
        gain = GAINS[kernel]
        pair, units = effects.Known(run, "96MiB").pair(gain), effects.UNITS
        record = run.record("copy 96MiB", f"{gain:.1%} faster", others=[])
    else:
        pair, units = kernels.identical(kernels.triton_kernel(kernel)), audit.UNITS
        record = run.record(kernel, IDENTICAL, others=[])
    bench = rules.Bench()
    launches = [launch for side in Side if (launch := pair.builds[side].launch) is not None]
    order = random.Random(f"{run.args.seed}/{kernel}")
    ours = run.sessions(record, pair, Deadline(math.inf), units=units)
    for session in range(run.args.sessions):
        if session and deadline.left <= 0:
            break
        others = list(rules.RECORDINGS) if session % run.args.others_every == 0 else []
        found = {}
        for turn in order.sample([None, *others], 1 + len(others)):
            if turn is None:
                next(ours)
            else:
                found[turn] = rules.recorded(bench, turn, *launches)
        if found:
            record["others"].append(found)


def tables(records: Sequence[Record]) -> list[str]:
    rows = [[row for row in (_ours(record), *_others(record)) if row] for record in records]
    lines = ["", "On identical kernels every claim is false; in the other cases one is right."]
    lines += _overview(records, rows)
    for record, found in zip(records, rows, strict=True):
        lines += ["", f"## {record['kernel']}, {record['check']}"]
        lines += page.table(
            "rule | says faster | says slower | sessions | launches | wall a verdict", found
        )
    same = [one for one in records if one["check"] == IDENTICAL and one["samples"]]
    return lines + _audits(same) + places(same)


def _overview(records: Sequence[Record], rows: Sequence[Sequence[Sequence[str]]]) -> list[str]:
    """One line a rule: its claims "faster" and "slower" on each kernel."""
    columns = ["rule", *(f"{one['kernel']}, {one['check']}" for one in records)]
    claims = [
        {name: f"{up} / {down} of {count}" for name, up, down, count, *_ in found} for found in rows
    ]
    names = dict.fromkeys(name for found in claims for name in found)
    table = [[name, *(found.get(name, "-") for found in claims)] for name in names]
    head = ["", '"faster" / "slower", of so many sessions:']
    return [*head, *page.table(" | ".join(columns), table), "", _NOTE]


def _ours(record: Record) -> list[str]:
    samples = record["samples"]
    if not samples:  # another rule failed before
        return []
    launches = [
        runner.blocks(one) * max(unit["launches"] for unit in one["units"]) for one in samples
    ]
    name = OURS[samples[0]["schema"]]
    return _row(name, list(map(runner.claim, samples)), launches, record["wall_seconds"])


def _others(record: Record) -> Iterator[list[str]]:
    for name, rule in rules.PEERS.items():
        runs = [[one[rule.recording] for one in run["others"]] for run in record["runs"]]
        found = [one for run in runs for one in run]
        yield _row(
            name,
            # A stored baseline is that of its own run.
            [rule.claim(one["times"], run[0]["times"]) for run in runs for one in run],
            [rule.launches(one["times"]) for one in found],
            [rule.wall_seconds(one["times"], one["wall_seconds"]) for one in found],
        )


def _row(
    name: str, claims: Sequence[str | None], launches: Sequence[int], wall: Sequence[float]
) -> list[str]:
    if not claims:
        return []
    shares = [f"{claims.count(word) / len(claims):.1%}" for word in ("faster", "slower")]
    cost = [f"{fmean(launches):.0f}", f"{median(wall):.3f} s"]
    return [name, *shares, str(len(claims)), *cost]


def _audits(records: Sequence[Record]) -> list[str]:
    """What ``selfcheck`` counts in the same sessions."""
    found = [
        audit.summary(record["kernel"], 0.05, list(map(comparison_of, record["samples"])))
        for record in records
    ]
    rows = [[*selfcheck.cells(one), "yes" if one.kept else "NO"] for one in found]
    return ["", "## selfcheck", *page.table(" | ".join([*selfcheck.FIELDS, "kept"]), rows)]


def places(records: Sequence[Record]) -> list[str]:
    """What a block's place in its unit does, whichever side it is of: they are identical."""
    rows = []
    for record in records:
        units = [unit["seconds"] for sample in record["samples"] for unit in sample["units"]]
        found = [
            median(one[k] / fmean([*one[:k], *one[k + 1 :]]) for one in units if None not in one)
            for k in range(4)
        ]
        rows.append([record["kernel"], len(units), *(f"{one - 1:+.1%}" for one in found)])
    lines = ["", "## A block against the mean of the other three of its unit"]
    lines += ["", "Median of all timed units, those that were thrown away included."]
    return lines + page.table("kernel | units | first | second | third | fourth", rows)


def main() -> int:
    every = {"type": int, "default": 3, "help": "sessions between theirs (default: %(default)s)"}
    return runner.main(
        __doc__,
        "peers",
        [*kernels.NAMES, *GAINS],
        measure,
        tables,
        sessions=200,
        options={"--others-every": every},
    )


if __name__ == "__main__":
    sys.exit(main())
