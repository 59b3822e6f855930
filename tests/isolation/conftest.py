"""Each test writes a small suite to tmp_path and runs it by real processes.

After every run, whatever the suite did, no process of it may be left: all of them carry a token
in their environment.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
IMPORTS = """
import os, signal, subprocess, sys, time
import pytest
from pytest_compileiq.isolation.child import inside, keep, progress
from suite_support import jot, where
"""


def needs(module: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(find_spec(module) is None, reason=f"{module} is not installed")


def marked(token: str) -> list[int]:
    """Pids of the processes, zombies aside, whose environment has the token."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                alive = "Z (" not in (folder / "status").read_text()
                if alive and token.encode() in (folder / "environ").read_bytes():
                    found.append(int(folder.name))
            except OSError:
                pass
    return found


class Result:
    """Exit status, output, and the counts of the last summary line."""

    def __init__(self, rc: int, out: str, seconds: float = 0.0) -> None:
        self.rc, self.out, self.seconds = rc, out, seconds
        lines = [line for line in out.splitlines() if re.search(r"\d+ \w+.* in [\d.]+s", line)]
        summary = lines[-1].rpartition(" in ")[0] if lines else ""
        words = {"errors": "error", "warnings": "warning"}
        self.counts = {
            words.get(word, word): int(number)
            for number, word in re.findall(r"(\d+) (\w+)", summary)
        }

    def section(self, title: str) -> str:
        """The failure or pass section of one test."""
        pattern = rf"^_+ {re.escape(title)} _+$(.*?)(?=^_{{3,}} |^={{3,}} |\Z)"
        found = re.search(pattern, self.out, re.M | re.S)
        assert found, f"no section {title} in\n{self.out[-3000:]}"
        return found[1]


class Suite:
    """Test files in ``path``, run with ``--ciq-isolate=require`` unless asked otherwise."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.token = f"CIQ{uuid.uuid4().hex}"
        self.jot_file = path / "jot.txt"
        (path / "pytest.ini").write_text("[pytest]\n")

    def write(self, /, **files: str) -> None:
        for name, text in files.items():
            (self.path / f"{name}.py").write_text(IMPORTS + textwrap.dedent(text))

    def environment(self, **more: str) -> dict[str, str]:
        dropped = ("PYTEST_", "COV_", "COVERAGE_", "TOX_")
        kept = {key: text for key, text in os.environ.items() if not key.startswith(dropped)}
        # The plugin itself may have been found by the caller's PYTHONPATH.
        former = [path] if (path := os.environ.get("PYTHONPATH")) else []
        path = os.pathsep.join((str(HERE), str(self.path), *former))
        return (
            kept
            | {
                "PYTHONPATH": path,
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "TOKEN": self.token,
                "JOT": str(self.jot_file),
            }
            | more
        )

    def popen(
        self,
        *args: str,
        env: dict[str, str] | None = None,
        isolate: str = "require",
        plugins: tuple[str, ...] = (),
        **kwargs: Any,
    ) -> subprocess.Popen[bytes]:
        # Only what a suite needs is loaded: most of the time is pytest's own start.
        distributed = any(arg.startswith(("-n", "--tx")) for arg in args)
        names = ["xdist", "xdist.looponfail"] * distributed
        names += ["compileiq", "suite_support", *plugins]
        if "cacheprovider" not in plugins:
            names.append("no:cacheprovider")
        command = [sys.executable, "-m", "pytest", f"--ciq-isolate={isolate}"]
        command += [*(f"-p{name}" for name in names), *args]
        kwargs = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "start_new_session": True,
        } | kwargs
        env = self.environment(**(env or {}))
        return subprocess.Popen(command, cwd=self.path, env=env, **kwargs)

    def run(self, *args: str, timeout: float = 90, **kwargs: Any) -> Result:
        start = time.monotonic()
        process = self.popen(*args, **kwargs)
        try:
            out, _ = process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            text = process.communicate()[0].decode(errors="replace")
            raise AssertionError(f"the suite hung:\n{text[-4000:]}") from None
        seconds = time.monotonic() - start
        self.nothing_left(0)
        return Result(process.returncode, out.decode(errors="replace"), seconds)

    def finish(self, process: subprocess.Popen[bytes], timeout: float = 30) -> Result:
        out, _ = process.communicate(timeout=timeout)
        return Result(process.returncode, out.decode(errors="replace"))

    def wait_for(self, text: str, timeout: float = 30) -> None:
        """Wait until a test has jotted the text."""
        end = time.monotonic() + timeout
        while not any(text in line for line in self.jots):
            assert time.monotonic() < end, self.jots
            time.sleep(0.02)

    def nothing_left(self, wait: float = 5) -> None:
        end = time.monotonic() + wait
        while left := marked(self.token):
            if time.monotonic() > end:
                folders = [Path(f"/proc/{pid}/cmdline") for pid in left]
                lines = [folder.read_bytes() for folder in folders if folder.exists()]
                self.kill()
                raise AssertionError(f"processes left: {left} {lines}")
            time.sleep(0.02)

    def kill(self) -> None:
        for pid in marked(self.token):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    @property
    def jots(self) -> list[str]:
        return self.jot_file.read_text().splitlines() if self.jot_file.exists() else []


@pytest.fixture
def suite(tmp_path: Path) -> Iterator[Suite]:
    made = Suite(tmp_path)
    yield made
    made.kill()  # a test that failed may have left a process that spins
