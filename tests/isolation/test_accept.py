"""``--ciq-accept`` writes at the end of the run, for tests that passed whole, isolated or not."""

from __future__ import annotations

import json

import pytest

from .conftest import Result, Suite, needs

SOURCE = """
def better(config):
    return 1 if config else 2
@pytest.fixture
def bad(): yield; raise RuntimeError("teardown")
@pytest.fixture(scope="session")
def bad_session(): yield; raise RuntimeError("teardown of the session")
@pytest.fixture
def deadly(): yield; os._exit(3)
"""
MARK = "\n@pytest.mark.ciq_beats_baseline\n"
PASSES = f"{MARK}def test_1(ciq): ciq.check(better)\n"
IN_BOTH = pytest.mark.parametrize("isolate", ["off", "require"])


def run(suite: Suite, source: str, *args: str, **how: object) -> Result:
    (suite.path / "best.acf").write_bytes(b"acf")
    suite.write(test_a=SOURCE + source)
    return suite.run("--ciq-accept", "--ciq-json=x.json", *args, **how)  # type: ignore[arg-type]


def written(suite: Suite) -> bool:
    assert not list(suite.path.glob(".best*"))
    path = suite.path / "best.acf.json"
    return path.exists() and bool(json.loads(path.read_text())["score_ratio"] == 2)


@IN_BOTH
@pytest.mark.parametrize("workers", [[], ["-n1"]], ids=["alone", "xdist"])
def test_a_test_that_passes(suite: Suite, isolate: str, workers: list[str]) -> None:
    result = run(suite, PASSES, *workers, isolate=isolate)
    assert result.counts == {"passed": 1}, result.out
    assert written(suite)
    assert result.out.count("test_1: --ciq-accept wrote best.acf.json") == 1


@IN_BOTH
@pytest.mark.parametrize(
    ("source", "counts"),
    [
        (f"{MARK}def test_1(ciq, bad): ciq.check(better)", {"passed": 1, "error": 1}),
        (f"{MARK}def test_1(bad, ciq): ciq.check(better)", {"passed": 1, "error": 1}),
        (f"{MARK}def test_1(ciq, bad_session): ciq.check(better)", {"passed": 1, "error": 1}),
        (f"{MARK}def test_1(ciq): ciq.check(better); assert 0", {"failed": 1}),
        (f"{MARK}def test_1(ciq): ciq.check(better); pytest.skip('busy')", {"skipped": 1}),
        (f"{MARK}def test_1(ciq): ciq.check(better); pytest.xfail('known')", {"xfailed": 1}),
        (f"{MARK}@pytest.mark.xfail(strict=True)\ndef test_1(ciq): ciq.check(better)", {"failed": 1}),
    ],
    ids=["teardown", "later teardown", "session", "failed", "skipped", "xfailed", "xpass strict"],
)  # fmt: skip
def test_a_test_that_does_not_pass_whole(
    suite: Suite, isolate: str, source: str, counts: dict[str, int]
) -> None:
    result = run(suite, source, isolate=isolate)
    assert result.counts == counts, result.out
    assert not (suite.path / "best.acf.json").exists()
    assert "wrote" not in result.out
    (record,) = json.loads((suite.path / "x.json").read_text())["records"]
    assert (record["check"], record["status"]) == ("win", "pass")


def test_clocks_that_are_not_given_back(suite: Suite) -> None:
    """The environment of the process fails after it has passed."""
    suite.write(
        conftest="""
import contextlib
from pytest_compileiq.errors import GpuError
@pytest.hookimpl(tryfirst=True)
def pytest_collection(session):
    @contextlib.contextmanager
    def environment_for(item):
        yield {}
        raise GpuError("the clocks were not given back", remedy="reset-clocks")
    session.config.pluginmanager.getplugin("compileiq-isolation").environment_for = environment_for
"""
    )
    result = run(suite, PASSES)
    assert result.counts == {"passed": 1, "error": 1}, result.out
    assert not (suite.path / "best.acf.json").exists()


def test_a_process_that_dies_in_the_teardown(suite: Suite) -> None:
    result = run(suite, f"{MARK}def test_1(deadly, ciq): ciq.check(better)")
    assert result.counts == {"passed": 1, "error": 1}, result.out
    assert not (suite.path / "best.acf.json").exists()


FULL_DISK = """
from pytest_compileiq.toolchain import sidecar
written = sidecar.write
def write(acf, described):
    if acf.name == {name!r}:
        raise OSError(28, "No space left on device")
    return written(acf, described)
sidecar.write = write
"""


@IN_BOTH
def test_a_sidecar_that_cannot_be_written(suite: Suite, isolate: str) -> None:
    """The run fails, and what was measured stands; a property of the test's own stays its own."""
    suite.write(conftest=FULL_DISK.format(name="best.acf"))
    result = run(suite, PASSES, "--junitxml=x.xml", isolate=isolate)
    assert (result.rc, result.counts) == (1, {"passed": 1}), result.out
    assert "ERROR --ciq-accept: the sidecar" in result.out
    assert "best.acf.json cannot be written (No space left on device)" in result.out
    assert "to do: make the folder writable and run again" in result.out
    assert not (suite.path / "best.acf.json").exists()
    report = json.loads((suite.path / "x.json").read_text())
    assert report["environment"]["exit_status"] == 1
    (record,) = json.loads((suite.path / "x.json").read_text())["records"]
    assert (record["check"], record["status"]) == ("win", "pass")
    assert "_pytest_compileiq" not in (suite.path / "x.xml").read_text()


@IN_BOTH
def test_a_sidecar_is_written_where_another_cannot_be(suite: Suite, isolate: str) -> None:
    for name in ("a", "b"):
        (suite.path / f"{name}.acf").write_bytes(name.encode())
    source = """
def test_1(ciq):
    ciq.assert_beats_baseline(better, "b.acf"); ciq.assert_beats_baseline(better, "a.acf")
"""
    suite.write(conftest=FULL_DISK.format(name="b.acf"))
    result = run(suite, source, isolate=isolate)
    assert (result.rc, result.counts) == (1, {"passed": 1}), result.out
    assert (suite.path / "a.acf.json").is_file()
    assert "--ciq-accept wrote a.acf.json" in result.out
    assert "b.acf.json cannot be written" in result.out


@IN_BOTH
def test_an_acf_that_has_changed_since_it_was_judged(suite: Suite, isolate: str) -> None:
    body = "ciq.check(better); open('best.acf', 'w').write('new')"
    result = run(suite, f"{MARK}def test_1(ciq): {body}", isolate=isolate)
    assert (result.rc, result.counts) == (1, {"passed": 1}), result.out
    assert "best.acf has changed since the checks of test_a.py::test_1 passed" in result.out
    assert not (suite.path / "best.acf.json").exists()


TWO = """
from pytest_compileiq import Build, Kernel
class Known(Kernel):
    def __init__(self, arch, ptx):
        super().__init__(lambda acf: Build())
        self.known = arch, ptx
    def arch(self): return self.known[0]
    def ptx_sha256(self, folder): return self.known[1]
@pytest.fixture(autouse=True)
def passes(monkeypatch):
    from pytest_compileiq.checks import win
    from pytest_compileiq.verdict import Check, Status, Verdict
    def judge(bench, committed, params, **_):
        return Verdict(check=Check.WIN, kernel="k", status=Status.PASS, message="won")
    monkeypatch.setattr(win, "judge_kernel", judge)
"""
ONE_EACH = """
@pytest.mark.ciq_beats_baseline
@pytest.mark.parametrize("known", [{}, {}], ids=["a", "b"])
def test_1(ciq, known): ciq.check(Known(*known))
"""
IN_ONE = """
def test_1(ciq):
    for known in ({}, {}): ciq.assert_beats_baseline(Known(*known))
"""


@IN_BOTH
@pytest.mark.parametrize("workers", [[], ["-n2", "--dist=each"]], ids=["alone", "xdist"])
@pytest.mark.parametrize(
    ("known", "told"),
    [
        ((("sm_90", "1" * 64), ("sm_90", "2" * 64)), "PTX hashes 111111111111 and 222222222222"),
        ((("sm_90", None), ("sm_100", None)), "sm_90 and sm_100"),
    ],
    ids=["ptx", "arch"],
)
def test_two_kernels_on_one_acf(
    suite: Suite, isolate: str, workers: list[str], known: tuple[object, object], told: str
) -> None:
    """The last one won, and the other said kernel-changed for ever."""
    former = '{"sha256": "0", "size_bytes": 3}'
    (suite.path / "best.acf.json").write_text(former)
    result = run(suite, TWO + ONE_EACH.format(*known), *workers, isolate=isolate)
    assert (result.rc, result.counts) == (1, {"passed": 4 if workers else 2}), result.out
    who = "test_a.py::test_1[a] and test_a.py::test_1[b] pass with best.acf for two kernels"
    swapped = who.replace("[a]", "[-]").replace("[b]", "[a]").replace("[-]", "[b]")
    assert f"ERROR --ciq-accept: {who} ({told})" in result.out or swapped in result.out
    assert result.out.count("each kernel needs an ACF file of its own") == 1
    assert "wrote" not in result.out
    assert (suite.path / "best.acf.json").read_text() == former


def test_two_kernels_of_two_workers(suite: Suite) -> None:
    """Each worker has seen one of them."""
    source = TWO + ONE_EACH.format(("sm_90", "1"), ("sm_90", "2"))
    result = run(suite, source, "-n2", "--dist=load")
    assert (result.rc, result.counts) == (1, {"passed": 2}), result.out
    assert "for two kernels (PTX hashes " in result.out
    assert not (suite.path / "best.acf.json").exists()


def test_two_kernels_of_one_test(suite: Suite) -> None:
    result = run(suite, TWO + IN_ONE.format(("sm_90", "1"), ("sm_90", "2")))
    assert (result.rc, result.counts) == (1, {"passed": 1}), result.out
    assert "test_1 passes with best.acf for two kernels (PTX hashes 1 and 2)" in result.out
    assert not (suite.path / "best.acf.json").exists()


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "xdist"])
def test_two_tests_of_one_kernel(suite: Suite, workers: list[str]) -> None:
    result = run(suite, TWO + ONE_EACH.format(("sm_90", "1"), ("sm_90", None)), *workers)
    assert (result.rc, result.counts) == (0, {"passed": 2}), result.out
    assert " and 1 more: --ciq-accept wrote best.acf.json" in result.out
    written = json.loads((suite.path / "best.acf.json").read_text())
    assert (written["arch"], written["ptx_sha256"]) == ("sm_90", "1")


@needs("pytest_rerunfailures")
@IN_BOTH
@pytest.mark.parametrize("fails", [1, 2])
def test_a_rerun_writes_once_it_passes(suite: Suite, isolate: str, fails: int) -> None:
    source = f"""
{MARK}def test_1(ciq):
    ciq.check(better)
    jot("tried")
    assert len(open(os.environ["JOT"]).readlines()) > {fails}
"""
    plugins = ("rerunfailures",)
    result = run(suite, source, "--reruns=1", isolate=isolate, plugins=plugins)
    passes = fails == 1
    assert result.counts == {"rerun": 1, "passed" if passes else "failed": 1}, result.out
    assert (suite.path / "best.acf.json").exists() == passes
    assert result.out.count("--ciq-accept wrote") == passes
