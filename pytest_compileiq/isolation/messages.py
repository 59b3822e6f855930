"""What pytest, the zygote and the children tell each other, and how it travels.

Every channel is a socket that keeps messages apart (SOCK_SEQPACKET), so a message arrives whole
or not at all: a time-out's exception in the middle of a write, or a child that dies there, can
not leave half of one. Messages are tuples of builtin types; what is too long for a socket
travels in a memory file.
"""

from __future__ import annotations

import array
import contextlib
import os
import pickle
import signal
import socket
import stat
import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from io import BytesIO
from typing import Any

#: Bytes up to which a message goes inline. The kernel takes about 200 KB in one message.
INLINE = 1 << 15
_MAX_FDS = 4
#: Between the names of arms that are launched in turns.
AGAINST = " against "


class Kind(StrEnum):
    """The first word of a message."""

    # zygote -> pytest; a child is named by the number of its request
    READY = "ready"  # the codes of the problems found in the zygote
    PID = "pid"  # number, process id
    EXIT = "exit"  # number, exit code (negative for a signal)
    NO_FORK = "no-fork"  # number, the operating system's error
    # pytest -> zygote, and the first of them, without its number, on to the child
    RUN = "run"  # number, Request's fields; with the child's channel and stack file
    INTERRUPT = "interrupt"  # number
    KILL = "kill"  # number
    # child -> pytest
    PROGRESS = "progress"  # arm, kernel, check
    KEEP = "keep"  # a user property's name and value; whether it replaces the last one
    REPORT = "report"
    WARNING = "warning"
    RERUN = "rerun"  # may pytest-rerunfailures try again?
    # child -> pytest, at its end
    DONE = "done"
    QUIT = "quit"  # pytest.exit(): its message and code
    INTERRUPTED = "interrupted"  # KeyboardInterrupt
    ERROR = "error"  # the traceback of an error outside of the test


@dataclass(frozen=True, slots=True)
class Progress:
    """What an isolated test is at; empty words are not known."""

    arm: str = ""
    kernel: str = ""
    check: str = ""

    def __str__(self) -> str:
        words = [self.arm and f"arm {self.arm}", self.kernel and f"of {self.kernel}"]
        if self.check:
            words.append(f"({self.check})")
        return " ".join(word for word in words if word)


class BadMessageError(Exception):
    """Not a message: a child whose memory is damaged may write anything."""


class _BuiltinsOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        raise BadMessageError(f"it names {module}.{name}")


def plain(value: object) -> Any:
    """The value in builtin types, tuples kept: what is none of them goes as its repr."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, int):
        return int.__int__(value)
    if isinstance(value, float):  # numpy's float64 too
        return float.__float__(value)
    if isinstance(value, bytes):
        return bytes(memoryview(value))
    try:
        if isinstance(value, dict):
            return {plain(key): plain(entry) for key, entry in value.items()}
        for kind in (list, tuple, set, frozenset):
            if isinstance(value, kind):
                return kind(plain(entry) for entry in value)
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__}: repr failed with {type(error).__name__}>"


def send(channel: socket.socket, *message: object, fds: Sequence[int] = ()) -> None:
    """Send a message, and descriptors with it. Values that are not builtin go as their repr."""
    data = pickle.dumps(plain(message))
    if len(data) <= INLINE:
        socket.send_fds(channel, [b"i" + data], fds)
        return
    memory = os.memfd_create("ciq-message", os.MFD_CLOEXEC)
    try:
        with open(memory, "wb", closefd=False) as file:
            file.write(data)
        socket.send_fds(channel, [b"m"], [memory, *fds])
    finally:
        os.close(memory)


def receive(channel: socket.socket, flags: int = 0) -> tuple[tuple[Any, ...], list[int]]:
    """The next message and the descriptors that came with it.

    Raises EOFError when the other end is closed, BlockingIOError when there is nothing now and
    ``flags`` say not to wait, BadMessageError (its descriptors are closed) for anything else.
    """
    # Not socket.recv_fds: it drops its flags (Python 3.12).
    received = array.array("i")
    space = socket.CMSG_SPACE(_MAX_FDS * received.itemsize)
    flags |= socket.MSG_CMSG_CLOEXEC
    data, ancillary, _, _ = channel.recvmsg(INLINE + 64, space, flags)
    for level, kind, words in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            received.frombytes(words[: len(words) - len(words) % received.itemsize])
    fds = received.tolist()
    if not data and not fds:
        raise EOFError
    try:
        return _decode(data, fds), fds
    except BaseException as error:
        for fd in fds:
            os.close(fd)
        if isinstance(error, BadMessageError) or not isinstance(error, Exception):
            raise
        raise BadMessageError(f"{type(error).__name__}: {error}") from None


def _decode(data: bytes, fds: list[int]) -> tuple[Any, ...]:
    if data == b"m" and fds:
        with open(fds.pop(0), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):  # reading could wait for ever
                raise BadMessageError("its memory is not a file")
            file.seek(0)
            data = b"i" + file.read()
    if data[:1] != b"i":
        raise BadMessageError(f"it starts with {data[:8]!r}")
    message = _BuiltinsOnly(BytesIO(data[1:])).load()
    if not isinstance(message, tuple) or not message or message[0] not in set(Kind):
        raise BadMessageError(f"it is {message!r:.60}")
    return message


def flush_output() -> None:
    """Empty Python's and the C library's output buffers, else a fork writes them again."""
    import ctypes

    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        if stream is not None:
            with contextlib.suppress(Exception):  # closed, or a test's own that cannot flush
                stream.flush()
    ctypes.CDLL(None).fflush(None)


def fork() -> tuple[int, set[int | signal.Signals]]:
    """Fork; returns the process id, 0 in the child, and the signals that were held back before.

    Ctrl-C stays held back, and is for both to let through: the parent once it is sure to end its
    child, and the child once the stack is no more that of its parent, as a KeyboardInterrupt
    would run pytest's own end in both. Raises OSError.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM))
    try:
        with warnings.catch_warnings():
            # Python 3.12 and newer warn of threads. A lock that one of them held can hang the
            # child, which its time limit ends.
            warnings.simplefilter("ignore", DeprecationWarning)
            return os.fork(), before
    except BaseException:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        raise


def describe(code: int) -> str:
    """How a process ended: ``was killed by SIGSEGV``, ``exited with status 0``."""
    if code >= 0:
        return f"exited with status {code}"
    try:
        return f"was killed by {signal.Signals(-code).name}"
    except ValueError:
        return f"was killed by signal {-code}"
