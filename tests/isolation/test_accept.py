"""``--ciq-accept`` writes when nothing of the test can fail any more, isolated or not."""

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


@IN_BOTH
def test_a_sidecar_that_cannot_be_written(suite: Suite, isolate: str) -> None:
    """The test errs, and what was measured stands; a property of the test's own stays its own."""
    (suite.path / "best.acf.json").mkdir()
    body = "\n    import shutil; shutil.rmtree('best.acf.json'); ciq.check(better)"
    body += "\n    os.mkdir('best.acf.json'); open('best.acf.json/x', 'w').close()"
    result = run(suite, f"{MARK}def test_1(ciq):{body}", "--junitxml=x.xml", isolate=isolate)
    assert result.counts == {"passed": 1, "error": 1}, result.out
    assert "--ciq-accept: the sidecar" in result.out
    assert "to do: make the folder writable and run again" in result.out
    assert not list(suite.path.glob(".best*"))
    (record,) = json.loads((suite.path / "x.json").read_text())["records"]
    assert (record["check"], record["status"]) == ("win", "pass")
    assert "_pytest_compileiq" not in (suite.path / "x.xml").read_text()


@IN_BOTH
def test_a_sidecar_that_was_written_is_told_when_a_later_one_cannot_be(
    suite: Suite, isolate: str
) -> None:
    for name in ("a", "b"):
        (suite.path / f"{name}.acf").write_bytes(name.encode())
    source = """
def test_1(ciq):
    ciq.assert_beats_baseline(better, "a.acf"); ciq.assert_beats_baseline(better, "b.acf")
    os.mkdir("b.acf.json"); open("b.acf.json/x", "w").close()
"""
    result = run(suite, source, isolate=isolate)
    assert result.counts == {"passed": 1, "error": 1}, result.out
    assert (suite.path / "a.acf.json").is_file()
    assert "--ciq-accept wrote a.acf.json" in result.out
    assert "b.acf.json cannot be written" in result.out


@IN_BOTH
def test_an_acf_that_has_changed_since_it_was_judged(suite: Suite, isolate: str) -> None:
    body = "ciq.check(better); open('best.acf', 'w').write('new')"
    result = run(suite, f"{MARK}def test_1(ciq): {body}", isolate=isolate)
    assert result.counts == {"passed": 1, "error": 1}, result.out
    assert "best.acf has changed since the checks passed with it" in result.out
    assert not (suite.path / "best.acf.json").exists()


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
