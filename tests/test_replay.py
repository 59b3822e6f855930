"""``python -m pytest_compileiq replay``: what people read in a record is what its samples say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_compileiq.replay import main
from pytest_compileiq.verdict import Verdict
from tests.report import simulated as sim


def document(tmp_path: Path, **changed: Any) -> str:
    """A report of two records: a win whose parts are ``changed``, and a static check."""
    win = sim.record(sim.win("softmax", speedup=1.06))
    numbers = {**win["numbers"], **changed.pop("numbers", {})}
    path = tmp_path / "r.json"
    records = [{**win, "numbers": numbers, **changed}, sim.record(sim.static("sgemm"))]
    path.write_text(json.dumps({"records": records}))
    return str(path)


def test_as_it_was_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = document(tmp_path)
    assert main([path]) == 0
    told = "1 of 1 records came out again; 1 beside them have no samples\n"
    assert capsys.readouterr().out.endswith(f"{path}: {told}")


@pytest.mark.parametrize(
    "verdict",
    [
        sim.canary("k"),
        sim.cv("k"),
        sim.cv("k", noise=0.1),
        sim.objective("f"),
        sim.win("k", speedup=0.98, noise=0.01),
        sim.win("k", speedup=1.021, noise=0.05),
    ],
    ids=["canary", "cv", "noisy", "objective", "slower", "undecided"],
)
def test_what_each_check_writes_comes_out_again(tmp_path: Path, verdict: Verdict) -> None:
    path = tmp_path / "r.json"
    path.write_text(json.dumps({"records": [sim.record(verdict)]}))
    assert main([str(path)]) == 0


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"numbers": {"speedup": 9.99}}, "numbers.speedup is 9.99, the sample says 1.0"),
        ({"numbers": {"speedup_interval": [2.0, 3.0]}}, "numbers.speedup_interval is [2.0, 3.0]"),
        ({"numbers": {"units": 1}}, "numbers.units is 1, the sample says"),
        ({"reason": "slower"}, "reason is 'slower', the sample says None"),
        ({"status": "fail"}, "the samples say pass, the record says fail"),
        ({"samples": {"a": 1}}, "samples is no list: {'a': 1}"),
        ({"samples": "many"}, "samples is no list: 'many'"),
    ],
)
def test_what_was_changed_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changed: dict[str, Any], told: str
) -> None:
    assert main(["-q", document(tmp_path, **changed)]) == 1
    out = capsys.readouterr().out
    assert told in out
    assert "0 of 1 records came out again" in out


def test_a_pass_without_its_samples_is_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = document(tmp_path, samples=[])
    assert main([path]) == 2
    told = capsys.readouterr().err
    assert f"{path}: nothing was measured in it\n  to do: give the report of a run with --" in told
