"""The plugin that gathers what tests found, and tells it in the terminal and to machines."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from pytest_compileiq import records

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_compileiq.report.album import Album
    from pytest_compileiq.report.collector import Collector
    from pytest_compileiq.report.gpus import GpuUses


class Reporter:
    """Gathers verdicts on the process that the user started, and prints and writes them.

    They ride on the reports' user properties, so they arrive from xdist's workers too. Nothing
    that goes wrong here changes a verdict: it becomes a line at the end of the run.
    """

    def __init__(
        self, config: pytest.Config, *, json_path: Path | None, plots: Path | None = None
    ) -> None:
        self._config = config
        self._json_path = json_path
        self._plots = plots
        self._collector: Collector | None = None
        self._gpus: GpuUses | None = None
        self._album: Album | None = None
        self._complaints: list[str] = []
        self._kept: set[str] = set()
        self._notes: dict[str, None] = {}  # a set in order

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the records off the report, and leave in their place what people can read."""
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
            self._take_gpu(report)
        if records.VERDICT in names:
            self._take_verdicts(report)

    def _take_gpu(self, report: pytest.TestReport) -> None:
        from pytest_compileiq.report import junit
        from pytest_compileiq.report.gpus import GpuUses

        if self._gpus is None:
            self._gpus = GpuUses()
        self._gpus.add(report, records.GPU)
        told = junit.gpu_properties(self._gpus.of(report.nodeid))
        _replace(report, records.GPU, told)

    def _take_verdicts(self, report: pytest.TestReport) -> None:
        from pytest_compileiq.report import junit
        from pytest_compileiq.report.collector import Collector

        if self._collector is None:
            self._collector = Collector()
        self._collector.add(report, records.VERDICT)
        found = self._collector.of(report.nodeid)
        _replace(report, records.VERDICT, junit.properties(found))
        if self._plots is not None and report.when == "teardown":
            self._guarded("--ciq-plots", lambda: self._draw(report, found))

    def _draw(self, report: pytest.TestReport, found: list[dict[str, Any]]) -> None:
        """The test's pictures, while pytest-html still takes them for its own report."""
        from pytest_compileiq.report.album import Album

        assert self._plots is not None
        if self._album is None:
            self._album = Album(self._plots)
        pictures = self._album.draw(found)
        if pictures and self._config.pluginmanager.hasplugin("html"):
            self._album.attach(report, pictures)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.config.option.collectonly:
            return
        found = self._records()
        if found:
            self._ask_others(found)
        if self._json_path is not None:
            self._guarded("--ciq-json", lambda: self._write_json(found))
        told = bool(found) or self._gpus is not None
        if told and getattr(session.config.option, "xmlpath", None):
            self._guarded("--junitxml", self._settle_junit)
        if not found:
            return
        if self._album is not None:
            self._guarded("--ciq-plots", lambda: self._draw_overview(found))
        if summary := os.environ.get("GITHUB_STEP_SUMMARY"):
            self._guarded("GITHUB_STEP_SUMMARY", lambda: self._write_summary(summary, found))

    def _ask_others(self, found: list[dict[str, Any]]) -> None:
        """Let third parties add to each record; what they raise is told, and no more."""
        import copy

        hook = self._config.hook.pytest_ciq_record
        for record in found:
            try:
                answers = hook(config=self._config, record=copy.deepcopy(record))
                extra = {key: value for answer in answers for key, value in answer.items()}
            except Exception as error:
                self._complain("pytest_ciq_record", error)
                return
            if extra:
                record["extra"] = extra

    def _write_json(self, found: list[dict[str, Any]]) -> None:
        from pytest_compileiq.report import json as _json

        assert self._json_path is not None
        site: dict[str, Any] = {}
        try:
            for answer in self._config.hook.pytest_ciq_machine_info(config=self._config):
                site.update(answer)
        except Exception as error:
            self._complain("pytest_ciq_machine_info", error)
        gpus = [] if self._gpus is None else self._gpus.records
        _json.write(self._json_path, found, gpus, site=site)

    def _draw_overview(self, found: list[dict[str, Any]]) -> None:
        assert self._album is not None
        self._album.overview(found)

    def _write_summary(self, path: str, found: list[dict[str, Any]]) -> None:
        from pathlib import Path

        from pytest_compileiq.report import github

        github.append(Path(path), found)

    def _settle_junit(self) -> None:
        from pytest_compileiq.report import junit

        if self._config.getini("junit_family") not in ("xunit1", "legacy"):
            path = junit.path_of(self._config.option.xmlpath)
            if path.is_file():  # /dev/null is none
                junit.move_to_output(path)

    def _guarded(self, door: str, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:  # a full disk, a bug in a drawing: no test is to pay for it
            self._complain(door, error)

    def _complain(self, door: str, error: Exception) -> None:
        cause = str(error) if isinstance(error, OSError) else f"{type(error).__name__}: {error}"
        where = f"{self._json_path} cannot be written " if door == "--ciq-json" else ""
        line = f"{door}: {where}({cause}); no verdict is changed"
        if line not in self._complaints:
            self._complaints.append(line)

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if self._collector is not None:
            from pytest_compileiq.report.terminal import write_table

            verbosity = terminalreporter.config.get_verbosity()
            found = self._records()
            self._guarded(
                "the table", lambda: write_table(terminalreporter, found, verbosity=verbosity)
            )
            self._guarded("--ciq-ncu", lambda: self._write_ncu(terminalreporter))
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
        if self._album is not None:
            terminalreporter.write_line(f"--ciq-plots: {self._album.told}")
        for complaint in self._complaints:
            terminalreporter.write_line(f"pytest-compileiq: {complaint}", yellow=True)

    def _write_ncu(self, terminal: Any) -> None:
        found = self._records()
        if not any("ncu" in record["numbers"] for record in found):
            return
        from pytest_compileiq.report import ncu
        from pytest_compileiq.report.figures import labels

        told = [ncu.lines(*pair) for pair in zip(found, labels(found), strict=True)]
        for line in dict.fromkeys(line for lines in told for line in lines):
            terminal.write_line(line)

    def _records(self) -> list[dict[str, Any]]:
        return [] if self._collector is None else self._collector.records


def _replace(report: pytest.TestReport, name: str, told: list[tuple[str, object]]) -> None:
    """Put readable properties in the place of those that carry JSON."""
    kept = [entry for entry in report.user_properties if entry[0] != name]
    report.user_properties = [*kept, *told]
