"""A contained call: crash, exit and hang end the child, never the caller."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_compileiq.isolation import contain
from pytest_compileiq.isolation.contain import Outcome


def call(function: Callable[[], Any], timeout: float = 20) -> Outcome:
    return contain.call(function, timeout=timeout)


def test_a_value_comes_back() -> None:
    outcome = call(lambda: {"pid": os.getpid(), "big": "x" * 5_000_000})
    assert outcome.value["pid"] != os.getpid()
    assert len(outcome.value["big"]) == 5_000_000
    assert (outcome.error, outcome.died, outcome.hung) == (None, None, False)


def test_a_change_in_the_child_stays_there() -> None:
    seen: list[int] = []
    assert call(lambda: seen.append(1) or len(seen)).value == 1
    assert seen == []


@pytest.mark.parametrize(
    ("function", "died"),
    [
        (lambda: os._exit(0), "exited with status 0"),
        (lambda: os._exit(3), "exited with status 3"),
        (lambda: os.kill(os.getpid(), signal.SIGSEGV), "was killed by SIGSEGV"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "was killed by SIGKILL"),
        (lambda: os.execv(sys.executable, [sys.executable, "-c", "pass"]), "exited with status 0"),
    ],
)
def test_a_death_is_named(function: Callable[[], Any], died: str) -> None:
    assert call(function).died == died


def test_exceptions_are_answers_and_sys_exit_is_a_death() -> None:
    assert call(lambda: 1 / 0).error == "ZeroDivisionError: division by zero"
    assert call(lambda: sys.exit(0)).died == "ended by SystemExit: 0"
    assert "test_contain.py" in call(lambda: 1 / 0).trace


def test_a_value_that_does_not_pickle_is_an_error() -> None:
    assert "pickle" in str(call(lambda: lambda: 1).error).lower()


def spin() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        pass


def test_a_hang_ends_in_time() -> None:
    started = time.monotonic()
    assert call(spin, timeout=0.5).hung
    assert time.monotonic() - started < 3


def alive(pid: int) -> bool:
    status = Path(f"/proc/{pid}/status")
    return status.exists() and "\nState:\tZ" not in status.read_text()


@pytest.mark.parametrize("end", ["return", "die", "hang"])
def test_a_grandchild_that_holds_the_pipe_delays_nothing_and_dies(tmp_path: Path, end: str) -> None:
    def function() -> int:
        child = os.fork()
        if child == 0:
            time.sleep(300)
            os._exit(0)
        (tmp_path / "pid").write_text(str(child))
        if end == "die":
            os._exit(9)
        if end == "hang":
            time.sleep(300)
        return 7

    started = time.monotonic()
    outcome = call(function, timeout=1 if end == "hang" else 60)
    assert time.monotonic() - started < 10
    assert (outcome.value, outcome.died, outcome.hung) == {
        "return": (7, None, False),
        "die": (None, "exited with status 9", False),
        "hang": (None, None, True),
    }[end]
    pid = int((tmp_path / "pid").read_text())
    deadline = time.monotonic() + 5
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not alive(pid)


CTRL_C = """
import os, signal, time
from pytest_compileiq.isolation import contain
os.register_at_fork(after_in_parent=lambda: os.kill(os.getpid(), signal.SIGINT))
before = os.listdir("/proc/self/fd")
try:
    contain.call(lambda: time.sleep(60), timeout=60)
except KeyboardInterrupt:
    assert os.listdir("/proc/self/fd") == before
    try:
        print(os.waitpid(-1, os.WNOHANG))
    except ChildProcessError:
        print("none is left")
"""


def test_ctrl_c_during_the_fork_leaves_no_process() -> None:
    done = subprocess.run([sys.executable, "-c", CTRL_C], capture_output=True, text=True)
    assert done.stdout == "none is left\n", done.stderr


def test_output_is_not_doubled(capfd: pytest.CaptureFixture[str]) -> None:
    print("before", end=" ")
    call(lambda: print("inside"))
    assert capfd.readouterr().out == "before inside\n"


def test_no_descriptor_and_no_zombie_is_left() -> None:
    before = len(os.listdir("/proc/self/fd"))
    for function in (lambda: 1, lambda: os._exit(1), lambda: 1 / 0):
        call(function)
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(-1, os.WNOHANG)


def test_an_interrupt_in_the_caller_kills_the_child(tmp_path: Path) -> None:
    code = f"""
import os, time
from pytest_compileiq.isolation import contain
def hang():
    open({str(tmp_path / "pid")!r}, "w").write(str(os.getpid()))
    time.sleep(300)
contain.call(hang, timeout=300)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
    pid_file = tmp_path / "pid"
    while not (pid_file.exists() and pid_file.read_text()):
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    assert process.wait(10) != 0
    assert not alive(int(pid_file.read_text()))
