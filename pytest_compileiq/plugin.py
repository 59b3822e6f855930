"""The doors: options, marks, fixtures, hooks. What is behind them is imported when used.

A run without ciq tests must cost nothing, so this module imports pytest and settings only.
"""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_compileiq import records
from pytest_compileiq import settings as _settings

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_compileiq.fixture import CIQ
    from pytest_compileiq.gpu.session import Held
    from pytest_compileiq.marks import Params
    from pytest_compileiq.report.ncu import Ncu
    from pytest_compileiq.settings import Settings
    from pytest_compileiq.toolchain.assembler import Assembler
    from pytest_compileiq.verdict import Check, Verdict

SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()
ASSEMBLER: pytest.StashKey[Assembler] = pytest.StashKey()
MARKS: pytest.StashKey[dict[str, Params]] = pytest.StashKey()
VERDICTS: pytest.StashKey[list[Verdict]] = pytest.StashKey()
HELPER: pytest.StashKey[CIQ] = pytest.StashKey()
#: Why --ciq-gpu could not be had, from the hook that may not stop the session to the one that may.
NO_GPU: pytest.StashKey[str] = pytest.StashKey()


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
        early_config.stash[NO_GPU] = str(error)


def pytest_configure(config: pytest.Config) -> None:
    try:
        config.stash[SETTINGS] = _settings.load(config)
    except ValueError as error:
        raise pytest.UsageError(f"pytest-compileiq: {error}") from None
    if NO_GPU in config.stash:
        raise pytest.UsageError(f"pytest-compileiq: {config.stash[NO_GPU]}")
    for line in _settings.MARK_LINES:
        config.addinivalue_line("markers", line)
    if not hasattr(config, "workerinput"):
        _report(config, config.stash[SETTINGS])
    chosen = config.stash[SETTINGS]
    if chosen.isolate == "require" or (chosen.isolate == "auto" and chosen.gpu is not None):
        _isolate(config, chosen)


def _report(config: pytest.Config, chosen: Settings) -> None:
    from pytest_compileiq.report.reporter import Reporter

    if chosen.plots is not None:
        from importlib.util import find_spec

        if find_spec("matplotlib") is None:  # now, and not after an hour of measuring
            raise pytest.UsageError(
                f"pytest-compileiq: {chosen.sources['plots']} needs matplotlib\n"
                "  to do: pip install 'pytest-compileiq[plots]'"
            )
    reporter = Reporter(config, json_path=chosen.json, plots=chosen.plots)
    config.pluginmanager.register(reporter, "compileiq-reporter")
    isolates = chosen.gpu is not None or chosen.isolate == "require"
    if isolates and config.get_verbosity() >= 0 and config.pluginmanager.hasplugin("terminal"):
        from pytest_compileiq.report import live

        live.register(config)


def _isolate(config: pytest.Config, chosen: Settings) -> None:
    from pytest_compileiq import device
    from pytest_compileiq.isolation import wiring

    wiring.install(
        config,
        chosen,
        # The staging folder is made by this process, so that no child's death leaves it behind.
        before_fork=lambda: _assembler(config).staging,
        # The GPU is held by it, too: whoever locks clocks must not be killed with the test.
        environment_for=lambda item: device.environment_for(config, item, chosen),
    )


def pytest_report_header(config: pytest.Config) -> list[str]:
    chosen = config.stash[SETTINGS]
    set_by_user = [
        f"{name}={getattr(chosen, name)} (from {source})"
        for name, source in chosen.sources.items()
        if source != "default"
    ]
    lines = [f"compileiq: {', '.join(set_by_user)}"] if set_by_user else []
    if chosen.gpu is not None:
        from pytest_compileiq import device

        lines += device.header(config, chosen)
    return lines


def pytest_unconfigure(config: pytest.Config) -> None:
    assembler = config.stash.get(ASSEMBLER, None)
    if assembler is not None:
        assembler.close()
    if SETTINGS in config.stash and config.stash[SETTINGS].gpu is not None:
        from pytest_compileiq import device

        device.restore(config)


# Fixtures


@pytest.fixture
def ciq(request: pytest.FixtureRequest) -> CIQ:
    """The door to all checks of pytest-compileiq, for one test.

    ``ciq.check(subject)`` runs what the test's ``ciq_*`` marks ask for; ``ciq.assert_canary``,
    ``assert_objective``, ``assert_resources``, ``assert_stable`` and ``assert_beats_baseline``
    take the marks' keywords directly.
    """
    from pytest_compileiq.fixture import CIQ
    from pytest_compileiq.isolation import child

    item = request.node

    def record(verdict: Verdict) -> None:
        item.stash[VERDICTS].append(verdict)
        child.keep(records.VERDICT, json.dumps(verdict.to_record(item.nodeid)))

    helper = CIQ(
        folder=request.path.parent,
        marks=item.stash.get(MARKS, {}),
        settings=request.config.stash[SETTINGS],
        assembler=_assembler(request.config),
        record=record,
        ncu=_ncu(item),
    )
    item.stash[HELPER] = helper
    return helper


@pytest.fixture
def ciq_gpu(request: pytest.FixtureRequest) -> Iterator[Held]:
    """A GPU of one's own, with its clocks locked as ``--ciq-clocks`` and ``--ciq-sm-mhz`` say.

    ``ciq_gpu.uuid``, ``ciq_gpu.state`` ("locked (1500 MHz)" or why not), and ``window()``:
    ``with ciq_gpu.window() as w: ...`` leaves in ``w.evidence`` what the clocks did meanwhile.
    """
    from pytest_compileiq import device

    settings = request.config.stash[SETTINGS]
    with device.held(request.config, request.node, settings) as held:
        yield held


@pytest.fixture
def ciq_ptxas(request: pytest.FixtureRequest) -> Path:
    """The path of the ptxas that the checks use: 13.3 or newer, see ``--ciq-ptxas``."""
    return _assembler(request.config).ptxas().path


def _ncu(item: pytest.Item) -> Ncu | None:
    settings = item.config.stash[SETTINGS]
    if not settings.ncu:
        return None
    from pytest_compileiq.isolation.attempt import place_of
    from pytest_compileiq.report.ncu import Ncu

    return Ncu.of(item.config, place_of(item), settings)


def _assembler(config: pytest.Config) -> Assembler:
    from pytest_compileiq.toolchain.assembler import Assembler

    if ASSEMBLER not in config.stash:
        chosen = config.stash[SETTINGS]
        config.stash[ASSEMBLER] = Assembler(
            explicit=chosen.ptxas, timeout=chosen.ptxas_timeout, keep=chosen.keep
        )
    return config.stash[ASSEMBLER]


# The run of one test


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    # A rerun of the same item (pytest-rerunfailures) starts from nothing.
    item.stash[VERDICTS] = []
    if not any(mark.name.startswith("ciq_") for mark in item.iter_markers()):
        return
    from pytest_compileiq import marks
    from pytest_compileiq.errors import SettingsError

    try:
        item.stash[MARKS] = marks.marks_of(item)
        return
    except SettingsError as error:
        complaint = error
    pytest.fail(str(complaint), pytrace=False)  # outside `except`: no chained traceback


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    # Only the report knows whether a unittest test passed: its failures are never raised.
    if call.when == "call" and report.passed:
        complaint = _complaint(item)
        if complaint is not None:
            report.outcome = "failed"
            report.longrepr = complaint
    # Rebuilt at each report: subtests report the call several times, and a fixture that fails
    # in setup may have had its verdicts already.
    own = (records.VERDICT, records.KEPT)
    item.user_properties[:] = [entry for entry in item.user_properties if entry[0] not in own]
    for verdict in item.stash.get(VERDICTS, ()):
        item.user_properties.append((records.VERDICT, json.dumps(verdict.to_record(item.nodeid))))
    assembler = item.config.stash.get(ASSEMBLER, None)
    if assembler is not None and assembler.kept is not None:
        item.user_properties.append((records.KEPT, str(assembler.kept)))
    report.user_properties = list(item.user_properties)
    return report


def _complaint(item: pytest.Item) -> str | None:
    """Why a test that passed must not: a mark that nothing answered, a sidecar not written."""
    helper = item.stash.get(HELPER, None)
    if asked := item.stash.get(MARKS, None):
        from pytest_compileiq import marks

        answered = set() if helper is None else helper.answered
        missing = [name for name in asked if name not in answered]
        if missing:
            message = f"{', '.join(missing)} asked for a check, and the test handed over no subject"
            remedy = "call ciq.check(kernel_or_objective); a verb counts with the mark's own limits"
            checks = [marks.MARKS[name][0] for name in missing]
            return _unfit(item, checks, item.name, message, remedy)
    if helper is not None and helper.offers:
        return _write_sidecars(item, helper)
    return None


def _write_sidecars(item: pytest.Item, helper: CIQ) -> str | None:
    from pytest_compileiq.toolchain import sidecar

    for acf, offer in helper.offers.items():
        try:
            sidecar.write(acf, offer.sidecar)
        except OSError as error:
            message = (
                f"--ciq-accept: the sidecar {sidecar.path_of(acf)} cannot be written "
                f"({error.strerror}); the checks passed, and the file is as it was"
            )
            remedy = "make the folder writable and run again, or run without --ciq-accept"
            return _unfit(item, [offer.check], offer.kernel, message, remedy)
    return None


def _unfit(item: pytest.Item, checks: list[Check], kernel: str, message: str, remedy: str) -> str:
    """Record a failure that no check found, in place of these checks' own verdicts."""
    from pytest_compileiq.verdict import Reason, Status, Verdict

    verdicts = item.stash[VERDICTS]
    verdicts[:] = [v for v in verdicts if v.kernel != kernel or v.check not in checks]
    verdicts += [
        Verdict(
            check=check,
            kernel=kernel,
            status=Status.FAIL,
            reason=Reason.UNFIT,
            message=message,
            remedy=remedy,
        )
        for check in checks
    ]
    return f"{message}\n  to do: {remedy}"
