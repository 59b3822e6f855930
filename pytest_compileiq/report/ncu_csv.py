"""What ``ncu --csv --page raw --metrics ...`` writes, read back.

Current versions write a line a launch, with a column a metric and the units in the line below the
header; older ones, and the page "details", a line a metric. Other lines, such as ``==PROF==``,
may stand around them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

#: Nsight Compute's name -> the name in our records, which has the unit.
METRICS = {
    "gpu__time_duration.sum": "duration_seconds",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": "compute_throughput_percent",
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": (
        "memory_throughput_percent"
    ),
    "sm__warps_active.avg.pct_of_peak_sustained_active": "achieved_occupancy_percent",
    "launch__registers_per_thread": "registers_per_thread",
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": "l2_throughput_percent",
}
#: Our name -> label, factor and unit on a terminal.
SHOWN = {
    "duration_seconds": ("duration", 1e6, " us"),
    "compute_throughput_percent": ("compute throughput", 1.0, " %"),
    "memory_throughput_percent": ("memory throughput", 1.0, " %"),
    "achieved_occupancy_percent": ("achieved occupancy", 1.0, " %"),
    "registers_per_thread": ("registers a thread", 1.0, ""),
    "l2_throughput_percent": ("L2 throughput", 1.0, " %"),
}
_SECONDS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "s": 1.0}


@dataclass(frozen=True, slots=True)
class Launch:
    """One profiled launch. ``metrics`` by our names; None for what was not available."""

    number: int
    kernel: str
    metrics: Mapping[str, float | None]


def parse(text: str) -> list[Launch]:
    """All launches in their order; empty where the text holds none."""
    rows = csv.reader(line for line in text.splitlines() if not line.startswith("=="))
    header: list[str] | None = None
    found: dict[int, tuple[str, dict[str, float | None]]] = {}
    units: dict[str, str] = {}
    for row in rows:
        if header is None or row[:1] == ["ID"]:
            header = row if "ID" in row and "Kernel Name" in row else None
            continue
        fields = dict(zip(header, row, strict=False))
        number = fields.get("ID", "")
        if not number.isdecimal():
            if not number:  # the line of units
                units = fields
            continue
        entry = found.setdefault(int(number), (fields["Kernel Name"], {}))
        for name, value, unit in _values(fields, units):
            entry[1][METRICS[name]] = _number(value, unit)
    return [Launch(number, *found[number]) for number in sorted(found)]


def _values(fields: Mapping[str, str], units: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Metrics of one line: name, value, unit."""
    if "Metric Name" in fields:
        if fields["Metric Name"] in METRICS:
            yield fields["Metric Name"], fields["Metric Value"], fields.get("Metric Unit", "")
        return
    wanted: Iterable[str] = METRICS
    yield from ((name, fields[name], units.get(name, "")) for name in wanted if name in fields)


def _number(value: str, unit: str) -> float | None:
    """``1,234.5`` in the unit that our name says; None for ``n/a`` and the like."""
    try:
        number = float(value.replace(",", ""))
    except ValueError:
        return None
    is_time = unit in ("ns", "us", "ms", "s", "nsecond", "usecond", "msecond", "second")
    return number * _SECONDS[unit[0]] if is_time else number
