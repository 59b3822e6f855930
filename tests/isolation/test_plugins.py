"""Other plugins, and those of pytest itself."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections import Counter

import pytest

from pytest_compileiq.isolation import parent

from .conftest import Suite, needs

MIXED = """
import warnings
@pytest.fixture(scope="module", autouse=True)
def m(): jot("up"); yield; jot("down")
def test_0(): assert where() == "main"
@pytest.mark.parametrize("n", range(6))
def test_1(ciq, n, tmp_path): print("out", n); assert where() == "child"
@pytest.mark.xdist_group("g")
def test_2(ciq): progress("O0"); os.kill(os.getpid(), 11)
@pytest.mark.xdist_group("g")
def test_3(ciq): assert 0
def test_4(ciq): pytest.skip("why")
def test_5(ciq): warnings.warn("careful")
def test_6(): pass
"""


@needs("xdist")
@pytest.mark.parametrize(
    "mode", ["no", "load", "loadscope", "loadfile", "loadgroup", "worksteal", "each"]
)
def test_xdist(suite: Suite, mode: str) -> None:
    suite.write(test_a=MIXED, test_b=MIXED)
    times = 2 if mode == "each" else 1
    args = {"each": ["--tx", "2*popen", "--dist", "each"], "no": ["-n0"]}
    result = suite.run(*args.get(mode, ["-n2", "--dist", mode]), "-rA")
    expected = {"passed": 18, "failed": 4, "skipped": 2, "warning": 2}
    assert result.counts == {word: n * times for word, n in expected.items()}, result.out
    text = "crashed at arm O0: its process was killed by SIGSEGV"
    assert result.out.count(f"isolated test {text}") == 2 * times
    assert "[gw" in result.out or mode == "no"
    count = Counter(suite.jots)
    assert count["main up"] == count["main down"]
    assert count["child up"] == count["child down"] + 2 * times == 20 * times
    assert "careful" in result.out.split("warnings summary")[1]


@needs("xdist")
def test_a_worker_is_killed(suite: Suite) -> None:
    """Its zygote, child and grandchildren die with it; a new worker goes on."""
    suite.write(
        test_a="""
import pathlib
@pytest.mark.parametrize("n", range(6))
def test_1(ciq, n):
    subprocess.Popen(["sleep", "100"], start_new_session=True)
    if n == 2:
        worker = int(open(f"/proc/{os.getppid()}/stat").read().rpartition(")")[2].split()[1])
        jot("kill"); os.kill(worker, 9); time.sleep(60)
"""
    )
    process = suite.popen("-n2")
    result = suite.finish(process, 60)
    suite.nothing_left(5)
    assert result.counts["passed"] >= 4, result.out
    assert "worker" in result.out
    assert "crashed while running" in result.out


@needs("xdist")
def test_xdist_with_much_output(suite: Suite) -> None:
    suite.write(
        test_a="""
@pytest.mark.parametrize("n", range(4))
def test_1(ciq, n): print("x" * 20_000_000)
"""
    )
    assert suite.run("-n2").counts == {"passed": 4}


RERUNS = """
def tries(name):
    jot(f"{name} {os.getpid()}")
    return sum(f" {name} " in line for line in open(os.environ["JOT"]))
"""


@needs("pytest_rerunfailures")
@pytest.mark.parametrize("args", [[], ["-n2"]], ids=["alone", "n2"])
def test_reruns(suite: Suite, args: list[str]) -> None:
    """Each attempt has a process of its own."""
    suite.write(
        test_a=RERUNS
        + """
def test_1(ciq): assert tries("one") == 3
def test_2(ciq): tries("two") == 2 or os._exit(1)
def test_3(ciq): tries("three"); assert 0
def test_4(): assert tries("four") == 2
@pytest.mark.flaky(reruns=0)
def test_5(ciq): tries("five"); assert 0
@pytest.fixture(scope="module")
def bad(): assert tries("six") == 2
def test_6(ciq, bad): pass
def test_7(ciq): pass
"""
    )
    plugins = ("rerunfailures",)
    result = suite.run("--reruns", "2", *args, "-rR", "--ciq-json=x.json", plugins=plugins)
    assert result.counts == {"passed": 5, "failed": 2, "rerun": 7}, result.out
    names = Counter(jot.split()[1] for jot in suite.jots)
    assert names == {"one": 3, "two": 2, "three": 3, "four": 2, "five": 1, "six": 2}
    # The crash of an attempt that was not the last one is no answer.
    assert not json.loads((suite.path / "x.json").read_text())["records"]
    isolated = [jot for jot in suite.jots if "four" not in jot]
    assert len(set(isolated)) == len(isolated)


@needs("pytest_rerunfailures")
def test_filters_of_reruns(suite: Suite) -> None:
    suite.write(
        test_a=RERUNS
        + """
@pytest.mark.flaky(reruns=2, only_rerun="AssertionError")
def test_1(ciq): tries("only-no"); raise ValueError
@pytest.mark.flaky(reruns=2, only_rerun="ValueError")
def test_2(ciq): tries("only-yes"); raise ValueError
@pytest.mark.flaky(reruns=2, rerun_except="ValueError")
def test_3(ciq): tries("except"); raise ValueError
@pytest.mark.flaky(reruns=2, condition=False)
def test_4(ciq): tries("condition"); raise ValueError
@pytest.mark.flaky(reruns=2, only_rerun="AssertionError")
def test_5(ciq): tries("crash-no"); os.abort()
@pytest.mark.flaky(reruns=2, only_rerun="SIGABRT")
def test_6(ciq): tries("crash-yes"); os.abort()
@pytest.mark.flaky(reruns=1, reruns_delay=0.4)
def test_7(ciq):
    if tries(f"delay {time.monotonic()}") == 1: raise ValueError
@pytest.mark.xfail
@pytest.mark.flaky(reruns=2)
def test_8(ciq): tries("xfail"); raise ValueError
"""
    )
    suite.run(plugins=("rerunfailures",))
    names = Counter(jot.split()[1] for jot in suite.jots)
    expected = {"only-no": 1, "only-yes": 3, "except": 1, "condition": 1}
    expected |= {"crash-no": 1, "crash-yes": 3, "delay": 2, "xfail": 1}
    assert names == expected
    first, second = (float(jot.split()[2]) for jot in suite.jots if "delay" in jot)
    assert second - first > 0.4


@needs("pytest_timeout")
@pytest.mark.parametrize(("method", "args"), [("signal", []), ("signal", ["-n2"]), ("thread", [])])
def test_timeout(suite: Suite, method: str, args: list[str]) -> None:
    """Pytest's own timer is cancelled, the child has one. "thread" ends the child only."""
    suite.write(
        test_a="""
@pytest.mark.timeout(1)
def test_1(ciq): print("before"); time.sleep(30)
@pytest.mark.timeout(1, func_only=True)
def test_2(ciq): time.sleep(30)
@pytest.mark.limit(2)
def test_3(ciq): time.sleep(30)
def test_4(ciq): time.sleep(1.5)
def test_5(): pass
"""
    )
    options = ("--timeout", "20", "--timeout-method", method)
    result = suite.run(*options, *args, plugins=("timeout",))
    assert result.counts == {"passed": 2, "failed": 3}, result.out
    if method == "signal":
        assert len(re.findall(r"Failed: Timeout \(?>1", result.out)) >= 2
    else:
        assert result.out.count("isolated test crashed: its process exited with status 1") == 2
        assert args or "+ Timeout +" in result.out  # on the terminal; a worker has none
    assert "isolated test hung: no end after 2 s, and its process was killed" in result.out


@needs("pytest_timeout")
def test_a_timeout_in_the_middle_of_reports(suite: Suite) -> None:
    """The signal may strike while a report is written: it must arrive whole, or not at all."""
    suite.write(
        test_a="""
@pytest.mark.timeout(1)
@pytest.mark.parametrize("n", range(3))
def test_1(ciq, n):
    while True: progress("x" * 3_000_000)
"""
    )
    result = suite.run(plugins=("timeout",))
    assert result.counts == {"failed": 3}, result.out[-3000:]
    assert "bad message" not in result.out


LIB = """def f(x):
    if x == 1:
        return 10
    if x == 2:
        return 20
    return 30
"""


@needs("pytest_cov")
@pytest.mark.parametrize("args", [[], ["-n2"]], ids=["alone", "n2"])
def test_cov(suite: Suite, args: list[str]) -> None:
    (suite.path / "lib.py").write_text(LIB)
    suite.write(
        test_a="""
import lib
def test_1(ciq): assert lib.f(1) == 10
def test_2(ciq): assert lib.f(2) == 20
def test_3(): assert lib.f(3) == 30
def test_4(ciq): os._exit(1)
"""
    )
    options = ("--cov=lib", "--cov-report=term-missing", *args)
    result = suite.run(*options, "--cov-branch", plugins=("pytest_cov",))
    assert result.counts["passed"] == 3, result.out
    assert re.search(r"lib.py +6 +0 +4 +0 +100%", result.out), result.out
    assert [path.name for path in suite.path.glob(".coverage*")] == [".coverage"]
    result = suite.run(*options, "-k", "test_1 or test_3", plugins=("pytest_cov",))
    assert re.search(r"lib.py +6 +1 +83% +5", result.out), result.out  # both, and no more


@needs("pytest_cov")
def test_contexts_of_cov(suite: Suite) -> None:
    (suite.path / "lib.py").write_text(LIB)
    suite.write(test_a="import lib\ndef test_1(ciq): lib.f(1)\ndef test_2(): lib.f(1)\n")
    suite.run("--cov=lib", "--cov-context=test", "--cov-report=", plugins=("pytest_cov",))
    with contextlib.closing(sqlite3.connect(suite.path / ".coverage")) as database:
        contexts = {name for (name,) in database.execute("select context from context")}
    assert {"test_a.py::test_1|run", "test_a.py::test_2|run"} <= contexts


@needs("coverage")
@pytest.mark.parametrize("parallel", [False, True])
def test_coverage_run(suite: Suite, parallel: bool) -> None:
    """Without ``parallel`` the children's data is lost, but pytest's own is not broken."""
    config = "[run]\nsource=.\n" + "parallel=true\n" * parallel
    (suite.path / ".coveragerc").write_text(config)
    (suite.path / "lib.py").write_text(LIB)
    suite.write(
        test_a="""
import lib
def test_1(ciq): lib.f(1)
def test_2(ciq): lib.f(2)
def test_3(): lib.f(3)
"""
    )

    def coverage(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "coverage", *args]
        environment = suite.environment()
        return subprocess.run(
            command, cwd=suite.path, env=environment, capture_output=True, text=True, timeout=60
        )

    options = ("-p", "compileiq", "--ciq-isolate=require", "-q")
    first = coverage("run", "-m", "pytest", *options)
    assert first.returncode == 0, first.stdout
    if parallel:
        coverage("combine")
    report = coverage("report", "-m", "--include=lib.py").stdout
    assert ("100%" if parallel else "67%") in report


@needs("pytest_randomly")
@pytest.mark.parametrize("args", [[], ["-n2"]], ids=["alone", "n2"])
def test_randomly(suite: Suite, args: list[str]) -> None:
    """The same order, and the same numbers in each test, as in one process."""
    suite.write(
        test_a="""
import random
def make(n):
    def test(ciq): jot(f"{n} {random.random()}")
    return test
for n in range(12): globals()[f"test_{n}"] = make(n)
"""
    )
    seen = []
    for isolate in ("require", "require", "off"):
        plugins = ("randomly",)
        result = suite.run("--randomly-seed=7", *args, isolate=isolate, plugins=plugins)
        assert result.counts == {"passed": 12}, result.out
        seen.append([jot.split(" ", 1)[1] for jot in suite.jots])
        suite.jot_file.unlink()
    if args:
        seen = [sorted(jots) for jots in seen]
    else:
        assert [jot.split()[0] for jot in seen[0]] != [str(n) for n in range(12)]
    assert seen[0] == seen[1] == seen[2]


@needs("hypothesis")
def test_hypothesis(suite: Suite) -> None:
    suite.write(
        test_a="""
from hypothesis import given, settings, HealthCheck, Phase, strategies as st
# Not the profile that Hypothesis takes under CI: that one has no database.
settings.load_profile("default")
@given(st.integers())
@settings(suppress_health_check=list(HealthCheck), max_examples=50, deadline=None)
def test_1(ciq, n): pass
@given(st.integers())
@settings(
    suppress_health_check=list(HealthCheck), deadline=None,
    phases=[Phase.reuse, Phase.generate, Phase.shrink],
)
def test_2(ciq, n): assert n < 100
"""
    )
    plugins = ("hypothesispytest",)
    result = suite.run("--hypothesis-show-statistics", plugins=plugins)
    assert (result.counts["passed"], result.counts["failed"]) == (1, 1)
    assert "n=100" in result.out
    assert "50 passing" in result.out  # its statistics travel as an attribute of the report
    result = suite.run("--hypothesis-show-statistics", plugins=plugins)
    assert "reuse phase" in result.out  # the example database works across children


@pytest.mark.parametrize("args", [["--pdb"], ["--setup-only"], []], ids=["pdb", "setup", "off"])
def test_switched_off(suite: Suite, args: list[str]) -> None:
    suite.write(test_a="def test_1(ciq): jot(where()); assert not inside()\n")
    suite.run(*args, isolate="off", stdin=subprocess.PIPE)
    assert suite.jots == ([] if "--setup-only" in args else ["main main"])


@pytest.mark.parametrize("option", ["--pdb", "--trace", "--setup-only"])
def test_required_where_it_can_not_be(suite: Suite, option: str) -> None:
    suite.write(test_a="def test_1(ciq): jot('ran')\n")
    result = suite.run(option)
    assert result.rc == 4
    assert f"--ciq-isolate asks for isolation, and {option} needs the tests in" in result.out
    assert "run with --ciq-isolate=off" in result.out
    assert not suite.jots


@pytest.mark.parametrize(
    "name",
    [
        "terminal",
        "capture",
        "logging",
        "tmpdir",
        "warnings",
        "faulthandler",
        "junitxml",
        "assertion",
    ],
)
def test_without_a_plugin_of_pytest(suite: Suite, name: str) -> None:
    suite.write(
        test_a="def test_1(ciq): print(1)\ndef test_2(ciq): os._exit(1)\ndef test_3(): pass\n",
        conftest="""
def pytest_runtest_logreport(report):
    if report.when == 'call': jot(report.outcome)
""",
    )
    result = suite.run("-p", f"no:{name}")
    assert result.rc == 1
    assert suite.jots == ["main passed", "main failed", "main passed"], result.out


def test_the_faulthandler_timer_of_pytest(suite: Suite) -> None:
    """It must not write the stacks of pytest's process, where nothing but waiting is to see."""
    (suite.path / "pytest.ini").write_text("[pytest]\nfaulthandler_timeout = 0.5\n")
    suite.write(test_a="def test_1(ciq): time.sleep(1.2)\n")
    result = suite.run()
    assert result.counts == {"passed": 1}
    assert result.out.count("Timeout (0:00:00.500000)!") == 1
    assert "in test_1" in result.out
    assert "attempt.py" not in result.out


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "n2"])
@pytest.mark.parametrize("level", ["-Werror", "-ofilterwarnings=error"])
def test_warnings_as_errors(suite: Suite, workers: list[str], level: str) -> None:
    """Neither Python 3.12's warning at a fork with threads, nor the plugin's own one raises."""
    suite.write(
        test_a="""
import threading, warnings
threading.Thread(target=time.sleep, args=(3,), daemon=True).start()
def test_1(ciq): pass
def test_2(ciq): warnings.warn("careful")
@pytest.mark.filterwarnings("ignore:careful")
def test_3(ciq): warnings.warn("careful")
"""
    )
    result = suite.run(*workers, level)
    assert (result.counts["passed"], result.counts["failed"]) == (2, 1), result.out
    assert "careful" in result.out
    assert "1 other threads ran when" in result.out


def test_hooks_of_a_conftest(suite: Suite) -> None:
    """Those of a test's phases run in the child, those that report and wrap in pytest."""
    suite.write(
        conftest="""
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    outcome = yield
    report = outcome.get_result()
    jot(f"makereport {call.when}"); report.extra_things = ["a", 1]
    setattr(item, "rep_" + call.when, report)
def pytest_runtest_setup(item): jot("setup")
def pytest_runtest_call(item): jot("call")
def pytest_runtest_teardown(item): jot("teardown")
def pytest_runtest_logstart(): jot("logstart")
def pytest_runtest_logreport(report): jot(f"logreport {report.when} {report.extra_things}")
def pytest_runtest_logfinish(): jot("logfinish")
def pytest_fixture_setup(fixturedef): jot(f"fixture {fixturedef.argname}")
def pytest_sessionfinish(): jot("finish")
@pytest.fixture
def screenshot(request): yield; jot(f"failed {request.node.rep_call.failed}")
""",
        test_a="def test_1(ciq, screenshot): assert 0\n",
    )
    suite.run()
    child = ["setup", *(f"fixture {name}" for name in ("ciq_cache_env", "ciq_fresh_caches"))]
    child += ["fixture ciq", "fixture screenshot", "makereport setup", "call"]
    child += ["makereport call", "teardown", "failed True", "makereport teardown"]
    assert [jot[6:] for jot in suite.jots if jot.startswith("child")] == child
    reports = [f"logreport {when} ['a', 1]" for when in ("setup", "call", "teardown")]
    main = [jot[5:] for jot in suite.jots if jot.startswith("main")]
    assert main == ["logstart", *reports, "logfinish", "finish"]


def test_wrappers_and_state_on_nodes(suite: Suite) -> None:
    """A wrapper of a test's protocol runs in both processes; what the child notes stays there."""
    suite.write(
        conftest="""
@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item): jot("wrap"); yield
""",
        test_a="""
def test_1(ciq, request): request.node.parent.flag = 1
def test_2(request): assert not hasattr(request.node.parent, "flag")
""",
    )
    assert suite.run().counts == {"passed": 2}
    assert suite.jots == ["main wrap", "child wrap", "main wrap"]


def test_systems_that_can_not_isolate(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    def too_old(pid: int) -> int:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "pidfd_open", too_old)
    assert "Linux 5.3 or newer (pidfd_open: Function not" in str(parent.obstacle(pytestconfig))
    monkeypatch.delattr(os, "pidfd_open")
    assert "this Python or its C library lacks" in str(parent.obstacle(pytestconfig))
    monkeypatch.setattr(sys, "platform", "win32")
    assert parent.obstacle(pytestconfig) == "isolation needs Linux, and this is win32"


def test_json_from_workers(suite: Suite) -> None:
    suite.write(test_a="def test_1(ciq): progress('best.acf'); os.abort()\n")
    suite.run("-n2", "--ciq-json=x.json")
    (record,) = json.loads((suite.path / "x.json").read_text())["records"]
    assert (record["reason"], record["nodeid"]) == ("crashed", "test_a.py::test_1")


def test_a_protocol_that_reports_nothing(suite: Suite) -> None:
    """A plugin that takes the child's run over and stays silent must not pass the test."""
    suite.write(
        conftest="""
def pytest_collection_finish(session):
    class Silent:
        @pytest.hookimpl(tryfirst=True)
        def pytest_runtest_setup(self, item):
            if inside():
                from pytest_compileiq.isolation import child
                child._channel.send = lambda *message: None if message[0] == "report" else (
                    type(child._channel).send(child._channel, *message))
    session.config.pluginmanager.register(Silent())
""",
        test_a="def test_1(ciq): pass\n",
    )
    result = suite.run()
    assert result.counts == {"error": 1}
    assert "ended without the reports of the test" in result.out
