"""The doors: options, marks, fixtures, hooks. What is behind them is imported when used.

A run without ciq tests must cost nothing, so nothing that is imported here imports more than
pytest and the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Generator
from typing import TYPE_CHECKING

import pytest

from pytest_compileiq import settings as _settings
from pytest_compileiq import state
from pytest_compileiq.pytest_fixtures import ciq as ciq
from pytest_compileiq.pytest_fixtures import ciq_cache_env as ciq_cache_env
from pytest_compileiq.pytest_fixtures import ciq_fresh_caches as ciq_fresh_caches
from pytest_compileiq.pytest_fixtures import ciq_gpu as ciq_gpu
from pytest_compileiq.pytest_fixtures import ciq_ptxas as ciq_ptxas
from pytest_compileiq.pytest_fixtures import ciq_search as ciq_search

if TYPE_CHECKING:
    from pytest_compileiq.report.reporter import Reporter
    from pytest_compileiq.settings import Settings


_PREFIX = "_pytest_compileiq."  # records.PREFIX


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from pytest_compileiq import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


def pytest_addoption(parser: pytest.Parser) -> None:
    _settings.add_options(parser)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    if getattr(early_config.known_args_namespace, "help", False):
        return
    if _settings.isolation_is_asked(early_config):
        from pytest_compileiq.isolation import wiring

        wiring.keep_torch_from_cuda(early_config)
    spec = _settings.gpu_spec(early_config)
    if spec is None:
        return
    from pytest_compileiq import device
    from pytest_compileiq.errors import GpuError

    try:
        device.choose(early_config, spec)
    except GpuError as error:
        early_config.stash[state.NO_GPU] = str(error)


def pytest_configure(config: pytest.Config) -> None:
    try:
        config.stash[state.SETTINGS] = _settings.load(config)
    except ValueError as error:
        raise pytest.UsageError(f"pytest-compileiq: {error}") from None
    if state.NO_GPU in config.stash:
        raise pytest.UsageError(f"pytest-compileiq: {config.stash[state.NO_GPU]}")
    chosen = config.stash[state.SETTINGS]
    if chosen.gpu is not None and not config.option.help:
        _require_choice(config, chosen)
    for line in _settings.MARK_LINES:
        config.addinivalue_line("markers", line)
    if not hasattr(config, "workerinput"):
        _report(config, chosen)
    if chosen.isolate == "require" or (chosen.isolate == "auto" and chosen.gpu is not None):
        _isolate(config, chosen)


def _require_choice(config: pytest.Config, chosen: Settings) -> None:
    from pytest_compileiq import device

    if device.GPUS not in config.stash:
        raise pytest.UsageError(
            f"pytest-compileiq: {chosen.sources['gpu']} comes too late: the plugin was loaded by a "
            "conftest.py, when the tests could have started CUDA on another GPU\n"
            "  to do: load it by its entry point, or by -p pytest_compileiq.plugin"
        )


def _report(config: pytest.Config, chosen: Settings) -> None:
    first = FirstReport(config)
    config.pluginmanager.register(first, "compileiq-first-report")
    if chosen.json is not None or chosen.plots is not None:
        first.reporter()
    if chosen.plots is not None:
        from importlib.util import find_spec

        if find_spec("matplotlib") is None:  # now, and not after an hour of measuring
            raise pytest.UsageError(
                f"pytest-compileiq: {chosen.sources['plots']} needs matplotlib\n"
                "  to do: pip install 'pytest-compileiq[plots]'"
            )
    isolates = chosen.gpu is not None or chosen.isolate == "require"
    if isolates and config.pluginmanager.hasplugin("terminal") and config.get_verbosity() >= 0:
        from pytest_compileiq.report import live

        live.register(config)


class FirstReport:
    """Brings the reporter in when a test has left something for it: most runs have none."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if any(str(name).startswith(_PREFIX) for name, _ in report.user_properties):
            # What is registered within a hook's call hears of the next call only.
            self.reporter().pytest_runtest_logreport(report)

    def reporter(self) -> Reporter:
        from pytest_compileiq.report.reporter import Reporter

        chosen = self._config.stash[state.SETTINGS]
        made = Reporter(self._config, json_path=chosen.json, plots=chosen.plots)
        self._config.pluginmanager.unregister(self)
        self._config.pluginmanager.register(made, "compileiq-reporter")
        return made


def _isolate(config: pytest.Config, chosen: Settings) -> None:
    from pytest_compileiq import device, warmup
    from pytest_compileiq.isolation import wiring

    why_not = wiring.install(
        config,
        chosen,
        # The staging folder is made by this process, so that no child's death leaves it behind.
        before_fork=lambda: state.assembler(config).staging,
        # The GPU is held by it, too: whoever locks clocks must not be killed with the test.
        environment_for=lambda item: device.environment_for(config, item, chosen),
        warm_up=lambda: warmup.warm_up(config),
    )
    if why_not is not None:
        config.stash[state.NOT_ISOLATED] = why_not


def pytest_collection_finish(session: pytest.Session) -> None:
    if session.config.stash[state.SETTINGS].gpu is not None:
        from pytest_compileiq import device

        device.count_tests(session)


def pytest_report_header(config: pytest.Config) -> list[str]:
    chosen = config.stash[state.SETTINGS]
    set_by_user = [
        f"{name}={getattr(chosen, name)} (from {source})"
        for name, source in chosen.sources.items()
        if source != "default"
    ]
    lines = [f"compileiq: {', '.join(set_by_user)}"] if set_by_user else []
    if chosen.gpu is not None:
        from pytest_compileiq import device

        lines += device.header(config, chosen)
    if state.NOT_ISOLATED in config.stash:
        lines.append(f"compileiq: tests are not isolated: {config.stash[state.NOT_ISOLATED]}")
    return lines


def pytest_unconfigure(config: pytest.Config) -> None:
    assembler = config.stash.get(state.ASSEMBLER, None)
    if assembler is not None:
        assembler.close()


# The run of one test


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # A rerun of the same item (pytest-rerunfailures) starts from nothing.
    item.stash[state.VERDICTS] = []
    item.stash[state.CALLED] = item.stash[state.PASSED] = item.stash[state.FAILED] = False
    if state.HELPER in item.stash:
        del item.stash[state.HELPER]
    fixtures: list[str] = getattr(item, "fixturenames", [])
    if "ciq" in fixtures and "ciq_fresh_caches" not in fixtures and _is_apart(item.config):
        fixtures.insert(0, "ciq_fresh_caches")  # before any fixture that starts CUDA or compiles
    item.stash[state.LEFT] = []
    item.stash[state.MARKS] = {}
    _read_marks(item)
    chosen = item.config.stash[state.SETTINGS]
    if chosen.retune is not None and chosen.gpu is not None and "ciq" in fixtures:
        from pytest_compileiq.retune.again import stand_by

        _ = state.assembler(item.config).staging  # as in _isolate
        item.stash[state.AGAIN] = stand_by(item)  # before any fixture that starts CUDA


def pytest_runtest_teardown(item: pytest.Item) -> None:
    if (again := item.stash.get(state.AGAIN, None)) is not None:
        again.close()


def _read_marks(item: pytest.Item) -> None:
    if not _marked(item):
        return
    from pytest_compileiq import marks
    from pytest_compileiq.errors import SettingsError

    try:
        item.stash[state.MARKS] = marks.marks_of(item)
    except SettingsError as error:
        raise pytest.fail.Exception(str(error), pytrace=False) from None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    try:
        return (yield)
    finally:
        item.stash[state.CALLED] = True  # reports before this are those of subtests


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # Only the report knows whether a unittest test passed: its failures are never raised.
    complaint = None
    if call.when == "call" and report.passed and item.stash.get(state.CALLED, False):
        complaint = _complaint(item)
        item.stash[state.PASSED] = complaint is None
    elif call.when == "teardown" and report.passed:
        _offer(item)
    if complaint is not None:
        report.outcome = "failed"
        report.longrepr = complaint
    if report.failed:
        item.stash[state.FAILED] = True  # a subtest's failure shows in no later report
    ended = call.when == "setup" or (call.when == "call" and item.stash.get(state.CALLED, False))
    if ended and report.failed and _marked(item):
        from pytest_compileiq import marks

        told = item.stash.setdefault(state.VERDICTS, [])
        answered = {verdict.check for verdict in told}
        told += marks.left_open(item, answered, item.name, marks.FAILED_BEFORE)
    verdicts, left = item.stash.get(state.VERDICTS, ()), item.stash.get(state.LEFT, ())
    assembler = item.config.stash.get(state.ASSEMBLER, None)
    if not (item.user_properties or verdicts or left or assembler):
        return report
    from pytest_compileiq import records

    # Rebuilt at each report: subtests report the call several times, and a fixture that fails
    # in setup may have had its verdicts already.
    own = (records.VERDICT, records.KEPT, records.NOTE, records.OFFER)
    item.user_properties[:] = [entry for entry in item.user_properties if entry[0] not in own]
    for verdict in verdicts:
        item.user_properties.append((records.VERDICT, json.dumps(verdict.to_record(item.nodeid))))
    if assembler is not None and assembler.kept is not None:
        item.user_properties.append((records.KEPT, str(assembler.kept)))
    item.user_properties.extend(left)
    report.user_properties = list(item.user_properties)
    return report


def _marked(item: pytest.Item) -> bool:
    return any(mark.name.startswith("ciq_") for mark in item.iter_markers())


def _complaint(item: pytest.Item) -> str | None:
    if state.HELPER not in item.stash and not _marked(item):
        return None
    from pytest_compileiq import complaints

    return complaints.complaint(item)


def _offer(item: pytest.Item) -> None:
    """Hand on what --ciq-accept shall write at the end of the run, if all has passed."""
    passed = item.stash.get(state.PASSED, False) and not item.stash[state.FAILED]
    helper = item.stash.get(state.HELPER, None)
    if not passed or helper is None or not helper.offers:
        return
    from dataclasses import asdict

    from pytest_compileiq import records

    offers = [(str(path.absolute()), asdict(described)) for path, described in helper.offers]
    item.stash[state.LEFT].append((records.OFFER, json.dumps(offers)))


def _is_apart(config: pytest.Config) -> bool:
    """Do tests that use ``ciq`` run isolated or on a GPU here?"""
    if config.stash[state.SETTINGS].gpu is not None:
        return True
    from pytest_compileiq.isolation import child

    return child.inside()
