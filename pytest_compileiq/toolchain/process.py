"""Run a tool that may hang, and leave nothing of it behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pytest_compileiq.files import LARGEST


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


def run(
    argv: Sequence[str | Path],
    *,
    timeout: float,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
) -> Finished:
    """Run ``argv`` for at most ``timeout`` seconds; a hung tool dies with its process group.

    ``env`` is its whole environment and ``cwd`` its folder; None gives it this process's. Raises
    OSError when the program cannot be started at all.
    """
    words = tuple(str(word) for word in argv)
    # A file, not a pipe: what a wrapper left running would hold a pipe open, and keep us waiting.
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            words,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # so that a wrapper's children can be killed with it
        )
        death = os.pidfd_open(process.pid)
        try:
            poller = select.poll()  # Popen.wait(timeout) looks only every 50 ms
            poller.register(death, select.POLLIN)
            ended = bool(poller.poll(timeout * 1000))
        finally:
            os.close(death)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # not reaped yet: the id is still its own
            returncode = process.wait()
        # Of a wrapper that prints without end the last words, not more than memory holds.
        output.seek(max(0, output.seek(0, os.SEEK_END) - LARGEST))
        text = output.read().decode(errors="replace")
        return Finished(words, returncode if ended else None, text)
