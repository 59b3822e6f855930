"""Call a function that may crash, exit or hang, in a forked child.

A process forked from a warm one costs milliseconds where a new interpreter costs seconds, and
``os._exit(0)`` in user code, which would end pytest with a green status, ends only the child.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pytest_compileiq.isolation import messages
from pytest_compileiq.isolation.zygote import PR_SET_PDEATHSIG, prctl


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a contained call ended; exactly one of the fields tells.

    ``value`` is what the function returned (it has to pickle), ``error`` the one-line form of
    the exception it raised with ``trace`` behind it, ``died`` how the process ended without
    an answer ("was killed by SIGSEGV", "ended by SystemExit: 1"), ``hung`` that the time
    limit killed it.
    """

    value: Any = None
    error: str | None = None
    trace: str = ""
    died: str | None = None
    hung: bool = False
    seconds: float = 0.0


def call(function: Callable[[], Any], *, timeout: float) -> Outcome:
    """Call ``function`` in a child for at most ``timeout`` seconds.

    The child leads a process group of its own, which is killed whole at the end, so neither
    a hang nor a grandchild outlives the call. A grandchild that left the group (``setsid``) is
    out of reach here; in an isolated test it dies with the test's process.
    """
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    started = time.monotonic()
    reader, writer = os.pipe()
    parent = os.getpid()
    pid, signals = messages.fork()
    if pid == 0:
        _child(function, reader, writer, parent, signals)
    os.close(writer)
    with contextlib.suppress(OSError):  # the child does the same: whoever is first wins
        os.setpgid(pid, pid)
    try:
        signal.pthread_sigmask(signal.SIG_SETMASK, signals)  # a Ctrl-C of meanwhile is raised here
        answer, hung = _read(reader, pid, deadline=started + timeout)
    finally:
        os.close(reader)
        # Even after an answer: what the function left running must not disturb later tests.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)  # it may have left its group
        _, status = os.waitpid(pid, 0)
    seconds = time.monotonic() - started
    if hung:
        return Outcome(hung=True, seconds=seconds)
    try:
        kind, *payload = pickle.loads(answer)
    except Exception:  # no answer, or a part of one: the child died
        died = messages.describe(os.waitstatus_to_exitcode(status))
        return Outcome(died=died, seconds=seconds)
    if kind == "died":
        return Outcome(died=payload[0], seconds=seconds)
    if kind == "error":
        return Outcome(error=payload[0], trace=payload[1], seconds=seconds)
    return Outcome(value=payload[0], seconds=seconds)


def call_here(function: Callable[[], Any]) -> Outcome:
    """Call ``function`` in this process: for one that cannot be forked, or already is."""
    started = time.monotonic()
    try:
        value = function()
    except Exception as error:
        return Outcome(
            error=one_line(error), trace=traceback.format_exc(), seconds=time.monotonic() - started
        )
    return Outcome(value=value, seconds=time.monotonic() - started)


def _child(
    function: Callable[[], Any],
    reader: int,
    writer: int,
    parent: int,
    signals: set[int | signal.Signals],
) -> None:
    status = 70
    try:
        os.close(reader)
        os.setpgid(0, 0)
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call
            os._exit(status)
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, signals)
            answer = pickle.dumps(("value", function()))
        except (SystemExit, KeyboardInterrupt) as error:  # would end the process: a death
            answer = pickle.dumps(("died", f"ended by {one_line(error)}"))
        except BaseException as error:
            line = one_line(error)
            answer = pickle.dumps(("error", line, traceback.format_exc()))
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        # The length goes first: a grandchild may hold the pipe open, so that its end never
        # comes, and a part of an answer must not pass for the whole.
        message = len(answer).to_bytes(8, "little") + answer
        while message:
            message = message[os.write(writer, message) :]
        status = 0
    finally:
        os._exit(status)


def one_line(error: BaseException) -> str:
    """Type and text of an exception, without its notes, in at most 400 characters."""
    try:
        text = " ".join(str(error).split())
    except Exception as broken:
        text = f"<str raised {type(broken).__name__}>"
    line = f"{type(error).__name__}: {text}"
    return line if len(line) <= 400 else f"{line[:399]}…"


def _read(reader: int, pid: int, *, deadline: float) -> tuple[bytes, bool]:
    """The child's message, and whether the time was up before it came."""
    received = bytearray()
    poll = select.poll()
    poll.register(reader, select.POLLIN)
    # A grandchild may hold the pipe open after the child's death, so that death is watched too.
    death = os.pidfd_open(pid)
    poll.register(death, select.POLLIN)
    try:
        while (remaining := deadline - time.monotonic()) > 0:
            ready = {handle for handle, _ in poll.poll(remaining * 1000)}
            if reader in ready:
                chunk = os.read(reader, 1 << 16)
                received += chunk
                if len(received) >= 8:
                    length = int.from_bytes(received[:8], "little")
                    if len(received) >= 8 + length:
                        return bytes(received[8 : 8 + length]), False
                if not chunk:
                    # Its end of the pipe is closed; give it the moment to die by itself, so
                    # that its own status is read and not that of our kill.
                    wait_for_death = select.poll()
                    wait_for_death.register(death, select.POLLIN)
                    wait_for_death.poll(1000)
                    return b"", False
            elif death in ready:
                return b"", False
        return b"", True
    finally:
        os.close(death)
