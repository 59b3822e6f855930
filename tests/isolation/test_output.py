"""Captured and live output: whose it is, in which order, and how much of it."""

from __future__ import annotations

import re
import subprocess

import pytest

from .conftest import Suite

SUITE = """
import logging
@pytest.fixture
def around():
    print("out setup"); os.write(2, b"fd2 setup\\n"); logging.getLogger().warning("log setup")
    yield
    print("out teardown"); logging.getLogger().warning("log teardown")
def body(n):
    print(f"out call {n}"); print(f"err call {n}", file=sys.stderr)
    os.write(1, b"fd1 call %d\\n" % n); subprocess.run(["echo", f"echo call {n}"])
    logging.getLogger().error(f"log call {n}")
def test_0(around): body(0)
def test_1(ciq, around): body(1)
def test_2(around): body(2)
def test_3(ciq, around): body(3); assert 0
def test_4(ciq, around): body(4); os.kill(os.getpid(), 9)
def test_5(around): body(5)
"""


@pytest.mark.parametrize("mode", ["fd", "sys", "tee-sys", "no"])
def test_captured_sections_are_those_of_one_process(suite: Suite, mode: str) -> None:
    suite.write(test_a=SUITE.replace("os.kill(os.getpid(), 9)", "pass"))
    texts = []
    for isolate in ("require", "off"):
        result = suite.run(f"--capture={mode}", "-rA", isolate=isolate)
        assert result.counts == {"passed": 5, "failed": 1}
        text = result.out.replace("test_a.py .", "test_a.py ").split("=== FAILURES ===")[1]
        texts.append(re.sub(r"in [\d.]+s|ciq = .*", "", text))
    assert texts[0] == texts[1]
    if mode == "fd":
        for n in (0, 1, 2, 5):
            for word in ("out call", "err call", "fd1 call", "echo call", "log call"):
                found = re.findall(rf"{word} (\d)", result.section(f"test_{n}"))
                assert found == [str(n)], (word, n)


@pytest.mark.parametrize("mode", ["fd", "sys", "no"])
def test_output_of_a_killed_child(suite: Suite, mode: str) -> None:
    """fd: all that it wrote is in the crash's report, and nothing of it in the next test's."""
    suite.write(test_a=SUITE)
    result = suite.run(f"--capture={mode}", "-rA")
    assert result.counts == {"passed": 4, "failed": 2}
    crash = result.section("test_4")
    assert "its process was killed by SIGKILL" in crash
    if mode == "fd":
        assert "Captured stdout call" in crash
        for word in ("out call 4", "err call 4", "fd1 call 4", "echo call 4"):
            assert result.out.count(word) == crash.count(word) == 1, word
        assert "log call 4" not in result.out  # logging's own section died with the child
    if mode == "sys":  # died with the child, too
        assert "out call 4" not in result.out
        assert "echo call 4" in result.out
    assert "call 4" not in result.section("test_5")
    assert "call 5" in result.section("test_5") + result.out


def test_live_output_keeps_its_order(suite: Suite) -> None:
    suite.write(
        test_a="""
def test_0(): print("<0>", end=" ")
def test_1(ciq): print("<1>", end=" "); os.system("printf '<1b> '")
def test_2(): print("<2>", end=" ")
def test_3(ciq): sys.stdout.write("<3> "); os._exit(0)
def test_4(ciq): print("<4>", end=" "); sys.stdout.flush(); os._exit(0)
def test_5(): print("<5>", end=" ")
""",
        conftest="""
def pytest_collection_finish(session): sys.stdout.write("<collected> ")  # stays in the buffer
""",
    )
    buffered = suite.run("-s", "-q", env={"PYTHONUNBUFFERED": ""}).out
    # <3> died in the buffer of its process.
    expected = ["<collected>", "<0>", "<1b>", "<1>", "<2>", "<4>", "<5>"]
    assert re.findall(r"<\w+>", buffered) == expected
    direct = suite.run("-s", "-q", env={"PYTHONUNBUFFERED": "1"}).out
    expected = ["<collected>", "<0>", "<1>", "<1b>", "<2>", "<3>", "<4>", "<5>"]
    assert re.findall(r"<\w+>", direct) == expected


def test_output_of_the_c_library_is_written_once(suite: Suite) -> None:
    suite.write(
        test_a="""
import ctypes
libc = ctypes.CDLL(None)
libc.printf(b"<import>")
def test_1(ciq): libc.printf(b"<one>")
def test_2(ciq): libc.printf(b"<two>"); libc.fflush(None)
def test_3(): libc.printf(b"<three>")
"""
    )
    for args in [], ["-s"]:
        result = suite.run(*args, "-rP", env={"PYTHONUNBUFFERED": ""})
        found = sorted(re.findall(r"<\w+>", result.out))
        assert found == ["<import>", "<one>", "<three>", "<two>"]
        if not args:
            assert "<two>" in result.section("test_2")


@pytest.mark.parametrize("outcome", ["passed", "failed", "killed"])
def test_100_megabytes(suite: Suite, outcome: str) -> None:
    suite.write(
        test_a=f"""
def test_big(ciq):
    for _ in range(100): print("x" * (1 << 20))
    if "{outcome}" == "failed": pytest.fail("y" * 10_000_000)
    if "{outcome}" == "killed": os.kill(os.getpid(), 9)
def test_after(ciq): print("mine")
"""
    )
    path = suite.path / "out.txt"
    with path.open("wb") as file:
        rc = suite.popen("-rA", stdout=file).wait(timeout=120)
    suite.nothing_left()
    text = path.read_text()
    assert rc == (outcome != "passed")
    assert text.count("x" * (1 << 20)) == 100
    # Under CI pytest does not shorten the line of the summary either.
    assert text.count("y" * 10_000_000) in ((1, 2) if outcome == "failed" else (0,))
    after = text.rpartition(" test_after ")[2]
    assert "mine" in after
    assert "xxxx" not in after


def test_outputs_of_many_tests_do_not_mix(suite: Suite) -> None:
    """100 items of all kinds, with sizes around those of buffers: each has its own output."""
    suite.write(
        test_a="""
SIZES = [0, 1, 100, 4095, 4096, 8191, 8192, 8193, 65535, 65536, 65537, 200_000]
def make(i):
    kind, size = i % 5, SIZES[i % len(SIZES)]
    def body():
        print(f"[{i}:" + "o" * size + "]"); os.write(2, f"[{i}:".encode() + b"e" * size + b"]")
    if kind in (0, 3):
        def test(): body()
    elif kind == 1:
        def test(ciq): body()
    elif kind == 2:
        def test(ciq): body(); assert 0
    else:
        def test(ciq): body(); os._exit(1)
    return test
for i in range(100): globals()[f"test_{i}"] = make(i)
"""
    )
    result = suite.run("-rA", "--tb=short")
    assert result.counts == {"passed": 60, "failed": 40}
    sizes = [0, 1, 100, 4095, 4096, 8191, 8192, 8193, 65535, 65536, 65537, 200_000]
    for i in range(100):
        size, found = sizes[i % 12], re.findall(r"\[(\d+):([oe]*)\]", result.section(f"test_{i}"))
        assert found == [(str(i), "o" * size), (str(i), "e" * size)], i


def test_live_logs_and_log_file(suite: Suite) -> None:
    suite.write(
        test_a="""
import logging
def test_0(): logging.getLogger().error("zero")
def test_1(ciq): logging.getLogger().error("one")
def test_2(ciq): logging.getLogger().error("two"); os._exit(1)
def test_3(): logging.getLogger().error("three")
"""
    )
    result = suite.run("-o", "log_cli=true", "--log-file", "log.txt")
    live = result.out.split("=== FAILURES")[0]
    for text in (live, (suite.path / "log.txt").read_text()):
        assert re.findall(r"ERROR +root:\S+ (\w+)", text) == ["zero", "one", "two", "three"]


def test_setup_show(suite: Suite) -> None:
    suite.write(
        test_a="""
@pytest.fixture(scope="module")
def m(): yield
def test_0(m): pass
def test_1(ciq, m): pass
"""
    )
    out = suite.run("--setup-show").out
    assert out.count("SETUP    M m") == out.count("TEARDOWN M m") == 2, out


def test_a_writer_in_the_background_does_not_reach_the_next_test(suite: Suite) -> None:
    """A process that a test leaves behind shares the capture file: it dies with the child."""
    suite.write(
        test_a="""
def test_1(ciq):
    subprocess.Popen(["sh", "-c", "while :; do echo noise; sleep 0.01; done"]); print("mine")
def test_2(): time.sleep(0.3); print("two")
"""
    )
    assert "noise" not in suite.run("-rA").section("test_2")


@pytest.mark.parametrize("args", [[], ["-s"]])
def test_a_child_never_waits_for_the_terminal(suite: Suite, args: list[str]) -> None:
    suite.write(
        test_a="""
def test_1(ciq): assert os.read(0, 10) == b""
def test_2(ciq): breakpoint()
"""
    )
    result = suite.run(*args, stdin=subprocess.PIPE)
    assert result.counts == {"passed": 1, "failed": 1}


def test_a_stream_that_cannot_flush(suite: Suite) -> None:
    """As pytest alone has it: what a test leaves in the place of stdout is no failure."""
    suite.write(
        test_a="""
class Dumb:
    def write(self, text): pass
def test_1(ciq): sys.stdout = sys.__stdout__ = Dumb()
def test_2(ciq): assert inside()
"""
    )
    assert suite.run("-s").counts == {"passed": 2}
