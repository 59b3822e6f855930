"""Real pytest processes on a fake machine, and the invariants that hold however they end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from tests.fake_nvml.machine import SET, Machine

PATIENCE_S = 60.0

#: A test file says when it is inside a test, with its PID, and waits to be let go.
HEADER = """
import ctypes, os, pathlib, time
import pytest

FOLDER = pathlib.Path(os.environ["TEST_FOLDER"])

def said(text):
    with (FOLDER / "said").open("a") as file:
        file.write(f"{text} {os.getpid()}\\n")

def wait(seconds=60):
    end = time.monotonic() + seconds
    while not (FOLDER / "go").exists() and time.monotonic() < end:
        time.sleep(0.01)
"""


def until(condition: Callable[[], object], what: str, patience_s: float = PATIENCE_S) -> float:
    """Wait for a condition; returns how many seconds that took."""
    start = time.monotonic()
    while not condition():
        assert time.monotonic() - start < patience_s, f"not in {patience_s:g} s: {what}"
        time.sleep(0.002)
    return time.monotonic() - start


class Session:
    """One pytest in a process group of its own."""

    def __init__(
        self,
        machine: Machine,
        leases: Path,
        folder: Path,
        source: str,
        *args: str,
        gpu: str = "0",
        name: str = "test_it.py",
    ) -> None:
        self.machine = machine
        self.folder = folder
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(HEADER + source)
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", name]
        command += [f"--ciq-gpu={gpu}", f"--ciq-lease-dir={leases}", "--rootdir", str(folder)]
        env = {**os.environ, "TEST_FOLDER": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
        self.output = (folder / "output").open("a+b")
        self.process = subprocess.Popen(
            [*command, *args],
            cwd=folder,
            env=env,
            stdout=self.output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def pid_of(self, word: str) -> int:
        """Wait until a test says ``word``; returns the PID of its process."""
        found: list[int] = []

        def look() -> bool:
            path = self.folder / "said"
            lines = path.read_text().splitlines() if path.exists() else []
            found[:] = [int(line.split()[1]) for line in lines if line.split()[0] == word]
            assert found or self.process.poll() is None, self.text()
            return bool(found)

        until(look, f"a test says {word}")
        return found[-1]

    def go(self) -> None:
        (self.folder / "go").touch()

    def interrupt(self) -> None:
        """Ctrl-C: the whole process group gets it."""
        os.killpg(self.process.pid, signal.SIGINT)

    def text(self) -> str:
        return (self.folder / "output").read_text()

    def wait(self, patience_s: float = PATIENCE_S) -> int:
        """The exit status, at the end of the process."""
        try:
            return self.process.wait(patience_s)
        finally:
            self.output.close()

    def kill(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait(10)
        self.output.close()


def guardian_of(machine: Machine) -> int:
    """The PID of the process that asked for the last lock, granted or refused."""
    return machine.log(SET)[-1].pid


def gone(pid: int) -> bool:
    """Whether a process has ended; one that nobody has waited for counts."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True
