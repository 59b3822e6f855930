"""Pytest's end of the line to a zygote: fork it, run children by it, close it."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_compileiq.isolation import messages, zygote
from pytest_compileiq.isolation.messages import BadMessageError, Kind

#: Seconds for the zygote to say that it is ready.
READY_LIMIT = 60.0
#: Seconds that a child gets for its fixtures' teardown after Ctrl-C.
INTERRUPT_GRACE = 5.0
#: Seconds after SIGKILL until a child counts as stuck in the kernel, for ever.
KILL_GRACE = 30.0
#: Seconds for the zygote to end after its socket was closed.
CLOSE_LIMIT = 10.0

OnMessage = Callable[[tuple[Any, ...]], None]
#: Called about once a second while a child runs, with the seconds since its start.
OnSecond = Callable[[float], None]


class LostError(Exception):
    """The zygote is gone, or of no use any more; the text says why."""


class NotStartedError(Exception):
    """The operating system refused a new process."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child ended. ``stacks`` is what faulthandler wrote: empty unless it crashed."""

    code: int
    timed_out: bool
    seconds: float
    stacks: str


class ZygoteClient:
    """One zygote. Forks it at once: ``prepare`` and ``run_child`` run on its side."""

    def __init__(
        self,
        run_child: zygote.RunChild,
        prepare: Callable[[], list[str]],
        *,
        foreign: tuple[ZygoteClient, ...] = (),
    ) -> None:
        """``foreign`` are the links of other zygotes. Raises OSError when the fork fails."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._number = 0
        self._no_more = False
        self._how_it_ended = ""
        messages.flush_output()
        try:
            self.pid, signals = messages.fork()
        except OSError:
            self._control.close()
            theirs.close()
            raise
        if self.pid == 0:
            for link in (self, *foreign):  # else another zygote would never see the socket's end
                link._control.close()
            zygote.main(theirs, run_child, prepare, signals)
        theirs.close()
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)

    def ready(self) -> list[str]:
        """Wait for the zygote; returns the codes of the problems it found."""
        self._control.settimeout(READY_LIMIT)
        try:
            (_, problems), _ = messages.receive(self._control)
            self._control.settimeout(None)
            return list(problems)
        except TimeoutError:
            raise LostError(f"was not ready after {READY_LIMIT:g} s") from None
        except (EOFError, OSError, BadMessageError):
            raise LostError(self.close()) from None

    def run(
        self,
        request: tuple[Any, ...],
        timeout: float,
        on_message: OnMessage,
        on_second: OnSecond | None = None,
    ) -> Ended:
        """Run one child for at most ``timeout`` seconds; its messages go to ``on_message``.

        Raises LostError, NotStartedError, and what a signal's handler raises meanwhile: the
        child is then ended, on KeyboardInterrupt with time for its teardown.
        """
        self._number += 1
        child = _Child(timeout)
        try:
            return self._run(child, request, on_message, on_second)
        except (NotStartedError, LostError):
            raise
        except (EOFError, OSError, BadMessageError):  # a dead zygote shows as any of them
            self._kill(child.pid)
            while child.read(on_message):  # what it had said before: both may show in one poll
                pass
            raise LostError(self.close()) from None
        except BaseException as error:
            gentle = isinstance(error, KeyboardInterrupt)
            if not (gentle and self._ended(Kind.INTERRUPT, INTERRUPT_GRACE)):
                self._ended(Kind.KILL, KILL_GRACE)
            while gentle and child.read(on_message):  # what it had said before, and at its end
                pass
            raise
        finally:
            child.close()

    def _run(
        self,
        child: _Child,
        request: tuple[Any, ...],
        on_message: OnMessage,
        on_second: OnSecond | None,
    ) -> Ended:
        with child.theirs as theirs:
            fds = (theirs.fileno(), child.stacks)
            messages.send(self._control, Kind.RUN, self._number, *request, fds=fds)
        if self._no_more:  # said before this one had its number, it killed none
            messages.send(self._control, Kind.KILL, self._number)
        poller = select.poll()
        poller.register(child.channel, select.POLLIN)
        poller.register(self._control, select.POLLIN)
        code = None
        second = child.start + 1
        while code is None:
            wake = child.deadline if on_second is None else min(child.deadline, second)
            ready = poller.poll(max(0.0, wake - time.monotonic()) * 1000)
            if on_second is not None and (now := time.monotonic()) >= second:
                on_second(now - child.start)
                second = now + 1
            for fd, events in ready:
                if fd == self._control.fileno():
                    code = self._news(child)
                elif not child.read(on_message) and events & (select.POLLHUP | select.POLLERR):
                    poller.unregister(fd)
            if code is None and time.monotonic() >= child.deadline:
                if child.timed_out:
                    self._kill(child.pid)
                    raise LostError(f"could not end its child by SIGKILL within {KILL_GRACE:g} s")
                child.timed_out, child.deadline = True, time.monotonic() + KILL_GRACE
                messages.send(self._control, Kind.KILL, self._number)
        # A process that escaped may hold the channel open: take what is there, and go on.
        while child.read(on_message):
            pass
        return child.ended(code)

    def _news(self, child: _Child) -> int | None:
        """Read one message of the zygote; returns the child's exit code when it has ended."""
        (kind, number, value), _ = messages.receive(self._control)
        if number != self._number:
            return None
        if kind == Kind.NO_FORK:
            raise NotStartedError(value)
        if kind == Kind.PID:
            child.pid = value
            return None
        return int(value)

    def _ended(self, command: Kind, grace: float) -> bool:
        """Send a command about the child; tells whether the child, or the zygote, ended."""
        try:
            messages.send(self._control, command, self._number)
            self._control.settimeout(grace)
            while True:
                (kind, number, *_), _ = messages.receive(self._control)
                if kind in (Kind.EXIT, Kind.NO_FORK) and number == self._number:
                    return True
        except (KeyboardInterrupt, TimeoutError):  # a second Ctrl-C ends the patience
            return False
        except (EOFError, OSError, BadMessageError):
            return True
        finally:
            self._control.settimeout(None)

    def end_children(self) -> None:
        """Have the child that runs now killed, and each later one; for threads other than ``run``'s.

        That thread may be just before its next child, which nobody could end any more.
        """
        self._no_more = True
        with contextlib.suppress(OSError):
            messages.send(self._control, Kind.KILL, self._number)

    def _kill(self, child: int) -> None:
        """Kill the child's group, then the zygote's."""
        for leader in (child, self.pid):
            if leader:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(leader, signal.SIGKILL)

    def close(self) -> str:
        """Close the socket: the zygote kills what is left and ends. Returns how it ended."""
        with contextlib.suppress(OSError):
            # A fork that a test has left may hold this end open; a shutdown reaches all copies.
            self._control.shutdown(socket.SHUT_RDWR)
        self._control.close()
        if self.pid == 0:
            return self._how_it_ended
        end = time.monotonic() + CLOSE_LIMIT
        try:
            while not (found := os.waitpid(self.pid, os.WNOHANG))[0]:
                if time.monotonic() > end:
                    os.kill(self.pid, signal.SIGKILL)
                    found = os.waitpid(self.pid, 0)
                    break
                time.sleep(0.002)
            self._how_it_ended = messages.describe(os.waitstatus_to_exitcode(found[1]))
        except ChildProcessError:  # an ordinary test has waited for all children of pytest
            self._how_it_ended = "ended, and pytest was not told how"
        self.pid = 0
        return self._how_it_ended


class _Child:
    """A child as pytest sees it: its channel, its file for stacks, and its deadline."""

    def __init__(self, timeout: float) -> None:
        self.channel, self.theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.stacks = os.memfd_create("ciq-stacks", os.MFD_CLOEXEC)
        self.start = time.monotonic()
        self.deadline = self.start + timeout
        self.timed_out = False
        self.pid = 0

    def read(self, on_message: OnMessage) -> bool:
        """Hand on one message; False when there is none, now or for ever."""
        try:
            message, fds = messages.receive(self.channel, socket.MSG_DONTWAIT)
        except BadMessageError as error:
            message, fds = (Kind.ERROR, f"it sent a bad message: {error}"), []
        except (EOFError, OSError):
            return False
        for fd in fds:
            os.close(fd)
        on_message(message)
        return True

    def ended(self, code: int) -> Ended:
        text = os.pread(self.stacks, 1 << 16, 0).decode(errors="replace")
        return Ended(code, self.timed_out, time.monotonic() - self.start, text)

    def close(self) -> None:
        self.channel.close()
        self.theirs.close()
        os.close(self.stacks)
