"""The plugin that gathers what tests found, and tells it in the terminal and as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_compileiq import records

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_compileiq.report.collector import Collector
    from pytest_compileiq.report.gpus import GpuUses


class Reporter:
    """Gathers verdicts on the process that the user started, and prints and writes them.

    They ride on the reports' user properties, so they arrive from xdist's workers too.
    """

    def __init__(self, json_path: Path | None) -> None:
        self._json_path = json_path
        self._collector: Collector | None = None
        self._gpus: GpuUses | None = None
        self._complaints: list[str] = []
        self._kept: set[str] = set()
        self._notes: dict[str, None] = {}  # a set in order

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "setup" and self._collector is not None:
            self._collector.start(report.nodeid)
        names = {name for name, _ in report.user_properties}
        if records.KEPT in names:
            self._kept |= {
                str(value) for name, value in report.user_properties if name == records.KEPT
            }
        if records.NOTE in names:
            self._notes |= {
                f"{report.nodeid}: {value}": None
                for name, value in report.user_properties
                if name == records.NOTE
            }
        if records.GPU in names:
            if self._gpus is None:
                from pytest_compileiq.report.gpus import GpuUses

                self._gpus = GpuUses()
            self._gpus.add(report, records.GPU)
        if records.VERDICT not in names:
            return
        if self._collector is None:
            from pytest_compileiq.report.collector import Collector

            self._collector = Collector()
        self._collector.add(report, records.VERDICT)

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self._json_path is None or session.config.option.collectonly:
            return
        from pytest_compileiq.report import json as _json

        try:
            gpus = [] if self._gpus is None else self._gpus.records
            _json.write(self._json_path, self._records(), gpus)
        except (OSError, ValueError) as error:
            self._complaints.append(
                f"--ciq-json: {self._json_path} cannot be written ({error}); no verdict is changed"
            )

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._collector is not None:
            from pytest_compileiq.report.terminal import write_table

            write_table(terminalreporter, self._records())
        if self._gpus is not None:
            if self._collector is None:
                terminalreporter.section("compileiq")
            for line in self._gpus.lines():
                terminalreporter.write_line(line)
            for line in self._gpus.warnings():
                terminalreporter.write_line(f"  {line}", yellow=True)
        if self._notes and self._collector is None and self._gpus is None:
            terminalreporter.section("compileiq")
        for note in self._notes:
            terminalreporter.write_line(f"  {note}", yellow=True)
        for folder in sorted(self._kept):
            terminalreporter.write_line(f"--ciq-keep: ACFs, builds and results are in {folder}")
        for complaint in self._complaints:
            terminalreporter.write_line(f"pytest-compileiq: {complaint}", yellow=True)

    def _records(self) -> list[dict[str, Any]]:
        return [] if self._collector is None else self._collector.records
