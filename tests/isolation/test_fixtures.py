"""Who sets up and tears down what, where, and how often."""

from __future__ import annotations

from collections import Counter

import pytest

from .conftest import Suite, needs

RERUNFAILURES = needs("pytest_rerunfailures")

FIXTURES = """
def make(scope, autouse=False):
    @pytest.fixture(scope=scope, autouse=autouse)
    def fixture(request):
        jot(f"up {scope}{'-auto' if autouse else ''}")
        yield object()
        jot(f"down {scope}{'-auto' if autouse else ''}")
    return fixture

session_fix, module_fix, class_fix, function_fix = map(
    make, ("session", "module", "class", "function"))
auto_session, auto_module, auto_function = (
    make("session", True), make("module", True), make("function", True))
def setup_module(): jot("up setup_module")
def teardown_module(): jot("down setup_module")
"""
SHARED = ("session", "module", "session-auto", "module-auto", "setup_module")


def assert_balanced(jots: list[str]) -> None:
    """Every setup is followed by one teardown, in reverse order, in the same process."""
    stacks: dict[str, list[str]] = {}
    for line in jots:
        who, what, name = line.split(" ", 2)
        if what == "up":
            stacks.setdefault(who, []).append(name)
        elif what == "down":
            assert stacks[who].pop() == name, (line, jots)
    assert not any(stacks.values()), stacks


def test_an_isolated_test_sets_up_all_scopes_in_its_own_process(suite: Suite) -> None:
    suite.write(
        test_it=FIXTURES
        + """
@pytest.mark.parametrize("n", [1, 2, 3])
def test_it(ciq, n, session_fix, module_fix, function_fix): jot(f"test {n}"); assert inside()
"""
    )
    assert suite.run().counts == {"passed": 3}
    assert all(line.startswith("child ") for line in suite.jots)
    count = Counter(suite.jots)
    for name in (*SHARED, "function", "function-auto"):
        assert count[f"child up {name}"] == count[f"child down {name}"] == 3, name
    assert_balanced(suite.jots)


MIXED = {
    "test_a": FIXTURES
    + """
def test_1(session_fix, module_fix): jot("test 1"); assert where() == "main"
def test_2(ciq, session_fix, module_fix): jot("test 2"); assert where() == "child"
def test_3(session_fix, module_fix): jot("test 3"); assert where() == "main"
def test_4(ciq, session_fix, module_fix): jot("test 4"); assert where() == "child"
""",
    "test_b": """
def test_5(ciq): jot("test 5")
def test_6(): jot("test 6")
""",
    "test_c": "def test_7(ciq): jot('test 7')",
}


def test_a_mixed_module(suite: Suite) -> None:
    """Fixtures of ordinary tests live on while isolated ones run, and end once, in place."""
    suite.write(**MIXED)
    assert suite.run().counts == {"passed": 7}
    count = Counter(suite.jots)
    for name in SHARED:
        assert count[f"main up {name}"] == count[f"main down {name}"] == 1, name
        assert count[f"child up {name}"] == count[f"child down {name}"] == 2, name
    assert_balanced([jot for jot in suite.jots if jot.startswith("main")])
    assert [jot.split()[-1] for jot in suite.jots if " test " in jot] == list("1234567")
    # The module of test_a ends after its last item, an isolated one, and before test_5.
    down = suite.jots.index("main down module")
    assert suite.jots.index("child test 4") < down < suite.jots.index("child test 5")


def test_a_mixed_module_in_workers(suite: Suite) -> None:
    suite.write(**MIXED)
    assert suite.run("-n2").counts == {"passed": 7}
    count = Counter(suite.jots)
    for name in SHARED:
        assert count[f"main up {name}"] == count[f"main down {name}"] in (1, 2), name
        assert count[f"child up {name}"] == count[f"child down {name}"] == 2, name


@pytest.mark.parametrize("plugin", ["", pytest.param("rerunfailures", marks=RERUNFAILURES)])
def test_an_error_of_the_teardown_that_comes_due_after_an_isolated_test(
    suite: Suite, plugin: str
) -> None:
    """Plugins that saw no setup of the test, such as rerunfailures, have no state for it."""
    suite.write(
        test_a="""
@pytest.fixture(scope="module")
def bad():
    yield
    print("in teardown"); raise ValueError("late")
def test_1(bad): pass
def test_2(ciq): pass
""",
        test_b="def test_3(): pass",
    )
    args = ("--reruns", "1") if plugin else ()
    result = suite.run(*args, plugins=(plugin,) if plugin else ())
    assert result.counts == {"passed": 3, "error": 1}
    assert "ValueError: late" in result.out
    assert "in teardown" in result.section("ERROR at teardown of test_2")


def test_errors_of_fixtures_in_the_child(suite: Suite) -> None:
    suite.write(
        test_a="""
@pytest.fixture(scope="session")
def bad_end():
    yield
    raise ValueError("late")
@pytest.fixture(scope="module")
def bad_start(): raise ValueError("early")
def test_1(ciq, bad_end): pass
def test_2(ciq, bad_end): pass
def test_3(ciq, bad_start): pass
def test_4(): pass
"""
    )
    result = suite.run()  # the session's fixture ends once a child, unlike in one process
    assert result.counts == {"passed": 3, "error": 3}
    assert "ERROR at setup of test_3" in result.out


def test_classes(suite: Suite) -> None:
    suite.write(
        test_a="""
class TestIt:
    n = 0
    @classmethod
    def setup_class(cls): jot("up class")
    @classmethod
    def teardown_class(cls): jot("down class")
    def setup_method(self): jot("up method")
    def teardown_method(self): jot("down method")
    def test_1(self): TestIt.n += 1; assert TestIt.n == 1
    def test_2(self, ciq): TestIt.n += 1; assert TestIt.n == 1  # test_1's change is not seen
    def test_3(self, ciq): TestIt.n += 1; assert TestIt.n == 1
    def test_4(self): TestIt.n += 1; assert TestIt.n == 2  # nor that of a child
""",
        test_b="""
import unittest
@pytest.mark.usefixtures("ciq")
class TestOld(unittest.TestCase):
    @classmethod
    def setUpClass(cls): jot("up old")
    @classmethod
    def tearDownClass(cls): jot("down old")
    def test_1(self): assert where() == "child"
    @unittest.skip("no")
    def test_2(self): pass
    def test_3(self): self.assertEqual(1, 2)
    @unittest.expectedFailure
    def test_4(self): self.assertEqual(1, 2)
""",
    )
    result = suite.run("-rA")
    assert result.counts == {"passed": 5, "failed": 1, "skipped": 1, "xfailed": 1}
    count = Counter(suite.jots)
    assert (count["main up class"], count["child up class"]) == (1, 2)
    assert_balanced(suite.jots)


def test_usual_fixtures(suite: Suite) -> None:
    suite.write(
        test_a="""
import logging, warnings
def test_tmp(ciq, tmp_path, tmp_path_factory):
    (tmp_path / "x").write_text("x")
    jot(f"tmp {tmp_path.parent}"); jot(f"tmp {tmp_path_factory.mktemp('other').parent}")
def test_tmp_main(tmp_path): jot(f"tmp {tmp_path.parent}")
@pytest.mark.parametrize("n", range(12))
def test_a_name_that_is_longer_than_thirty_characters(ciq, n, tmp_path):
    assert not any(tmp_path.iterdir()); (tmp_path / "x").write_text(str(n))
def test_monkeypatch(ciq, monkeypatch, tmp_path):
    monkeypatch.setenv("THERE", "1"); monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(os, "sep", "!")
def test_undone(): assert "THERE" not in os.environ and os.sep == "/"
def test_capsys(ciq, capsys):
    print("o"); print("e", file=sys.stderr)
    assert capsys.readouterr() == ("o\\n", "e\\n"); print("rest")
def test_capfd(ciq, capfd):
    os.write(1, b"o"); os.system("echo e >&2")
    assert capfd.readouterr() == ("o", "e\\n"); os.write(1, b"rest")
def test_caplog(ciq, caplog):
    logging.getLogger("x").error("boo"); assert caplog.messages == ["boo"]
def test_recwarn(ciq, recwarn): warnings.warn("x"); assert len(recwarn) == 1
def test_property(ciq, record_property, cache): record_property("a", 1); cache.set("ciq/x", 1)
def test_namespace(ciq, doctest_namespace, pytestconfig): pass
"""
    )
    base = suite.path / "base"
    result = suite.run("-rA", f"--basetemp={base}", plugins=("cacheprovider",))
    assert result.counts == {"passed": 22}, result.out
    assert {jot.split()[-1] for jot in suite.jots} == {str(base)}
    # One truncated name: a directory for each of the items, also when made by 12 processes.
    made = [path for path in base.glob("test_a_name*") if path.is_dir() and not path.is_symlink()]
    assert len(made) == 12


def test_subtests(suite: Suite) -> None:
    """A plugin may change a report's outcome when its status is asked for: pytest 9 does."""
    suite.write(
        test_a="""
def test_1(ciq, subtests):
    for i in range(3):
        with subtests.test(i=i): assert i != 1
"""
    )
    result = suite.run("-rA")
    if "fixture 'subtests' not found" not in result.out:
        plain = suite.run("-rA", isolate="off")
        assert result.counts == plain.counts
        assert result.counts["failed"] == 2
        assert "SUBFAILED" in result.out
        assert "contains 1 failed subtest" in result.out


def test_tmp_path_retention(suite: Suite) -> None:
    (suite.path / "pytest.ini").write_text("[pytest]\ntmp_path_retention_policy = failed\n")
    suite.write(
        test_a="""
def test_good(ciq, tmp_path): pass
def test_bad(ciq, tmp_path): assert 0
def test_crash(ciq, tmp_path): os._exit(3)
"""
    )
    base = suite.path / "base"
    assert suite.run(f"--basetemp={base}").counts == {"passed": 1, "failed": 2}
    names = {path.name for path in base.iterdir() if not path.is_symlink()}
    assert names == {"test_bad0", "test_crash0"}


def test_getfixturevalue_comes_too_late(suite: Suite) -> None:
    suite.write(
        test_a="""
def test_1(request): request.getfixturevalue("ciq")
def test_2(ciq): pass
def test_3(request): request.getfixturevalue("ciq_gpu")
def test_4(request): request.getfixturevalue("tmp_path")
"""
    )
    result = suite.run()
    assert result.counts == {"passed": 2, "failed": 2}
    for name in ("ciq", "ciq_gpu"):
        assert f"asks for {name} too late to isolate the test" in result.out


def test_the_environment_goes_to_the_child_only(suite: Suite) -> None:
    suite.write(
        test_a="""
import ctypes
getenv = ctypes.CDLL(None).getenv; getenv.restype = ctypes.c_char_p
pytestmark = pytest.mark.env(A="module", B="module")
@pytest.mark.env(B="test")
def test_1(ciq):
    assert (os.environ["A"], os.environ["B"]) == ("module", "test")
    assert getenv(b"B") == b"test"  # libraries see it too
    os.environ["C"] = "leak"
def test_2(): assert not {"A", "B", "C"} & set(os.environ)
def test_3(ciq): assert "C" not in os.environ and os.environ["B"] == "module"
def test_4(monkeypatch): os.environ["D"] = "main"
def test_5(ciq): assert "D" not in os.environ  # the zygote's is that of the time of its fork
@pytest.mark.env(LONG="x" * 120_000)
def test_6(ciq): assert len(os.environ["LONG"]) == 120_000  # longer than a socket's message
"""
    )
    assert suite.run().counts == {"passed": 6}


HOLDING = """
import contextlib
from pytest_compileiq.errors import GpuError
@contextlib.contextmanager
def held(item):
    jot(f"take {item.name}")
    if "no_gpu" in item.name: raise GpuError("no such GPU: 7", remedy="give another")
    if "skipped" in item.name: pytest.skip("no GPU here")
    if "broken" in item.name: raise ZeroDivisionError
    if "ctrl_c" in item.name: raise KeyboardInterrupt
    try: yield {"GPU": item.name}
    finally: jot(f"give {item.name}")
    if "late" in item.name: raise GpuError("clocks were not reset")
def pytest_runtestloop(session):
    session.config.pluginmanager.getplugin("compileiq-isolation").environment_for = held
"""


def test_what_is_held_around_the_process(suite: Suite) -> None:
    """The GPU's lease and its locked clocks are taken and given back by pytest's process."""
    suite.write(
        conftest=HOLDING,
        test_a="""
def test_good(ciq): jot(os.environ["GPU"])
def test_crash(ciq): os.kill(os.getpid(), 9)
@pytest.mark.ciq_max_cv(5)
def test_no_gpu(ciq): jot("ran")
def test_skipped(ciq): jot("ran")
def test_broken(ciq): jot("ran")
def test_late(ciq): pass
def test_plain(): assert "GPU" not in os.environ
""",
    )
    result = suite.run("-rA", "--ciq-json=x.json")
    assert result.counts == {"passed": 3, "failed": 1, "skipped": 1, "error": 3}, result.out
    names = ("good", "crash", "no_gpu", "skipped", "broken", "late")
    held = [f"main take test_{name}" for name in names]
    assert [jot for jot in suite.jots if "take" in jot] == held
    given = [f"main give test_{name}" for name in ("good", "crash", "late")]
    assert [jot for jot in suite.jots if "give" in jot] == given
    assert suite.jots[1] == "child test_good"
    assert "main ran" not in suite.jots
    assert "child ran" not in suite.jots
    assert "no such GPU: 7" in result.section("ERROR at setup of test_no_gpu")
    assert "clocks were not reset" in result.section("ERROR at teardown of test_late")
    assert "no GPU here" in result.out
    assert '"unfit"' in (suite.path / "x.json").read_text()


def test_ctrl_c_while_waiting_for_the_gpu(suite: Suite) -> None:
    suite.write(conftest=HOLDING, test_a="def test_ctrl_c(ciq): pass\ndef test_2(): jot('ran')\n")
    assert suite.run().rc == 2
    assert suite.jots == ["main take test_ctrl_c"]


def test_random_state(suite: Suite) -> None:
    """CPython reseeds ``random`` in a fork; a seed that was set at import holds all the same."""
    suite.write(
        test_a="""
import random
random.seed(1)
FIRST = random.Random(1).random()
def test_1(ciq): assert random.random() == FIRST
def test_2(ciq): assert random.random() == FIRST
def test_3(): assert random.random() == FIRST
def test_4(ciq):
    import tempfile, uuid; jot(tempfile.mktemp()); jot(uuid.uuid4())
test_5 = test_4
"""
    )
    assert suite.run().counts == {"passed": 5}
    assert len(set(suite.jots)) == 4  # names of temporary files and UUIDs still differ
