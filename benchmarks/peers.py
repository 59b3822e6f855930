"""Who is right about two kernels? All rules in one process, on identical code and on known gains.

    python benchmarks/peers.py --out benchmarks/results --kernels matmul,attention
    python benchmarks/peers.py --out benchmarks/results --kernels softmax,small,idle

On identical kernels every claim is false. "idle" is a copy of 96 MiB whose baseline idles for
0.5 % or 2 % longer: there a claim "faster" is true. Each session asks our rule, every third all of
them, in a new random order. 200 sessions of one kernel take two to three minutes; clocks are left as they are, so that
all rules meet what a user's would (--clocks=auto to lock them).
"""

from __future__ import annotations

import argparse
import datetime
import json
import random
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, median
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))

import effects
import kernels
import rules

from pytest_compileiq import selfcheck
from pytest_compileiq.measure import audit
from pytest_compileiq.measure.cuda import CudaDriver
from pytest_compileiq.measure.timer import Pair, Timer
from pytest_compileiq.measure.units import Comparison, Side

OURS = "seats, coins and bets, alpha = 5 %"


def ours(
    name: str, pair: Pair, timer: Timer, args: argparse.Namespace, kept: list[Comparison]
) -> Callable[..., rules.Answer]:
    seeds = random.Random(f"{args.seed}/{name}")

    def judge(bench: rules.Bench, a: Any, b: Any) -> rules.Answer:
        began = time.perf_counter()
        (one,) = audit.on_device(
            name, pair, timer,
            seed=seeds.getrandbits(32), alpha=0.05, sessions=1, units=args.units,
        )  # fmt: skip
        kept.append(one)
        assert one.outcome is not None
        claim = None
        if one.outcome.end == "decided":
            claim = "faster" if one.outcome.status == "pass" else "slower"
        blocks = len(one.pilot) + 4 * len(one.units)
        launches = blocks * max(unit.timed.launches for unit in one.units)
        return rules.Answer(claim, launches, time.perf_counter() - began)

    return judge


def one_case(
    name: str, case: str, pair: Pair, timer: Timer, bench: rules.Bench, args: argparse.Namespace
) -> tuple[list[dict[str, Any]], list[Comparison]]:
    """All rules on one pair, session by session."""
    kept: list[Comparison] = []
    asked = {**rules.peers(), OURS: ours(f"{name} {case}", pair, timer, args, kept)}
    launches = [pair.builds[side].launch for side in Side]
    answers: dict[str, list[rules.Answer]] = {rule: [] for rule in asked}
    order = random.Random(f"{args.seed}/{name}/{case}")
    began = time.perf_counter()
    for session in range(args.sessions):
        due = list(asked) if session % args.others_every == 0 else [OURS]
        for rule in order.sample(due, len(due)):
            answers[rule].append(asked[rule](bench, *launches))
        if session % 20 == 0:
            print(
                f"{name} {case}: {session} sessions, {time.perf_counter() - began:.0f} s",
                flush=True,
            )
        if time.perf_counter() - began > args.limit:
            print(f"{name} {case}: stopped after {session + 1} sessions by --limit", flush=True)
            break
    rows = [
        {
            "kernel": name,
            "case": case,
            "rule": rule,
            "sessions": len(given),
            "faster": sum(one.claim == "faster" for one in given),
            "slower": sum(one.claim == "slower" for one in given),
            "launches": fmean(one.launches for one in given),
            "wall_seconds": median(one.wall_seconds for one in given),
        }
        for rule, given in answers.items()
    ]
    return rows, kept


def cases(names: list[str], timer: Timer, driver: CudaDriver) -> list[tuple[str, str, Pair]]:
    found = [
        (subject.name, "identical", subject.pair())
        for subject in kernels.subjects(name for name in names if name != "idle")
    ]
    if "idle" in names:
        subject = kernels.Idle(kernels.idle_cubin(kernels.arch()), 96 << 20)
        cycles = effects.cycles_of(driver, timer, subject)
        for gain in (0.005, 0.02):
            more = round(gain * cycles)
            pair = subject.pair(effects.FLOOR + more, effects.FLOOR)
            found.append(("idle", f"{gain:.1%} faster", pair))
    return found


def markdown(report: dict[str, Any]) -> str:
    lines = [
        "# Who is right?",
        "",
        f"`{report['command']}`, {report['date']}, {report['device']}.",
        "",
        "On identical kernels every claim is false; the last cases are faster in truth.",
    ]
    for name, case in dict.fromkeys((one["kernel"], one["case"]) for one in report["rows"]):
        lines += [
            "",
            f"## {name}, {case}",
            "",
            "| rule | says faster | says slower | sessions | launches | wall a verdict |",
            "|---|---|---|---|---|---|",
        ]
        lines += [
            f"| {one['rule']} | {one['faster'] / one['sessions']:.1%} | "
            f"{one['slower'] / one['sessions']:.1%} | {one['sessions']} | "
            f"{one['launches']:.0f} | {one['wall_seconds']:.3f} s |"
            for one in report["rows"]
            if (one["kernel"], one["case"]) == (name, case)
        ]
    return "\n".join(lines) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", default="0")
    parser.add_argument("--clocks", default="observe", choices=("auto", "require", "observe"))
    parser.add_argument("--kernels", default="matmul,attention,softmax,small,idle")
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--others-every", type=int, default=3, help="sessions between theirs")
    parser.add_argument("--units", type=int, default=audit.UNITS)
    parser.add_argument("--limit", type=float, default=280.0, help="seconds a case at most")
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--out", type=Path, required=True, help="folder of the results")
    args = parser.parse_args()
    rows: list[dict[str, Any]] = []
    samples: dict[str, list[Comparison]] = {}
    args.out.mkdir(parents=True, exist_ok=True)
    names = args.kernels.split(",")
    base = args.out / f"peers-{'-'.join(names)}-{datetime.date.today().isoformat()}"
    with selfcheck.held(args.gpu, args.clocks) as held:
        driver = CudaDriver()
        timer = Timer(driver, seed=args.seed, reasons=held.monitor.reasons)
        bench = rules.Bench()
        for name, case, pair in cases(names, timer, driver):
            more, kept = one_case(name, case, pair, timer, bench, args)
            rows += more
            samples[f"{name}, {case}"] = kept
            report = {
                "command": f"python benchmarks/peers.py --kernels {args.kernels}",
                "date": datetime.date.today().isoformat(),
                "device": f"{held.gpu}, clocks {held.state}",
                "rows": rows,
            }
            # After each case: what was measured stays if a later one fails.
            Path(f"{base}.json").write_text(json.dumps(report, indent=1) + "\n")
            Path(f"{base}.md").write_text(markdown(report))
            audits = {
                key: audit.summary(key, 0.05, many)
                for key, many in samples.items()
                if key.endswith("identical")
            }
            selfcheck.write(
                Path(f"{base}.samples.json.gz"), args.seed, report["device"], audits, samples
            )
    print(markdown(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())
