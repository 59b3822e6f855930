"""The live line on a pseudo-terminal: there while a test runs, gone afterwards."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_compileiq.report.live import LiveLine

SLOW = """
import time
from pytest_compileiq import Objective

def test_quick(): pass

def test_slow(ciq):
    def slow(config):
        time.sleep(1.2)
        return "*" if config else 1.0
    ciq.assert_objective(slow)
"""


def on_a_terminal(pytester: pytest.Pytester, *arguments: str, **environment: str) -> bytes:
    import fcntl
    import pty
    import struct
    import subprocess
    import termios

    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 80, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *arguments],
        cwd=pytester.path,
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm", **environment},
    )
    os.close(theirs)
    written = b""
    try:
        while block := os.read(ours, 1 << 16):
            written += block
    except OSError:  # the end of a pseudo-terminal
        pass
    os.close(ours)
    assert process.wait() == 0
    return written


@pytest.mark.parametrize("verbose", [[], ["-v"]])
def test_a_long_check_shows_what_it_is_at(pytester: pytest.Pytester, verbose: list[str]) -> None:
    pytester.makepyfile(SLOW)
    written = on_a_terminal(pytester, "--ciq-isolate=require", *verbose)
    assert b"compileiq: objective of slow: baseline, 1 s" in written
    pyte = pytest.importorskip("pyte")
    screen = pyte.Screen(80, 60)
    pyte.ByteStream(screen).feed(written)
    shown = [line.rstrip() for line in screen.display]
    assert not any(" s" in line and "compileiq: objective" in line for line in shown)
    if not verbose:
        (dots,) = [line for line in shown if "[100%]" in line]
        assert dots.split() == ["test_a_long_check_shows_what_it_is_at.py", "..", "[100%]"]


@pytest.mark.parametrize("arguments", [["--ciq-isolate=off"], ["--ciq-isolate=require", "-q"]])
def test_no_live_line_where_it_has_no_place(
    pytester: pytest.Pytester, arguments: list[str]
) -> None:
    pytester.makepyfile(SLOW)
    assert b"the baseline" not in on_a_terminal(pytester, *arguments)


def test_no_live_line_without_a_terminal(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SLOW)
    result = pytester.runpytest_subprocess("--ciq-isolate=require")
    assert "the baseline" not in result.stdout.str()


@pytest.mark.parametrize(
    ("name", "encoding", "shown"),
    [
        ("ядро-λ", "latin-1", rb"\u044f\u0434\u0440\u043e-\u03bb"),
        ("two\nlines", "utf-8", b"two lines"),
    ],
)
def test_a_name_that_the_terminal_cannot_show(
    pytester: pytest.Pytester, name: str, encoding: str, shown: bytes
) -> None:
    """Writing it raised, which ended the whole session."""
    source = SLOW.replace("objective(slow)", f"objective(Objective(slow, name={name!r}))")
    pytester.makepyfile(source + "\ndef test_after(): pass\n")
    written = on_a_terminal(pytester, "--ciq-isolate=require", PYTHONIOENCODING=encoding)
    assert b"compileiq: objective of " + shown + b": baseline, 1 s" in written
    assert b"3 passed" in written


def test_a_listener_that_raises_is_told_once_and_ends_nothing(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(
        "def pytest_ciq_progress(seconds):\n"
        "    print('heard')\n"
        "    raise ZeroDivisionError('of a listener')\n"
    )
    pytester.makepyfile(SLOW.replace("1.2", "2.4") + "\ndef test_after(): pass\n")
    result = pytester.runpytest_subprocess("--ciq-isolate=require", "-s", "-Werror")
    result.assert_outcomes(passed=3, warnings=1)
    result.stdout.fnmatch_lines(["*pytest_ciq_progress: ZeroDivisionError: of a listener*"])
    assert result.stdout.str().count("heard") == 1


def test_wide_letters_do_not_wrap() -> None:
    """A line that wraps is one too many to erase."""
    written: list[str] = []
    writer = SimpleNamespace(width_of_current_line=0, fullwidth=40)
    config: Any = SimpleNamespace(get_terminal_writer=lambda: writer)
    stream: Any = SimpleNamespace(write=written.append, flush=lambda: None, encoding="utf-8")
    LiveLine(config, stream).pytest_ciq_progress("行" * 60, check="win", arm="", seconds=2)
    # 20 columns of Latin letters before it, and 38 columns are no more than 39.
    assert written[0].count("行") == (39 - len("  compileiq: win of ")) // 2 == 9


def test_it_goes_back_to_where_pytest_was() -> None:
    written: list[str] = []
    writer = SimpleNamespace(width_of_current_line=11, fullwidth=40)
    config: Any = SimpleNamespace(get_terminal_writer=lambda: writer)
    stream: Any = SimpleNamespace(write=written.append, flush=lambda: None, encoding="utf-8")
    line = LiveLine(config, stream)
    line.pytest_runtest_logreport()
    assert written == []
    line.pytest_ciq_progress(kernel="k" * 60, check="win", arm="best.acf", seconds=2.4)
    text = "  compileiq: win of " + "k" * 60
    assert written == ["\n\r\x1b[2K" + text[:39] + "\x1b[1A\r\x1b[11C"]
    line.pytest_runtest_logreport()
    line.pytest_runtest_logreport()
    assert written[1:] == ["\n\r\x1b[2K\x1b[1A\r\x1b[11C"]
