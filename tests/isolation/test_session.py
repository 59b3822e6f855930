"""Reports, stopping, the cache, and signals from outside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import time
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from .conftest import Suite, marked, needs


def test_durations_and_properties(suite: Suite) -> None:
    suite.write(
        test_a="""
import enum
@pytest.fixture
def slow(): time.sleep(0.2); yield; time.sleep(0.1)
class Odd:
    def __repr__(self): return "<odd>"
class Bad:
    def __repr__(self): raise ValueError
class Text(str): pass
class Word(enum.StrEnum): A = "a"
class Real(float): pass
def test_1(ciq, slow, record_property, request):
    record_property("plain", 1.5); record_property("odd", Odd())
    record_property("tuple", (1, "a")); record_property("bad", Bad())
    record_property("str", [Text("x"), Word.A, Real(0.5), True])
    request.node.user_properties.append(("list", [1, None, {"k": b"v"}]))
    time.sleep(0.3); print("out")
""",
        conftest="""
def pytest_runtest_logreport(report):
    spans = report.stop - report.start >= report.duration - .01
    jot((report.when, round(report.duration, 1), spans, report.user_properties))
""",
    )
    result = suite.run("--junitxml=x.xml", "--durations=0", "-vv", "-o", "junit_logging=all")
    assert result.counts["passed"] == 1
    properties = [
        ("plain", 1.5),
        ("odd", "<odd>"),
        ("tuple", (1, "a")),
        ("bad", "<Bad: repr failed with ValueError>"),
        ("str", ["x", "a", 0.5, True]),
        ("list", [1, None, {"k": b"v"}]),
    ]
    assert suite.jots == [
        f"main {('setup', 0.2, True, [])}",
        f"main {('call', 0.3, True, properties)}",
        f"main {('teardown', 0.1, True, properties)}",
    ]
    case = ET.parse(suite.path / "x.xml").find(".//testcase")
    assert case is not None
    assert 0.6 <= float(case.get("time", 0)) < 0.9
    assert "out" in (case.findtext("system-out") or "")
    named = {part.get("name"): part.get("value") for part in case.iter("property")}
    assert named["odd"] == "<odd>"
    assert re.search(r"0.3\ds call +test_a.py::test_1", result.out)


def test_stop_early(suite: Suite) -> None:
    suite.write(
        test_a="""
@pytest.fixture(scope="module", autouse=True)
def m(): jot("up"); yield; jot("down")
def test_1(): pass
def test_2(ciq): assert 0
def test_3(ciq): os._exit(1)
def test_4(ciq): jot("ran 4")
"""
    )
    result = suite.run("-x")
    assert result.counts == {"passed": 1, "failed": 1}
    assert "stopping after 1 failures" in result.out
    assert suite.jots == ["main up", "child up", "child down", "main down"]
    result = suite.run("--maxfail=2")
    assert result.counts == {"passed": 1, "failed": 2}
    assert "stopping after 2 failures" in result.out
    assert "ran 4" not in str(suite.jots)


def test_cache_and_stepwise(suite: Suite) -> None:
    suite.write(
        test_a="""
def test_1(): pass
def test_2(ciq): assert os.path.exists("fixed")
def test_3(ciq): os.path.exists("fixed") or os._exit(1)
def test_4(ciq): pass
"""
    )

    def run(*args: str) -> object:
        return suite.run(*args, plugins=("cacheprovider",))

    assert run("--sw").counts == {"passed": 1, "failed": 1}
    assert run().counts == {"passed": 2, "failed": 2}
    last = run("--lf", "-v")
    assert last.counts["failed"] == 2
    assert "test_4" not in last.out
    order = re.findall(r"::(test_\d) (?:PASSED|FAILED)", run("--ff", "-v", "--nf").out)
    assert order == ["test_2", "test_3", "test_1", "test_4"]
    (suite.path / "fixed").touch()
    assert run("--lf").counts["passed"] == 2
    assert run("--sw").counts["passed"] >= 3


def test_outcomes(suite: Suite) -> None:
    suite.write(
        test_a="""
def test_skip(ciq): pytest.skip("inside")
@pytest.mark.skip(reason="mark")
def test_skip_mark(ciq): pass
@pytest.mark.xfail(reason="known")
def test_xfail(ciq): assert 0
@pytest.mark.xfail(strict=True)
def test_xpass_strict(ciq): pass
@pytest.mark.xfail
def test_xpass(ciq): pass
def test_xfail_inside(ciq): pytest.xfail("inside")
@pytest.mark.xfail(run=False, reason="never")
def test_norun(ciq): os._exit(1)
@pytest.mark.xfail(reason="crash")
def test_crash(ciq): os._exit(1)
@pytest.mark.skipif("sys.platform == 'linux'", reason="cond")
def test_skipif(ciq): pass
def test_importorskip(ciq): pytest.importorskip("nothere")
"""
    )
    texts = []
    for args, isolate in ((), "require"), (("--deselect", "test_a.py::test_crash"), "off"):
        out = suite.run("-rA", *args, isolate=isolate).out
        lines = out.split("short test summary info")[1].splitlines()
        kept = [line.split(" - ")[0] for line in lines if "test_" in line]
        texts.append([line for line in kept if "test_crash" not in line])
        # A crash is never an expected failure.
        assert ("FAILED test_a.py::test_crash" in out) == (isolate == "require")
    assert texts[0] == texts[1]
    assert len(texts[0]) == 9


def test_pytest_exit_in_the_child(suite: Suite) -> None:
    suite.write(
        test_a="""
@pytest.fixture(scope="session", autouse=True)
def s(): jot("up"); yield; jot("down")
def test_0(): pass
def test_1(ciq): pytest.exit("enough", returncode=42)
def test_2(): jot("ran 2")
"""
    )
    result = suite.run()
    assert result.rc == 42
    assert "Exit: enough" in result.out
    assert result.counts == {"passed": 1}
    assert suite.jots == ["main up", "child up", "child down", "main down"]


def test_keyboard_interrupt_raised_in_the_child(suite: Suite) -> None:
    suite.write(
        test_a="""
@pytest.fixture(scope="session")
def s(): yield; jot("down")
def test_1(ciq, s): raise KeyboardInterrupt
def test_2(ciq): jot("ran 2")
"""
    )
    assert suite.run().rc == 2
    assert suite.jots == ["child down"]


LONG = """
@pytest.fixture(scope="session", autouse=True)
def s(): yield; jot("down")
def test_0(): pass
def test_1(ciq):
    subprocess.Popen(["sleep", "100"]); subprocess.Popen(["sleep", "101"], start_new_session=True)
    jot(f"started {os.getpid()} {os.getppid()}")
    BODY
def test_2(): jot("ran 2")
"""


@pytest.mark.parametrize("body", ["time.sleep(60)", "while 1: pass"])
def test_ctrl_c(suite: Suite, body: str) -> None:
    """The child tears its fixtures down, and the session ends as usual."""
    suite.write(test_a=LONG.replace("BODY", body))
    process = suite.popen()
    suite.wait_for("started")
    start = time.monotonic()
    os.killpg(process.pid, signal.SIGINT)
    result = suite.finish(process)
    assert time.monotonic() - start < 4.9
    assert result.rc == 2
    assert "KeyboardInterrupt" in result.out
    assert "1 passed" in result.out
    assert [jot for jot in suite.jots if "started" not in jot] == ["child down", "main down"]
    suite.nothing_left()


@pytest.mark.parametrize("presses", [1, 2])
def test_ctrl_c_that_the_child_ignores(suite: Suite, presses: int) -> None:
    """It has 5 s and is killed then, or at once at the second Ctrl-C."""
    body = "signal.signal(signal.SIGINT, signal.SIG_IGN); jot('deaf'); time.sleep(60)"
    suite.write(test_a=LONG.replace("BODY", body))
    process = suite.popen()
    suite.wait_for("deaf")
    start = time.monotonic()
    for _ in range(presses):
        os.killpg(process.pid, signal.SIGINT)
        time.sleep(0.3)
    result = suite.finish(process)
    seconds = time.monotonic() - start
    assert result.rc == 2
    assert seconds < 4 if presses == 2 else 4.5 < seconds < 10
    suite.nothing_left()


SLOW_END = """
@pytest.fixture
def slow(): yield; jot("ending"); time.sleep(60)
@pytest.mark.ciq_objective(objectives=2)
def test_1(slow, ciq): ciq.check(lambda config: 1.0)
"""


@pytest.mark.parametrize("workers", [[], ["-n1"]], ids=["alone", "xdist"])
@pytest.mark.parametrize("isolate", ["off", "require"])
def test_ctrl_c_in_a_teardown_takes_no_report_away(
    suite: Suite, isolate: str, workers: list[str]
) -> None:
    suite.write(test_a=SLOW_END)
    process = suite.popen("--ciq-json=x.json", *workers, isolate=isolate)
    suite.wait_for("ending")
    time.sleep(0.3)  # xdist's controller has to have heard of the call
    os.killpg(process.pid, signal.SIGINT)
    result = suite.finish(process)
    assert (result.rc, result.counts) == (2, {"failed": 1}), result.out
    (record,) = json.loads((suite.path / "x.json").read_text())["records"]
    assert (record["check"], record["reason"]) == ("objective", "bad-shape")
    suite.nothing_left()


@needs("pytest_rerunfailures")
def test_ctrl_c_where_a_rerun_was_to_come(suite: Suite) -> None:
    suite.write(test_a=SLOW_END)
    process = suite.popen("--reruns=2", "--ciq-json=x.json", plugins=("rerunfailures",))
    suite.wait_for("ending")
    os.killpg(process.pid, signal.SIGINT)
    result = suite.finish(process)
    assert (result.rc, result.counts) == (2, {"failed": 1}), result.out
    assert len(json.loads((suite.path / "x.json").read_text())["records"]) == 1


@pytest.mark.parametrize("deaf", [False, True])
def test_ctrl_c_after_an_answer_and_before_any_report(suite: Suite, deaf: bool) -> None:
    suite.write(
        test_a=f"""
@pytest.mark.ciq_objective
@pytest.mark.ciq_max_cv(5)
def test_1(ciq):
    ciq.assert_objective(lambda config: "*" if config else 1.0)
    if {deaf}: signal.signal(signal.SIGINT, signal.SIG_IGN)
    jot("answered"); time.sleep(60)
"""
    )
    process = suite.popen("--ciq-json=x.json")
    suite.wait_for("answered")
    os.killpg(process.pid, signal.SIGINT)
    result = suite.finish(process)
    assert (result.rc, result.counts) == (2, {"failed": 1}), result.out
    assert "Ctrl-C came before its end" in result.section("test_1")
    (record,) = json.loads((suite.path / "x.json").read_text())["records"]
    assert (record["check"], record["status"]) == ("objective", "pass")


def test_ctrl_c_at_the_very_fork(suite: Suite) -> None:
    """It strikes the new process while that still has pytest's stack: pytest ends once."""
    suite.write(
        conftest="""
import ctypes, functools
os.register_at_fork(after_in_child=functools.partial(ctypes.CDLL(None)["raise"], signal.SIGINT))
def pytest_sessionfinish(): jot("finished")
""",
        test_a="""
def test_1(ciq): assert inside()
""",
    )
    result = suite.run()
    assert result.counts == {"passed": 1}, result.out
    assert suite.jots == ["main finished"]


@pytest.mark.parametrize("error", ["ZeroDivisionError", "ConnectionError"])
def test_a_report_hook_that_raises_ends_the_session_as_ever(suite: Suite, error: str) -> None:
    """An OSError is no sign of a dead process: what it looks like is what it is."""
    suite.write(
        conftest=f"""
def pytest_runtest_logreport(report):
    if not inside() and report.when == "call": raise {error}("in a plugin")
""",
        test_a="""
@pytest.fixture
def slow(): yield; time.sleep(60)
def test_1(ciq, slow): pass
""",
    )
    result = suite.run()
    assert result.rc == 3
    assert f"{error}: in a plugin" in result.out
    assert "crashed" not in result.out
    assert result.seconds < 30


def test_a_report_after_that_of_the_teardown_is_logged_once(suite: Suite) -> None:
    suite.write(
        conftest="""
@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item):
    done = yield
    if inside():
        more = pytest.TestReport(item.nodeid, item.location, {}, "passed", None, "call")
        item.ihook.pytest_runtest_logreport(report=more)
    return done
def pytest_runtest_logreport(report):
    if not inside(): jot(report.when)
""",
        test_a="def test_1(ciq): pass\n",
    )
    suite.run()
    assert suite.jots == [f"main {when}" for when in ("setup", "call", "call", "teardown")]


def test_ctrl_c_with_workers(suite: Suite) -> None:
    suite.write(test_a=LONG.replace("BODY", "time.sleep(60)"))
    process = suite.popen("-n2")
    suite.wait_for("started")
    os.killpg(process.pid, signal.SIGINT)
    assert suite.finish(process).rc == 2
    suite.nothing_left()


@pytest.mark.parametrize(
    ("number", "held"),
    [
        (signal.SIGTERM, False),
        (signal.SIGHUP, False),
        (signal.SIGKILL, False),
        (signal.SIGKILL, True),
    ],
)
def test_pytest_is_killed(suite: Suite, number: signal.Signals, held: bool) -> None:
    """All die with it, also when a fork of pytest holds the other end of the socket."""
    holder = """
def test_holder():
    if not os.fork(): os.setsid(); jot('holder'); time.sleep(4); os._exit(0)
"""
    suite.write(test_a=holder * held + LONG.replace("BODY", "while 1: pass"))
    with contextlib.ExitStack() as stack:
        if number is signal.SIGHUP:  # below nohup it is ignored, and a child would inherit that
            stack.callback(signal.signal, number, signal.signal(number, signal.SIG_DFL))
        process = suite.popen("-s")
    suite.wait_for("started")
    end = time.monotonic() + 5
    # A process in the middle of exec has no environment to read.
    while len(before := marked(suite.token)) < 6 + held and time.monotonic() < end:
        time.sleep(0.02)
    assert len(before) == 6 + held  # pytest, zygote, child, the one that stands by, two sleepers
    process.send_signal(number)
    end = time.monotonic() + 3
    while len(left := marked(suite.token)) > held and time.monotonic() < end:
        time.sleep(0.02)
    assert len(left) <= held
    process.communicate()
    suite.nothing_left(8)


def test_the_whole_group_of_pytest_is_killed(suite: Suite) -> None:
    """kill -9 -PGID, as CI does: the zygote has a session of its own, and so cleans up."""
    suite.write(test_a=LONG.replace("BODY", "while 1: pass"))
    process = suite.popen()
    suite.wait_for("started")
    os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
    suite.nothing_left()


def test_the_zygote_is_killed(suite: Suite) -> None:
    """The running item fails, each later isolated one fails at once, ordinary ones run."""
    suite.write(
        test_a="""
def test_0(ciq): pass
def test_1(ciq):
    progress("best.acf"); subprocess.Popen(["sleep", "100"])
    os.kill(os.getppid(), 9); time.sleep(60)
def test_2(): pass
def test_3(ciq): jot("ran 3")
def test_4(ciq): jot("ran 4")
"""
    )
    result = suite.run("-rfE")
    assert result.counts == {"passed": 2, "failed": 1, "error": 2}
    assert not suite.jots
    text = "lost with its server, which was killed by SIGKILL"
    assert text in result.section("test_1")
    assert "at arm best.acf" in result.section("test_1")
    text = "unfit: not run, because the server of isolated tests was killed by SIGKILL while "
    assert f"{text}test_a.py::test_1 ran" in result.out


def test_the_zygote_is_killed_between_items(suite: Suite) -> None:
    suite.write(
        test_a="""
from suite_support import kids
def test_0(ciq): pass
def test_1(): os.kill(kids()[0], 9)
def test_2(ciq): jot("ran 2")
def test_3(): pass
"""
    )
    for _ in range(3):  # it shows as EPIPE, ECONNRESET or the end of the socket
        result = suite.run()
        assert result.counts == {"passed": 3, "error": 1}, result.out
        assert not suite.jots


def test_an_ordinary_test_waits_for_all_children(suite: Suite) -> None:
    """It may take the zygote's exit status away from pytest, and breaks nothing by that."""
    suite.write(
        test_a="""
from suite_support import kids
def test_0(ciq): pass
def test_1(): os.kill(kids()[0], 9); os.waitpid(-1, 0)
def test_2(ciq): jot("ran 2")
def test_3(): pass
"""
    )
    result = suite.run()
    assert result.counts == {"passed": 3, "error": 1}, result.out
    assert "lost with its server, which ended, and pytest was not told how" in result.out
    assert not suite.jots


def test_the_zygote_is_killed_while_pytest_is_stopped(suite: Suite) -> None:
    """The child dies of PR_SET_PDEATHSIG. A known limit: a session of its own survives that."""
    suite.write(test_a=LONG.replace("BODY", "while 1: pass"))
    process = suite.popen()
    suite.wait_for("started")
    child, zygote = map(int, suite.jots[-1].split()[2:])
    process.send_signal(signal.SIGSTOP)
    os.kill(zygote, signal.SIGKILL)
    time.sleep(0.3)
    assert child not in marked(suite.token)
    assert len(marked(suite.token)) == 3  # pytest and the two sleepers
    process.send_signal(signal.SIGCONT)
    assert suite.finish(process).counts == {"passed": 2, "failed": 1}
    (left,) = marked(suite.token)
    os.kill(left, signal.SIGKILL)


def test_no_more_zygotes_than_needed(suite: Suite) -> None:
    suite.write(
        test_a="""
from suite_support import kids
def test_0(): jot(len(kids()))
""",
        test_b="def test_0(ciq): pass",
    )
    suite.run("test_a.py")
    suite.run("test_a.py", "test_b.py")
    suite.run("test_a.py", "test_b.py", isolate="auto")  # no GPU is asked for
    suite.run("--collect-only")
    assert suite.jots == ["main 0", "main 1", "main 0"]


def test_staging_folder(suite: Suite) -> None:
    """It belongs to pytest, so no child's death leaves it behind."""
    suite.write(
        test_a="""
from pytest_compileiq.state import ASSEMBLER
@pytest.fixture
def folder(ciq, pytestconfig): return pytestconfig.stash[ASSEMBLER].staging.folder
def test_1(folder): jot(folder)
def test_2(folder): jot(folder); os.abort()
def test_3(folder): assert os.path.isdir(folder)
"""
    )
    suite.run(env={"TMPDIR": str(suite.path)})
    (folder,) = {Path(jot.split()[1]) for jot in suite.jots}
    assert folder.parent == suite.path
    assert not folder.exists()


def test_no_core_file_is_written(suite: Suite) -> None:
    suite.write(
        test_a="""
import resource
def test_1(ciq): assert resource.getrlimit(resource.RLIMIT_CORE)[0] == 0
"""
    )
    assert suite.run().counts == {"passed": 1}
