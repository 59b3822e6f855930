"""The process of one isolated test: runs the item and streams its reports to pytest.

``progress`` and ``keep`` are for the checks. They cost nothing, and do nothing, where a test is
not isolated.
"""

from __future__ import annotations

import contextlib
import math
import os
import random
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest
from _pytest.runner import runtestprotocol

from pytest_compileiq.isolation import messages
from pytest_compileiq.isolation.messages import Kind, Progress

if TYPE_CHECKING:
    import warnings

    from pytest_compileiq.isolation.crash import Crash, CrashProperties, Properties

_channel: Channel | None = None


def inside() -> bool:
    """Is this the process of an isolated test?"""
    return _channel is not None


def progress(arm: str, *, kernel: str | None = None, check: str | None = None) -> None:
    """Say what comes next (the baseline, ``best.acf``), for the report of a crash or hang.

    To be called before each arm: what it says stands until the next call, and so do the kernel
    and the check that it leaves out. "" means that none runs. A process that the test has
    forked says nothing: what it runs is not what the test is at.
    """
    if _channel is not None and _channel.mine:
        before = _channel.progress
        now = Progress(
            arm,
            before.kernel if kernel is None else kernel,
            before.check if check is None else check,
        )
        _channel.progress = now
        _channel.send(Kind.PROGRESS, now.arm, now.kernel, now.check)


def elapsed() -> float:
    """Seconds since this isolated test has its process; 0 where it is not isolated."""
    return 0.0 if _channel is None else time.monotonic() - _channel.began


def seconds_left() -> float:
    """Seconds until this isolated test is killed; infinity where it is not isolated."""
    return math.inf if _channel is None else _channel.deadline - time.monotonic()


def keep(name: str, value: object, *, instead: bool = False) -> None:
    """Have a user property on the report even when this process dies before its end.

    ``instead``: in the place of the one that was kept last.
    """
    if _channel is not None and _channel.mine:
        if instead:
            _channel.kept.pop()
        _channel.kept.append((name, value))
        _channel.send(Kind.KEEP, name, value, instead)


def run_again(item: pytest.Item) -> None:
    """Set up, call and tear down an item in a fork of its process that was made before its setup.

    Nothing is reported, and no plugin's hooks around it run: fixtures that wait for one, as
    tmp_path does, fail to end, and are left. Raises what setup and call raise.
    """
    state = item.session._setupstate
    # Not the ends of fixtures that live on in the process of which this is a fork.
    for finalizers, _ in state.stack.values():
        finalizers.clear()
    for definitions in cast(pytest.Function, item)._fixtureinfo.name2fixturedefs.values():
        for definition in definitions:
            if definition.cached_result is not None:  # pytest 8 has each user end it
                definition._finalizers.clear()
    try:
        state.setup(item)
        item.runtest()
    finally:
        with contextlib.suppress(BaseException):
            state.teardown_exact(None)


class Channel:
    """The way to pytest, for the process that it was made in and for no fork of it."""

    def __init__(self, peer: socket.socket, seconds: float) -> None:
        self.progress = Progress()
        self.began = time.monotonic()
        self.deadline = self.began + seconds
        self.kept: list[tuple[str, object]] = []
        self._peer = peer
        self._pid = os.getpid()
        self._lock = threading.RLock()

    @property
    def mine(self) -> bool:
        return os.getpid() == self._pid

    def send(self, kind: Kind, *fields: object) -> None:
        if not self.mine:  # a fork made by the test has come back up here
            os._exit(71)
        with self._lock:
            messages.send(self._peer, kind, *fields)


class Hooks:
    """The plugin that takes pytest's place in the child: reports and warnings go to pytest."""

    channel: Channel  # set in each child

    def __init__(self, config: pytest.Config, crash_properties: CrashProperties) -> None:
        self._config = config
        self._crash_properties = crash_properties
        self._item: pytest.Item | None = None
        self._failed = False
        self._dead = False
        self._death: Crash | None = None  # None also where a check has told of it

    def run(self, item: pytest.Item) -> None:
        """Run one item through the whole hook, so that all wrappers of it work here too."""
        from pytest_compileiq.isolation import reruns

        self._item = item
        item.ihook.pytest_runtest_protocol(item=item, nextitem=None)
        self.channel.send(Kind.RERUN, reruns.allowed(item, self._failed))

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> bool:
        runtestprotocol(item, nextitem=None, log=True)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        hook = self._config.hook
        # pytest 9's subtests turn a passed test with failed subtests into a failed one there.
        hook.pytest_report_teststatus(report=report, config=self._config)
        self._failed = self._failed or report.failed
        data = hook.pytest_report_to_serializable(config=self._config, report=report)
        self.channel.send(Kind.REPORT, data)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        """A sticky CUDA error is a crash that left the process alive: say so, with the arm.

        It is looked for after a pass, too: a launch that nothing waited for reports no error.
        """
        from pytest_compileiq.isolation import probes

        report = yield
        known = [*(report.user_properties or self.channel.kept)]
        if not self._dead and (error := probes.sticky_cuda_error()) is not None:
            self._dead, self._death = True, self._tell_death(item, report, known, error)
        if self._dead:  # at each report, as the last one of a test is the one that counts
            report.user_properties[:] = known
        if self._death is not None:
            died = replace(self._death, kept=known)
            report.user_properties[:] = self._crash_properties(item, died)
        return report

    def _tell_death(
        self, item: pytest.Item, report: pytest.TestReport, known: Properties, error: str
    ) -> Crash | None:
        """Make a failure of the report, unless a check has told of the death."""
        from pytest_compileiq.isolation import crash
        from pytest_compileiq.verdict import Reason

        progress = self.channel.progress
        if report.failed and crash.is_told(known, progress.arm):
            return None
        text, remedy = f"the CUDA context died of {error}", crash.remedy_at(progress)
        died = crash.Crash(Reason.CRASHED, text, progress, remedy)
        if report.failed:
            report.sections.append(("isolated test", died.text_for_people))
        else:  # passed, skipped, or expected to fail: none of them is an answer any more
            report.outcome = "failed"
            report.longrepr = crash.longrepr(item, died)
            vars(report).pop("wasxfail", None)
        return died

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        if self._item is None:  # history, or a collection that pytest has had, too
            return
        text, kind = str(warning_message.message), warning_message.category
        place = (warning_message.filename, warning_message.lineno)
        where = (kind.__module__, kind.__qualname__, *place)
        self.channel.send(Kind.WARNING, text, *where, when, nodeid, location)


#: Plugins that have to stay silent when a child of the early zygote collects its item.
_SPEAKERS = ("TerminalReporter", "WorkerInteractor")


class Runner:
    """What a child does. Made in pytest, prepared in the zygote, called in each child.

    ``owner`` is the plugin that pytest itself isolates with. ``items`` are those of the
    session, or None when the zygote was forked before they were collected.
    """

    def __init__(
        self,
        session: pytest.Session,
        owner: object,
        crash_properties: CrashProperties,
        *,
        collected: bool,
    ) -> None:
        self.one_torch_thread = False  # set in the zygote
        self._session = session
        self._owner = owner
        self._hooks = Hooks(session.config, crash_properties)
        self._items = list(session.items) if collected else None
        self._random = random.getstate()

    def prepare(self) -> None:
        """In the zygote: put the child's hooks in the place of pytest's own plugin."""
        manager = self._session.config.pluginmanager
        manager.unregister(self._owner)
        manager.register(self._hooks, "compileiq-child")
        self._silence()

    def _silence(self) -> None:
        """Reports and warnings are pytest's own to tell to plugins."""
        hooks = self._session.config.hook
        for hook in (hooks.pytest_runtest_logreport, hooks.pytest_warning_recorded):
            for implementation in hook.get_hookimpls():
                if implementation.plugin is not self._hooks:
                    hook._remove_plugin(implementation.plugin)

    def __call__(self, request: tuple[Any, ...], peer: socket.socket, stacks: int) -> int:
        """Run the requested item; returns the process's exit status."""
        global _channel
        nodeid, index, where, environment, seconds = request
        _channel = channel = Channel(peer, seconds)
        self._settle(environment, stacks)
        self._hooks.channel = channel
        try:
            item = self._find(nodeid, index, where)
            ending = _attempt(lambda: self._hooks.run(item))
        except Exception:
            ending = (Kind.ERROR, traceback.format_exc())
        if not channel.mine:
            return 71
        # Something is left to tear down after an exit or an interrupt only.
        last = _attempt(lambda: self._session._setupstate.teardown_exact(None))
        if last[0] == Kind.ERROR:
            print(last[1], file=sys.stderr)
        _save_coverage()
        messages.flush_output()
        channel.send(*ending)
        return 0

    def _settle(self, environment: dict[str, str], stacks: int) -> None:
        """Make a process of its own out of the copy of pytest."""
        import faulthandler
        import resource
        import signal

        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)  # no test may wait for the terminal
        os.close(null)
        os.environ.update(environment)
        random.setstate(self._random)  # CPython reseeds in each fork: import-time seeds were lost
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        if self.one_torch_thread:
            sys.modules["torch"].set_num_threads(1)
        faulthandler.enable(stacks)
        faulthandler.register(signal.SIGUSR1, stacks)

    def _find(self, nodeid: str, index: int, where: str) -> pytest.Item:
        items = self._collect(where) if self._items is None else [self._items[index]]
        for item in items:
            if item.nodeid == nodeid:
                return item
        found = ", ".join(item.nodeid for item in items) or "nothing"
        raise LookupError(f"{nodeid} was not found again: {where} collected {found}")

    def _collect(self, where: str) -> list[pytest.Item]:
        """Collect one item anew, unheard by the terminal and by xdist's controller."""
        config = self._session.config
        hooks = config.hook
        for hook in (
            hooks.pytest_collectstart,
            hooks.pytest_collectreport,
            hooks.pytest_collection_finish,
            hooks.pytest_deselected,
            hooks.pytest_itemcollected,
        ):
            for implementation in hook.get_hookimpls():
                if type(implementation.plugin).__name__ in _SPEAKERS:
                    hook._remove_plugin(implementation.plugin)
        # Assertion rewriting learns the session in this hook, which had not come to it yet.
        if assertion := config.pluginmanager.getplugin("assertion"):
            assertion.pytest_collection(self._session)
        config.args[:] = [where]
        self._session.perform_collect()
        self._silence()  # conftests have come to it
        return list(self._session.items)


def _attempt(action: Callable[[], object]) -> tuple[Any, ...]:
    """Do it; returns the message that tells pytest how it ended."""
    try:
        action()
    except pytest.exit.Exception as error:
        return Kind.QUIT, error.msg, error.returncode
    except KeyboardInterrupt:
        return (Kind.INTERRUPTED,)
    except BaseException:
        return Kind.ERROR, traceback.format_exc()
    return (Kind.DONE,)


def _save_coverage() -> None:
    """Write coverage's data: ``os._exit`` skips what does it at an ordinary end."""
    coverage = sys.modules.get("coverage")
    with contextlib.suppress(Exception):
        if coverage is not None and (current := coverage.Coverage.current()) is not None:
            current.stop()
            current.save()
