"""What ``ncu --csv --page=raw --print-units=base --metrics=...`` writes, read back and shown.

A line a launch with a column a metric, and the units in the line below the header. Other lines,
such as ``==PROF==``, may stand around them.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from typing import Any, NamedTuple


class Metric(NamedTuple):
    """One metric: its key in our records, which has the unit, and how a terminal shows it."""

    key: str
    label: str
    scale: float
    unit: str


#: By Nsight Compute's names.
METRICS = {
    "gpu__time_duration.sum": Metric("duration_seconds", "duration", 1e6, " us"),
    "sm__throughput.avg.pct_of_peak_sustained_elapsed": Metric(
        "compute_throughput_percent", "compute throughput", 1.0, " %"
    ),
    "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed": Metric(
        "memory_throughput_percent", "memory throughput", 1.0, " %"
    ),
    "sm__warps_active.avg.pct_of_peak_sustained_active": Metric(
        "achieved_occupancy_percent", "achieved occupancy", 1.0, " %"
    ),
    "launch__registers_per_thread": Metric("registers_per_thread", "registers a thread", 1.0, ""),
    "lts__throughput.avg.pct_of_peak_sustained_elapsed": Metric(
        "l2_throughput_percent", "L2 throughput", 1.0, " %"
    ),
}
#: Units of time in seconds: some versions write ns, some nsecond.
_SECONDS = {
    name: seconds
    for short, seconds in (("n", 1e-9), ("u", 1e-6), ("m", 1e-3), ("", 1.0))
    for name in (f"{short}s", f"{short}second")
}


class Launch(NamedTuple):
    """One profiled launch. ``metrics`` by our keys; None for what was not available."""

    kernel: str
    metrics: dict[str, float | None]


def parse(text: str) -> list[Launch]:
    """All launches in their order; empty where the text holds none."""
    rows = csv.DictReader(line for line in text.splitlines() if line.startswith('"'))
    units: Mapping[str, str] = {}
    found = []
    for row in rows:
        if not row.get("ID"):
            units = row
        elif row["ID"].isdecimal():
            metrics = {
                metric.key: _number(row[name] or "", metric, units.get(name, ""))
                for name, metric in METRICS.items()
                if name in row
            }
            found.append(Launch(row["Kernel Name"], metrics))
    return found


def _number(value: str, metric: Metric, unit: str) -> float | None:
    """``1,234.5`` in the unit that our key says; None for ``n/a``, and for a unit unknown here."""
    try:
        number = float(value.replace(",", ""))
    except ValueError:
        return None
    if not metric.key.endswith("_seconds"):
        return number
    return number * _SECONDS[unit] if unit in _SECONDS else None


def lines(record: Mapping[str, Any], name: str) -> list[str]:
    """The metrics of a record side by side, for the terminal."""
    found = record["numbers"].get("ncu")
    if not found:
        return []
    if "kernels" not in found:
        remedy = f"; to do: {found['remedy']}" if found.get("remedy") else ""
        return [f"--ciq-ncu: {name}: {found['unavailable']}{remedy}; the verdict stands"]
    acf = found["acf"] if len(found["acf"]) <= 12 else f"{found['acf'][:9]}..."
    told = []
    for pair in found["kernels"]:
        told.append(f"--ciq-ncu: {name}, one launch of {pair['kernel']}")
        told.append(f"  {'':<20}  {'baseline':>12}  {acf:>12}  {'change':>8}")
        for metric in METRICS.values():
            before, after = pair["baseline"].get(metric.key), pair["acf"].get(metric.key)
            change = f"{after / before - 1:+.1%}" if before and after is not None else ""
            values = [
                "-" if value is None else f"{value * metric.scale:.4g}{metric.unit}"
                for value in (before, after)
            ]
            line = f"  {metric.label:<20}  {values[0]:>12}  {values[1]:>12}  {change:>8}"
            told.append(line.rstrip())
    return told
