"""``--ciq-retune`` on the example's kernel, with an ACF that ptxas takes and that does nothing."""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_compileiq.isolation import child
from pytest_compileiq.retune import offer

from ..conftest import DATA, EXAMPLE, RunJson

pytestmark = pytest.mark.skipif(
    not os.environ.get("CIQ_SEARCH_SPACES_DIR"),
    reason="needs CIQ_SEARCH_SPACES_DIR, a folder with CompileIQ's search spaces",
)

TEST = """
import pytest
from pytest_compileiq import PtxKernel
@pytest.mark.ciq_beats_baseline("best.acf")
def test_sgemm(ciq):
    ciq.check(PtxKernel("sgemm.ptx", arch="sm_90"))
"""

#: A score that depends on the bytes of the ACF alone, at once and exactly.
OBJECTIVE = """
import pytest, hashlib
from pytest_compileiq import Objective
def score(config):
    return 100 if not config else {score}
@pytest.mark.ciq_beats_baseline("best.acf")
def test_it(ciq):
    ciq.check(Objective(score{more}))
"""


@pytest.fixture
def useless(sgemm: pytest.Pytester) -> pytest.Pytester:
    """An ACF for nvcc's own stage: ptxas takes it and makes the same code."""
    shutil.copy(DATA / "nvcc.acf", sgemm.path / "best.acf")
    (sgemm.path / "best.acf.json").unlink()
    return sgemm


def by_bytes(folder: pytest.Pytester, *, better: str = "30", more: str = "") -> None:
    """200 for the committed ACF, 30 to 285 for others."""
    size = 2 * (folder.path / "best.acf").stat().st_size
    other = f"({better} + hashlib.sha256(config.encode()).digest()[0])"
    score = f"{other} if len(config) != {size} else 200"
    folder.makepyfile(OBJECTIVE.format(score=score, more=more))


def test_a_winner_is_found_offered_and_taken(useless: pytest.Pytester, run_json: RunJson) -> None:
    useless.makepyfile(TEST)
    committed = (useless.path / "best.acf").read_bytes()
    started = time.monotonic()
    result, (record,) = run_json("--ciq-retune=1")
    assert time.monotonic() - started < 180
    result.assert_outcomes(failed=1)
    assert record["reason"] == "no-effect"
    assert "found one that wins" in record["remedy"]
    assert record["numbers"]["retuned"]["won"] is True
    assert (useless.path / "best.acf").read_bytes() == committed
    assert not (useless.path / "best.acf.json").exists()
    folder = Path(record["numbers"]["retuned"]["folder"])
    assert folder.parent == useless.path / "ciq-report"
    assert sorted(path.name for path in folder.iterdir()) == [
        "best.acf", "best.acf.json", "results.csv",
    ]  # fmt: skip
    sidecar = json.loads((folder / "best.acf.json").read_text())
    assert (sidecar["arch"], sidecar["ptxas"][:4]) == ("sm_90", "13.3")
    # The command that is printed is right, and its result passes.
    command = record["remedy"].partition("Take it: ")[2].partition(" (everything")[0]
    assert any("cp ciq-report/" in line for line in result.outlines)
    subprocess.run(command, shell=True, check=True, cwd=useless.path)
    run_json()[0].assert_outcomes(passed=1)


def test_a_second_run_loses_nothing(useless: pytest.Pytester, run_json: RunJson) -> None:
    by_bytes(useless)
    run_json("--ciq-retune=1")
    (first,) = (useless.path / "ciq-report").iterdir()
    before = {path: path.read_bytes() for path in first.iterdir()}
    _, (record,) = run_json("--ciq-retune=1")
    second = Path(record["numbers"]["retuned"]["folder"])
    assert second.name == f"{first.name}-2"
    assert {path: path.read_bytes() for path in first.iterdir()} == before
    assert (second / "results.csv").read_bytes() != (first / "results.csv").read_bytes()


def test_accept_takes_the_winner_and_keeps_the_former(
    useless: pytest.Pytester, run_json: RunJson
) -> None:
    by_bytes(useless)
    committed = (useless.path / "best.acf").read_bytes()
    result, (record,) = run_json("--ciq-retune=1", "--ciq-accept")
    result.assert_outcomes(failed=1)  # green is what was judged on the files that are there
    assert (record["reason"], record["numbers"]["retuned"]["won"]) == ("slower", True)
    assert "; --ciq-accept wrote best.acf, its former content is in " in record["remedy"]
    assert "run once more" in record["remedy"]
    folder = Path(record["numbers"]["retuned"]["folder"])
    assert (folder / "former-best.acf").read_bytes() == committed
    assert (useless.path / "best.acf").read_bytes() == (folder / "best.acf").read_bytes()
    assert (useless.path / "best.acf.json").exists()
    run_json()[0].assert_outcomes(passed=1)


def test_rows_of_one_acf_are_not_green_for_a_file_that_is_gone(
    useless: pytest.Pytester, run_json: RunJson
) -> None:
    """Each row's winner takes the place of that of the row before, which it does not suit."""
    useless.makepyfile(
        """
        import hashlib, pytest
        from pytest_compileiq import Objective
        @pytest.mark.ciq_beats_baseline("best.acf")
        @pytest.mark.parametrize("row", [0, 1])
        def test_it(ciq, row):
            def score(config):
                if not config:
                    return 100
                mark = hashlib.sha256(config.encode()).digest()[0]
                return 50 + mark / 256 if mark % 2 == row and len(config) != SIZE else 200
            ciq.check(Objective(score))
        """.replace("SIZE", str(2 * (useless.path / "best.acf").stat().st_size))
    )
    result, records = run_json("--ciq-retune=1", "--ciq-accept")
    result.assert_outcomes(failed=2)
    assert [record["numbers"]["retuned"]["won"] for record in records] == [True, True]
    run_json()[0].assert_outcomes(failed=1, passed=1)


def test_accept_describes_the_winner_and_not_what_checks_before_it_saw(
    useless: pytest.Pytester, run_json: RunJson
) -> None:
    """ciq_resources passes with the committed ACF, before the win fails and is searched for."""
    useless.makepyfile(
        """
        import pytest
        from pytest_compileiq import PtxKernel

        def test_win(ciq):
            kernel = PtxKernel("sgemm.ptx", arch="sm_90")
            ciq.assert_resources(kernel, acf="best.acf", max_registers=255)
            with pytest.raises(AssertionError):
                ciq.assert_beats_baseline(kernel, "best.acf")
        """
    )
    result, (*_, record) = run_json("--ciq-retune=1", "--ciq-accept")
    result.assert_outcomes(passed=1)
    assert result.ret == 1  # accept comes to what the first check saw
    assert record["numbers"]["retuned"]["won"] is True
    assert "best.acf has changed since the checks of " in result.stdout.str()
    content = (useless.path / "best.acf").read_bytes()
    described = json.loads((useless.path / "best.acf.json").read_text())
    assert described["sha256"] == hashlib.sha256(content).hexdigest()


FULL_DISK = """
from pytest_compileiq.toolchain import sidecar
written = sidecar.write
def write(acf, described):
    if acf.match({where!r}):
        raise OSError(28, "No space left on device")
    return written(acf, described)
sidecar.write = write
"""


@pytest.mark.parametrize("former", [True, False])
def test_accept_writes_both_files_or_none(
    useless: pytest.Pytester, run_json: RunJson, former: bool
) -> None:
    """A new ACF beside the sidecar of another one would be a file that nobody has accepted."""
    by_bytes(useless)
    place = useless.path / "best.acf"
    committed = place.read_bytes()
    if not former:
        place.unlink()
    useless.makeconftest(FULL_DISK.format(where=f"{useless.path.name}/best.acf"))
    result, (record,) = run_json("--ciq-retune=1", "--ciq-accept")
    result.assert_outcomes(failed=1)
    assert (
        "best.acf cannot be written (No space left on device): it is as it was"
        in (record["remedy"])
    )
    assert (place.read_bytes() if place.exists() else None) == (committed if former else None)
    assert not (useless.path / "best.acf.json").exists()
    assert (Path(record["numbers"]["retuned"]["folder"]) / "best.acf").exists()


def test_a_winner_that_cannot_be_kept(useless: pytest.Pytester, run_json: RunJson) -> None:
    by_bytes(useless)
    useless.makeconftest(FULL_DISK.format(where="ciq-report/*/best.acf"))
    result, (record,) = run_json("--ciq-retune=1", "--ciq-accept")
    result.assert_outcomes(failed=1)
    assert record["reason"] == "slower"
    assert "found one that cannot be kept: [Errno 28] No space left on device" in record["remedy"]
    assert not (useless.path / "best.acf.json").exists()


def test_nothing_better_is_said(useless: pytest.Pytester, run_json: RunJson) -> None:
    by_bytes(useless, better="500")
    result, (record,) = run_json("--ciq-retune=1")
    result.assert_outcomes(failed=1)
    assert record["reason"] == "slower"
    assert "found nothing better than the baseline (healthy)" in record["remedy"]
    assert "as in --ciq-retune=4" in record["remedy"]
    assert (Path(record["numbers"]["retuned"]["folder"]) / "results.csv").exists()


def test_a_max_problem(useless: pytest.Pytester, run_json: RunJson) -> None:
    by_bytes(useless, more=', problem_type="max"')
    text = (next(useless.path.glob("test_*.py"))).read_text().replace("else 200", "else 50")
    next(useless.path.glob("test_*.py")).write_text(text)
    _, (record,) = run_json("--ciq-retune=1")
    assert record["numbers"]["retuned"]["won"] is True
    # The largest of 48 from 30 to 285, and not the smallest.
    (found,) = re.findall(r"100 on the baseline, (\d+) with", record["remedy"])
    assert int(found) > 200


def test_a_missing_acf_is_searched_for(useless: pytest.Pytester, run_json: RunJson) -> None:
    by_bytes(useless)
    (useless.path / "best.acf").unlink()
    _, (record,) = run_json("--ciq-retune=1")
    assert record["reason"] == "rejected"
    assert record["numbers"]["retuned"]["won"] is True
    assert re.search(r"for the score of score \(100 -> \d\d\) found one", record["remedy"])
    result, (record,) = run_json("--ciq-retune=1", "--ciq-accept")
    result.assert_outcomes(failed=1)
    # There was no former one.
    assert "--ciq-accept wrote best.acf: run once more" in record["remedy"]
    run_json()[0].assert_outcomes(passed=1)


def test_a_search_without_a_space_leaves_no_folder(
    useless: pytest.Pytester, run_json: RunJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_bytes(useless)
    empty = useless.mkdir("spaces")
    monkeypatch.setenv("CIQ_SEARCH_SPACES_DIR", str(empty))
    _, (record,) = run_json("--ciq-retune=1")
    assert "no search space for ptxas 13.3 could be had" in record["remedy"]
    assert list((useless.path / "ciq-report").iterdir()) == []


def test_a_canary_leaves_a_missing_acf_to_the_win(
    useless: pytest.Pytester, run_json: RunJson
) -> None:
    """A broken canary ends the test, and nothing would be searched for."""
    (useless.path / "best.acf").unlink()
    useless.makepyfile(TEST.replace("@pytest.mark", "@pytest.mark.ciq_canary\n@pytest.mark", 1))
    _, records = run_json()
    found = {record["check"]: (record["status"], record["reason"]) for record in records}
    assert found == {"canary": ("pass", None), "win": ("fail", "rejected")}


def test_what_another_acf_cannot_cure_is_not_searched_for(
    useless: pytest.Pytester, run_json: RunJson
) -> None:
    by_bytes(useless, better="1 / 0")
    text = (next(useless.path.glob("test_*.py"))).read_text().replace("else 200", "else 1 / 0")
    next(useless.path.glob("test_*.py")).write_text(text)
    _, (record,) = run_json("--ciq-retune=1")
    assert record["reason"] == "crashed"
    assert "retuned" not in record["numbers"]
    assert not (useless.path / "ciq-report").exists()


def test_a_read_only_folder_loses_nothing(useless: pytest.Pytester, run_json: RunJson) -> None:
    """As root may write anywhere, a file stands where the report folder would be."""
    by_bytes(useless)
    (useless.path / "ciq-report").touch()
    _, (record,) = run_json("--ciq-retune=1")
    folder = Path(record["numbers"]["retuned"]["folder"])
    assert folder.name.startswith("ciq-report-")
    assert (folder / "best.acf").exists()
    shutil.rmtree(folder)


def test_a_cancelled_run_keeps_what_it_had(useless: pytest.Pytester) -> None:
    by_bytes(useless, better="__import__('time').sleep(0.05) or 30")
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "-s", "--ciq-retune=1000", "-p", "no:cacheprovider"],
        cwd=useless.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    deadline = time.monotonic() + 60
    while not list(useless.path.glob("ciq-report/*/results.csv")) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    try:
        output, _ = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)  # pytest's faulthandler says where it is
        pytest.fail(process.communicate()[0])
    assert process.returncode == 2
    (csv,) = useless.path.glob("ciq-report/*/results.csv")
    assert f"interrupted; what was found until then is in {csv.parent}\n" in output
    from pytest_compileiq.diagnose import diagnose

    assert diagnose(csv).healthy


def example_s_sidecar(useless: pytest.Pytester) -> dict[str, Any]:
    """That of the example, as if of the ACF that is there."""
    sidecar: dict[str, Any] = json.loads((EXAMPLE / "best.acf.json").read_text())
    content = (useless.path / "best.acf").read_bytes()
    return sidecar | {"sha256": hashlib.sha256(content).hexdigest(), "size_bytes": len(content)}


def test_the_tag_in_the_sidecar_is_that_of_the_search(
    useless: pytest.Pytester, run_json: RunJson
) -> None:
    """A mirror of another tag must not be searched in its place."""
    by_bytes(useless)
    sidecar = example_s_sidecar(useless)
    for release, pinned in (("13.3.73", "search-spaces-other"), ("13.2.1", "search-spaces-old")):
        sidecar |= {"ptxas": release, "search_space_tag": pinned}
        (useless.path / "best.acf.json").write_text(json.dumps(sidecar))
        _, (record,) = run_json("--ciq-retune=1")
        assert record["reason"] == "slower"
        told = record["numbers"]["retuned"]
        if release.startswith("13.3"):
            assert "ptxas 13.3, tag search-spaces-other as in the sidecar," in record["remedy"]
            assert "without the sidecar the latest tag is taken" in record["remedy"]
            assert told == {"folder": None}
        else:  # that of another ptxas says nothing about this one's
            mirror = Path(os.environ["CIQ_SEARCH_SPACES_DIR"], "manifest.json")
            assert told["search_space"]["tag"] == json.loads(mirror.read_text())["tag"]
            found = json.loads((Path(told["folder"]) / "best.acf.json").read_text())
            assert found["search_space_tag"] == told["search_space"]["tag"]


def test_a_sidecar_without_a_tag_takes_the_latest_space(
    useless: pytest.Pytester, run_json: RunJson
) -> None:
    """As those of the examples: the tag of a private mirror is none that GitHub knows."""
    by_bytes(useless)
    sidecar = example_s_sidecar(useless)
    (useless.path / "best.acf.json").write_text(json.dumps(sidecar))
    _, (record,) = run_json("--ciq-retune=1")
    told = record["numbers"]["retuned"]
    assert told["won"] is True, record["remedy"]
    assert sidecar["search_space_tag"] is None
    assert told["search_space"]["sha256"] == sidecar["search_space_sha256"]
    found = json.loads((Path(told["folder"]) / "best.acf.json").read_text())
    assert found["search_space_tag"] == told["search_space"]["tag"]
    assert found["search_space_sha256"] == sidecar["search_space_sha256"]


@pytest.mark.parametrize(
    "path", sorted(EXAMPLE.parent.glob("*/*.acf.json")), ids=lambda path: path.stem
)
def test_the_examples_name_the_space_by_its_content(path: Path) -> None:
    sidecar = json.loads(path.read_text())
    assert sidecar["search_space_tag"] is None
    assert len(sidecar["search_space_sha256"]) == 64


def test_a_search_ends_before_its_test_is_killed(
    useless: pytest.Pytester, run_json: RunJson
) -> None:
    """Its share is a small one here: a loaded machine needs long for all but the search."""
    by_bytes(useless, better="__import__('time').sleep(0.3) or 30")
    (source,) = useless.path.glob("test_*.py")
    share = "from pytest_compileiq.retune import offer\noffer._SEARCH = 0.1\n"
    source.write_text(share + source.read_text())
    _, (record,) = run_json("--ciq-retune=1000", "--ciq-isolate=require", "--ciq-timeout=120")
    assert record["reason"] == "slower"
    told = record["numbers"]["retuned"]
    assert told["spent"] == "max_seconds=12"
    assert "ended early: max_seconds=12 is spent" in record["remedy"]


@pytest.mark.parametrize(("left", "seconds"), [(math.inf, 12), (32, 12), (15, 7)])
def test_what_a_search_may_take_of_its_test(
    monkeypatch: pytest.MonkeyPatch, left: float, seconds: float
) -> None:
    """Three quarters of --ciq-timeout, and never the last half of it."""
    monkeypatch.setattr(child, "seconds_left", lambda: left)
    assert offer._seconds(SimpleNamespace(timeout=16.0)) == seconds  # type: ignore[arg-type]


def test_a_bad_number_is_named(useless: pytest.Pytester) -> None:
    useless.makepyfile(TEST)
    result = useless.runpytest_subprocess("--ciq-retune", "test_it.py")
    assert result.ret == 4
    result.stderr.fnmatch_lines(["*'test_it.py' from --ciq-retune*as in --ciq-retune=12*"])
