"""The line between pytest and its zygote, without pytest: messages, time limits, losses."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_compileiq.isolation import messages, zygote_client
from pytest_compileiq.isolation.messages import BadMessageError, Kind, Progress
from pytest_compileiq.isolation.zygote_client import LostError, ZygoteClient

from .suite_support import kids

WORDS = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner) | st.tuples(inner, inner) | st.dictionaries(st.text(), inner, max_size=3)
    ),
)


@pytest.fixture
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


@given(WORDS)
def test_a_message_arrives_as_it_was(value: object) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        messages.send(ours, Kind.KEEP, "name", value)
        (kind, name, got), fds = messages.receive(theirs)
    assert (kind, name, got, fds) == (Kind.KEEP, "name", value, [])
    assert type(got) is type(value)


@pytest.mark.parametrize("size", [messages.INLINE - 100, messages.INLINE + 1, 10_000_000])
def test_size_does_not_matter(pair: tuple[socket.socket, socket.socket], size: int) -> None:
    ours, theirs = pair
    with open(os.devnull) as file:
        messages.send(ours, Kind.KEEP, "x" * size, fds=[file.fileno()])
    (_, text), (fd,) = messages.receive(theirs)
    assert not os.get_inheritable(fd)  # no program that a test starts gets it
    os.close(fd)
    assert text == "x" * size


def test_values_of_other_types_become_plain() -> None:
    class Word(str):
        __slots__ = ()

    loop: list[Any] = []
    loop.append(loop)
    made = messages.plain([Word("a"), (1, {Word("k"): object}), {2}, loop])
    assert made[:3] == ["a", (1, {"k": "<class 'object'>"}), {2}]
    assert type(made[0]) is str
    assert messages.plain(range(3)) == "range(0, 3)"


def test_an_end_is_an_end(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    with pytest.raises(BlockingIOError):
        messages.receive(theirs, socket.MSG_DONTWAIT)
    ours.close()
    with pytest.raises(EOFError):
        messages.receive(theirs)


def test_descriptors_of_a_bad_message_are_closed(pair: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = pair
    before = len(os.listdir("/proc/self/fd"))
    with open(os.devnull) as file:
        socket.send_fds(ours, [b"nonsense"], [file.fileno()])
    with pytest.raises(BadMessageError, match="starts with"):
        messages.receive(theirs)
    assert len(os.listdir("/proc/self/fd")) == before


def test_words() -> None:
    assert str(Progress("best.acf", "softmax", "win")) == "arm best.acf of softmax (win)"
    assert str(Progress("", "softmax", "win")) == "of softmax (win)"
    assert str(Progress()) == ""
    assert messages.describe(-11) == "was killed by SIGSEGV"
    assert messages.describe(-40) == "was killed by signal 40"
    assert messages.describe(3) == "exited with status 3"


class Children:
    """What a child does is named by the request."""

    def __call__(self, request: tuple[Any, ...], peer: socket.socket, stacks: int) -> int:
        (task,) = request
        messages.send(peer, Kind.PROGRESS, task, os.getpid(), "")
        time.sleep({"sleep": 100, "nap": 0.1}.get(task, 0))
        return 7


@contextlib.contextmanager
def linked(prepare: Any = list) -> Iterator[ZygoteClient]:
    made = ZygoteClient(Children(), prepare)
    try:
        yield made
    finally:
        made.close()
        assert not kids()


def run(
    link: ZygoteClient, task: str, timeout: float = 20
) -> tuple[zygote_client.Ended, list[Any]]:
    heard: list[Any] = []
    return link.run((task,), timeout, heard.append), heard


def test_children_one_after_another() -> None:
    with linked(lambda: ["cuda"]) as link:
        assert link.ready() == ["cuda"]
        for task in ("a", "b"):
            ended, heard = run(link, task)
            assert (ended.code, ended.timed_out) == (7, False)
            assert [message[:2] for message in heard] == [(Kind.PROGRESS, task)]


def test_the_next_child_is_forked_while_one_runs() -> None:
    with linked() as link:
        link.ready()
        pids = []
        for task in ("nap", "a"):
            _, [(_, _, pid, _)] = run(link, task)
            (next_one,) = kids(link.pid)
            pids += [int(pid), next_one]
        assert pids[1] == pids[2]
        assert len(set(pids)) == 3


def test_a_child_that_stood_by_and_died() -> None:
    """The out-of-memory killer may choose it: no test fails of that."""
    with linked() as link:
        link.ready()
        for task in ("a", "b"):
            assert run(link, task)[0].code == 7
            (next_one,) = kids(link.pid)
            ended = os.pidfd_open(next_one)
            os.kill(next_one, signal.SIGKILL)
            assert select.select([ended], [], [], 10)[0]
            os.close(ended)


def test_a_time_limit() -> None:
    with linked() as link:
        link.ready()
        ended, _ = run(link, "sleep", 0.3)
        assert ended.timed_out
        assert ended.code < 0
        assert 0.3 <= ended.seconds < 5
        assert run(link, "a")[0].code == 7


def test_an_end_that_is_asked_for_before_a_child_runs_is_that_childs_too() -> None:
    with linked() as link:
        link.ready()
        run(link, "a")
        link.end_children()
        ended, _ = run(link, "sleep")
        assert ended.code < 0
        assert not ended.timed_out


@pytest.mark.parametrize("error", [KeyboardInterrupt, ZeroDivisionError])
def test_an_exception_while_a_child_runs_ends_the_child(error: type[BaseException]) -> None:
    def strike(message: object) -> None:
        raise error

    with linked() as link:
        link.ready()
        with pytest.raises(error):
            link.run(("sleep",), 20, strike)
        assert run(link, "a")[0].code == 7  # and no word about the dead one comes in between


def test_a_child_that_sigkill_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stuck in a driver: given up after a while, with the zygote that waits for it."""

    def prepare() -> list[str]:  # runs in the zygote
        os.kill = os.killpg = lambda *args: None  # type: ignore[assignment]
        return []

    monkeypatch.setattr(zygote_client, "KILL_GRACE", 0.5)
    with linked(prepare) as link:
        link.ready()
        with pytest.raises(LostError, match=r"could not end its child by SIGKILL within 0.5 s"):
            run(link, "sleep", 0.2)


def test_a_zygote_that_fails_at_its_start(capfd: pytest.CaptureFixture[str]) -> None:
    with linked(lambda: 1 / 0) as link, pytest.raises(LostError, match="exited with status 70"):
        link.ready()
    assert "ZeroDivisionError" in capfd.readouterr().err


def test_a_zygote_that_is_never_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zygote_client, "READY_LIMIT", 0.2)
    monkeypatch.setattr(zygote_client, "CLOSE_LIMIT", 0.2)
    with (
        linked(lambda: time.sleep(100)) as link,
        pytest.raises(LostError, match=r"not ready after 0.2 s"),
    ):
        link.ready()


def test_a_zygote_that_was_killed() -> None:
    with linked() as link:
        link.ready()
        os.kill(link.pid, signal.SIGKILL)
        with pytest.raises(LostError, match="was killed by SIGKILL"):
            run(link, "a")


def test_its_end_is_silent() -> None:
    """With warnings as errors too: no socket is left to the garbage collector."""
    code = """
from pytest_compileiq.isolation.zygote_client import ZygoteClient
client = ZygoteClient(lambda request, channel, stacks: 0, list)
client.ready()
client.run((), 10, print)
client.close()
"""
    command = [sys.executable, "-W", "error", "-c", code]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, timeout=30)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_fork_that_holds_its_socket_does_not_hold_up_its_end() -> None:
    """As a worker of multiprocessing does that a test has left running."""
    client = ZygoteClient(lambda request, channel, stacks: 0, list)
    client.ready()
    pid = os.fork()
    if pid == 0:
        time.sleep(30)
        os._exit(0)
    try:
        began = time.monotonic()
        client.close()
        assert time.monotonic() - began < zygote_client.CLOSE_LIMIT / 2
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
