"""The zygote: a process that pytest forks once, and that forks a child for each isolated test.

It has what was imported at the fork, no threads, and never touches a GPU. It serves one
request at a time until pytest closes its end, or dies. The child for the next request is forked
before that comes, and stands by: with torch imported a fork takes 5 ms. Every process that a
test leaves behind becomes the zygote's own child (it is a subreaper), and is killed with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import select
import signal
import socket
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from pytest_compileiq.isolation import messages
from pytest_compileiq.isolation.messages import Kind

PR_SET_PDEATHSIG, PR_SET_NAME, PR_SET_CHILD_SUBREAPER = 1, 15, 36

#: Seconds that processes which a test left behind get for ending by themselves:
#: multiprocessing's resource tracker then unlinks the shared memory that the test leaked.
ORPHANS_GRACE = 0.5
#: Seconds for faulthandler to write the stacks of a child that is about to be killed.
STACKS_GRACE = 0.2
#: Seconds after which a sweep gives up on a process that SIGKILL does not end.
SWEEP_LIMIT = 5.0

_exit = os._exit  # a test that replaces it would come back up here, a second pytest

#: Runs a test in the child: request, channel to pytest, file for stacks -> exit status.
RunChild = Callable[[tuple[Any, ...], socket.socket, int], int]


def main(
    control: socket.socket,
    run_child: RunChild,
    prepare: Callable[[], list[str]],
    signals: set[int | signal.Signals],
) -> NoReturn:
    """All that the zygote's process does. ``prepare`` returns codes of problems.

    ``signals`` are those that may be held back, now that this process is deaf to Ctrl-C.
    """
    status = 70
    try:
        os.setsid()  # out of reach for the terminal's signals, and for those to pytest's group
        prctl(PR_SET_CHILD_SUBREAPER, 1)
        prctl(PR_SET_NAME, b"ciq-zygote")
        parent = os.getppid()
        handlers = {
            number: signal.signal(number, handler)
            for number, handler in (
                (signal.SIGINT, signal.SIG_IGN),
                (signal.SIGTERM, signal.SIG_IGN),
                (signal.SIGCHLD, signal.SIG_DFL),
            )
        }
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)
        problems = prepare()
        gc.freeze()  # no child's garbage collection touches, and so copies, what all of them share
        messages.send(control, Kind.READY, problems)
        zygote = Zygote(control, run_child, parent, handlers)  # a name: its sockets end with us
        with contextlib.suppress(EOFError, OSError):  # pytest is gone
            zygote.serve()
        status = 0
    except OSError:  # pytest was gone before the start
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        try:
            sweep(grace=0)
        finally:
            _exit(status)


class Zygote:
    """The loop over requests. ``handlers`` are the signal handlers that a child gets back."""

    def __init__(
        self, control: socket.socket, run_child: RunChild, parent: int, handlers: dict[Any, Any]
    ) -> None:
        self._control = control
        self._run_child = run_child
        self._parent = parent
        self._handlers = handlers
        self._next: tuple[int, socket.socket] | None = None  # the child that stands by

    def serve(self) -> None:
        """Serve requests until pytest's end of the socket is closed."""
        while True:
            if self._next is None:
                with contextlib.suppress(OSError):  # told when a test needs it
                    self._next = self._fork()
            self._wait(self._control.fileno())
            (kind, number, *request), fds = messages.receive(self._control)
            if kind != Kind.RUN:  # for a child that has just ended, or never came to be
                messages.send(self._control, Kind.EXIT, number, 0)
                continue
            try:
                pid = self._start(request, fds)
            except OSError as error:
                messages.send(self._control, Kind.NO_FORK, number, str(error))
                continue
            finally:
                for fd in fds:
                    os.close(fd)
            messages.send(self._control, Kind.PID, number, pid)
            with contextlib.suppress(OSError):
                self._next = self._fork()
            messages.send(self._control, Kind.EXIT, number, self._attend(pid, number))

    def _wait(self, *fds: int) -> set[int]:
        """Those of the descriptors that are ready. Raises EOFError when pytest has died.

        The end of the socket alone would not tell: a process that pytest has forked may hold
        that end open.
        """
        poller = select.poll()
        for fd in fds:
            poller.register(fd, select.POLLIN)
        while not (ready := poller.poll(1000)):
            if os.getppid() != self._parent:
                raise EOFError
        return {fd for fd, _ in ready}

    def _start(self, request: list[Any], fds: list[int]) -> int:
        """Have the request run by the child that stands by, if it still lives, or by a new one."""
        child, self._next = self._next, None
        if child is not None and not _has_ended(child[0]):
            pid, line = child
        else:
            pid, line = self._fork()
        with line, contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it died just now
            messages.send(line, Kind.RUN, *request, fds=fds)
        return pid

    def _fork(self) -> tuple[int, socket.socket]:
        """A child, and the line on which it waits for the one request that it will run."""
        line, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        zygote = os.getpid()
        try:
            pid = os.fork()
        except OSError:
            line.close()
            raise
        finally:
            theirs.close() if os.getpid() == zygote else line.close()
        if pid == 0:
            self._be_child(theirs, zygote)
        return pid, line

    def _be_child(self, line: socket.socket, zygote: int) -> NoReturn:
        status = 70
        try:
            self._control.close()
            os.setsid()  # a group to kill, and no terminal that could stop it
            prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
            for number, handler in self._handlers.items():
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            if os.getppid() == zygote:  # else it died before PDEATHSIG was set
                (_, *request), (fd, stacks) = messages.receive(line)
                line.close()
                channel = socket.socket(fileno=fd)
                try:
                    status = self._run_child(tuple(request), channel, stacks)
                except BaseException:
                    messages.send(channel, Kind.ERROR, traceback.format_exc())
        finally:
            _exit(status)

    def _attend(self, pid: int, number: int) -> int:
        """Wait for the child's end and obey commands; returns its exit code."""
        ended, killed = os.pidfd_open(pid), False
        try:
            while ended not in self._wait(self._control.fileno(), ended):
                (kind, meant, *_), _ = messages.receive(self._control)
                if meant != number:
                    continue
                with contextlib.suppress(ProcessLookupError):
                    if kind == Kind.INTERRUPT:
                        os.kill(pid, signal.SIGINT)
                    elif kind == Kind.KILL:
                        killed = True
                        os.kill(pid, signal.SIGUSR1)  # faulthandler writes all stacks
                        select.select([ended], [], [], STACKS_GRACE)
                        os.kill(pid, signal.SIGKILL)
                        os.killpg(pid, signal.SIGKILL)
        finally:
            os.close(ended)
        # Reaped only now: until then nobody else can get this process id, nor its group's.
        _, status = os.waitpid(pid, 0)
        sweep(grace=0 if killed else ORPHANS_GRACE, spare=self._next and self._next[0])
        return os.waitstatus_to_exitcode(status)


def _has_ended(child: int) -> bool:
    try:
        return os.waitpid(child, os.WNOHANG)[0] != 0
    except ChildProcessError:  # reaped by a sweep
        return True


def sweep(grace: float, spare: int | None = None) -> None:
    """Kill and reap all descendants but ``spare``; they get ``grace`` seconds to end."""
    start = time.monotonic()
    while (passed := time.monotonic() - start) < grace + SWEEP_LIMIT:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid:
            continue
        if not (left := children() - {spare}):
            return
        for child in left if passed >= grace else ():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                group = os.getpgid(child)
                if group == os.getpgrp():  # forked, and not yet in a group of its own
                    os.kill(child, signal.SIGKILL)
                else:
                    os.killpg(group, signal.SIGKILL)  # the unreaped child pins its group
        time.sleep(0.002)


def children() -> set[int]:
    """Process ids of this process's children, zombies included."""
    me = os.getpid()
    with contextlib.suppress(OSError):  # a kernel without CONFIG_PROC_CHILDREN
        return set(map(int, Path(f"/proc/self/task/{me}/children").read_text().split()))
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            stat = Path(f"/proc/{name}/stat").read_bytes()
            if int(stat.rpartition(b")")[2].split()[1]) == me:
                found.add(int(name))
    return found


def prctl(option: int, value: int | bytes) -> None:
    ctypes.CDLL(None).prctl(option, value)
