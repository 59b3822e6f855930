"""What a test can do to the others: nothing."""

from __future__ import annotations

import json
import re
import subprocess
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path

import pytest

from .conftest import Suite

#: Seconds until a test is killed. What does not hang has time, also on a busy machine.
LIMIT = {"hung": 1, "crashed": 60}
CRASHES = {
    "SIGSEGV": ("import ctypes; ctypes.string_at(0)", "was killed by SIGSEGV"),
    "SIGABRT": ("os.abort()", "was killed by SIGABRT"),
    "SIGKILL": ("os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
    "real-time signal": ("os.kill(os.getpid(), 40)", "was killed by signal 40"),
    "its group": ("os.killpg(0, 9)", "was killed by SIGKILL"),
    "exit 0": ("os._exit(0)", "exited with status 0"),
    "exit 70": ("os._exit(70)", "exited with status 70"),
    "spin": ("while 1: pass", "hung"),
    "spin in C": ("import re; re.match('(a*)*b', 'a' * 60)", "hung"),
    "deaf": (
        "[signal.signal(s, signal.SIG_IGN) for s in (15, 2, 1, 10)]\n    while 1: time.sleep(1)",
        "hung",
    ),
    "stopped": ("os.kill(os.getpid(), signal.SIGSTOP)", "hung"),
    "exec": ("os.execv('/bin/true', ['true'])", "exited with status 0"),
    "exec sleep": ("os.execv('/bin/sleep', ['sleep', '100'])", "hung"),
    "closed fds": ("os.closerange(3, 500)", "exited with status 70"),
    "grandchild holds the pipe": (
        "os.fork() or (os.setsid(), time.sleep(100))\n    os._exit(3)",
        "exited with status 3",
    ),
    "hangs with a grandchild": ("os.fork() or os.setsid()\n    time.sleep(100)", "hung"),
    "100 MB of output": (
        "for _ in range(100): print('x' * (1 << 20))\n    os.abort()",
        "was killed by SIGABRT",
    ),
}


IN_WORKERS = (
    "spin",
    "SIGSEGV",
    "SIGKILL",
    "exit 0",
    "grandchild holds the pipe",
    "100 MB of output",
)


@pytest.mark.parametrize("name", CRASHES)
def test_one_failing_test_with_its_reason(suite: Suite, name: str) -> None:
    """Within the time limit and 2 s; the arm is named, no process is left, others go on."""
    body, how = CRASHES[name]
    suite.write(
        test_a=f"""
@pytest.fixture(scope="session")
def s(): yield; jot("down")
def test_0(): pass
def test_1(ciq, s):
    progress("O0", kernel="softmax", check="canary"); progress("best.acf")
    jot(f"start {{time.time()}}")
    {body}
def test_2(ciq): jot("after"); assert inside()
def test_3(): pass
""",
        conftest="""
def pytest_runtest_logreport(report):
    if report.failed: jot(f"end {time.time()}")
""",
    )
    reason = "hung" if how == "hung" else "crashed"
    limit = LIMIT[reason]
    result = suite.run("-q", "-rf", f"--ciq-timeout={limit}", "--ciq-json=x.json")
    assert result.counts == {"passed": 3, "failed": 1}, result.out
    text = f"no end after {limit} s, and its process was killed"
    if reason == "crashed":
        text = f"its process {how} before its end"
    message = f"{reason} at arm best.acf of softmax (canary): {text}"
    assert f"isolated test {message}" in result.section("test_1"), result.out
    assert f"FAILED test_a.py::test_1 - {message[:30]}" in result.out
    times = dict(re.findall(r"(start|end) ([\d.]+)", "\n".join(suite.jots)))
    seconds = float(times["end"]) - float(times["start"])
    # A hang ends 2 s after its limit at the latest. A crash ends at once, but the 100 MB that
    # it may have written are read first, which takes a busy machine some seconds.
    assert seconds < (limit + 2 if reason == "hung" else 15), seconds
    (record,) = json.loads((suite.path / "x.json").read_text())["records"]
    assert (record["check"], record["kernel"]) == ("canary", "softmax")
    assert (record["status"], record["reason"]) == ("fail", reason)
    assert record["numbers"]["arm"] == "best.acf"
    assert "child after" in suite.jots
    # Only a process that lost its channel is alive to tear down.
    assert ("child down" in suite.jots) == (name == "closed fds")
    if name in ("SIGSEGV", "SIGABRT", "spin", "spin in C"):
        assert re.search(r'File ".*test_a.py", line \d+ in test_1', result.section("test_1"))


def test_each_is_one_failing_test_in_workers(suite: Suite) -> None:
    bodies = [
        f"""
@pytest.mark.limit({LIMIT["hung" if CRASHES[name][1] == "hung" else "crashed"]})
def test_bad_{number}(ciq):
    progress("best.acf")
    {CRASHES[name][0]}
def test_good_{number}(ciq): assert inside()
"""
        for number, name in enumerate(IN_WORKERS)
    ]
    suite.write(test_a="".join(bodies))
    result = suite.run("-q", "-n2")
    assert result.counts == {"passed": len(bodies), "failed": len(bodies)}, result.out
    for number, name in enumerate(IN_WORKERS):
        how = CRASHES[name][1]
        text = "hung" if how == "hung" else f"crashed at arm best.acf: its process {how}"
        assert f"isolated test {text}" in result.section(f"test_bad_{number}")


def test_a_crash_of_the_baseline_is_the_kernel_s_fault(suite: Suite) -> None:
    suite.write(
        test_a="""
def test_1(ciq): progress("baseline"); os.abort()
def test_2(ciq): progress("best.acf"); os.abort()
def test_3(ciq): os.abort()
"""
    )
    result = suite.run()
    assert "crashed at arm baseline: " in result.section("test_1")
    assert "the kernel itself is at fault" in result.section("test_1")
    assert "do not ship best.acf" in result.section("test_2")
    assert "no arm had been announced" in result.section("test_3")


def test_records_of_a_test_that_dies_halfway(suite: Suite) -> None:
    """What was answered before stays; what would have come after is not judged."""
    suite.write(
        test_a="""
from pytest_compileiq import Kernel
from pytest_compileiq.subjects.kernel import Build
def build(acf):
    if acf is not None: os.abort()
    return Build()
@pytest.mark.ciq_canary(o0="o.acf")
@pytest.mark.ciq_max_cv(5)
def test_1(ciq): ciq.check(Kernel(build, name="mine"))
"""
    )
    (suite.path / "o.acf").write_bytes(b"not an ACF, and never read")
    suite.run("--ciq-json=x.json")
    records = json.loads((suite.path / "x.json").read_text())["records"]
    found = [(record["check"], record["status"], record["reason"]) for record in records]
    assert found == [("canary", "fail", "crashed"), ("cv", "not-judged", None)]
    assert "at arm damaged-o.acf of mine (canary)" in records[0]["message"]


def test_a_verdict_before_the_crash_is_kept(suite: Suite) -> None:
    suite.write(
        test_a="""
import json
from pytest_compileiq import records
RECORD = {"check": "canary", "kernel": "k", "status": "pass", "reason": None, "message": ""}
RECORD |= {"nodeid": "", "remedy": "", "numbers": {}, "samples": []}
@pytest.mark.ciq_canary
@pytest.mark.ciq_max_cv(5)
def test_1(ciq): keep(records.VERDICT, json.dumps(RECORD)); progress("best.acf", kernel="k"); os.abort()
"""
    )
    suite.run("--ciq-json=x.json")
    records = json.loads((suite.path / "x.json").read_text())["records"]
    found = [(record["check"], record["status"], record["reason"]) for record in records]
    assert found == [("canary", "pass", None), ("cv", "fail", "crashed")]


def test_a_death_in_the_teardown_is_that_of_the_last_check(suite: Suite) -> None:
    suite.write(
        test_a="""
@pytest.fixture
def deadly(): yield; os._exit(3)
@pytest.mark.ciq_objective
def test_1(deadly, ciq, record_property):
    record_property("mine", "told")
    def mine(config): return "*" if config else 1.0
    ciq.check(mine)
"""
    )
    result = suite.run("--ciq-json=x.json", "--junitxml=x.xml", "-Wignore")
    assert result.counts == {"passed": 1, "error": 1}, result.out
    records = json.loads((suite.path / "x.json").read_text())["records"]
    found = [(one["check"], one["kernel"], one["status"], one["reason"]) for one in records]
    assert found == [
        ("objective", "mine", "pass", None),
        ("objective", "mine", "fail", "crashed"),
    ]
    assert '<property name="mine" value="told"' in (suite.path / "x.xml").read_text()


AROUND = """
import contextlib
from pytest_compileiq.errors import GpuError
@pytest.hookimpl(tryfirst=True)
def pytest_collection(session):
    plugin = session.config.pluginmanager.getplugin("compileiq-isolation")
    @contextlib.contextmanager
    def environment_for(item):
        if {before}: raise GpuError("there is no GPU", remedy="plug one in")
        yield {{}}
        raise GpuError("the clocks were not given back", remedy="reset-clocks")
    if plugin: plugin.environment_for = environment_for
"""
TWO_MARKS = """
@pytest.mark.ciq_objective(objectives=OBJECTIVES)
@pytest.mark.ciq_resources(max_spill_bytes=0)
def test_1(ciq):
    ciq.assert_objective(lambda config: "*" if config else 1.0, objectives=OBJECTIVES)
"""


@pytest.mark.parametrize(("objectives", "reason"), [(1, None), (2, "bad-shape")])
@pytest.mark.parametrize("dies", ["", "; os._exit(3)"], ids=["lives", "dies"])
def test_trouble_after_the_process_takes_no_answer_away(
    suite: Suite, objectives: int, reason: str | None, dies: str
) -> None:
    """Nor adds one: the test's own records are those of a run without isolation."""
    end = f"\n@pytest.fixture(autouse=True)\ndef end(): yield{dies}\n"
    suite.write(
        conftest=AROUND.format(before=False),
        test_a=end + TWO_MARKS.replace("OBJECTIVES", str(objectives)),
    )
    result = suite.run("--ciq-json=x.json")
    assert result.counts == {"failed": 1, "error": 2 if dies else 1}, result.out
    assert "the clocks were not given back\n  to do: reset-clocks" in result.out
    records = json.loads((suite.path / "x.json").read_text())["records"]
    assert (records[0]["check"], records[0]["reason"]) == ("objective", reason)
    assert "clocks" not in str(records)
    # What handed over no subject has failed for that.
    assert [one["reason"] for one in records].count("unfit") == (0 if reason else 1)


def test_trouble_before_the_process_says_that_none_ran(suite: Suite) -> None:
    suite.write(conftest=AROUND.format(before=True), test_a=TWO_MARKS.replace("OBJECTIVES", "1"))
    result = suite.run("--ciq-json=x.json")
    assert result.counts == {"error": 1}, result.out
    records = json.loads((suite.path / "x.json").read_text())["records"]
    assert [(one["status"], one["reason"]) for one in records] == [
        ("fail", "unfit"),
        ("not-judged", None),
    ]
    assert records[1]["message"] == "the test did not run"


def test_progress_is_nothing_outside(suite: Suite) -> None:
    suite.write(test_a="def test_1(ciq): progress('x'); keep('a', 1); assert not inside()\n")
    assert suite.run(isolate="off").counts == {"passed": 1}


def test_ordinary_ends_have_the_same_text(suite: Suite) -> None:
    suite.write(
        test_a="""
import threading
def test_sys_exit(ciq): sys.exit(3)  # a failure, as in one process
class Odd(Exception):
    def __init__(self, lock): self.lock = lock
    def __reduce__(self): raise TypeError("not picklable")
    def __repr__(self): return "Odd()"
def test_unpicklable(ciq): raise Odd(threading.Lock())
def test_unpicklable_assert(ciq): assert threading.Lock() == (x for x in ())
class BadRepr:
    def __repr__(self): raise ValueError("no repr")
def test_bad_repr(ciq): assert BadRepr() == 1
class BadStr(Exception):
    def __str__(self): raise ValueError("no str")
def test_bad_str(ciq): raise BadStr
def test_huge(ciq): raise ValueError("x" * 10_000_000)
def test_surrogates(ciq): raise ValueError("\\udcff\\x00\\u2028")
def test_group(ciq): raise ExceptionGroup("many", [ValueError(1), TypeError(2)])
def test_chain(ciq):
    try: 1 / 0
    except ZeroDivisionError as e: raise RuntimeError("second") from e
def test_recursion(ciq): test_recursion(ciq)
def test_base(ciq): raise BaseException("base")
def test_generator_exit(ciq): raise GeneratorExit
def test_last(ciq): pass
"""
    )
    texts = []
    for isolate in ("require", "off"):
        result = suite.run("-q", "--tb=short", isolate=isolate)
        assert result.counts == {"passed": 1, "failed": 12}
        texts.append(re.sub(r"0x[0-9a-f]+|in [\d.]+s", "", result.out))
    assert texts[0] == texts[1]


def test_processes_that_a_test_leaves_behind(suite: Suite) -> None:
    suite.write(
        test_a="""
import multiprocessing, threading
from suite_support import kids
def test_sleep(ciq): subprocess.Popen(["sleep", "100"])
def test_setsid(ciq): subprocess.Popen(["sleep", "100"], start_new_session=True)
def test_double_fork(ciq):
    if not os.fork():
        os.setsid()
        if not os.fork(): time.sleep(100)
        os._exit(0)
def test_fork_holds_everything(ciq):  # a fork keeps the report's channel open
    if not os.fork(): time.sleep(100); os._exit(0)
def test_inheriting(ciq): subprocess.Popen(["sleep", "100"], close_fds=False)
def test_fork_bomb(ciq):
    for n in range(50):
        if not os.fork():
            if not os.fork(): os.setsid() if n % 2 else None; time.sleep(100)
            time.sleep(100); os._exit(0)
def test_fork_comes_back(ciq): os.fork()  # both processes return into pytest
def test_fork_raises(ciq):
    if not os.fork(): raise ValueError("in the fork")
def test_daemon_thread(ciq):
    threading.Thread(target=time.sleep, args=(100,), daemon=True).start()
def test_other_thread(ciq): threading.Thread(target=time.sleep, args=(100,)).start()
def test_zombies(ciq):
    for _ in range(20):
        if not os.fork(): os._exit(0)
def test_pool(ciq):
    with multiprocessing.get_context("fork").Pool(2) as p: assert p.map(abs, [-1, -2]) == [1, 2]
def test_spawn(ciq):
    p = multiprocessing.get_context("spawn").Process(target=print, args=("hi",))
    p.start(); p.join(); assert p.exitcode == 0
def test_crash_with_kids(ciq):
    for n in range(5): subprocess.Popen(["sleep", "100"], start_new_session=n % 2 == 0)
    os._exit(1)
def test_main_has_one_child():
    (zygote,) = kids()
    (next_one,) = kids(zygote)  # no zombie, no orphan
    assert not kids(next_one)
    assert "(sleeping)" in open(f"/proc/{next_one}/status").read()
"""
    )
    result = suite.run("-q", "-Wignore")
    assert result.counts == {"passed": 14, "failed": 1}, result.out
    assert "test_crash_with_kids" in result.out.split("FAILURES")[1]


def test_leaked_shared_memory_is_unlinked(suite: Suite) -> None:
    """multiprocessing's resource tracker has the time to do it."""
    suite.write(
        test_a="""
from multiprocessing import shared_memory
def test_1(ciq): jot(shared_memory.SharedMemory(create=True, size=100).name)
def test_2():
    time.sleep(0.1)
    assert not os.path.exists("/dev/shm/" + open(os.environ["JOT"]).read().split()[-1])
"""
    )
    assert suite.run().counts == {"passed": 2}


def test_no_leaks_after_60_items(suite: Suite) -> None:
    suite.write(
        test_a="""
import re
from suite_support import kids
def state():
    zygote, = kids()
    rss = re.search(r"VmRSS:\\s+(\\d+)", open(f"/proc/{zygote}/status").read())[1]
    fds = [len(os.listdir(f"/proc/{pid}/fd")) for pid in (os.getpid(), zygote)]
    return *fds, len(kids(zygote)), int(rss) // 1024
FIRST = []
def test_0(ciq): pass
def test_1(): FIRST[:] = state()
@pytest.mark.parametrize("n", range(60))
def test_2(ciq, n):
    if n % 10 == 3: os._exit(1)
    if n % 10 == 5: os.kill(os.getpid(), 9)
    if n % 10 == 7: assert 0
def test_3():
    now = state(); jot((FIRST, now))
    assert list(now[:3]) == FIRST[:3] and now[3] - FIRST[3] <= 2
"""
    )
    result = suite.run("-q", "--tb=no", timeout=180)
    assert result.counts == {"passed": 45, "failed": 18}, suite.jots


def test_garbage_on_the_channel(suite: Suite) -> None:
    """A child whose memory is damaged may write anything: a failing report comes of it."""
    suite.write(
        test_a="""
import pickle, socket
from pytest_compileiq.isolation import child
class Evil:
    def __reduce__(self): return (os.system, ("echo evil > evil.txt",))
def put(data, fds=()): socket.send_fds(child._channel._peer, [data], fds)
def test_noise(ciq): put(b"noise")
def test_evil(ciq): put(b"i" + pickle.dumps(("progress", Evil())))
def test_number(ciq): put(b"i" + pickle.dumps(7))
def test_kind(ciq): put(b"i" + pickle.dumps(("nothing", 7)))
def test_report(ciq): put(b"i" + pickle.dumps(("report", {})))
def test_other_kind(ciq): put(b"i" + pickle.dumps(("pid", 1, 1)))
def test_pipe(ciq): put(b"m", [os.pipe()[0]])  # reading it would wait for ever
def test_no_memory(ciq): put(b"m")
def test_cut(ciq): put(b"i" + pickle.dumps(("progress", "x" * 100_000))[:50_000])
def test_fds(ciq): put(b"i" + pickle.dumps(("keep", "a", 1, False)), [0, 1, 2]); jot("fds")
def test_after(ciq): pass
"""
    )
    result = suite.run("-q", "--ciq-timeout=5")
    assert result.counts["passed"] == 2 + result.counts.get("error", 0), result.out
    assert result.counts.get("failed", 0) + result.counts.get("error", 0) == 9, result.out
    assert "INTERNAL" not in result.out
    assert result.out.count("isolated test crashed: it sent a bad message: ") == 9
    assert not (suite.path / "evil.txt").exists()


def test_a_fork_that_fails(suite: Suite) -> None:
    """The process limit is reached in the zygote: the test fails, the next ones run.

    One more child stood by at that time.
    """
    suite.write(
        conftest="""
real, main = os.fork, os.getpid()
def fork():
    if os.getpid() != main and os.path.exists("full"):
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return real()
os.fork = fork
""",
        test_a="""
def test_1(ciq): pass
def test_2(): open("full", "w").close()
def test_3(ciq): pass
def test_4(ciq): pass
def test_5(): os.unlink("full")
def test_6(ciq): pass
def test_7(ciq): pass
""",
    )
    result = suite.run("-rA")
    assert result.counts == {"passed": 6, "error": 1}
    assert "ERROR test_a.py::test_4" in result.out
    assert "no process for it could be started: [Errno 11]" in result.out


STUB_CUDA = """
int cuCtxGetCurrent(void **c) { *c = (void *)1; return 0; }
int cuCtxSynchronize(void) { return %d; }
int cuGetErrorName(int code, const char **name) { *name = "CUDA_ERROR_ILLEGAL_ADDRESS"; return 0; }
"""


@pytest.fixture
def dead_cuda(suite: Suite) -> Callable[[int], Path]:
    """Compile a libcuda.so.1 whose context answers each call with one code."""

    def build(code: int) -> Path:
        (suite.path / "cuda.c").write_text(STUB_CUDA % code)
        library = suite.path / "libcuda.so.1"
        command = ["cc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-o", library, "cuda.c"]
        subprocess.run(command, check=True, cwd=suite.path)
        return library

    return build


@pytest.mark.parametrize(("code", "sticky"), [(700, True), (719, True), (0, False), (2, False)])
def test_a_sticky_cuda_error_is_a_crash(
    suite: Suite, dead_cuda: Callable[[int], Path], code: int, sticky: bool
) -> None:
    """The process lives on, but its context is dead: named like a crash, with the arm."""
    suite.write(
        test_a=f"""
import ctypes
@pytest.mark.ciq_objective
@pytest.mark.ciq_beats_baseline
def test_1(ciq):
    progress("best.acf", kernel="attn", check="win")
    ctypes.CDLL("{dead_cuda(code)}")
    raise RuntimeError("some error of a framework")
def test_2(ciq): raise ValueError  # CUDA was never loaded here
"""
    )
    result = suite.run("--ciq-json=x.json")
    assert result.counts == {"failed": 2}
    text = "crashed at arm best.acf of attn (win): the CUDA context died of"
    assert (f"{text} CUDA_ERROR_ILLEGAL_ADDRESS" in result.section("test_1")) == sticky
    assert ("do not ship best.acf" in result.section("test_1")) == sticky
    assert "some error of a framework" in result.section("test_1")
    records = json.loads((suite.path / "x.json").read_text())["records"]
    assert sorted((record["check"], record["status"], record["reason"]) for record in records) == [
        ("objective", "not-judged", None),
        ("win", "fail", "crashed") if sticky else ("win", "not-judged", None),
    ]


@pytest.mark.parametrize(
    ("end", "reason"),
    [("os._exit(3)", "crashed"), ("time.sleep(60)", "hung")],
    ids=["dies", "hangs"],
)
def test_a_failed_test_that_dies_in_its_teardown_has_one_record_a_check(
    suite: Suite, end: str, reason: str
) -> None:
    suite.write(
        test_a=f"""
@pytest.fixture
def deadly(): yield; {end}
@pytest.mark.ciq_max_cv(5)
@pytest.mark.ciq_beats_baseline
def test_1(ciq, deadly): assert 0
"""
    )
    result = suite.run("--ciq-json=x.json", "--ciq-timeout=2")
    assert result.counts == {"failed": 1, "error": 1}, result.out
    records = json.loads((suite.path / "x.json").read_text())["records"]
    assert [(record["check"], record["status"], record["reason"]) for record in records] == [
        ("cv", "fail", reason),
        ("win", "not-judged", None),
    ]


@pytest.mark.parametrize(("dies", "told"), [("", 1), ("b.acf", 1), ("c.acf", 2)])
def test_a_check_that_saw_the_context_die_has_said_it(
    suite: Suite, dead_cuda: Callable[[int], Path], dies: str, told: int
) -> None:
    """One record for one death; that of another arm is another."""
    suite.write(
        test_a=f"""
import ctypes
from pytest_compileiq import state
from pytest_compileiq.verdict import Check, Reason, Status, Verdict
def test_1(ciq, request):
    said = Verdict(
        check=Check.WIN, kernel="attn", status=Status.FAIL, reason=Reason.CRASHED,
        message="b.acf: the launch failed before timing: an illegal address",
    )
    request.node.stash[state.VERDICTS].append(said)
    request.node.user_properties.append(("a", "before"))
    request.addfinalizer(lambda: request.node.user_properties.append(("b", "after")))
    progress("{dies}", kernel="attn" if "{dies}" else "", check="win" if "{dies}" else "")
    ctypes.CDLL("{dead_cuda(700)}")
    raise RuntimeError
""",
        conftest="""
def pytest_runtest_logreport(report):
    if not inside() and report.when == "teardown":
        jot([value for name, value in report.user_properties if name in "ab"])
""",
    )
    result = suite.run("--ciq-json=x.json")
    assert result.counts == {"failed": 1}
    records = json.loads((suite.path / "x.json").read_text())["records"]
    assert [record["reason"] for record in records] == ["crashed"] * told, result.out
    assert ("the CUDA context died" in result.out) == (told == 2)
    assert suite.jots == ["main ['before', 'after']"]


def test_an_end_without_all_reports_is_a_crash(suite: Suite) -> None:
    """A plugin that takes the last report away has hidden whether the teardown failed."""
    suite.write(
        conftest="""
from _pytest import runner
before = runner.call_and_report
def call_and_report(item, when, log=True, **more):
    return before(item, when, log and when != "teardown", **more)
runner.call_and_report = call_and_report
""",
        test_a="def test_1(ciq): pass\n",
    )
    result = suite.run()
    assert result.counts == {"passed": 1, "error": 1}, result.out
    assert "its process ended without the reports of the test" in result.out


def test_a_sticky_cuda_error_that_no_test_waited_for(
    suite: Suite, dead_cuda: Callable[[int], Path]
) -> None:
    """A launch reports nothing. Neither a pass, nor a skip, nor an expected failure hides it."""
    suite.write(
        test_a=f"""
import ctypes
def launch(): progress("O0"); ctypes.CDLL("{dead_cuda(700)}")
@pytest.fixture
def before(): launch()
@pytest.fixture
def after(): yield; launch()
def test_pass(ciq): launch()
def test_skip(ciq): launch(); pytest.skip("undecided")
@pytest.mark.xfail
def test_xfail(ciq): launch(); assert 0
@pytest.mark.xfail
def test_xpass(ciq): launch()
def test_setup(ciq, before): jot("ran")
def test_teardown(ciq, after): pass
def test_answered(ciq):
    ciq.assert_objective(lambda config: "*" if config else 1.0)
    launch()
def test_plain(): assert "libcuda" not in open("/proc/self/maps").read()
"""
    )
    result = suite.run("-rA", "--ciq-json=x.json")
    assert result.counts == {"failed": 5, "error": 2, "passed": 2}, result.out
    text = "isolated test crashed at arm O0: the CUDA context died of CUDA_ERROR_ILLEGAL_ADDRESS"
    assert result.out.count(text) == 7
    records = json.loads((suite.path / "x.json").read_text())["records"]
    # The check that had its answer keeps it, and the death is on record beside it.
    reasons = [record["reason"] for record in records]
    assert sorted(reasons, key=str) == [None, *["crashed"] * 7]


def test_a_fork_of_a_test_may_run_checks(suite: Suite) -> None:
    """A worker of multiprocessing lives on when what it runs says where it is."""
    suite.write(
        test_a="""
import multiprocessing
def work(n): progress("O0"); keep("a", n); return n
def test_1(ciq, record_property):
    progress("best.acf")
    with multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map(work, range(4)) == [0, 1, 2, 3]
    os.abort()
"""
    )
    result = suite.run("--ciq-timeout=20")
    assert "crashed at arm best.acf: its process was killed by SIGABRT" in result.out


def test_a_contained_call_leaves_nothing_behind(suite: Suite) -> None:
    """What escapes from a call's own group (see contain.py) dies with the test."""
    suite.write(
        test_a="""
from pytest_compileiq.isolation import contain
def escape():
    subprocess.Popen(["sleep", "100"], start_new_session=True)
    os.kill(os.getpid(), 9)
def test_1(ciq): assert contain.call(escape, timeout=20).died == "was killed by SIGKILL"
"""
    )
    assert suite.run().counts == {"passed": 1}  # and run() finds no process left


def test_junit_xml_of_crashes(suite: Suite) -> None:
    suite.write(
        test_a="""
@pytest.fixture
def bad_setup(): os._exit(3)
@pytest.fixture
def bad_teardown(): yield; os._exit(4)
def test_ok(ciq): pass
def test_setup(ciq, bad_setup): pass
def test_call(ciq): print("part"); os._exit(5)
def test_teardown(ciq, bad_teardown): pass
def test_xml(ciq, record_xml_attribute, record_testsuite_property):
    record_xml_attribute("attr", "lost"); record_testsuite_property("suite", "lost")
"""
    )
    result = suite.run("--junitxml=x.xml", "-Wignore")
    assert [result.counts[word] for word in ("passed", "failed", "error")] == [3, 1, 2]
    tree = ET.parse(suite.path / "x.xml")
    found = {
        case.get("name"): [
            (part.tag, part.get("message") or "")
            for part in case
            if part.tag in ("failure", "error")
        ]
        for case in tree.iter("testcase")
    }
    assert found["test_ok"] == found["test_xml"] == []
    ((tag, message),) = found["test_call"]
    assert tag == "failure"
    assert message == "crashed: its process exited with status 5 before its end"
    assert found["test_setup"][0][0] == found["test_teardown"][0][0] == "error"
    counted = next(tree.iter("testsuite"))
    assert (counted.get("errors"), counted.get("failures")) == ("2", "1")
    # As with xdist: these live in the memory of the child.
    assert "lost" not in (suite.path / "x.xml").read_text()


def test_what_a_test_does_to_its_own_process_stays_there(suite: Suite) -> None:
    suite.write(
        conftest="""
def pytest_unconfigure(): jot("unconfigured")
""",
        test_a="""
import resource, shutil, threading
def test_exit(ciq): os._exit = lambda status: None
def test_streams(ciq): [os.close(fd) for fd in (0, 1, 2)]
def test_names(ciq): sys.stdout = sys.stderr = sys.__stdout__ = None
def test_folder(ciq, tmp_path): os.chdir(tmp_path); tmp_path.rmdir()
def test_signals(ciq):
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    for number in (1, 2, 13, 15, 17): signal.signal(number, signal.SIG_IGN)
def test_descriptors(ciq):
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    with pytest.raises(OSError):
        while True: os.dup(0)
def test_memory(ciq):
    resource.setrlimit(resource.RLIMIT_AS, (1 << 30, 1 << 30))
    with pytest.raises(MemoryError): [bytearray(1 << 24) for _ in range(64)]
def test_environment(ciq): os.environ.clear(); os.umask(0o777)
def test_alarm(ciq): signal.alarm(1)
def test_thread(ciq): threading.Thread(target=time.sleep, args=(60,)).start()
def test_group(ciq): os.fork() or (os.setsid(), os.chdir("/"), time.sleep(60))
def test_after(ciq, tmp_path):
    assert os.path.samefile(os.getcwd(), os.path.dirname(__file__)) and "JOT" in os.environ
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == set()
    assert signal.getsignal(signal.SIGCHLD) is signal.SIG_DFL
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] > 64
    (tmp_path / "file").write_text("text")
""",
    )
    result = suite.run("-q")
    assert result.counts == {"passed": 12}, result.out
    assert result.seconds < 30  # nobody waited for the thread, or for what was forked
    assert suite.jots == ["main unconfigured"]
