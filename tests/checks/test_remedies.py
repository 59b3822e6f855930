"""What a message tells people to do, done: it works, and no fault is lost on the way there."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pytest_compileiq.isolation.crash import remedy_at
from pytest_compileiq.isolation.messages import AGAINST, Progress
from pytest_compileiq.subjects import objective
from pytest_compileiq.subjects.kernel import BASELINE
from pytest_compileiq.toolchain.acf import Acf

from ..conftest import RunJson

ALTERED = '{"sha256": "0", "size_bytes": 1, "ptxas": "13.3.73"}'
OBJECTIVE = """
import pathlib, pytest
A, B = (pathlib.Path(f"{name}.acf").read_bytes().hex() for name in "ab")
def objective(config):
    return 2 if not config else 1 if config == A else 3 if config == B else "*"
"""


@pytest.mark.parametrize(
    ("mark", "altered"),
    [
        ("ciq_resources(max_spill_bytes=9999, acf='best.acf')", "best.acf"),
        ("ciq_canary(o0='b.acf')", "b.acf"),
        ("ciq_canary(o0='b.acf', o3='a.acf')", "a.acf"),
        ("ciq_beats_baseline('a.acf')", "a.acf"),
        ("ciq_beats_baseline('a.acf', min_speedup='recorded')", "a.acf"),
    ],
    ids=["resources", "o0", "o3", "win", "recorded"],
)
def test_accept_is_of_use_wherever_it_is_offered(
    sgemm: pytest.Pytester, run_json: RunJson, mark: str, altered: str
) -> None:
    for name in "ab":
        (sgemm.path / f"{name}.acf").write_bytes(name.encode() * 1000)
    subject = "PtxKernel('sgemm.ptx', arch='sm_90')" if "resources" in mark else "objective"
    sgemm.makepyfile(
        f"{OBJECTIVE}\nfrom pytest_compileiq import PtxKernel\n@pytest.mark.{mark}\n"
        f"def test(ciq): ciq.check({subject})"
    )
    sidecar = sgemm.path / f"{altered}.json"
    sidecar.write_text(ALTERED)
    result, (record,) = run_json()
    result.assert_outcomes(failed=1)
    assert "--ciq-accept" in record["remedy"]
    run_json("--ciq-accept")[0].assert_outcomes(passed=1)
    assert json.loads(sidecar.read_text())["size_bytes"] > 1
    run_json()[0].assert_outcomes(passed=1)


def test_accept_leaves_nvidia_s_files_alone(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    pack = sgemm.path / "pack"
    pack.mkdir()
    (pack / "O0.acf").write_bytes(b"b" * 1000)
    for name in "ab":
        (sgemm.path / f"{name}.acf").write_bytes(name.encode() * 1000)
    sgemm.makepyfile(
        OBJECTIVE + "@pytest.mark.ciq_canary(o3='a.acf')\ndef test(ciq): ciq.check(objective)"
    )
    run_json("--ciq-accept", "--ciq-debug-pack=pack")[0].assert_outcomes(passed=1)
    assert (sgemm.path / "a.acf.json").exists()
    assert not (pack / "O0.acf.json").exists()


FLASHINFER = (
    OBJECTIVE
    + """
import sys, types
sys.modules["flashinfer"] = types.ModuleType("flashinfer")
env = sys.modules["flashinfer.jit.env"] = types.ModuleType("flashinfer.jit.env")
env.FLASHINFER_BASE_DIR = pathlib.Path("/home/me")

def noisy(config):
    import os
    return int.from_bytes(os.urandom(4))

@pytest.fixture(autouse=True)
def workspace(monkeypatch):
    monkeypatch.setenv("FLASHINFER_WORKSPACE_BASE", "/elsewhere")

@pytest.mark.ciq_beats_baseline("{acf}")
def test(ciq): ciq.check({subject})
"""
)


@pytest.mark.parametrize(
    ("subject", "acf", "reason", "messages"),
    [
        ("objective", "a.acf", None, []),
        ("objective", "b.acf", "unfit", ["flashinfer was imported", "why: slower: b.acf is worse"]),
        ("noisy", "a.acf", "unfit", ["flashinfer was imported", "undecided: the scores change"]),
        ("lambda config: 1 / 0", "a.acf", "crashed", ["ZeroDivision", "besides, flashinfer was"]),
        ("objective", "c.acf", "rejected", ["does not exist; besides, flashinfer was imported"]),
    ],
)
def test_a_doubtful_cache_hides_no_other_fault(
    pytester: pytest.Pytester,
    run_json: RunJson,
    subject: str,
    acf: str,
    reason: str | None,
    messages: list[str],
) -> None:
    """The graver of the two is the reason, and both are told with what to do."""
    for name in "ab":
        (pytester.path / f"{name}.acf").write_bytes(name.encode() * 1000)
    pytester.makepyfile(FLASHINFER.replace("{acf}", acf).replace("{subject}", subject))
    result, (record,) = run_json()
    assert record["reason"] == reason
    if reason is None:  # whatever FlashInfer is here for, this ACF did something
        result.assert_outcomes(passed=1)
        return
    result.assert_outcomes(failed=1)
    assert record["status"] == "fail"
    for message in messages:
        assert message in record["message"]
    assert "import flashinfer inside the test" in record["remedy"]
    result, _ = run_json("--ciq-disable")
    result.assert_outcomes(**({"failed": 1} if reason == "crashed" else {"passed": 1}))


def test_an_objective_s_baseline_is_the_baseline_in_progress(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """So that a crash there is known to be the objective's own."""
    said: list[str] = []
    monkeypatch.setattr(objective.child, "progress", lambda arm, **_: said.append(arm))
    bench = objective.ObjectiveBench(
        objective.Objective(lambda config: 1, contained=False),
        objectives=1,
        timeout=9,
        in_all=lambda: 9,
        ptxas=None,
    )
    bench.evaluate(None)
    bench.repeat(Acf(Path("best.acf"), b"acf"))
    assert said == [BASELINE.name, "best.acf"]


@pytest.mark.parametrize(
    ("arm", "check", "remedy"),
    [
        ("", "", "no arm had been announced"),
        (BASELINE.name, "win", "the kernel itself is at fault"),
        ("best.acf", "win", "do not ship best.acf"),
        (AGAINST.join(["baseline", "best.acf"]), "win", "dies without best.acf, too, mend it"),
        ("raw -O0", "canary", "no one's to ship"),
        (AGAINST.join(["baseline", "O0.acf", "O3.acf"]), "canary", "no one's to ship"),
        ("the search for a new ACF", "win", "look at what the search for a new ACF does"),
    ],
)
def test_what_to_do_about_a_crash(arm: str, check: str, remedy: str) -> None:
    assert remedy in remedy_at(Progress(arm, "kernel", check))
