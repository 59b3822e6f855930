"""Contract, canary and win on opaque objectives; each with one for which the answer is no."""

from __future__ import annotations

import json
import shutil

import pytest

from ..conftest import EXAMPLE, RunJson

# An objective that runs no compiler: it looks the ACF up by its content. What it does with a
# damaged one, and which scores it gives, differs from test to test.
TEST = """
import pathlib, pytest
from pytest_compileiq import Objective
BEST = pathlib.Path("best.acf").read_bytes().hex()
WORST = pathlib.Path("worst.acf").read_bytes().hex()

def objective(config):
    if not config:
        return {baseline}
    if config == BEST:
        return {best}
    return {worst} if config == WORST else {damaged}

{marks}
def test(ciq):
    ciq.check(Objective(objective, problem_type="{problem}"))
"""


def write(
    pytester: pytest.Pytester,
    *marks: str,
    best: str = "80",
    worst: str = "200",
    baseline: str = "100",
    damaged: str = "'*'",
    problem: str = "min",
) -> None:
    for name in ("best.acf", "worst.acf"):
        shutil.copy(EXAMPLE / name, pytester.path / name)
    lines = "\n".join(f"@pytest.mark.{mark}" for mark in marks)
    pytester.makepyfile(
        TEST.format(
            best=best, worst=worst, baseline=baseline, damaged=damaged, problem=problem, marks=lines
        )
    )


CONTRACT = ("ciq_objective", "ciq_beats_baseline")
WIN = ("ciq_beats_baseline",)
CANARY = ("ciq_canary(o0='worst.acf')",)


@pytest.mark.parametrize(
    ("marks", "answers", "reason", "message"),
    [
        (CONTRACT, {}, None, "baseline 100, best.acf 80, damaged ACF is invalid"),
        (
            CONTRACT,
            {"damaged": "1 / 0"},
            None,
            "damaged ACF raises (ZeroDivisionError: division by zero)",
        ),
        # All that is seen of an objective that no ACF ever reaches.
        (
            ("ciq_objective",),
            {"damaged": "ptxas_cmd"},
            None,
            "raises (NameError: name 'ptxas_cmd' is not defined); no good one",
        ),
        (("ciq_objective",), {}, None, "no good one was tried, which acf= would name"),
        (CONTRACT, {"best": "ptxas_cmd"}, "crashed", "NameError"),
        (CONTRACT, {"damaged": "90"}, "not-applied", "which no ptxas takes, the score 90"),
        (
            CONTRACT,
            {"damaged": "None"},
            "bad-shape",
            "damaged-best.acf the objective returned None",
        ),
        (CONTRACT, {"damaged": "__import__('os')._exit(0)"}, "crashed", "exited with status 0"),
        (
            CONTRACT,
            {"baseline": "'*'"},
            "invalid-score",
            "on the baseline the objective returned '*'",
        ),
        (CONTRACT, {"baseline": "(1.0,)"}, "bad-shape", "for one objective"),
        (CONTRACT, {"best": "True"}, "bad-shape", "on best.acf the objective returned the bool"),
        (CONTRACT, {"best": "float('nan')"}, "invalid-score", "returned nan"),
        (("ciq_objective(objectives=2)",), {"baseline": "[1, 2]"}, None, "baseline 1, 2"),
        (("ciq_objective(objectives=2)",), {"baseline": "[1]"}, "bad-shape", "for 2 objectives"),
        (WIN, {}, None, "100 on the baseline, 80 with best.acf"),
        (WIN, {"best": "100"}, "no-win", "wins nothing"),
        (WIN, {"best": "101"}, "slower", "is worse than the baseline"),
        (WIN, {"problem": "max"}, "slower", "is worse than the baseline"),
        (WIN, {"problem": "max", "best": "120"}, None, "120 with best.acf"),
        (WIN, {"best": "0"}, None, "0 with best.acf"),
        (WIN, {"baseline": "0", "best": "0"}, "no-win", "wins nothing"),
        (WIN, {"baseline": "10**400"}, "invalid-score", "an int that no float holds"),
        (WIN, {"best": "-(10**400)"}, "invalid-score", "an int that no float holds"),
        (CANARY, {"worst": "10**400"}, "invalid-score", "an int that no float holds"),
        (CONTRACT, {"baseline": "10**400"}, "invalid-score", "an int that no float holds"),
        (("ciq_beats_baseline(min_speedup=1.5)",), {"best": "100"}, "no-win", "wins nothing"),
        (WIN, {"baseline": "-100", "best": "-101"}, None, ""),  # a throughput, negated
        (WIN, {"baseline": "-100", "best": "-99"}, "slower", "is worse than the baseline"),
        (
            ("ciq_beats_baseline(min_speedup=1.5)",),
            {"baseline": "-100", "best": "-101"},
            "slower",
            "wins by 1.01x, less than min_speedup=1.5",
        ),
        (CANARY, {"baseline": "-100", "worst": "-99"}, "no-effect", "no score worse by 1.05x"),
        (WIN, {"best": "1 / 0"}, "crashed", "ZeroDivisionError"),
        (("ciq_beats_baseline(min_speedup=1.25)",), {}, None, ""),
        (("ciq_beats_baseline(min_speedup=1.26)",), {}, "slower", "wins by 1.25x, less than"),
        (WIN, {"best": "__import__('time').time()"}, "undecided", "change from call to call"),
        (WIN, {"baseline": "__import__('time').time()"}, "undecided", "change from call to call"),
        (CANARY, {}, None, "damage refused; 100 on the baseline, 200 with worst.acf"),
        (CANARY, {"worst": "104"}, "no-effect", "makes no score worse by 1.05x"),
        (CANARY, {"worst": "105"}, None, ""),
        (CANARY, {"damaged": "100"}, "not-applied", "the score 100"),
        (CANARY, {"damaged": "None"}, "bad-shape", "returned None"),
        (CANARY, {"damaged": "__import__('os')._exit(3)"}, "crashed", "exited with status 3"),
        (CANARY, {"damaged": "1 / 0"}, None, "damage refused"),
        (CANARY, {"damaged": "exit(1)"}, "crashed", "SystemExit: 1"),
        (CONTRACT, {"damaged": "exit(1)"}, "crashed", "SystemExit: 1"),
        (CANARY, {"worst": "'*'"}, "invalid-score", "worst.acf"),
        (("ciq_canary(o0='worst.acf', o3='best.acf')",), {"best": "105"}, None, ""),
        (("ciq_canary(o0='worst.acf', o3='best.acf')",), {"best": "106"}, "slower", "1.06x"),
        (("ciq_canary",), {}, "unfit", "there is no O0 ACF"),
    ],
)
def test_answers(
    pytester: pytest.Pytester,
    run_json: RunJson,
    marks: tuple[str, ...],
    answers: dict[str, str],
    reason: str | None,
    message: str,
) -> None:
    write(pytester, *marks, **answers)
    result, records = run_json()
    assert records[0]["reason"] == reason
    assert message in records[0]["message"]
    undecided = reason == "undecided"
    assert records[0]["status"] == (
        "pass" if reason is None else "undecided" if undecided else "fail"
    )
    if len(records) == 1:
        outcome = "passed" if reason is None else "skipped" if undecided else "failed"
        result.assert_outcomes(**{outcome: 1})


def test_undecided_skips_and_strict_fails(pytester: pytest.Pytester, run_json: RunJson) -> None:
    write(pytester, *WIN, best="__import__('time').time()")
    result, records = run_json()
    result.assert_outcomes(skipped=1)
    assert records[0]["status"] == "undecided"
    run_json("--ciq-strict")[0].assert_outcomes(failed=1)


def test_two_objectives_must_both_hold(pytester: pytest.Pytester, run_json: RunJson) -> None:
    marks = ("ciq_objective(objectives=2)", "ciq_beats_baseline")
    for best, reason in (("[80, 50]", None), ("[80, 51]", "slower"), ("[100, 50]", "no-win")):
        write(pytester, *marks, baseline="[100, 50]", worst="[1, 1]", best=best)
        _, records = run_json()
        assert records[1]["reason"] == reason
    # Each of them by min_speedup: 1.25x and 1.11x are not both 1.2x.
    marks = ("ciq_objective(objectives=2)", "ciq_beats_baseline(min_speedup=1.2)")
    write(pytester, *marks, baseline="[100, 50]", worst="[1, 1]", best="[80, 45]")
    assert run_json()[1][1]["reason"] == "slower"


def test_recorded_asks_for_half_of_the_win(pytester: pytest.Pytester, run_json: RunJson) -> None:
    """1.21 recorded: 1.10 is asked for, so 91 of 100 fails and 90 passes."""
    write(pytester, *WIN, best="100 / 1.21")
    run_json("--ciq-accept")[0].assert_outcomes(passed=1)
    recorded = "ciq_beats_baseline(min_speedup='recorded')"
    for best, reason in (("90", None), ("91", "slower")):
        write(pytester, recorded, best=best)
        _, records = run_json()
        assert records[0]["reason"] == reason
        assert abs(records[0]["numbers"]["min_speedup"] - 1.1) < 1e-9
    sidecar = pytester.path / "best.acf.json"
    sidecar.write_text(json.dumps({**json.loads(sidecar.read_text()), "score_ratio": 0.9}))
    write(pytester, recorded, best="90")
    _, (record,) = run_json()
    assert record["reason"] == "unfit"
    assert "records a score_ratio of 0.9, which is no win" in record["message"]
    run_json("--ciq-accept")[0].assert_outcomes(passed=1)
    assert json.loads(sidecar.read_text())["score_ratio"] == 100 / 90


@pytest.mark.parametrize("spoil", ["altered", "other ptxas"])
def test_the_sidecar_tells_why_an_objective_refused(
    pytester: pytest.Pytester, run_json: RunJson, spoil: str
) -> None:
    """The objective says "*", and the cause is the file or the toolkit, not its own score."""
    write(pytester, *WIN, best="'*'")
    sidecar = json.loads((EXAMPLE / "best.acf.json").read_text())
    if spoil == "altered":
        sidecar["sha256"] = "0" * 64
    else:
        sidecar["ptxas"] = "13.1.80"
    (pytester.path / "best.acf.json").write_text(json.dumps(sidecar))
    _, records = run_json()
    assert records[0]["reason"] == "rejected"
    said = "SHA-256 begins" if spoil == "altered" else "was made for ptxas 13.1, and ptxas 13.3"
    assert said in records[0]["message"]


@pytest.mark.parametrize("noisy", [{"baseline": "next(TICK)"}, {"worst": "next(TICK)"}])
def test_a_canary_is_not_decided_by_one_noisy_call(
    pytester: pytest.Pytester, run_json: RunJson, noisy: dict[str, str]
) -> None:
    write(pytester, *CANARY, **noisy)
    source = pytester.path / f"{pytester.path.name.rstrip('0123456789')}.py"
    (test,) = pytester.path.glob("test_*.py") if not source.exists() else (source,)
    state = pytester.path / "calls"  # each call is in a process of its own
    head = (
        "import pathlib\n"
        "def ticks():\n"
        f"    calls = pathlib.Path({str(state)!r})\n"
        "    n = len(calls.read_bytes()) if calls.exists() else 0\n"
        "    calls.open('ab').write(b'.')\n"
        "    yield 100 + n\n"
    )
    test.write_text(head + test.read_text().replace("next(TICK)", "next(ticks())"))
    result, records = run_json()
    result.assert_outcomes(skipped=1)
    (record,) = records
    assert (record["status"], record["reason"]) == ("undecided", "undecided")
    assert "change from call to call" in record["message"]


def test_three_checks_make_21_calls(pytester: pytest.Pytester, run_json: RunJson) -> None:
    """As docs/howto/objective.md says: the first call of a configuration serves them all."""
    write(pytester, "ciq_objective", *CANARY, *WIN)
    (test,) = pytester.path.glob("test_*.py")
    count = "def objective(config):\n    open('calls', 'a').write('.')  # each in its own process\n"
    test.write_text(test.read_text().replace("def objective(config):\n", count))
    run_json()[0].assert_outcomes(passed=1)
    assert len((pytester.path / "calls").read_text()) == 21


def test_a_lower_aim_makes_no_win_of_equal_scores(
    pytester: pytest.Pytester, run_json: RunJson
) -> None:
    (pytester.path / "best.acf").write_bytes(b"best")
    pytester.makepyfile(
        "def test(ciq):\n"
        "    ciq.assert_beats_baseline(lambda config: 1.0, 'best.acf', min_speedup=1.5)\n"
    )
    _, (record,) = run_json()
    assert record["reason"] == "no-win"
    assert record["remedy"].startswith("drop the ACF")
