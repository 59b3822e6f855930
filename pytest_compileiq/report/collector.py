"""The verdicts of a run, gathered from test reports on the process that the user started."""

from __future__ import annotations

import json
from typing import Any

import pytest

Record = dict[str, Any]


class Collector:
    """Keeps the records of the last attempt of each test, in the order of the run."""

    def __init__(self) -> None:
        self._by_test: dict[str, list[Record]] = {}

    def start(self, nodeid: str) -> None:
        """Forget what an earlier attempt of the test has answered."""
        self._by_test.pop(nodeid, None)

    def add(self, report: pytest.TestReport, property_name: str) -> None:
        records = [
            json.loads(str(value))
            for name, value in report.user_properties
            if name == property_name
        ]
        if records:
            self._by_test[report.nodeid] = records

    def of(self, nodeid: str) -> list[Record]:
        """The records of one test."""
        return self._by_test.get(nodeid, [])

    @property
    def records(self) -> list[Record]:
        return [record for records in self._by_test.values() for record in records]
