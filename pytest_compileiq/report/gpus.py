"""What the GPUs of a run did, test by test: gathered from reports, told in a few lines."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest


class GpuUses:
    """One entry for each test that held a GPU, of its last attempt."""

    def __init__(self) -> None:
        self._by_test: dict[str, dict[str, Any]] = {}

    def add(self, report: pytest.TestReport, property_name: str) -> None:
        for name, value in report.user_properties:
            if name == property_name:
                self._by_test[report.nodeid] = json.loads(str(value))

    def of(self, nodeid: str) -> dict[str, Any]:
        """The entry of one test, which must be there."""
        return self._by_test[nodeid]

    @property
    def records(self) -> list[dict[str, Any]]:
        return list(self._by_test.values())

    def lines(self) -> list[str]:
        """Each GPU with the state of its clocks and how its windows were judged."""
        lines = []
        by_gpu: dict[tuple[str, str], list[dict[str, Any]]] = {}
        for record in self.records:
            by_gpu.setdefault((record["gpu"], record["clocks"]), []).append(record)
        for (gpu, clocks), records in by_gpu.items():
            counts = Counter(record["evidence"]["condition"] for record in records)
            told = ", ".join(f"{count} {name}" for name, count in counts.items())
            lines.append(f"{gpu}: clocks {clocks}; {len(records)} tests: {told}")
        return lines

    def warnings(self) -> list[str]:
        """Distinct notes, and for each test whose window was not clean the reason."""
        found: dict[str, None] = {}
        for record in self.records:
            found.update(dict.fromkeys(record["notes"]))
            if record["evidence"]["condition"] not in ("clean", "unverified"):
                found[f"{record['nodeid']}: {record['summary']}"] = None
        return list(found)
