"""The plugin that gathers what tests found, and tells it in the terminal and to machines."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_compileiq import records
from pytest_compileiq.errors import CiqError
from pytest_compileiq.report import accepting, github, junit, ncu_csv, terminal
from pytest_compileiq.report import json as _json
from pytest_compileiq.report.figures import labels

if TYPE_CHECKING:
    from pytest_compileiq.report.album import Album

#: Node id and, with xdist, worker: --dist each runs each test in all of them.
_Test = tuple[str, str]


class Reporter:
    """Gathers verdicts on the process that the user started, and prints and writes them.

    They ride on the reports' user properties, so they arrive from xdist's workers too. Nothing
    that goes wrong here changes a verdict: it becomes a line at the end of the run, and, where
    ``--ciq-accept`` could not write, the run's failure.
    """

    def __init__(
        self, config: pytest.Config, *, json_path: Path | None, plots: Path | None
    ) -> None:
        self._config = config
        self._json_path = json_path
        self._plots = plots
        # Of the last attempt of each test, in the order of the run.
        self._verdicts: dict[_Test, list[dict[str, Any]]] = {}
        self._gpus: dict[_Test, dict[str, Any]] = {}
        self._album: Album | None = None
        self._complaints: list[str] = []
        self._kept: set[str] = set()
        self._notes: dict[str, None] = {}  # a set in order
        self._offers: dict[_Test, str] = {}
        self._not_accepted: list[CiqError] = []

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take the records off the report, and leave in their place what people can read."""
        nodeid, test = report.nodeid, (report.nodeid, getattr(report, "worker_id", ""))
        if report.when == "setup":
            self._verdicts.pop(test, None)
        found: dict[str, list[str]] = {}
        others: list[tuple[str, object]] = []
        for name, value in report.user_properties:
            if str(name).startswith(records.PREFIX):
                found.setdefault(name, []).append(str(value))
            else:
                others.append((name, value))
        if report.failed:  # what was held around its process, after the test had passed
            self._offers.pop(test, None)
        elif records.OFFER in found:
            self._offers[test] = found[records.OFFER][-1]
        kept, notes = found.get(records.KEPT, []), found.get(records.NOTE, [])
        self._kept.update(kept)
        self._notes |= dict.fromkeys(f"{nodeid}: {note}" for note in notes)
        told = junit.other_properties(kept, notes)
        if records.GPU in found:
            self._gpus[test] = json.loads(found[records.GPU][-1])
            told += junit.gpu_properties(self._gpus[test])
        if records.VERDICT in found:
            mine = self._verdicts[test] = [json.loads(text) for text in found[records.VERDICT]]
            told += junit.properties(mine)
            if self._plots is not None and report.when == "teardown":
                self._guarded("--ciq-plots", lambda: self._draw(report, mine))
        report.user_properties = others + told

    def _draw(self, report: pytest.TestReport, mine: list[dict[str, Any]]) -> None:
        """The test's pictures, while pytest-html still takes them for its own report."""
        from pytest_compileiq.report.album import Album  # matplotlib

        assert self._plots is not None
        self._album = self._album or Album(self._plots)
        pictures = self._album.draw(mine)
        if pictures and self._config.pluginmanager.hasplugin("html"):
            self._album.attach(report, pictures)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        option = session.config.option
        if option.collectonly:
            return
        self._guarded("--ciq-accept", self._accept)
        if self._not_accepted and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
        found, ended = self._records, int(session.exitstatus)
        if found:
            self._ask_others(found)
        if self._json_path is not None:
            self._guarded("--ciq-json", lambda: self._write_json(found, ended))
        if (found or self._gpus) and getattr(option, "xmlpath", None):
            self._guarded("--junitxml", self._settle_junit)
        if (album := self._album) is not None:
            self._guarded("--ciq-plots", lambda: album.overview(found))
        if found and (summary := os.environ.get(github.VARIABLE)):
            self._guarded(
                github.VARIABLE, lambda: github.append(Path(summary), found, exit_status=ended)
            )

    def _accept(self) -> None:
        offered = [(nodeid, text) for (nodeid, _), text in self._offers.items()]
        for told in accepting.write(offered):
            if isinstance(told, CiqError):
                self._not_accepted.append(told)
            else:
                self._notes[told] = None

    def _ask_others(self, found: list[dict[str, Any]]) -> None:
        """Let third parties add to each record; what they raise is told, and no more."""
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

    def _write_json(self, found: list[dict[str, Any]], exit_status: int) -> None:
        assert self._json_path is not None
        site: dict[str, Any] = {}
        try:
            for answer in self._config.hook.pytest_ciq_machine_info(config=self._config):
                site.update(answer)
        except Exception as error:
            self._complain("pytest_ciq_machine_info", error)
        _json.write(
            self._json_path, found, list(self._gpus.values()), site=site, exit_status=exit_status
        )

    def _settle_junit(self) -> None:
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
        found, gpus = self._records, list(self._gpus.values())
        if found:
            verbosity = terminalreporter.config.get_verbosity()
            self._guarded(
                "the table",
                lambda: terminal.write_table(terminalreporter, found, verbosity=verbosity),
            )
            self._guarded("--ciq-ncu", lambda: _write_ncu(terminalreporter, found))
        elif gpus or self._notes:
            terminalreporter.section("compileiq")
        terminal.write_gpus(terminalreporter, gpus)
        for note in self._notes:
            terminalreporter.write_line(f"  {note}", yellow=True)
        for folder in sorted(self._kept):
            terminalreporter.write_line(f"--ciq-keep: ACFs, builds and results are in {folder}")
        if self._album is not None:
            terminalreporter.write_line(f"--ciq-plots: {self._album.told}")
        for complaint in self._complaints:
            terminalreporter.write_line(f"pytest-compileiq: {complaint}", yellow=True)
        for error in self._not_accepted:
            terminalreporter.write_line(f"ERROR --ciq-accept: {error}", red=True)

    @property
    def _records(self) -> list[dict[str, Any]]:
        return [record for own in self._verdicts.values() for record in own]


def _write_ncu(terminalreporter: Any, found: list[dict[str, Any]]) -> None:
    told = [ncu_csv.lines(*pair) for pair in zip(found, labels(found), strict=True)]
    for line in dict.fromkeys(line for lines in told for line in lines):
        terminalreporter.write_line(line)
