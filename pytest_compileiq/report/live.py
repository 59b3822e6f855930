"""The live line: what a test of more than a second is at, below pytest's own line on a terminal."""

from __future__ import annotations

import sys
from typing import TextIO

import pytest

from pytest_compileiq.report.terminal import cut
from pytest_compileiq.verdict import one_line

#: Of a terminal that understands ANSI: erase the line, go up, go right.
_ERASE, _UP, _RIGHT = "\r\x1b[2K", "\x1b[1A\r", "\x1b[{}C"


def register(config: pytest.Config) -> None:
    """Show the line in this run, if pytest writes to a terminal."""
    stream = sys.__stdout__
    if stream is not None and stream.isatty():
        config.pluginmanager.register(LiveLine(config, stream), "compileiq-live")


class LiveLine:
    """Draws below the line that pytest is writing, and goes back to where that has come to.

    It writes past pytest's terminal writer, whose notion of the current line it must not change.
    """

    def __init__(self, config: pytest.Config, stream: TextIO) -> None:
        self._config = config
        self._stream = stream
        self._shown = False

    def pytest_ciq_progress(self, kernel: str, check: str, arm: str, seconds: float) -> None:
        words = [f"{check} of {kernel}" if check and kernel else kernel or check, arm]
        what = ": ".join(word for word in words if word) or "preparing"
        self._draw(f"  compileiq: {one_line(what)}, {seconds:.0f} s")
        self._shown = True

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self) -> None:
        self._clear()

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionfinish(self) -> None:
        self._clear()

    def _clear(self) -> None:
        if self._shown:
            self._draw("")
            self._shown = False

    def _draw(self, text: str) -> None:
        writer = self._config.get_terminal_writer()
        column = writer.width_of_current_line
        back = _UP + (_RIGHT.format(column) if column else "")
        encoding = self._stream.encoding  # of a terminal: it may lack letters of a kernel's name
        text = text.encode(encoding, "backslashreplace").decode(encoding)
        self._stream.write(f"\n{_ERASE}{cut(text, writer.fullwidth - 1)}{back}")
        self._stream.flush()
