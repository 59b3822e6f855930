"""One run of one test in a process of its own, as pytest sees it: messages become reports."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_compileiq import records
from pytest_compileiq.errors import CiqError
from pytest_compileiq.isolation import crash as _crash
from pytest_compileiq.isolation import messages
from pytest_compileiq.isolation.crash import Crash, CrashProperties, Properties
from pytest_compileiq.isolation.messages import Kind, Progress
from pytest_compileiq.isolation.zygote_client import (
    Ended,
    LostError,
    NotStartedError,
    OnSecond,
    ZygoteClient,
)
from pytest_compileiq.verdict import Reason

#: Holds what a test needs (the GPU, its clocks) around its process; yields its environment.
EnvironmentFor = Callable[[pytest.Item], AbstractContextManager[dict[str, str]]]

Log = Callable[[pytest.TestReport], object]

_ENDINGS = (Kind.DONE, Kind.QUIT, Kind.INTERRUPTED, Kind.ERROR)
_REAL_EXITS = (pytest.exit.Exception, KeyboardInterrupt)


@dataclass(slots=True)
class Attempt:
    """What came of it. ``lost`` says why the zygote is of no use any more.

    ``log`` hears of each report as it comes, so that Ctrl-C takes none away (xdist's controller
    hears of nothing later), but not of the teardown's, to which something may be added. Without
    it, all wait in ``unlogged``.
    """

    log: Log | None = None
    reports: list[pytest.TestReport] = field(default_factory=list)
    ending: tuple[Any, ...] | None = None
    crash: Crash | None = None
    may_rerun: bool = True
    lost: str = ""
    unlogged: list[pytest.TestReport] = field(default_factory=list)

    def add(self, report: pytest.TestReport) -> None:
        self.reports.append(report)
        if self.log is None or report.when == "teardown":
            self.unlogged.append(report)
        else:
            self.log(report)

    @property
    def failed(self) -> bool:
        return any(report.failed for report in self.reports)

    @property
    def stops_session(self) -> bool:
        return self.ending is not None and self.ending[0] in (Kind.QUIT, Kind.INTERRUPTED)


class Attempter:
    """Runs items by one zygote. ``timeout_for`` gives seconds."""

    def __init__(
        self,
        config: pytest.Config,
        link: ZygoteClient,
        *,
        environment_for: EnvironmentFor,
        timeout_for: Callable[[pytest.Item], float],
        crash_properties: CrashProperties,
    ) -> None:
        self._config = config
        self._link = link
        self._environment_for = environment_for
        self._timeout_for = timeout_for
        self._crash_properties = crash_properties
        self._tells = True

    def __call__(self, item: pytest.Item, index: int, log: Log | None) -> Attempt:
        attempt = Attempt(log)
        with ExitStack() as held:
            call, error = phase(
                item, "setup", lambda: held.enter_context(self._environment_for(item))
            )
            if call.excinfo is not None:  # no GPU, clocks not locked
                report = pytest.TestReport.from_item_and_call(item, call)
                if error is not None:
                    crash = Crash(error.reason, error.what, remedy=error.remedy)
                    report.user_properties = list(self._crash_properties(item, crash))
                attempt.add(report)
                return attempt
            messages.flush_output()
            timeout = self._timeout_for(item)
            request = (item.nodeid, index, place_of(item), call.result, timeout)
            self._run(attempt, item, request, timeout)
            try:
                call, _ = phase(item, "teardown", held.close)
            except KeyboardInterrupt:
                attempt.ending = (Kind.INTERRUPTED,)
                return attempt
            if call.excinfo is not None:
                report = pytest.TestReport.from_item_and_call(item, call)
                # What the test has answered stands: the trouble came after it.
                report.user_properties = [
                    one for last in attempt.reports[-1:] for one in last.user_properties
                ]
                attempt.add(report)
            return attempt

    def _run(
        self, attempt: Attempt, item: pytest.Item, request: tuple[Any, ...], timeout: float
    ) -> None:
        listener = _Listener(item, attempt)
        seconds, crash = 0.0, None
        try:
            ended = self._link.run(request, timeout, listener, self._teller(item, listener))
            seconds = ended.seconds
            if not listener.complete:
                crash = listener.crash(ended, timeout)
        except NotStartedError as error:
            crash = Crash(
                Reason.UNFIT,
                f"no process for it could be started: {error}",
                remedy="free memory and process slots (ulimit -u, the cgroup's pids.max)",
            )
        except LostError as error:
            attempt.lost = f"the server of isolated tests {error} while {item.nodeid} ran"
            text = f"its process was lost with its server, which {error}"
            crash = Crash(Reason.CRASHED, text, listener.progress, kept=listener.kept)
        except KeyboardInterrupt:
            attempt.ending = (Kind.INTERRUPTED,)
        attempt.crash = crash
        if crash is not None:
            properties = self._crash_properties(item, crash)
            attempt.add(self._report(item, crash, listener.next_phase, properties, seconds))
        elif listener.untold and attempt.ending == (Kind.INTERRUPTED,):
            crash = Crash(Reason.UNFIT, "Ctrl-C came before its end", listener.progress)
            attempt.add(self._report(item, crash, listener.next_phase, listener.kept, seconds))

    def _teller(self, item: pytest.Item, listener: _Listener) -> OnSecond | None:
        """Tells those who listen what the test is at; None where nobody does."""
        hook = self._config.hook.pytest_ciq_progress
        if not hook.get_hookimpls():
            return None

        def tell(seconds: float) -> None:
            if not self._tells:
                return
            now = listener.progress
            try:
                hook(
                    config=self._config,
                    nodeid=item.nodeid,
                    kernel=now.kernel,
                    check=now.check,
                    arm=now.arm,
                    seconds=seconds,
                )
            except Exception as error:  # a listener's fault is no reason to run no more tests
                self._tells = False
                text = f"pytest_ciq_progress: {type(error).__name__}: {error}; nobody is told more"
                place = (__file__, 0, "runtest", item.nodeid, None)
                replay_warning(self._config, text, "pytest", "PytestWarning", *place)

        return tell

    def _report(
        self, item: pytest.Item, crash: Crash, when: str, properties: Properties, seconds: float
    ) -> pytest.TestReport:
        """The failing report of a crash, with all that the dead process had written."""
        sections = []
        # The capture's files are shared: what is not read now would show in the next test.
        capture = self._config.pluginmanager.getplugin("capturemanager")
        if capture is not None and capture.is_globally_capturing():
            names = ("stdout", "stderr")
            sections = [
                (f"Captured {name} {when}", text)
                for name, text in zip(names, capture.read_global_capture(), strict=True)
                if text
            ]
        return _crash.report(
            item, crash, when=when, seconds=seconds, sections=sections, properties=properties
        )


class _Listener:
    """Takes a child's messages, any of which may be nonsense from a damaged process."""

    def __init__(self, item: pytest.Item, attempt: Attempt) -> None:
        self.progress = Progress()
        self.kept: Properties = []
        self.untold = False  # was a verdict kept since the last report?
        self._item = item
        self._attempt = attempt

    def __call__(self, message: tuple[Any, ...]) -> None:
        report = None
        try:
            report = self._take(*message)
        except Exception as error:
            text = f"it sent a bad message: {type(error).__name__}: {error}"
            self._attempt.ending = self._attempt.ending or (Kind.ERROR, text)
        if report is not None:  # what plugins raise of it is no fault of the message
            try:
                self._attempt.add(report)
            except OSError as error:  # nor a sign of a dead zygote
                raise RuntimeError("a plugin's pytest_runtest_logreport failed") from error

    def _take(self, kind: str, *fields: Any) -> pytest.TestReport | None:
        if kind == Kind.PROGRESS:
            self.progress = Progress(*(str(word) for word in fields))
        elif kind == Kind.KEEP:
            name, value, instead = fields
            if instead:
                self.kept.pop()
            self.kept.append((str(name), value))
            self.untold = self.untold or name == records.VERDICT
        elif kind == Kind.REPORT:
            (data,) = fields
            config = self._item.config
            hook = config.hook.pytest_report_from_serializable
            report: pytest.TestReport = hook(config=config, data=data)
            if report.nodeid != self._item.nodeid:
                raise ValueError(f"a report of {report.nodeid}")
            self.kept, self.untold = [*report.user_properties] or self.kept, False
            return report
        elif kind == Kind.WARNING:
            replay_warning(self._item.config, *fields)
        elif kind == Kind.RERUN:
            (self._attempt.may_rerun,) = fields
        elif kind in _ENDINGS:
            self._attempt.ending = self._attempt.ending or (kind, *fields)
        else:
            raise ValueError(f"kind {kind}")
        return None

    @property
    def complete(self) -> bool:
        """Did the process say all that it had to say?"""
        ending = self._attempt.ending
        if ending is None or ending[0] == Kind.ERROR:
            return False
        done = any(report.when == "teardown" for report in self._attempt.reports)
        return done or ending[0] != Kind.DONE

    @property
    def next_phase(self) -> str:
        """The phase that a report of the process's death belongs to."""
        phases = [report for report in self._attempt.reports if type(report) is pytest.TestReport]
        if not phases:
            return "setup"
        last = phases[-1]
        return "call" if last.when == "setup" and last.passed else "teardown"

    def crash(self, ended: Ended, timeout: float) -> Crash:
        reason, details = Reason.CRASHED, _crash.own_frames(ended.stacks)
        ending = self._attempt.ending
        if ending is not None and ending[0] == Kind.ERROR:
            text, _, rest = str(ending[1]).strip().partition("\n")
            if rest:  # a traceback: its last line says most
                text, details = f"its process failed in pytest: {rest.splitlines()[-1]}", rest
        elif ending is not None:
            text = "its process ended without the reports of the test"
        elif ended.timed_out:
            reason = Reason.HUNG
            text = f"no end after {timeout:g} s, and its process was killed"
        else:
            text = f"its process {messages.describe(ended.code)} before its end"
        remedy = _crash.remedy_at(self.progress)
        return Crash(reason, text, self.progress, remedy, tuple(self.kept), details)


def phase(
    item: pytest.Item, when: str, action: Callable[[], Any]
) -> tuple[pytest.CallInfo[Any], CiqError | None]:
    """Run a part of the item's protocol in this process, its output captured.

    An error of this plugin says all by its text, so it comes back without a traceback, and itself.
    """
    capture = item.config.pluginmanager.getplugin("capturemanager")
    error: CiqError | None = None

    def captured() -> Any:
        nonlocal error
        with capture.item_capture(when, item) if capture else nullcontext():
            try:
                return action()
            except CiqError as raised:
                error = raised
            pytest.fail(str(error), pytrace=False)

    call = pytest.CallInfo.from_call(captured, when, reraise=_REAL_EXITS)  # type: ignore[arg-type]
    return call, error


def place_of(item: pytest.Item) -> str:
    """The item as an argument of pytest, wherever that was started.

    Not its nodeid: xdist's loadgroup changes that.
    """
    inside = f"{item.parent.nodeid if item.parent else ''}::{item.name}".partition("::")[2]
    return f"{item.path}::{inside}"


def replay_warning(
    config: pytest.Config,
    text: str,
    module: str,
    name: str,
    filename: str,
    line: int,
    when: str,
    nodeid: str,
    location: Any,
) -> None:
    """Record here a warning that was made elsewhere, whatever the filters say here."""
    category = getattr(sys.modules.get(module), name, None)
    try:
        message = category(text)  # type: ignore[misc]
        if not isinstance(message, Warning):
            raise TypeError(f"{name} is not a warning")
    except Exception:
        message = UserWarning(text)
    made = warnings.WarningMessage(message, type(message), filename, line)
    config.hook.pytest_warning_recorded.call_historic(
        kwargs={"warning_message": made, "when": when, "nodeid": nodeid, "location": location}
    )
