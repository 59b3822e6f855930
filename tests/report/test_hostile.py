"""Reports of what nobody meant to be reported: names, numbers and answers of hooks."""

from __future__ import annotations

import json
import warnings
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_compileiq.report import figures, github, history
from pytest_compileiq.report import json as _json
from pytest_compileiq.report.failure import explain
from pytest_compileiq.subjects.kernel import Build, Kernel
from pytest_compileiq.subjects.objective import Objective
from pytest_compileiq.toolchain.acf import Acf

from . import simulated as sim
from .test_machines import suite, validate  # noqa: F401 (a fixture)

#: A name -> what people read in its place.
NAMES = {
    "a|b": "a|b",
    "two\nlines\tand  more": "two lines and more",
    "\x1b[31mred\x1b[0m": "\\x1b[31mred\\x1b[0m",
    "nul\0": "nul\\x00",
    "\u202eevil": "\\u202eevil",
    "not utf-8 \udcff": "not utf-8 \\udcff",
    "日本語": "日本語",
    "<img src=x onerror=alert(1)> & ]]>": "<img src=x onerror=alert(1)> & ]]>",
    "$\\frac$": "$\\frac$",
    "::error::@me": "::error::@me",
}
SUITE = f"""
import pytest
from dataclasses import replace
from pytest_compileiq import Kernel
from tests.report import simulated as sim

@pytest.mark.parametrize("name", {list(NAMES)!a}, ids=repr)
def test_names(simulated, name):
    name = Kernel(None, name=name).name
    simulated(sim.static(name), sim.win("k " + name, speedup=1.06))

def test_slower(simulated):
    simulated(replace(sim.win("slower", speedup=0.9), message="\\x1b[2J|\\0\\udcff"))
"""
HOOKS = """
def pytest_ciq_record(config, record):
    return {"nan": float("nan"), 5: {1}, (1, 2): [float("inf")], "bytes": b"\\xff", "text": "\\udcff"}

def pytest_ciq_machine_info(config):
    return {"nan": float("nan"), None: "none"}
"""


@pytest.mark.parametrize("name", NAMES)
def test_names_are_one_line_wherever_they_come_from(name: str) -> None:
    assert Kernel(lambda acf: Build(), name=name).name == NAMES[name]
    assert Objective(lambda config: 1, name=name).name == NAMES[name]
    assert Acf(Path(f"{name}.acf"), b"").name == Path(f"{NAMES[name]}.acf").name
    verdict = replace(sim.win("k", speedup=0.9), message=name, remedy=name)
    first, *_, last = explain(verdict).splitlines()
    assert (first, last) == (f"win of k: slower: {NAMES[name]}", f"  to do: {NAMES[name]}")


def test_every_report_takes_them(
    suite: pytest.Pytester,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with (suite.path / "conftest.py").open("a") as file:
        file.write(HOOKS)
    for path in suite.path.glob("test_*.py"):
        path.write_text(SUITE)
    monkeypatch.setenv(github.VARIABLE, str(suite.path / "summary.md"))
    result = suite.runpytest_subprocess("--ciq-json=r.json", "--junitxml=j.xml", "-Werror")
    result.assert_outcomes(passed=len(NAMES), failed=1)
    result.stdout.no_fnmatch_line("*no verdict is changed*")
    assert "\x1b" not in result.stdout.str()

    def refused(constant: str) -> None:
        raise AssertionError(constant)

    document = json.loads((suite.path / "r.json").read_text(), parse_constant=refused)
    validate(document)
    kernels = [record["kernel"] for record in document["records"] if record["check"] == "resources"]
    assert kernels == list(NAMES.values())
    extra = document["records"][0]["extra"]
    bytes_ = "b'\\xff'"
    assert extra == {"nan": None, "5": "{1}", "(1, 2)": [None], "bytes": bytes_, "text": "\udcff"}
    assert document["environment"]["site"] == {"nan": None, "None": "none"}
    cases = ET.parse(suite.path / "j.xml").getroot().iter("testcase")
    told = [case.findtext("system-out", "") for case in cases]
    assert all("ciq_resources[" in one for one in told[:-1])
    summary = (suite.path / "summary.md").read_text(encoding="utf-8")
    table = [line for line in summary.splitlines() if line.startswith("|")]
    assert len(table) == 2 + 2 * len(NAMES) + 1
    assert all(line.replace("\\|", "").count("|") == 7 for line in table)
    assert "<img" not in summary


def test_pictures_of_them(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from pytest_compileiq.report.album import Album

    album = Album(tmp_path)
    win = sim.record(sim.win("k", speedup=1.06))
    names = ["$\\frac$ $x_$", "日本語", "overview", "𠀀" * 200]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for name in names:
            assert album.draw([{**win, "kernel": name}])
        assert album.overview([{**win, "kernel": name} for name in names])
    assert len(list(tmp_path.glob("*.png"))) == len(names) + 1


@pytest.mark.parametrize("number", [10**400, float("nan"), float("-inf"), "1", None, [1], True])
def test_a_number_that_is_none(number: Any) -> None:
    record = sim.record(sim.static("k"))
    record["numbers"] = {"speedup": number, "launches": number, "speedup_interval": [number] * 2}
    assert figures.figures(record).measured == ""
    assert "| k | resources |  |  |  | " in github.markdown([record])


def test_history_of_hostile_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    records = [sim.record(sim.win(name, speedup=1.06)) for name in NAMES.values()]
    path = tmp_path / "r.json"
    _json.write(path, records)
    assert history.main([str(path), f"--plot={tmp_path}/h.png", f"--json={tmp_path}/b.json"]) == 0
    told = capsys.readouterr()
    assert told.err == ""
    assert "\x1b" not in told.out
    written = json.loads((tmp_path / "b.json").read_text())
    nodeid = records[0]["nodeid"]
    assert [entry["name"] for entry in written] == [f"{one} in {nodeid}" for one in NAMES.values()]
