"""Marks and the fixture, as pytest users meet them."""

from __future__ import annotations

import inspect

import pytest

from pytest_compileiq import marks as _marks
from pytest_compileiq import settings as _settings
from pytest_compileiq.fixture import CIQ

from .conftest import RunJson

GOOD = "def good(config):\n    if config: raise RuntimeError('refused')\n    return 1.5\n"


def test_a_mark_without_a_subject_fails(pytester: pytest.Pytester, run_json: RunJson) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.ciq_canary\ndef test(ciq): pass")
    result, records = run_json()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*ciq_canary asked for a check*no subject*", "*to do: call*"])
    assert [(r["check"], r["status"], r["reason"]) for r in records] == [
        ("canary", "fail", "unfit")
    ]


def test_a_mark_on_a_test_without_the_fixture_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.ciq_canary\ndef test(): pass")
    pytester.runpytest().assert_outcomes(failed=1)


def test_one_of_two_marks_unanswered_is_named(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        GOOD + "import pytest\n"
        "@pytest.mark.ciq_canary\n@pytest.mark.ciq_objective\n"
        "def test(ciq): ciq.assert_objective(good)"
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["ciq_canary asked for a check*"])


HIDDEN = {
    "try": "    try: ciq.check(bad)\n    except AssertionError: pass",
    "raises": "    with pytest.raises(AssertionError): ciq.check(bad)",
    "thread": "    thread = threading.Thread(target=ciq.check, args=(bad,))\n"
    "    thread.start(); thread.join()",
    "and a good one": "    with pytest.raises(AssertionError): ciq.check(bad)\n    ciq.check(good)",
}


def test_a_skip_is_not_hidden_by_the_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"{GOOD}import pytest\n@pytest.mark.ciq_max_cv(5)\ndef test(ciq):\n"
        "    with pytest.raises(pytest.skip.Exception): ciq.check(good)"
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["ciq_max_cv did not pass, and the test went on*"])


@pytest.mark.parametrize("how", HIDDEN)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_failed_mark_is_not_hidden_by_the_test(pytester: pytest.Pytester, how: str) -> None:
    pytester.makepyfile(
        f"{GOOD}import pytest, threading\ndef bad(config): return None\n"
        f"@pytest.mark.ciq_objective\ndef test(ciq):\n{HIDDEN[how]}"
    )
    result = pytester.runpytest("-W", "ignore")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["ciq_objective did not pass, and the test went on*", "*to do: let CiqF*"]
    )


def test_an_expected_failure_of_a_verb_is_the_test_s_own(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        f"{GOOD}import pytest\n@pytest.mark.ciq_objective\ndef test(ciq):\n"
        "    with pytest.raises(AssertionError): ciq.assert_objective(good, objectives=2)\n"
        "    ciq.check(good)"
    )
    pytester.runpytest().assert_outcomes(passed=1)


@pytest.mark.parametrize("where", ["fixture", "test"])
def test_a_mark_that_comes_too_late_is_no_pass(pytester: pytest.Pytester, where: str) -> None:
    add = "request.node.add_marker(pytest.mark.ciq_canary)"
    pytester.makepyfile(
        f"import pytest\n@pytest.fixture\ndef late(request): {add}\n"
        f"def test(request{', late' * (where == 'fixture')}): {add if where == 'test' else 'pass'}"
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["ciq_canary was added to a test that had begun*"])


@pytest.mark.parametrize("strict", [True, False])
def test_an_unanswered_mark_is_no_expected_failure(pytester: pytest.Pytester, strict: bool) -> None:
    pytester.makepyfile(
        f"import pytest\n@pytest.mark.xfail(strict={strict})\n@pytest.mark.ciq_canary\n"
        "def test(ciq): pass"
    )
    pytester.runpytest().assert_outcomes(failed=1)


def test_a_rerun_is_not_answered_by_the_attempt_before(pytester: pytest.Pytester) -> None:
    pytest.importorskip("pytest_rerunfailures")
    pytester.makepyfile(
        f"{GOOD}import pathlib, pytest\n@pytest.mark.ciq_objective\ndef test(request):\n"
        "    if pathlib.Path('seen').exists(): return\n"
        "    pathlib.Path('seen').touch()\n"
        "    request.getfixturevalue('ciq').check(good)\n"
        "    assert False"
    )
    result = pytester.runpytest("--reruns=1")
    assert result.parseoutcomes()["failed"] == 1
    result.stdout.fnmatch_lines(["ciq_objective asked for a check*no subject"])


def test_a_verb_with_other_limits_answers_no_mark(pytester: pytest.Pytester) -> None:
    """The mark asks for two objectives; a verb that judges one is not its answer."""
    pytester.makepyfile(
        GOOD + "import pytest\n@pytest.mark.ciq_objective(objectives=2)\n"
        "def test(ciq): ciq.assert_objective(good)"
    )
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["ciq_objective asked for a check*"])


@pytest.mark.parametrize(
    ("mark", "message"),
    [
        ("ciq_canary(marginn=2)", "did you mean margin=?"),
        ("ciq_canary(margin='2')", "margin is a number, not '2'"),
        ("ciq_canary(margin=0.5)", "margin is at least 1, not 0.5"),
        ("ciq_canary(margin=float('nan'))", "margin is a number, not nan"),
        ("ciq_canary(tolerance=5)", "tolerance is at most 1, not 5"),
        ("ciq_canary(o0='')", "o0 is the path of an ACF, not ''"),
        ("ciq_canary(o3=5)", "o3 is the path of an ACF, not 5"),
        ("ciq_objective(acf='')", "acf is the path of an ACF, not ''"),
        ("ciq_resources(max_registers=9, acf=0)", "acf is the path of an ACF, not 0"),
        ("ciq_resources(no_worse='no')", "no_worse is True or False, not 'no'"),
        ("ciq_max_cv()", "missing 1 required positional argument: 'percent'"),
        ("ciq_max_cv(0)", "percent is above 0"),
        ("ciq_max_cv(10**400)", "int too large to convert to float"),
        ("ciq_max_cv(True)", "percent is a number, not True"),
        ("ciq_resources()", "give at least one limit, or no_worse=True"),
        ("ciq_resources(max_spill_bytes=-1)", "max_spill_bytes is at least 0, not -1"),
        ("ciq_objective(objectives=0)", "objectives is at least 1, not 0"),
        ("ciq_objective(1.5)", "objectives is a whole number, not 1.5"),
        ("ciq_beats_baseline('')", "acf is the path of an ACF, not ''"),
        ("ciq_beats_baseline(min_speedup=0.999)", "min_speedup is at least 1, not 0.999"),
        ("ciq_beats_baseline(min_speedup=float('nan'))", "min_speedup is a number, not nan"),
        ("ciq_beats_baseline(min_speedup=float('inf'))", "min_speedup is a number, not inf"),
        ("ciq_beats_baseline(min_speedup='half')", "is a number or \"recorded\", not 'half'"),
        ("ciq_beats_baseline('a', 'b', 'c')", "positional arguments"),
        ("ciq_beat_baseline", "did you mean ciq_beats_baseline?"),
    ],
)
def test_a_bad_mark_fails_its_own_test_in_setup(
    pytester: pytest.Pytester, mark: str, message: str
) -> None:
    pytester.makepyfile(
        f"import pytest\n@pytest.mark.{mark}\ndef test_bad(ciq): pass\ndef test_good(): pass"
    )
    result = pytester.runpytest("-W", "ignore::pytest.PytestUnknownMarkWarning")
    result.assert_outcomes(errors=1, passed=1)
    assert message in result.stdout.str()
    assert "During handling" not in result.stdout.str()
    assert "INTERNALERROR" not in result.stdout.str()


def test_a_bad_mark_under_xdist_fails_its_own_test(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile(
        "import pytest\n@pytest.mark.ciq_canary(x=1)\ndef test_bad(ciq): pass\ndef test_ok(): pass"
    )
    result = pytester.runpytest("-n2")
    result.assert_outcomes(errors=1, passed=1)


def test_a_mark_twice_on_one_test_fails_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\n@pytest.mark.ciq_max_cv(1)\n@pytest.mark.ciq_max_cv(2)\ndef test(ciq): pass"
    )
    result = pytester.runpytest()
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*ciq_max_cv stands 2 times on test*", "*parametrize*"])


def test_the_closest_mark_wins(pytester: pytest.Pytester) -> None:
    """Parameter set over function over class over module; each level gives another limit."""
    pytester.makepyfile(
        """
        import pytest
        pytestmark = pytest.mark.ciq_max_cv(1)

        def seen(ciq):
            return ciq._marks["ciq_max_cv"].percent

        def test_module(ciq):
            assert seen(ciq) == 1
            ciq.assert_stable(lambda c: 1, 1)

        @pytest.mark.ciq_max_cv(2)
        class TestClass:
            def test_class(self, ciq):
                assert seen(ciq) == 2
                ciq.assert_stable(lambda c: 1, 1)

            @pytest.mark.ciq_max_cv(3)
            @pytest.mark.parametrize(
                "want", [3, pytest.param(4, marks=pytest.mark.ciq_max_cv(4))]
            )
            def test_function(self, ciq, want):
                assert seen(ciq) == want
                ciq.assert_stable(lambda c: 1, 1)
        """
    )
    # Nothing here is judged without timings, so each test skips once its asserts held.
    pytester.runpytest().assert_outcomes(skipped=4)


def test_a_derived_class_overrides_the_mark_of_its_base(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.ciq_max_cv(5)
        class Base:
            want = 5
            def test_it(self, ciq):
                assert ciq._marks["ciq_max_cv"].percent == self.want
                ciq.assert_stable(lambda c: 1, self.want)

        class TestSame(Base):
            pass

        @pytest.mark.ciq_max_cv(2)
        class TestOther(Base):
            want = 2
        """
    )
    pytester.runpytest().assert_outcomes(skipped=2)


def test_nothing_judged_skips_and_strict_fails(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\nfrom pytest_compileiq import PtxKernel\n@pytest.mark.ciq_max_cv(2)\n"
        "def test(ciq): ciq.check(PtxKernel('a.ptx', arch='sm_90'))"
    )
    result = pytester.runpytest("-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["SKIPPED*nothing could be judged: cv:*times nothing*"])
    result = pytester.runpytest("--ciq-strict")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*nothing could be judged: cv:*", "*to do: run with --ciq-gpu=*"])


#: A build that refuses what is damaged and shows no code, so that little can be proven of it.
BLIND = """
import pathlib, pytest
from pytest_compileiq import Build, Kernel
ACF = b"acf" * 100
pathlib.Path("a.acf").write_bytes(ACF)
def build(acf):
    if acf and acf.read_bytes() != ACF: raise RuntimeError("refused")
    return Build()
kernel = Kernel(build)
def objective(config):
    if config and config != ACF.hex(): return "*"
    return 1 if config else 2
"""


@pytest.mark.parametrize(
    ("marks", "subject", "check", "remedy"),
    [
        (["ciq_canary(o0='a.acf')"], "kernel", "canary", "give Build.cubin, or run with --ciq-gpu"),
        (["ciq_beats_baseline('a.acf')"], "kernel", "win", "give Build.cubin, or run with"),
        (["ciq_max_cv(2)", "ciq_objective"], "objective", "cv", "hand the kernel over, or drop"),
    ],
)
def test_strict_leaves_no_question_open(
    pytester: pytest.Pytester,
    run_json: RunJson,
    marks: list[str],
    subject: str,
    check: str,
    remedy: str,
) -> None:
    """A mark that was not judged is no pass, whatever else of the test was judged."""
    lines = "\n".join(f"@pytest.mark.{mark}" for mark in marks)
    source = f"{lines}\ndef test(ciq): ciq.check({subject})"
    pytester.makepyfile(BLIND + source)
    result, records = run_json()
    assert result.ret == 0, result.stdout.str()
    assert [r["status"] for r in records if r["check"] == check] == ["not-judged"]
    result, _ = run_json("--ciq-strict")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"*{check} of *: not-judged: *", f"*to do: {remedy}*"])
    run_json("--ciq-strict", "--ciq-disable")[0].assert_outcomes(passed=1)


def test_strict_asks_nothing_about_timings_of_a_run_that_times_nothing(
    sgemm: pytest.Pytester, run_json: RunJson
) -> None:
    """The tier without a GPU is a whole tier: its part is judged, and the rest told as not run."""
    sgemm.makepyfile(
        "import pytest\nfrom pytest_compileiq import PtxKernel\n@pytest.mark.ciq_max_cv(2)\n"
        "@pytest.mark.ciq_beats_baseline('best.acf')\n"
        "def test(ciq): ciq.check(PtxKernel('sgemm.ptx', arch='sm_90'))"
    )
    result, records = run_json("--ciq-strict")
    result.assert_outcomes(passed=1)
    assert [(r["check"], r["status"]) for r in records] == [("cv", "not-judged"), ("win", "pass")]


def test_check_without_marks_is_an_error(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test(ciq): ciq.check(lambda c: 1.0)")
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*this test has no ciq_* mark*"])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("ciq.assert_canary(42)", "ciq cannot test 42 (int)"),
        ("ciq.assert_canary(good, marginn=2)", "unexpected keyword argument 'marginn'"),
        ("ciq.assert_canary(good, margin=0.5)", "margin is at least 1, not 0.5"),
        ("ciq.assert_resources(good, max_registers=1)", "reads ptxas' report"),
        ("ciq.compare(good)", "takes a kernel, not an objective"),
        ("ciq.assert_objective(PtxKernel('a.ptx', arch='sm_90'))", "judges a function"),
    ],
)
def test_a_wrong_call_says_what_is_wrong(
    pytester: pytest.Pytester, call: str, message: str
) -> None:
    pytester.makepyfile(GOOD + f"from pytest_compileiq import PtxKernel\ndef test(ciq): {call}")
    result = pytester.runpytest()
    result.assert_outcomes(failed=1)
    assert message in result.stdout.str()


def test_the_traceback_points_at_the_users_line(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test(ciq):\n    ciq.assert_objective(lambda c: None)")
    result = pytester.runpytest()
    result.stdout.fnmatch_lines([">*ciq.assert_objective(lambda c: None)", "*.py:2: CiqFailure"])
    assert "fixture.py" not in result.stdout.str()


def test_disable_runs_each_subject_once_and_judges_nothing(
    pytester: pytest.Pytester, run_json: RunJson
) -> None:
    pytester.makepyfile(
        """
        import pathlib, pytest
        def objective(config):
            with open("calls", "a") as file: file.write(f"{config}\\n")
            return None   # a bad shape is not judged
        @pytest.mark.ciq_objective
        def test(ciq):
            ciq.check(objective)
        """
    )
    result, records = run_json("--ciq-disable")
    result.assert_outcomes(passed=1)
    assert (pytester.path / "calls").read_text() == "{}\n"
    assert [(r["status"], r["message"]) for r in records] == [("not-judged", "--ciq-disable")]


def test_works_under_strict_markers_warnings_as_errors_and_twice_in_xdist(
    pytester: pytest.Pytester, run_json: RunJson
) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile(
        GOOD + "import pytest\n@pytest.mark.ciq_objective\n"
        "@pytest.mark.parametrize('n', range(6))\ndef test(ciq, n): ciq.check(good)"
    )
    result, records = run_json("-n2", "--strict-markers", "--strict-config", "-W", "error")
    result.assert_outcomes(passed=6)
    assert sorted(r["nodeid"][-3:] for r in records) == [f"[{n}]" for n in range(6)]
    result.stdout.fnmatch_lines(["*compileiq*", "good*objective*pass*", "compileiq: 6 pass"])


def test_a_rerun_keeps_only_the_last_attempt(pytester: pytest.Pytester, run_json: RunJson) -> None:
    pytest.importorskip("pytest_rerunfailures")
    pytester.makepyfile(
        """
        import pathlib, pytest
        @pytest.mark.ciq_objective
        def test(ciq):
            seen = pathlib.Path("seen")
            first = not seen.exists()
            seen.touch()
            ciq.check(lambda c: None if first else ("*" if c else 2.0))
        """
    )
    result, records = run_json("--reruns=2", "-W", "error")
    result.assert_outcomes(passed=1)
    assert [(r["status"], r["reason"]) for r in records] == [("pass", None)]


def test_removed_by_no_compileiq(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test(ciq): pass")
    result = pytester.runpytest_subprocess("-p", "no:compileiq")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*fixture 'ciq' not found*"])
    help_text = pytester.runpytest_subprocess("-p", "no:compileiq", "--help").stdout.str()
    assert "--ciq-" not in help_text


def test_the_listed_signatures_are_the_real_ones() -> None:
    listed = {line.partition("(")[0]: line for line in _settings.MARK_LINES}
    assert list(listed) == list(_marks.MARKS)
    for name, (_, kind) in _marks.MARKS.items():
        assert listed[name].startswith(f"{name}{_marks.signature(kind)}: ")


def test_verbs_take_the_keywords_of_their_marks() -> None:
    verbs = {
        "ciq_objective": CIQ.assert_objective,
        "ciq_canary": CIQ.assert_canary,
        "ciq_resources": CIQ.assert_resources,
        "ciq_max_cv": CIQ.assert_stable,
        "ciq_beats_baseline": CIQ.assert_beats_baseline,
    }
    for name, (_, kind) in _marks.MARKS.items():
        taken = list(inspect.signature(verbs[name]).parameters.values())[2:]  # self, subject
        wanted = list(inspect.signature(kind).parameters.values())
        assert [(p.name, p.default) for p in taken] == [(p.name, p.default) for p in wanted]


def test_markers_are_listed_with_their_signatures(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest("--markers")
    result.stdout.fnmatch_lines_random(
        [
            "@pytest.mark.ciq_canary(margin=1.05, tolerance=0.05, o0=None, o3=None): O0 must*",
            "@pytest.mark.ciq_max_cv(percent): *",
            "@pytest.mark.ciq_beats_baseline(acf='best.acf', min_speedup=1.0): *",
        ]
    )


def test_unittest_failures_and_skips_are_not_unanswered_marks(
    pytester: pytest.Pytester, run_json: RunJson
) -> None:
    """unittest never raises a failure through the call hook, so only the report tells."""
    pytester.makepyfile(
        GOOD
        + """
import unittest, pytest

class TestIt(unittest.TestCase):
    @pytest.fixture(autouse=True)
    def bring(self, ciq):
        self.ciq = ciq

    @pytest.mark.ciq_objective
    def test_good(self):
        self.ciq.check(good)

    @pytest.mark.ciq_objective
    def test_skipped(self):
        self.skipTest("no")

    @pytest.mark.ciq_objective
    def test_failed(self):
        self.fail("wrong")

    @pytest.mark.ciq_objective
    def test_unanswered(self):
        pass
"""
    )
    result, records = run_json()
    result.assert_outcomes(passed=1, skipped=1, failed=2)
    assert [(r["nodeid"].split("::")[-1], r["status"]) for r in records] == [
        ("test_failed", "not-judged"),
        ("test_good", "pass"),
        ("test_unanswered", "fail"),
    ]


def test_a_check_in_a_fixture_leaves_its_record(
    pytester: pytest.Pytester, run_json: RunJson
) -> None:
    pytester.makepyfile(
        "import pytest\n@pytest.fixture\ndef bad(ciq): ciq.assert_objective(lambda c: None)\n"
        "def test(bad): pass"
    )
    result, records = run_json()
    result.assert_outcomes(errors=1)
    assert [(r["check"], r["reason"]) for r in records] == [("objective", "bad-shape")]


SUBTESTS = (
    GOOD + "import pytest\n@pytest.mark.ciq_objective\n"
    "def test(ciq, subtests):\n"
    "    with subtests.test('before'): pass\n"
    "    ciq.check(good)\n"
    "    with subtests.test('after'): assert {right}\n"
)


@pytest.mark.skipif(not hasattr(pytest, "Subtests"), reason="pytest 9 brings subtests")
@pytest.mark.parametrize("right", [True, False])
def test_accept_writes_nothing_where_a_subtest_failed(
    pytester: pytest.Pytester, right: bool
) -> None:
    (pytester.path / "best.acf").write_bytes(b"acf")
    pytester.makepyfile(
        "import pytest\ndef better(config): return 1 if config else 2\n"
        "@pytest.mark.ciq_beats_baseline\n"
        "def test(ciq, subtests):\n"
        "    ciq.check(better)\n"
        f"    with subtests.test('after'): assert {right}\n"
    )
    assert pytester.runpytest_subprocess("--ciq-accept").ret == (0 if right else 1)
    assert (pytester.path / "best.acf.json").exists() is right


@pytest.mark.parametrize("order", [1, -1])
def test_a_failure_beside_an_open_question_is_a_failure(
    pytester: pytest.Pytester, order: int
) -> None:
    """And not a skip, in whatever order the marks stand."""
    (pytester.path / "best.acf").write_bytes(b"acf")
    marks = ["@pytest.mark.ciq_beats_baseline\n", "@pytest.mark.ciq_objective\n"][::order]
    pytester.makepyfile(
        "import pytest, time\ndef takes_all(config): return time.time()\n"
        f"{''.join(marks)}def test(ciq): ciq.check(takes_all)"
    )
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*not-applied*", "*undecided*"])


@pytest.mark.skipif(not hasattr(pytest, "Subtests"), reason="pytest 9 brings subtests")
@pytest.mark.parametrize("right", [True, False])
def test_subtests_are_not_the_end_of_the_test(
    pytester: pytest.Pytester, run_json: RunJson, right: bool
) -> None:
    """Each has a report of its own, before the test has handed anything over."""
    pytester.makepyfile(SUBTESTS.format(right=right))
    result, (record,) = run_json()
    assert "handed over no subject" not in result.stdout.str()
    assert record["status"] == "pass"
    assert result.ret == (0 if right else 1)
