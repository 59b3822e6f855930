"""A lane: one fork server, warm with all that its maker had imported, and one task at a time.

The server is a zygote (``isolation/zygote.py``): each task is a child of it in a process group
of its own, and whatever the task leaves behind becomes the zygote's child, and dies.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import functools
import inspect
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Mapping
from typing import Any

from pytest_compileiq.errors import CiqError
from pytest_compileiq.isolation import messages, probes
from pytest_compileiq.isolation.contain import one_line
from pytest_compileiq.isolation.messages import Kind
from pytest_compileiq.isolation.zygote_client import Ended, LostError, NotStartedError, ZygoteClient
from pytest_compileiq.search.causes import Answer, Cause
from pytest_compileiq.subjects.objective import judge

#: Seconds that a task without a limit gets: eleven days, as the system's timers take no more.
FOREVER = 1e6
#: Opening and re-opening: a fork must not come between another thread's fork and its `close`.
_forking = threading.Lock()
_open: list[ZygoteClient] = []


class Lane:
    """Calls ``function`` for one configuration after the other, each in a child of its own.

    ``environment`` is set in each child on top of this process's environment as it is when the
    task starts. Raises CiqError when forks of this process cannot work.
    """

    def __init__(
        self, function: Callable[[Any], Any], objectives: int, environment: Mapping[str, str]
    ) -> None:
        self._function = function
        self._objectives = objectives
        self.environment = dict(environment)
        self.notes: list[str] = []
        self._busy = threading.Lock()
        self._stopped = False
        self._link = self._fork()

    def _fork(self) -> ZygoteClient:
        import compileiq.utils.validation  # noqa: F401  here, once, and not in each child

        inherited = functools.partial(probes.in_zygote, cuda_started=probes.cuda_is_started())
        with _forking:
            link = ZygoteClient(self._run_child, inherited, foreign=tuple(_open))
            _open.append(link)
        try:
            problems = link.ready()
        except LostError as error:
            self._drop(link)
            raise CiqError(
                f"the fork server of the search {error}",
                remedy="if it was not killed from outside, report this with the line above",
            ) from error
        if probes.Problem.CUDA in problems:
            self._drop(link)
            raise CiqError(
                "CUDA has been started in this process, so no fork of it can use a GPU",
                remedy="start the search before any CUDA work: make tensors and load kernels "
                "inside the objective, and measure the baseline after the search",
            )
        if probes.Problem.TORCH_THREADS in problems:
            self.notes.append(
                "torch has computed on the CPU in this process, and the objective's processes "
                "hang if they do so, too; compute after the search, or torch.set_num_threads(1) "
                "before"
            )
        return link

    def _drop(self, link: ZygoteClient) -> None:
        with _forking:
            if link in _open:  # after a fork that failed, `close` finds the former one
                _open.remove(link)
        link.close()

    def evaluate(self, params: Any, timeout: float) -> Answer:
        """Call the objective once, for at most ``timeout`` seconds, which may be infinite.

        Not at all after ``stop``.
        """
        with self._busy:
            if self._stopped:
                return Answer(cause=Cause.CRASHED, text="was not called: its search was stopped")
            return self._evaluate(params, timeout)

    def _evaluate(self, params: Any, timeout: float) -> Answer:
        environment = {**os.environ, **self.environment}
        said: list[tuple[Any, ...]] = []
        limit = min(max(timeout, 0.001), FOREVER)
        try:
            ended = self._link.run((params, environment), limit, said.append)
        except LostError as error:
            self._drop(self._link)
            if not self._stopped:
                self._link = self._fork()
            return Answer(cause=Cause.CRASHED, text=f"lost its fork server, which {error}")
        except NotStartedError as error:
            return Answer(
                cause=Cause.CRASHED, text=f"was not called, as no process could be started: {error}"
            )
        return _answer(said, ended, limit)

    def stop(self) -> None:
        """End the task that runs now, and each later one at its start; for other threads."""
        self._stopped = True
        self._link.end_children()

    def close(self) -> None:
        """End the server, and before it the task that runs.

        Ctrl-C while a thread is being started leaves that thread to itself: it may still be here.
        """
        self.stop()
        with self._busy:  # a server that goes away unseen would be waited for until the time limit
            self._drop(self._link)

    def _run_child(self, request: tuple[Any, ...], channel: socket.socket, stacks: int) -> int:
        params, environment = request
        os.environ.clear()
        os.environ.update(environment)
        faulthandler.enable(stacks)
        faulthandler.register(signal.SIGUSR1, stacks)  # sent before the kill of a hung one
        if "numpy" in sys.modules:  # CPython reseeds its own generator in a fork, numpy does not
            sys.modules["numpy"].random.seed()
        own = os.getpid()
        said = _call(self._function, params, self._objectives)
        if os.getpid() != own:  # a fork made by the objective has come back up here
            os._exit(71)
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        messages.send(channel, Kind.DONE, *said)
        return 0


def _call(function: Callable[[Any], Any], params: Any, objectives: int) -> tuple[Any, ...]:
    try:
        value = function(params)
        if inspect.iscoroutine(value):  # as for CompileIQ's ASYNC worker
            value = asyncio.run(value)
        return judge(value, objectives)
    except (SystemExit, KeyboardInterrupt) as error:  # would end the process
        return Cause.EXITED.value, f"ended its process with {one_line(error)}"
    except BaseException as error:
        return Cause.RAISED.value, f"raised {one_line(error)}", traceback.format_exc()


def _answer(said: list[tuple[Any, ...]], ended: Ended, limit: float) -> Answer:
    done = next((message[1:] for message in said if message[0] == Kind.DONE), None)
    if done is None:
        if ended.timed_out:
            cause, text = Cause.HUNG, f"did not return within {limit:g} s"
        elif ended.code < 0:
            cause, text = Cause.CRASHED, messages.describe(ended.code)
        else:
            cause, text = Cause.EXITED, messages.describe(ended.code)
        return Answer(cause=cause, text=text, details=ended.stacks, seconds=ended.seconds)
    kind, payload, *more = done
    if kind == "scores":
        return Answer(scores=tuple(payload), seconds=ended.seconds)
    if kind == "fault":
        text, remedy = payload
        return Answer(cause=Cause.BAD_SHAPE, text=text, remedy=remedy, seconds=ended.seconds)
    if kind == "invalid":
        return Answer(cause=Cause.INVALID, text=f"returned {payload}", seconds=ended.seconds)
    return Answer(cause=Cause(kind), text=payload, details="".join(more), seconds=ended.seconds)
