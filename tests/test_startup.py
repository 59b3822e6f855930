"""A run without ciq tests costs nothing: no heavy import, no child process, a few milliseconds."""

from __future__ import annotations

import sys

import pytest

HEAVY = (
    "compileiq", "torch", "triton", "helion", "numpy", "pandas", "pynvml", "elftools", "asyncio",
)  # fmt: skip

PROBE = """
import atexit, sys
started = []
sys.addaudithook(lambda event, args: started.append(event) if event in (
    "subprocess.Popen", "os.posix_spawn", "os.fork", "os.forkpty", "os.exec") else None)
def report():
    heavy = [name for name in {heavy!r} if name in sys.modules]
    own = sorted(name for name in sys.modules if name.startswith("pytest_compileiq"))
    print("HEAVY", heavy, "CHILDREN", started, "OWN", own)
atexit.register(report)
import pytest
sys.exit(pytest.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("args", [["--collect-only", "-q"], [], ["--markers"], ["--fixtures"]])
def test_nothing_heavy_and_no_child_process(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, args: list[str]
) -> None:
    pytester.makepyfile("def test_trivial(): pass")
    probe = pytester.path / "probe.py"
    probe.write_text(PROBE.format(heavy=HEAVY))
    # Other installed plugins import what they like (anyio's brings asyncio): only ours is loaded.
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    result = pytester.run(sys.executable, probe, "-p", "pytest_compileiq.plugin", *args)
    assert result.ret == 0
    line = next(line for line in result.outlines if line.startswith("HEAVY"))
    assert line.startswith("HEAVY [] CHILDREN [] OWN "), line
    own = line.partition("OWN ")[2]
    assert own == str(
        [
            "pytest_compileiq",
            "pytest_compileiq.hookspecs",
            "pytest_compileiq.plugin",
            "pytest_compileiq.pytest_fixtures",
            "pytest_compileiq.settings",
            "pytest_compileiq.state",
        ]
    )


def test_the_probe_sees_a_heavy_import_and_a_child(pytester: pytest.Pytester) -> None:
    """The guard above can fail: a test that imports numpy and forks shows up."""
    pytester.makepyfile(
        "def test(): import numpy, subprocess, sys; subprocess.run([sys.executable, '--version'])"
    )
    probe = pytester.path / "probe.py"
    probe.write_text(PROBE.format(heavy=HEAVY))
    result = pytester.run(sys.executable, probe)
    line = next(line for line in result.outlines if line.startswith("HEAVY"))
    assert "numpy" in line
    assert "subprocess.Popen" in line


COUNTER = """
import sys
calls = 0
def count(frame, event, argument):
    global calls
    calls += event in ("call", "c_call")
sys.setprofile(count)
import pytest
status = pytest.main(sys.argv[1:])
sys.setprofile(None)
print("CALLS", calls)
sys.exit(status)
"""


def test_start_up_work(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """Calls of functions, Python's and C's: the same on each run, however loaded the machine is.

    11,000 are added, of which pytest itself makes 2,500 for a plugin that does nothing. Twice the
    work is found here; how many milliseconds it is, benchmarks/startup.py says.
    """
    pytester.makepyfile("def test_trivial(): pass")
    probe = pytester.path / "probe.py"
    probe.write_text(COUNTER)
    # With bytecode, as for users, and in a place that can be written to.
    monkeypatch.delenv("PYTHONDONTWRITEBYTECODE", raising=False)
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(pytester.path / "bytecode"))
    monkeypatch.setenv("PYTHONHASHSEED", "0")

    def calls(*more: str) -> int:
        arguments = ("--collect-only", "-q", "-p", "no:cacheprovider", *more)
        result = pytester.run(sys.executable, probe, *arguments)
        (line,) = [line for line in result.outlines if line.startswith("CALLS")]
        return int(line.split()[1])

    calls()  # writes the bytecode
    added = calls() - calls("-p", "no:compileiq")
    assert 5_000 < added < 16_000
