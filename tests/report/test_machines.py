"""What machines read: the JSON file and its schema, junit.xml, GitHub's summary, the hooks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import pytest_compileiq
from pytest_compileiq.measure.samples import replay
from pytest_compileiq.report import github, junit
from pytest_compileiq.report import json as _json
from pytest_compileiq.verdict import Check, Reason, Status

from ..conftest import ROOT
from . import simulated as sim

SCHEMA = json.loads(
    (Path(pytest_compileiq.__file__).parent / "report" / "schema.json").read_text(encoding="utf-8")
)
XUNIT2 = Path(__file__).parent / "xunit2.xsd"

#: A suite that answers with simulated measurements, through the real plugin.
CONFTEST = f"""
import sys
sys.path.insert(0, {str(ROOT)!r})
from docs.img.demo.conftest import simulated
"""
SUITE = """
import pytest
from tests.report import simulated as sim

def test_win(simulated): simulated(sim.canary("softmax"), sim.win("softmax", speedup=1.06))
def test_slower(simulated): simulated(sim.win("matmul", speedup=0.98, noise=0.01))
def test_undecided(simulated): simulated(sim.win("norm", speedup=1.021, noise=0.05))
def test_others(simulated):
    simulated(sim.static("sgemm"), sim.not_judged("sgemm"), sim.objective("f"), sim.cv("g"))
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.delenv(github.VARIABLE, raising=False)
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(SUITE)
    return pytester


def validate(document: Mapping[str, Any]) -> None:
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    jsonschema.Draft202012Validator(SCHEMA).validate(document)


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "xdist"])
def test_the_file_fits_the_schema_and_replays(suite: pytest.Pytester, workers: list[str]) -> None:
    suite.runpytest_subprocess("--ciq-json=r.json", *workers).assert_outcomes(
        passed=2, failed=1, skipped=1
    )
    document = json.loads((suite.path / "r.json").read_text())
    validate(document)
    assert len(document["records"]) == 8
    samples = [sample for record in document["records"] for sample in record["samples"]]
    assert sorted(sample["kind"] for sample in samples) == ["opaque", "spread"] + 5 * ["units"]
    for sample in samples:
        assert replay(sample).differences == []
    assert [path.name for path in suite.path.glob("*.json")] == ["r.json"]


RED = """
import os, pytest
from pytest_compileiq import Objective

def score(config): return "*" if config else 1.0
@pytest.mark.ciq_objective(objectives=1)
def test_ok(ciq): ciq.check(Objective(score))

@pytest.fixture
def broken(): raise RuntimeError("no data")
@pytest.mark.ciq_max_cv(5)
@pytest.mark.ciq_beats_baseline("a.acf")
def test_setup(ciq, broken): pass

@pytest.mark.ciq_objective(objectives=1)
def test_raises(ciq): raise ValueError("before the check")

@pytest.mark.ciq_objective(objectives=1)
@pytest.mark.ciq_beats_baseline("a.acf", min_speedup="nonsense")
def test_bad_mark(ciq): pass

@pytest.mark.ciq_objective(objectives=1)
def test_after(ciq):
    ciq.check(Objective(score))
    raise ValueError("after the check")
"""


@pytest.mark.parametrize("more", [["--ciq-isolate=off"], ["--ciq-isolate=require"], ["-n2"]])
def test_a_red_run_is_red_to_machines(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, more: list[str]
) -> None:
    """A test that fails beside its checks left no record: all that was there had passed."""
    monkeypatch.setenv(github.VARIABLE, str(pytester.path / "summary.md"))
    pytester.makepyfile(RED)
    result = pytester.runpytest_subprocess("--ciq-json=r.json", *more)
    assert result.ret == 1
    document = json.loads((pytester.path / "r.json").read_text())
    validate(document)
    assert document["environment"]["exit_status"] == 1
    found: dict[str, list[str]] = {}
    for record in document["records"]:
        told = f"{record['check']} {record['status']}"
        found.setdefault(record["nodeid"].rpartition("::")[2], []).append(told)
        if record["status"] == "not-judged":
            assert record["message"] == "the test failed before"
    assert found == {
        "test_ok": ["objective pass"],
        "test_setup": ["cv not-judged", "win not-judged"],
        "test_raises": ["objective not-judged"],
        "test_bad_mark": ["objective not-judged", "win not-judged"],
        "test_after": ["objective pass"],
    }
    summary = (pytester.path / "summary.md").read_text(encoding="utf-8")
    assert summary.startswith("### compileiq: 2 pass, 5 not-judged (exit 1)\n")
    assert "**win of test\\_setup\\: not-judged**: the test failed before" in summary


@pytest.mark.parametrize("isolate", ["off", "require"])
def test_an_interrupted_run_is_no_green_one(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, isolate: str
) -> None:
    monkeypatch.setenv(github.VARIABLE, str(pytester.path / "summary.md"))
    pytester.makepyfile(
        RED.partition("@pytest.fixture")[0]
        + """
@pytest.mark.ciq_objective(objectives=1)
def test_stops(ciq): raise KeyboardInterrupt
@pytest.mark.ciq_objective(objectives=1)
def test_never(ciq): pass
"""
    )
    result = pytester.runpytest_subprocess("--ciq-json=r.json", f"--ciq-isolate={isolate}")
    assert result.ret == 2
    document = json.loads((pytester.path / "r.json").read_text())
    assert document["environment"]["exit_status"] == 2
    assert [record["status"] for record in document["records"]] == ["pass"]
    summary = (pytester.path / "summary.md").read_text(encoding="utf-8")
    assert summary.startswith("### compileiq: 1 pass (run interrupted)\n")


def test_files_of_before_are_still_valid() -> None:
    environment = _json.environment([])
    assert environment.pop("exit_status") == 0
    validate(json.loads(_json.as_text([], [], environment)))


def test_each_worker_has_its_own_verdicts(pytester: pytest.Pytester) -> None:
    """With --dist each all of them run every test, and the first to finish may have failed."""
    pytester.makepyfile(
        "import os, pytest, time\n"
        "LATE = os.environ.get('PYTEST_XDIST_WORKER') == 'gw1'\n"
        "@pytest.mark.ciq_objective\n"
        "def test(ciq):\n"
        "    time.sleep(2 * LATE)\n"
        "    ciq.check(lambda config: ('*' if config else 1.0) if LATE else (1.0,))\n"
    )
    result = pytester.runpytest_subprocess("--dist=each", "--tx=2*popen", "--ciq-json=r.json")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["compileiq: 1 pass, 1 fail"])
    records = json.loads((pytester.path / "r.json").read_text())["records"]
    assert sorted(record["status"] for record in records) == ["fail", "pass"]


@pytest.mark.parametrize("family", ["xunit1", "xunit2"])
def test_a_property_of_a_test_s_own_is_its_own(pytester: pytest.Pytester, family: str) -> None:
    names = ["ciq", "ciq-gpu", "ciq-note", "ciq-kept"]
    pytester.makepyfile(
        f"NAMES = {names}\n"
        "def own(record): [record(name, 'mine') for name in NAMES]\n"
        "def test_plain(record_property): own(record_property)\n"
        "def test_ciq(ciq, record_property):\n"
        "    own(record_property)\n"
        "    ciq.assert_objective(lambda config: '*' if config else 1.0)\n"
    )
    result = pytester.runpytest_subprocess(
        "--junitxml=j.xml", "-o", f"junit_family={family}", "-p", "no:randomly"
    )
    result.assert_outcomes(passed=2)
    assert "mine" not in result.stdout.str()
    cases = list(ET.parse(pytester.path / "j.xml").iter("testcase"))
    for case in cases:
        told = {one.get("name"): one.get("value") for one in case.iter("property")}
        assert {name: told.get(name) for name in names} == dict.fromkeys(names, "mine")
        assert (told.get("ciq_objective") == "pass") == (
            family == "xunit1" and case.get("name") == "test_ciq"
        )


def test_the_schema_refuses_what_is_no_report() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    record = sim.record(sim.win("k", speedup=1.06))
    good = json.loads(_json.as_text([record], [], _json.environment([record])))
    validate(good)
    for spoil in (
        {"schema": 2},
        {"records": [{**record, "status": "passed"}]},
        {"records": [{**record, "reason": "slower"}]},  # of a pass
        {"records": [{**record, "status": "fail"}]},  # without a reason
        {"records": [{**record, "numbers": {"speedup": "1.06"}}]},
        {"records": [{**record, "numbers": {"speedup_interval": [1.0]}}]},
        {"records": [{**record, "samples": [{"kind": "other"}]}]},
    ):
        with pytest.raises(jsonschema.ValidationError):
            validate({**good, **spoil})


def test_the_schema_knows_every_word() -> None:
    record = SCHEMA["properties"]["records"]["items"]["properties"]
    assert record["reason"]["enum"] == [*Reason, None]
    assert record["status"]["enum"] == list(Status)
    assert record["check"]["enum"] == list(Check)
    assert set(record) - {"extra"} == set(sim.static("k").to_record(""))


def test_the_commit_is_the_ci_systems(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("GITHUB_SHA", "CI_COMMIT_SHA", "GIT_COMMIT", "BUILD_SOURCEVERSION"):
        monkeypatch.delenv(name, raising=False)
    assert _json.environment([])["commit"] is None
    monkeypatch.setenv("CI_COMMIT_SHA", "abc")
    assert _json.environment([])["commit"] == "abc"


def test_a_full_disk_changes_no_verdict(suite: pytest.Pytester) -> None:
    result = suite.runpytest_subprocess("--ciq-json=/dev/full", "-k", "win")
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["*--ciq-json: /dev/full cannot be written (*No space left*"])


def test_a_disk_that_fills_up_leaves_the_old_file(suite: pytest.Pytester) -> None:
    (suite.path / "r.json").write_text("old")
    # No file can grow beyond 1 KiB here; the pipe keeps pytest's output out of files.
    pytest_command = f"{sys.executable} -m pytest --ciq-json=r.json -k win -p no:cacheprovider"
    command = f"(ulimit -f 1; exec {pytest_command}) | cat"
    result = suite.run("bash", "-c", command)
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*--ciq-json: *r.json cannot be written (*File too large*"])
    assert (suite.path / "r.json").read_text() == "old"
    assert not list(suite.path.glob(".r.json*"))


@pytest.mark.parametrize(
    "option", ["--ciq-json=f/r.json", "--ciq-plots=f/p", "GITHUB_STEP_SUMMARY"]
)
def test_a_path_that_cannot_be_written_changes_no_verdict(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    (suite.path / "f").write_text("a file, not a folder")
    arguments = [option] if option.startswith("--") else []
    if not arguments:
        monkeypatch.setenv(option, str(suite.path / "f" / "s.md"))
    else:
        pytest.importorskip("matplotlib")
    result = suite.runpytest_subprocess(*arguments, "-k", "win")
    result.assert_outcomes(passed=1)
    assert result.ret == 0
    door = option.partition("=")[0]
    result.stdout.fnmatch_lines([f"pytest-compileiq: {door}: *no verdict is changed"])


def test_hooks_add_to_the_file_and_change_nothing(suite: pytest.Pytester) -> None:
    suite.makeconftest(
        CONFTEST
        + """
def pytest_ciq_machine_info(config): return {"rack": 7, "since": sys.version_info}
def pytest_ciq_record(config, record):
    record["status"] = "fail"
    record["numbers"].clear()
    return {"owner": record["kernel"].upper()} if record["check"] == "win" else None
"""
    )
    suite.runpytest_subprocess("--ciq-json=r.json", "-k", "win").assert_outcomes(passed=1)
    document = json.loads((suite.path / "r.json").read_text())
    validate(document)
    assert document["environment"]["site"]["rack"] == 7
    canary, win = document["records"]
    assert "extra" not in canary
    assert win["extra"] == {"owner": "SOFTMAX"}
    assert win["status"] == "pass"
    assert win["numbers"]["speedup"] > 1


@pytest.mark.parametrize(
    "hook", ["pytest_ciq_machine_info(config)", "pytest_ciq_record(config, record)"]
)
def test_a_hook_that_raises_is_told(suite: pytest.Pytester, hook: str) -> None:
    suite.makeconftest(CONFTEST + f"\ndef {hook}: raise KeyError('no rack')\n")
    result = suite.runpytest_subprocess("--ciq-json=r.json", "-k", "win")
    result.assert_outcomes(passed=1)
    name = hook.partition("(")[0]
    result.stdout.fnmatch_lines([f"*{name}: (KeyError: 'no rack'); no verdict is changed"])
    validate(json.loads((suite.path / "r.json").read_text()))


# junit.xml


def junit_of(suite: pytest.Pytester, *arguments: str) -> ET.Element:
    suite.runpytest_subprocess("--junitxml=j.xml", *arguments)
    return ET.parse(suite.path / "j.xml").getroot()


def case(root: ET.Element, name: str) -> ET.Element:
    (found,) = [one for one in root.iter("testcase") if one.get("name") == name]
    return found


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "xdist"])
@pytest.mark.parametrize("family", ["xunit1", "xunit2"])
def test_junit_shows_numbers(suite: pytest.Pytester, family: str, workers: list[str]) -> None:
    root = junit_of(suite, "-o", f"junit_family={family}", *workers)
    won = case(root, "test_win")
    if family == "xunit1":
        told = {one.get("name"): one.get("value") for one in won.iter("property")}
    else:
        assert won.find("properties") is None
        lines = (won.findtext("system-out") or "").splitlines()
        told = {line.partition(": ")[0]: line.partition(": ")[2] for line in lines}
    assert told["ciq_win"] == "pass"
    assert told["ciq_canary"] == "pass"
    assert 1.05 < float(told["ciq_win_speedup"] or "") < 1.07
    assert float(told["ciq_win_speedup_low"] or "") < float(told["ciq_win_speedup"] or "")
    assert told["ciq_win_launches"] == "40"
    assert "{" not in ET.tostring(root, encoding="unicode")  # no JSON anywhere
    failure = case(root, "test_slower").find("failure")
    assert failure is not None
    assert "0.9816x [0.9718, 0.9901] in 48 launches" in (failure.text or "")
    assert "ciq_win_speedup[f]" in ET.tostring(case(root, "test_others"), encoding="unicode")


def test_junit_passes_the_schema_of_its_family(suite: pytest.Pytester) -> None:
    etree = pytest.importorskip("lxml.etree")
    suite.makepyfile(
        test_own=SUITE
        + "\ndef test_out(simulated): print('& <said>'); simulated(sim.static('a&b<c>\"'))\n"
    )
    junit_of(suite, "-o", "junit_logging=all")
    schema = etree.XMLSchema(etree.parse(XUNIT2))
    schema.assertValid(etree.parse(suite.path / "j.xml"))
    output = case(ET.parse(suite.path / "j.xml").getroot(), "test_out").findtext("system-out") or ""
    assert "& <said>" in output
    assert "ciq_resources: pass" in output


def test_the_schema_of_the_family_refuses_properties_in_a_test_case() -> None:
    etree = pytest.importorskip("lxml.etree")
    schema = etree.XMLSchema(etree.parse(XUNIT2))
    suite = '<testsuite name="s" tests="1" failures="0" errors="0">{}</testsuite>'
    properties = '<properties><property name="a" value="b"/></properties>'
    good = suite.format(f'{properties}<testcase name="t"/>')
    assert schema.validate(etree.fromstring(f"<testsuites>{good}</testsuites>"))
    bad = suite.format(f'<testcase name="t">{properties}</testcase>')
    assert not schema.validate(etree.fromstring(f"<testsuites>{bad}</testsuites>"))


def test_a_tests_own_properties_stay(tmp_path: Path) -> None:
    path = tmp_path / "j.xml"
    path.write_text(
        '<testsuites><testsuite><testcase name="t"><properties><property name="mine" value="1"/>'
        '<property name="ciq_win" value="pass"/></properties></testcase></testsuite></testsuites>'
    )
    junit.move_to_output(path)
    one = case(ET.parse(path).getroot(), "t")
    assert [entry.get("name") for entry in one.iter("property")] == ["mine"]
    assert one.findtext("system-out") == "ciq_win: pass\n"


# GitHub's step summary


def test_the_step_summary_is_appended(
    suite: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = suite.path / "summary.md"
    path.write_text("before\n")
    monkeypatch.setenv(github.VARIABLE, str(path))
    suite.runpytest_subprocess("-n2")
    text = path.read_text()
    assert text.startswith("before\n### compileiq: 5 pass, 1 fail, 1 undecided, 1 not-judged")
    assert "| matmul | win | 0.982 [0.972, 0.990] | 48 | 0.013 | ❌ slower |" in text
    assert "To do: search again for this kernel" in text
    assert text.index("| matmul |") < text.index("| softmax |")


def test_the_step_summary_is_escaped() -> None:
    verdict = replace(
        sim.win("k", speedup=0.98, noise=0.01),
        kernel="a|b`c*_<script>[x](y)@user",
        message="line\n| break & <b>",
        remedy="#1 ~~no~~",
    )
    text = github.markdown([sim.record(verdict)])
    row = next(line for line in text.splitlines() if "❌" in line)
    assert row.replace("\\|", "").count("|") == 7
    assert "<script>" not in text
    assert "&lt;script&gt;" in text
    assert "\\@user" in text
    assert "line \\| break &amp; &lt;b&gt;" in text
    markdown_it = pytest.importorskip("markdown_it")
    html = markdown_it.MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    assert html.count("<td") == 6
    assert "a|b`c*_&lt;script&gt;[x](y)@user" in html


def test_the_step_summary_stays_below_githubs_limit() -> None:
    records = [
        sim.record(replace(sim.static("k" * 90), kernel=f"{'k' * 90}{n}")) for n in range(99)
    ]
    records.append(sim.record(sim.win("matmul", speedup=0.98, noise=0.01)))
    text = github.markdown(records, room=4000)
    assert len(text.encode()) <= 4000
    assert "❌ slower" in text
    assert "more entries are left out" in text


def test_a_step_summary_that_is_full_gets_nothing_more(tmp_path: Path) -> None:
    """GitHub drops a summary of more than 1 MiB, what other programs have written included."""
    path = tmp_path / "summary.md"
    records = [sim.record(sim.static("k"))]
    for left in (0, 100, 400):
        path.write_text("x" * ((1 << 20) - left))
        github.append(path, records, exit_status=0)
        assert path.stat().st_size <= 1 << 20
    assert github.markdown(records, room=250) == ""


def test_nothing_heavy_is_imported_for_a_run_without_records(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test(): pass")
    probe = (
        "import pytest, sys; pytest.main(['-q', '--ciq-json=r.json', '--junitxml=j.xml']);"
        "print({'numpy', 'matplotlib', 'pandas', 'elftools', 'compileiq', 'pytest_compileiq.checks'}"
        " & set(sys.modules))"
    )
    told = subprocess.run(
        [sys.executable, "-c", probe],
        cwd=pytester.path,
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pytest_compileiq.plugin"},
    )  # fmt: skip
    assert told.stdout.splitlines()[-1] == "set()"
    validate(json.loads((pytester.path / "r.json").read_text()))
