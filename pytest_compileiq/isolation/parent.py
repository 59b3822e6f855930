"""The plugin that runs chosen tests in processes of their own, seen from pytest's process.

The zygote is forked when the tests are collected and no fixture exists yet. A second one, forked
before the collection, stands by: when a test module has started CUDA at import, every fork made
afterwards is useless for CUDA, and the children come from that one, each importing its test's
module again.
"""

from __future__ import annotations

import faulthandler
import os
import sys
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any, Literal

import pytest

from pytest_compileiq.isolation import crash as _crash
from pytest_compileiq.isolation import memory, probes
from pytest_compileiq.isolation.attempt import (
    Attempt,
    Attempter,
    EnvironmentFor,
    Log,
    phase,
    replay_warning,
)
from pytest_compileiq.isolation.child import Runner
from pytest_compileiq.isolation.crash import Crash, CrashProperties
from pytest_compileiq.isolation.messages import Kind
from pytest_compileiq.isolation.probes import Problem
from pytest_compileiq.isolation.reruns import Reruns
from pytest_compileiq.isolation.zygote_client import LostError, ZygoteClient
from pytest_compileiq.verdict import Reason

NAME = "compileiq-isolation"

_MOVE_CUDA = (
    "move what asks the GPU at import, such as torch.cuda.get_device_capability() in a skipif "
    "mark, into a fixture or the test"
)


def obstacle(config: pytest.Config) -> str | None:
    """Why tests can not be isolated in this run, or None."""
    if sys.platform != "linux":
        return f"isolation needs Linux, and this is {sys.platform}"
    if not hasattr(os, "pidfd_open"):
        return "isolation needs pidfd_open, which this Python or its C library lacks"
    for option, name in (("usepdb", "--pdb"), ("trace", "--trace"), ("setuponly", "--setup-only")):
        if config.getoption(option, False):
            return f"{name} needs the tests in pytest's own process"
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return f"isolation needs Linux 5.3 or newer (pidfd_open: {error.strerror})"
    return None


class Isolation:
    """Runs the items that ``wants_isolation`` names, each in a process of its own.

    ``environment_for(item)`` is entered in pytest's process around the child, and yields the
    environment variables that the child gets; an exception of it becomes the test's report.
    ``timeout_for(item)`` gives the seconds after which the child is killed.
    ``crash_properties(item, crash)`` makes the user properties of a crash's report.
    ``before_fork()`` makes what pytest's process has to own and children use, and ``warm_up()``
    does, in the zygote, what each child would do again.

    Mode "require" fails a test that can not be isolated; "auto" runs it in pytest's process,
    and a warning says so. To be registered as ``NAME``, and only where ``obstacle`` is None.
    """

    def __init__(
        self,
        config: pytest.Config,
        *,
        wants_isolation: Callable[[pytest.Item], bool],
        mode: Literal["auto", "require"],
        environment_for: EnvironmentFor,
        timeout_for: Callable[[pytest.Item], float],
        crash_properties: CrashProperties,
        before_fork: Callable[[], object],
        warm_up: Callable[[], object],
    ) -> None:
        self.wants_isolation = wants_isolation
        self.mode = mode
        self.environment_for = environment_for
        self.timeout_for = timeout_for
        self.crash_properties = crash_properties
        self._config = config
        self._before_fork = before_fork
        self._warm_up = warm_up
        self._early: ZygoteClient | None = None
        self._link: ZygoteClient | None = None
        self._refusal: Crash | None = None  # why each isolated item fails from here on
        self._cuda_starter = ""
        self._index: dict[pytest.Item, int] = {}

    @property
    def active(self) -> bool:
        """Do the wanted items run outside of this process from here on?"""
        return self._link is not None or self._refusal is not None

    # The zygotes

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection(self, session: pytest.Session) -> None:
        """Fork the zygote that stands by, inside the wrappers that install logging's handlers."""
        controls_workers = self._config.pluginmanager.hasplugin("dsession")
        if not (controls_workers or self._config.option.collectonly):
            self._early = self._fork(session, collected=False)

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, Any, Any]:
        """Remember which test module starts CUDA at import."""
        report = yield
        if isinstance(collector, pytest.Module) and not self._cuda_starter:
            self._cuda_starter = collector.nodeid if probes.cuda_is_started() else ""
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> None:
        """Choose the zygote: not in a wrapper, or the children would lack logging's handlers."""
        items = getattr(session, "items", [])
        wanted = sum(map(self.wants_isolation, items))
        if self._config.option.collectonly or not wanted:
            self._close(self._early)
            return
        self._index = {item: index for index, item in enumerate(items)}
        if threads := probes.other_threads():
            self._warn(
                f"{len(threads)} other threads ran when isolated tests' server was forked "
                f"({', '.join(threads[:5])}): a lock that one of them held hangs a test"
            )
        if wanted >= memory.WORTH_IT:
            memory.collapse()
        late = self._fork(session, collected=True)
        problems = _problems(late)
        if late is not None and not problems & {Problem.CUDA, "lost"}:
            self._close(self._early)
            self._link = late
            if Problem.TORCH_THREADS in problems:
                self._warn(
                    "torch had started CPU threads while the tests were collected: isolated "
                    "tests run torch on one CPU thread. To do: move tensor work out of import"
                )
            return
        self._close(late)
        if Problem.CUDA in problems and self._early and not _problems(self._early):
            self._link = self._early
            self._warn(
                f"CUDA was started while the tests were collected{self._starter()}, so each "
                f"isolated test imports its module anew, seconds with torch. To do: {_MOVE_CUDA}"
            )
            return
        self._close(self._early)
        self._refuse(cuda=Problem.CUDA in problems)

    def _starter(self) -> str:
        return f" by {self._cuda_starter}" if self._cuda_starter else ""

    def _refuse(self, *, cuda: bool) -> None:
        """No zygote is of use: fail what has to be isolated, or run it here and say so."""
        text, remedy = "the server of isolated tests could not be started", ""
        if cuda:
            text = f"CUDA was started{self._starter()} before any server of isolated tests"
            remedy = _MOVE_CUDA
        if self.mode == "require":
            self._refusal = Crash(Reason.UNFIT, f"--ciq-isolate=require: {text}", remedy=remedy)
            return
        self._warn(f"tests are not isolated, a crash ends the run: {text}. To do: {remedy}")

    def _fork(self, session: pytest.Session, *, collected: bool) -> ZygoteClient | None:
        # Else each child would make a base directory of its own, and with --basetemp (always
        # given to xdist's workers) delete the one that is there.
        factory = getattr(self._config, "_tmp_path_factory", None)
        if factory is not None:
            factory.getbasetemp()
        self._before_fork()
        runner = Runner(session, self, self.crash_properties, collected=collected)
        cuda_started = probes.cuda_is_started()

        def prepare() -> list[str]:
            if collected:
                self._warm_up()
            runner.prepare()
            problems = probes.in_zygote(cuda_started=cuda_started)
            runner.one_torch_thread = Problem.TORCH_THREADS in problems
            return problems

        foreign = (self._early,) if self._early is not None else ()
        with suppress(OSError):
            return ZygoteClient(runner, prepare, foreign=foreign)
        return None

    def _close(self, link: ZygoteClient | None) -> None:
        if link is not None:
            link.close()
        if link is self._early:
            self._early = None
        if link is self._link:
            self._link = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._close(self._link)
        self._close(self._early)

    def pytest_unconfigure(self) -> None:
        self.pytest_sessionfinish()

    # The run of one item

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_protocol(
        self, item: pytest.Item, nextitem: pytest.Item | None
    ) -> bool | None:
        if not (self.active and self.wants_isolation(item)):
            return None
        # The child has timers of its own; those of this process would strike the wrong one.
        if hasattr(self._config.hook, "pytest_timeout_cancel_timer"):
            self._config.hook.pytest_timeout_cancel_timer(item=item)
        faulthandler.cancel_dump_traceback_later()
        reruns = Reruns(item)
        number = 0
        while self._attempt(item, nextitem, reruns, number):
            number += 1
        return True

    def _attempt(
        self, item: pytest.Item, nextitem: pytest.Item | None, reruns: Reruns, number: int
    ) -> bool:
        """Run the item once and report it; tells whether to run it again."""
        hook = item.ihook
        hook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)

        def log(report: pytest.TestReport) -> None:
            hook.pytest_runtest_logreport(report=report)

        # Only its end tells whether pytest-rerunfailures will have it tried again.
        attempt = self._run(item, None if reruns.count else log)
        again = attempt.failed and attempt.may_rerun and not attempt.stops_session
        if again and attempt.crash is not None:
            error = _crash.ProcessDiedError(attempt.crash.message)
            again = not reruns.crash_is_final(attempt.reports[-1], error)
        again = again and reruns.again(number)
        for report in attempt.unlogged:
            if reruns.count:
                report.rerun = number  # type: ignore[attr-defined]
            if again and report.failed:
                report.outcome = "rerun"  # type: ignore[assignment]
            log(report)
        if attempt.stops_session and attempt.ending is not None:
            kind, *fields = attempt.ending
            if kind == Kind.QUIT:
                pytest.exit(*fields)
            raise KeyboardInterrupt
        if not again:
            self._tear_down(item, nextitem)
        hook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)
        return again

    def _run(self, item: pytest.Item, log: Log | None) -> Attempt:
        if self._link is None:
            assert self._refusal is not None
            properties = self.crash_properties(item, self._refusal)
            report = _crash.report(item, self._refusal, when="setup", properties=properties)
            refused = Attempt(may_rerun=False)
            refused.add(report)
            return refused
        attempt = Attempter(
            self._config,
            self._link,
            environment_for=self.environment_for,
            timeout_for=self.timeout_for,
            crash_properties=self.crash_properties,
        )(item, self._index.get(item, -1), log)
        if attempt.lost:
            # A new zygote would inherit fixtures that are alive by now: none is forked late.
            self._close(self._link)
            self._refusal = Crash(Reason.UNFIT, f"not run, because {attempt.lost}")
        return attempt

    def _tear_down(self, item: pytest.Item, nextitem: pytest.Item | None) -> None:
        """End the fixtures of ordinary tests, set up here, that the next item does not need."""
        session = item.session
        if session.shouldfail or session.shouldstop:
            nextitem = None
        call, _ = phase(item, "teardown", lambda: session._setupstate.teardown_exact(nextitem))
        if call.excinfo is not None:
            # Not through pytest_runtest_makereport: plugins would miss their state of the setup.
            report = pytest.TestReport.from_item_and_call(item, call)
            item.ihook.pytest_runtest_logreport(report=report)

    def _warn(self, text: str) -> None:
        """Show a warning in the summary. It can not become an error, whatever the filters say."""
        replay_warning(
            self._config, f"pytest-compileiq: {text}", "builtins", "UserWarning", __file__, 1,
            "runtest", "", None,
        )  # fmt: skip


def _problems(link: ZygoteClient | None) -> set[str]:
    if link is None:
        return {"lost"}
    try:
        return set(link.ready())
    except LostError:
        return {"lost"}
