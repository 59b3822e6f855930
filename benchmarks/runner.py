"""What the benchmarks on a GPU share: arguments, a time limit, and results that are never lost.

Everything measured goes into one file, ``NAME-KERNELS-DATE.json.gz``, in the form that
``selfcheck --out`` writes: ``python -m pytest_compileiq replay`` recomputes its samples. It is written anew every
half minute and after each kernel, so a run that is cut short leaves a whole file. Tables are made
from such files alone: ``--read FILE...`` makes one of several runs.
"""

from __future__ import annotations

import argparse
import datetime
import math
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import page

from pytest_compileiq import selfcheck
from pytest_compileiq.gpu.session import Held
from pytest_compileiq.measure import audit
from pytest_compileiq.measure.audit import Deadline
from pytest_compileiq.measure.cuda import CudaDriver
from pytest_compileiq.measure.samples import RULES, RecordError, record_units
from pytest_compileiq.measure.timer import Pair, Timer
from pytest_compileiq.measure.units import Comparison
from pytest_compileiq.replay import read

_SECONDS_BETWEEN_SAVES = 30.0

Record = dict[str, Any]


@dataclass
class Run:
    """One benchmark on one GPU. ``records`` is what was measured, ``faults`` what failed."""

    path: Path
    args: argparse.Namespace
    held: Held
    driver: Any
    records: list[Record] = field(default_factory=list)
    faults: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.began = self._saved = time.monotonic()
        self.timer = Timer(self.driver, seed=self.args.seed, reasons=self.held.monitor.reasons)

    def record(self, kernel: str, check: str, **more: Any) -> Record:
        """A new record, to which sessions are added."""
        record: Record = {"kernel": kernel, "check": check, "samples": [], "wall_seconds": []}
        self.records.append(record | more)
        return self.records[-1]

    def sessions(
        self, record: Record, pair: Pair, deadline: Deadline, *, units: int
    ) -> Iterator[Comparison]:
        """Sessions of the shipped rule, at most ``--sessions``, with their samples and wall times."""
        name = f"{record['kernel']} {record['check']}"
        began = time.perf_counter()
        for one in audit.on_device(
            name, pair, self.timer,
            seed=self.args.seed, alpha=0.05, sessions=self.args.sessions, units=units,
            deadline=deadline,
        ):  # fmt: skip
            record["wall_seconds"].append(time.perf_counter() - began)
            record["samples"].append(record_units(one))
            yield one
            if time.monotonic() - self._saved > _SECONDS_BETWEEN_SAVES:
                self.save()
            began = time.perf_counter()

    def save(self) -> None:
        self._saved = time.monotonic()
        print(f"{self._saved - self.began:4.0f} s: {self._progress()}", flush=True)
        document = {
            "schema": selfcheck.SCHEMA,
            "command": page.command(),
            "date": datetime.date.today().isoformat(),
            "device": f"{self.held.gpu}, clocks {self.held.state}",
            "seed": self.args.seed,
            "seconds": self._saved - self.began,
            "faults": self.faults,
            "records": self.records,
        }
        selfcheck.write(self.path, document)

    def _progress(self) -> str:
        last = self.records[-1] if self.records else {"kernel": "-", "check": "-", "samples": []}
        return f"{last['kernel']} {last['check']}, {len(last['samples'])} sessions"


#: Measures one of a benchmark's kernels until the deadline.
Measure = Callable[[Run, str, Deadline], object]
#: The tables, as lines of markdown, of what was recorded.
Tables = Callable[[Sequence[Record]], list[str]]


def main(
    doc: str,
    name: str,
    kernels: Sequence[str],
    measure: Measure,
    tables: Tables,
    *,
    sessions: int,
    options: Mapping[str, Mapping[str, Any]] | None = None,
) -> int:
    """Run a benchmark as a command. The exit status is 1 if a part of it failed."""
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--gpu", default="0")
    parser.add_argument("--clocks", default="observe", choices=("auto", "require", "observe"))
    parser.add_argument("--kernels", default=",".join(kernels), help="default: %(default)s")
    parser.add_argument("--sessions", type=int, default=sessions, help="default: %(default)s")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds, for all kernels")
    parser.add_argument("--seed", type=int, default=20261130)
    parser.add_argument("--out", type=Path, default=page.RESULTS, help="default: beside this file")
    parser.add_argument("--read", type=Path, nargs="+", metavar="FILE", help="only make the tables")
    for option, how in (options or {}).items():
        parser.add_argument(option, **how)
    args = parser.parse_args()
    chosen = args.kernels.split(",")
    if unknown := set(chosen) - set(kernels):
        parser.error(f"no kernel is called {', '.join(sorted(unknown))}")
    args.out.mkdir(parents=True, exist_ok=True)
    if args.read:
        try:
            documents = _documents(args.read)
        except RecordError as error:
            parser.error(str(error))
        base = args.out / f"{name}-{documents[0]['date']}"
    else:
        shown = [] if chosen == list(kernels) else chosen
        base = args.out / "-".join([name, *shown, datetime.date.today().isoformat()])
        path = Path(f"{base}.json.gz")
        _measured(args, path, chosen, measure)
        documents = [read(path)]
    text = "\n".join([*_head(doc, documents), *_tables(documents, tables)]) + "\n"
    Path(f"{base}.md").write_text(text)
    print(text)
    return 1 if any(document["faults"] for document in documents) else 0


def _measured(
    args: argparse.Namespace, path: Path, chosen: Sequence[str], measure: Measure
) -> None:
    deadline = Deadline(args.limit)
    with selfcheck.held(args.gpu, args.clocks) as held:
        import torch  # before the driver, which takes torch's stream where there is torch

        torch.cuda.init()
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what there is gets saved
        run = Run(path, args, held, CudaDriver())
        for kernel, due in deadline.shared(chosen):
            try:
                measure(run, kernel, due)
            except Exception as error:  # the others' results are worth having
                traceback.print_exc()
                run.faults.append(f"{kernel}: {type(error).__name__}: {error}")
            finally:
                run.save()


def _documents(paths: Sequence[Path]) -> list[Mapping[str, Any]]:
    """Raises RecordError if two rules judged the sessions of one row."""
    documents = [read(path) for path in paths]
    known: dict[tuple[str, str, str], tuple[int, Path]] = {}
    for path, document in zip(paths, documents, strict=True):
        for record in document["records"]:
            for sample in record["samples"]:
                key = record["kernel"], record["check"], sample["kind"]
                schema, first = known.setdefault(key, (sample["schema"], path))
                if schema != sample["schema"]:
                    raise RecordError(
                        f"{', '.join(key)}: samples of schema {schema} in {first}, of schema "
                        f"{sample['schema']} in {path}, and one row cannot have two rules",
                        remedy="make a table of each",
                    )
    return documents


def _head(doc: str, documents: Sequence[Mapping[str, Any]]) -> list[str]:
    lines = [f"# {doc.splitlines()[0]}"]
    for one in documents:
        lines += [
            "",
            f"`{one['command']}`, {one['date']}, {one['seconds']:.0f} s, {one['device']}.",
        ]
        lines += [f"\nFailed: {fault}" for fault in one["faults"]]
    samples = [
        sample for one in documents for record in one["records"] for sample in record["samples"]
    ]
    for schema in sorted({sample["schema"] for sample in samples}):
        lines += ["", f"The rule, schema {schema} of the samples: {RULES[schema]}."]
    return lines


def _tables(documents: Sequence[Mapping[str, Any]], tables: Tables) -> list[str]:
    return tables(merged([record for one in documents for record in one["records"]]))


def merged(records: Sequence[Record]) -> list[Record]:
    """The sessions of a kernel and check in one record, of however many runs they are.

    ``runs`` has what each of them recorded by itself.
    """
    found: dict[tuple[str, str], Record] = {}
    for record in records:
        key = record["kernel"], record["check"]
        known = found.setdefault(key, {"runs": []})
        known["runs"].append(record)
        for name, value in record.items():
            more = isinstance(value, list) and name in known
            known[name] = [*known[name], *value] if more else value
    return list(found.values())


def blocks(sample: Mapping[str, Any]) -> int:
    """Timed blocks of a session, the pilot's and those of rejected units included."""
    return len(sample["pilot"]) + sum(len(unit["seconds"]) for unit in sample["units"])


def claim(sample: Mapping[str, Any]) -> str | None:
    """What a session says of the candidate, if it was decided."""
    outcome = sample["outcome"]
    if outcome["end"] != "decided":
        return None
    return "faster" if outcome["status"] == "pass" else "slower"
