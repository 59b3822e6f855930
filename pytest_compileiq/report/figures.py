"""The few figures of a record that people read, and where in the record they stand.

Records of timed checks are read by these keys of ``numbers``; each may be missing:

- ``speedup``: t_baseline / t_candidate; ``speedup_interval``: [low, high] or None, ratios;
- ``min_speedup``: the ratio that was asked for;
- ``launches``: timed launches; ``seconds``: what they cost;
- ``score_ratio``: an objective's exact win, where the scores did not vary;
- ``short_cv``: the spread between neighbours, a ratio;
- ``ncu``: see ``report/ncu.py``.

``samples`` holds records of ``measure/samples.py``, each with ``kind`` "units", "opaque" or
"spread". What ``numbers`` does not say is read from the first of them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Record = Mapping[str, Any]
Interval = tuple[float | None, float | None]


@dataclass(frozen=True, slots=True)
class Figures:
    """Ratios, counts, seconds and percents of one record; None where nothing was measured."""

    speedup: float | None = None
    interval: Interval = (None, None)
    wanted: float | None = None
    launches: int | None = None
    gpu_seconds: float | None = None
    cv_percent: float | None = None

    @property
    def measured(self) -> str:
        """``1.043 [1.031, 1.055]``, ``CV 1.3 %`` or nothing; plain ASCII, as terminals differ."""
        if self.speedup is not None:
            low, high = self.interval
            if low is None and high is None:
                return _ratio(self.speedup)
            return f"{_ratio(self.speedup)} [{_bound(low)}, {_bound(high)}]"
        return "" if self.cv_percent is None else f"CV {self.cv_percent:.2g} %"


def figures(record: Record) -> Figures:
    """Read a record of ``Verdict.to_record``."""
    numbers: Mapping[str, Any] = record["numbers"]
    samples = record["samples"]
    outcome: Mapping[str, Any] = samples[0]["outcome"] if samples else {}
    judged = (outcome.get("objectives") or [None])[0] or outcome

    def number(name: str) -> float | None:
        return _number(numbers.get(name, judged.get(name)))

    speedup = number("speedup")
    if speedup is None:
        first = (outcome.get("speedups") or [None])[0]
        speedup = _number(first) or number("score_ratio")
    interval = numbers.get("speedup_interval", judged.get("speedup_interval")) or (None, None)
    launches, seconds = cost(samples)
    told, spent, cv = number("launches"), number("seconds"), number("short_cv")
    return Figures(
        speedup=speedup,
        interval=(_number(interval[0]), _number(interval[1])),
        wanted=number("min_speedup"),
        launches=int(told) if told else launches,
        gpu_seconds=seconds if spent is None else spent,
        cv_percent=None if cv is None else 100 * cv,
    )


def cost(samples: Sequence[Record]) -> tuple[int | None, float | None]:
    """Launches and GPU seconds of a record's samples together, pilots included."""
    launches, seconds = 0, 0.0
    for sample in samples:
        if sample.get("kind") == "units":
            timed = sample["units"]
            launches += len(sample["pilot"])
            launches += sum(len(unit["seconds"]) * unit["launches"] for unit in timed)
            seconds += math.fsum(one or 0.0 for one in sample["pilot"])
            seconds += math.fsum(unit["gpu_seconds"] for unit in timed)
        elif sample.get("kind") == "spread":
            launches += len(sample["seconds"])
            seconds += math.fsum(one or 0.0 for one in sample["seconds"])
        elif sample.get("kind") == "opaque":
            launches += len(sample["calls"])
    return launches or None, seconds or None


def verdict(record: Record) -> str:
    """``pass``, or ``fail: slower``."""
    status, reason = record["status"], record["reason"]
    return str(status) if reason in (None, status) else f"{status}: {reason}"


def labels(records: Sequence[Record]) -> list[str]:
    """A name for each record that tells kernels of several tests apart.

    The kernel's own name where one test has it; else with the test's parameters, and where
    these do not differ either, with as much of the test's node id as does.
    """
    tests: dict[str, dict[str, None]] = {}
    for record in records:
        tests.setdefault(str(record["kernel"]), {})[str(record["nodeid"])] = None
    apart = {kernel: _apart(list(nodeids)) for kernel, nodeids in tests.items()}
    named = [(str(record["kernel"]), str(record["nodeid"])) for record in records]
    return [kernel + apart[kernel][nodeid] for kernel, nodeid in named]


def _apart(nodeids: Sequence[str]) -> dict[str, str]:
    """What to say of each test that it is told from the others by."""
    if len(nodeids) == 1:
        return {nodeids[0]: ""}
    names, parameters = {}, {}
    for nodeid in nodeids:
        file, _, test = nodeid.partition("::")
        test, bracket, rest = test.partition("[")  # parameters may contain ``::`` and ``/``, too
        names[nodeid] = re.split("(::|/)", f"{file}::{test}")
        parameters[nodeid] = bracket + rest
    if len(set(parameters.values())) == len(nodeids) and all(parameters.values()):
        return parameters
    for words in range(1, max(map(len, names.values())) + 1, 2):  # and what stands between them
        told = {one: f" in {''.join(names[one][-words:])}{parameters[one]}" for one in nodeids}
        if len(set(told.values())) == len(nodeids):
            break
    return told


def _ratio(ratio: float) -> str:
    return f"{ratio:.3f}" if ratio < 100 else f"{ratio:.4g}"


def _bound(ratio: float | None) -> str:
    """One end of an interval; nothing is known beyond an end that is not there."""
    return "?" if ratio is None else _ratio(ratio)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:  # an int that no float holds
        return None
