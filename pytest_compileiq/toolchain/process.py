"""Run a tool that may hang, and leave nothing of it behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Finished:
    """What a tool left: ``returncode`` is None when the time limit killed it."""

    argv: tuple[str, ...]
    returncode: int | None
    output: str  # stdout and stderr, in the order written

    @property
    def died_by(self) -> str | None:
        """The name of the signal that ended it, or None."""
        if self.returncode is None or self.returncode >= 0:
            return None
        try:
            return signal.Signals(-self.returncode).name
        except ValueError:
            return f"signal {-self.returncode}"


def run(argv: Sequence[str | Path], *, timeout: float) -> Finished:
    """Run ``argv`` for at most ``timeout`` seconds; a hung tool dies with its process group.

    Raises OSError when the program cannot be started at all.
    """
    words = tuple(str(word) for word in argv)
    # A session of its own: a wrapper script's children hold the pipe open and would outlive
    # the wrapper, so the whole group has to be killed, not only the process started here.
    process = subprocess.Popen(
        words,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=timeout)
    except BaseException as error:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
        return Finished(words, None, output.decode(errors="replace"))
    return Finished(words, process.returncode, output.decode(errors="replace"))
