"""``python -m pytest_compileiq replay FILE``: the verdicts of a report, from its samples alone.

Reads what ``--ciq-json`` and ``selfcheck --out`` wrote, also compressed by gzip. The exit status
is 0 if every verdict came out again to the last bit, 1 if one did not, 2 if a file is no report
or has nothing to recompute.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pytest_compileiq.measure.samples import RecordError, Replay, replay
from pytest_compileiq.verdict import Status, plain

#: In what order statuses win when a verdict rests on several samples.
_WORST = (Status.FAIL, Status.UNDECIDED, Status.PASS)


class Line(NamedTuple):
    """What became of one record of the file; ``faults`` is empty if it came out again."""

    name: str
    samples: int
    status: str
    faults: list[str]

    def __str__(self) -> str:
        told = "; ".join(self.faults) or "the same to the last bit"
        return f"{self.name}: {self.status}, {self.samples} samples: {told}"


def read(path: Path) -> Mapping[str, Any]:
    """The report in a file. Raises RecordError for a truncated or foreign one."""
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode()
        document = json.loads(text)
    except OSError as error:
        raise _unreadable(path, str(error.strerror or error)) from error
    except (EOFError, zlib.error, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise _unreadable(path, f"it is truncated, or no JSON ({error})") from error
    records = document.get("records") if isinstance(document, dict) else None
    if not isinstance(records, list) or not all(isinstance(one, dict) for one in records):
        raise _unreadable(path, "it is JSON, and holds no list of records")
    assert isinstance(document, dict)
    return document


def _unreadable(path: Path, why: str) -> RecordError:
    return RecordError(
        f"{path} cannot be replayed: {why}",
        remedy="give a file that --ciq-json or `selfcheck --out` wrote, as it was written",
    )


def _unmeasured(path: Path) -> RecordError:
    return RecordError(
        f"{path}: nothing was measured in it",
        remedy="give the report of a run with --ciq-gpu: this one has verdicts without times, of "
        "which there is nothing to recompute",
    )


def lines(document: Mapping[str, Any]) -> Iterator[Line]:
    """One line for each record that was measured."""
    for index, record in enumerate(document["records"]):
        samples = record.get("samples")
        words = [str(record[key]) for key in ("nodeid", "kernel", "check") if record.get(key)]
        name = " ".join(words) or f"record {index}"
        if samples is not None and not isinstance(samples, list):
            yield Line(name, 0, "?", [f"samples is no list: {samples!r:.60}"])
        if not samples or not isinstance(samples, list):
            continue
        faults, statuses = [], []
        found: Replay | None = None
        for number, sample in enumerate(samples):
            try:
                found = replay(sample)
            except RecordError as error:
                faults.append(f"sample {number}: {error.what}")
                continue
            statuses.append(str(found.recomputed["status"]))
            faults += [
                f"sample {number}: {key} is {found.recomputed.get(key)!r}, "
                f"stored is {found.stored.get(key)!r}"
                for key in found.differences
            ]
        worst = next((one.value for one in _WORST if one in statuses), "?")
        stored = record.get("status")
        if stored is not None and not faults and stored != worst:
            faults.append(f"the samples say {worst}, the record says {stored}")
        if found is not None and len(samples) == 1 and not faults:
            faults = list(_forged(record, found.recomputed))
        yield Line(name, len(samples), worst, faults)


def _forged(record: Mapping[str, Any], recomputed: Mapping[str, Any]) -> Iterator[str]:
    """What the record tells people otherwise than its one sample does."""
    told = record.get("numbers") or {}
    for key in told.keys() & recomputed.keys():
        if told[key] != (right := plain(recomputed[key])):
            yield f"numbers.{key} is {told[key]!r}, the sample says {right!r}"
    reason = recomputed["reason"]
    # An open question and a call that failed have reasons of their own, which no sample has.
    own = record.get("status") == Status.UNDECIDED or recomputed.get("blame") is not None
    if not own and "reason" in record and record["reason"] != reason:
        yield f"reason is {record['reason']!r}, the sample says {reason!r}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_compileiq replay",
        description="Recompute the verdicts of a report from its samples alone.",
    )
    parser.add_argument("files", metavar="FILE", type=Path, nargs="+")
    parser.add_argument("-q", "--quiet", action="store_true", help="only what did not come out")
    args = parser.parse_args(arguments)
    status = 0
    for path in args.files:
        try:
            document = read(path)
            found = list(lines(document))
        except RecordError as error:
            print(error, file=sys.stderr)
            status = 2
            continue
        if not found:
            print(_unmeasured(path), file=sys.stderr)
            status = 2
            continue
        wrong = [line for line in found if line.faults]
        for line in wrong if args.quiet else found:
            print(line)
        bare = len(document["records"]) - len(found)
        beside = f"; {bare} beside them have no samples" if bare else ""
        print(f"{path}: {len(found) - len(wrong)} of {len(found)} records came out again{beside}")
        if wrong and status == 0:
            status = 1
    return status
