"""The checks of the GPU tier in whole sessions: a fake NVML, and a site that times by itself.

No CUDA is needed: the kernels have no ``check``, their launches do nothing, and the times come
from ``pytest_ciq_time_block``.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_compileiq.measure.samples import replay
from pytest_compileiq.toolchain.ptxas import Ptxas
from tests.conftest import DATA, EXAMPLE
from tests.fake_nvml.machine import RESET, SET, Machine

from .sessions import Session

CONFTEST = """
import pytest, random
from pytest_compileiq import Build, PtxKernel
from pytest_compileiq.checks.timing import Stopwatch

TIMES = {}
NOISE = random.Random(1)
# With other coins each run, what is the same would win in some of them, as the error rate allows.
Stopwatch.new_seed = staticmethod(lambda: 1)
JITTER = [0.01]

class Simulated(PtxKernel):
    \"\"\"Built by ptxas, timed by the hook below.\"\"\"
    def _built(self, answer):
        nothing = lambda: None
        return Build(answer.cubin, answer.log, nothing, lambda buffers: nothing)

def pytest_ciq_time_block(config, kernel, arm, launch):
    launch()
    return TIMES[arm] * NOISE.gauss(1, JITTER[0])

@pytest.fixture
def kernel():
    return Simulated("sgemm.ptx", arch="sm_90")
"""
HEADER = "import pytest\nfrom conftest import TIMES, JITTER, Simulated\n"

Run = Callable[..., tuple[Session, list[dict[str, Any]]]]


@pytest.fixture
def run(machine: Machine, folder: Path, tmp_path: Path, ptxas: Ptxas) -> Run:
    suite = tmp_path / "suite"
    suite.mkdir()
    for name in ("sgemm.ptx", "best.acf", "best.acf.json", "worst.acf", "worst.acf.json"):
        shutil.copy(EXAMPLE / name, suite)
    (suite / "conftest.py").write_text(CONFTEST)

    def go(source: str, *args: str) -> tuple[Session, list[dict[str, Any]]]:
        report = suite / "r.json"
        session = Session(
            machine, folder, suite, HEADER + source, f"--ciq-ptxas={ptxas.path}",
            f"--ciq-json={report}", "-rs", *args,
        )  # fmt: skip
        session.wait()
        return session, json.loads(report.read_text())["records"]

    return go


WIN = """
@pytest.mark.ciq_beats_baseline("best.acf", min_speedup={minimum})
def test_win(ciq, kernel):
    TIMES.update({{"baseline": 1e-3, "best.acf": 1e-3 / {speedup}}})
    ciq.check(kernel)
"""


@pytest.mark.parametrize(
    ("speedup", "minimum", "status", "reason"),
    [
        (1.05, 1.0, "pass", None),
        (1.05, 1.02, "pass", None),
        (1.05, 1.2, "fail", "slower"),
        (0.95, 1.0, "fail", "slower"),
        (1.0, 1.0, "fail", "no-win"),
    ],
)
def test_win(run: Run, speedup: float, minimum: float, status: str, reason: str | None) -> None:
    session, (record,) = run(WIN.format(minimum=minimum, speedup=speedup))
    assert (record["status"], record["reason"]) == (status, reason), session.text()
    numbers = record["numbers"]
    assert numbers["timed"] is True
    assert numbers["speedup"] == pytest.approx(speedup, rel=0.02)
    low, high = numbers["speedup_interval"]
    assert low < numbers["speedup"] < high
    if reason != "no-win":
        assert numbers["blocks"] <= 60
    assert numbers["blocks"] == 16 + 4 * numbers["units"]
    assert f"{numbers['blocks']} launches" in record["message"]
    # The record alone gives the same verdict again.
    (sample,) = record["samples"]
    again = replay(sample)
    assert not again.differences
    assert again.recomputed["status"] == status
    assert sample["seed"] == numbers["seed"]


def test_undecided_skips_and_fails_under_strict(run: Run) -> None:
    source = "JITTER[0] = 0.05\n" + WIN.format(minimum=1.0, speedup=1.001)
    session, (record,) = run(source, "--ciq-budget=0.01")
    assert (record["status"], record["reason"]) == ("undecided", "undecided"), session.text()
    assert "1 skipped" in session.text()
    assert "raise --ciq-budget" in record["remedy"]
    session, _ = run(source, "--ciq-budget=0.01", "--ciq-strict")
    assert "1 failed" in session.text()


def test_canary_o0_and_o3(run: Run) -> None:
    source = """
@pytest.mark.ciq_canary(o0="worst.acf", o3="best.acf")
@pytest.mark.parametrize("o0, o3", [(2.0, 1.0), (1.0, 1.0), (2.0, 1.2)])
def test_canary(ciq, kernel, o0, o3):
    TIMES.update({"baseline": 1e-3, "worst.acf": 1e-3 * o0, "best.acf": 1e-3 * o3})
    ciq.check(kernel)
"""
    session, records = run(source)
    told = [(record["status"], record["reason"]) for record in records]
    assert told == [("pass", None), ("fail", "no-effect"), ("fail", "slower")], session.text()
    good = records[0]["numbers"]
    assert good["timed_o0"]["speedup"] == pytest.approx(0.5, rel=0.02)
    assert good["timed_o0"]["blocks"] + good["timed_o3"]["blocks"] <= 120
    assert len(records[0]["samples"]) == 2
    assert "this test does not see what the compiler does" in records[1]["remedy"]
    # The chance of a wrong failure is shared among the three tests.
    assert records[0]["samples"][0]["rule"]["alpha_fail"] == pytest.approx(0.01 / 3)


def test_a_canary_asks_what_its_mark_asks(run: Run) -> None:
    source = """
def test_canary(ciq, kernel):
    TIMES.update({"baseline": 1e-3, "worst.acf": 2e-3, "best.acf": 1.2e-3})
    acfs = {"o0": "worst.acf", "o3": "best.acf"}
    ciq.assert_canary(kernel, **acfs, margin=1.5, tolerance=0.3)
    ciq.assert_canary(kernel, **acfs, margin=3, tolerance=0.3)
"""
    session, records = run(source)
    told = [(record["status"], record["reason"]) for record in records]
    assert told == [("pass", None), ("fail", "no-effect")], session.text()


def test_a_canary_that_changes_nothing_is_not_timed(run: Run, tmp_path: Path) -> None:
    """Whatever the times say: it is the baseline's own code that took them."""
    shutil.copy(DATA / "nvcc.acf", tmp_path / "suite" / "none.acf")
    source = """
def test_canary(ciq, kernel):
    TIMES.update({"baseline": 1e-3, "none.acf": 2e-3})
    ciq.assert_canary(kernel, o0="none.acf")
"""
    session, (record,) = run(source)
    assert (record["status"], record["reason"]) == ("fail", "no-effect"), session.text()
    assert "samples" not in record or not record["samples"]


def test_raw_flags_whose_o3_is_the_baseline_is_not_timed(run: Run) -> None:
    source = """
def test_canary(ciq, kernel):
    TIMES.update({"baseline": 1e-3, "raw -O0": 3e-3})
    ciq.assert_canary(kernel)
"""
    session, (record,) = run(source)
    assert record["status"] == "pass", session.text()
    assert "raw -O3 is the baseline's code" in record["message"]
    assert "timed_o3" not in record["numbers"]


def test_cv(run: Run) -> None:
    source = """
@pytest.mark.parametrize("jitter", [0.01, 0.06])
def test_cv(ciq, kernel, jitter):
    JITTER[0] = jitter
    TIMES["baseline"] = 1e-3
    ciq.assert_stable(kernel, 3)
"""
    session, (steady, noisy) = run(source)
    assert steady["status"] == "pass", session.text()
    assert steady["numbers"]["launches"] <= 150
    assert "std/mean" in steady["message"]
    assert (noisy["status"], noisy["reason"]) == ("fail", "noisy")
    assert "above it: jitter" in noisy["message"]
    assert not replay(noisy["samples"][0]).differences


def test_the_gpu_is_locked_once_a_test_and_given_back(run: Run, machine: Machine) -> None:
    source = """
def test_two_checks(ciq, kernel):
    TIMES.update({"baseline": 1e-3, "best.acf": 0.9e-3, "raw -O0": 3e-3})
    ciq.assert_canary(kernel)
    ciq.assert_beats_baseline(kernel, "best.acf")
"""
    for args in ([], ["--ciq-isolate=off"]):
        session, records = run(source, *args)
        assert [record["status"] for record in records] == ["pass", "pass"], session.text()
    assert len(machine.log(SET)) == len(machine.log(RESET)) == 2
    assert machine.free
    assert "2 tests" not in session.text()


def test_disturbed_units_are_thrown_away(run: Run, machine: Machine) -> None:
    machine.gpus[0].extra_reasons = 0x40
    session, (record,) = run(WIN.format(minimum=1.0, speedup=1.05))
    assert (record["status"], record["reason"]) == ("undecided", "unfit"), session.text()
    assert record["numbers"]["rejected_for"] == ["hardware thermal slowdown"]
    assert "too many units were disturbed" in record["message"]


def test_a_kernel_without_a_launch_is_unfit(run: Run) -> None:
    source = """
from pytest_compileiq import PtxKernel
@pytest.mark.ciq_beats_baseline("best.acf")
def test_it(ciq):
    ciq.check(PtxKernel("sgemm.ptx", arch="sm_90"))
"""
    session, (record,) = run(source)
    assert (record["status"], record["reason"]) == ("undecided", "unfit"), session.text()
    assert "grid=, block=, args=" in record["remedy"]


def test_accept_records_what_was_measured(run: Run, tmp_path: Path) -> None:
    session, _ = run(WIN.format(minimum=1.0, speedup=1.05), "--ciq-accept")
    assert "1 passed" in session.text(), session.text()
    written = json.loads((tmp_path / "suite" / "best.acf.json").read_text())
    low, high = written["speedup_interval"]
    assert 1 < low < written["speedup"] < high < 1.1
    assert written["gpu"] == "NVIDIA Fake H100"
    assert re.fullmatch(r"\d+\.\d+(\.\d+)?", written["driver"]), written
    # Half of that win, in log terms, is what "recorded" asks for.
    _, (record,) = run(WIN.format(minimum="'recorded'", speedup=1.05))
    assert record["status"] == "pass"
    assert record["numbers"]["min_speedup"] == pytest.approx(written["speedup"] ** 0.5)


@pytest.mark.parametrize("isolate", ["auto", "off"])
def test_clocks_that_are_not_given_back_leave_what_was_measured(
    run: Run, machine: Machine, tmp_path: Path, isolate: str
) -> None:
    """The test errs, its verdicts keep their samples, and --ciq-accept writes nothing."""
    machine.rule(RESET, ret=15)
    sidecar = tmp_path / "suite" / "best.acf.json"
    before = sidecar.read_bytes()
    source = "@pytest.mark.ciq_max_cv(20)" + WIN.format(minimum=1.0, speedup=1.25)
    session, records = run(source, f"--ciq-isolate={isolate}", "--ciq-accept")
    assert "1 passed, 1 error" in session.text(), session.text()
    found = [(one["check"], one["kernel"], one["status"], bool(one["samples"])) for one in records]
    kernel = records[0]["kernel"]
    assert sorted(found) == [("cv", kernel, "pass", True), ("win", kernel, "pass", True)]
    assert kernel != "test_win"
    assert sidecar.read_bytes() == before


def test_compare_gives_the_mark_s_verdict(run: Run) -> None:
    source = """
def test_it(ciq, kernel):
    TIMES.update({"baseline": 1e-3, "best.acf": 0.9e-3})
    found = ciq.compare(kernel, "best.acf", min_speedup=1.05)
    assert found.verdict.status == "pass"
    assert 1.08 < found.speedup < 1.14
    assert found.interval[0] < found.speedup < found.interval[1]
    slower = ciq.compare(kernel, "best.acf", min_speedup=1.5)
    assert (slower.verdict.status, slower.verdict.reason) == ("fail", "slower")
"""
    session, records = run(source)
    assert "1 passed" in session.text(), session.text()
    assert not records


def test_a_noisy_objective_is_repeated(run: Run) -> None:
    source = """
import random
R = random.Random(3)
@pytest.mark.parametrize("gain", [1.2, 0.8])
def test_it(ciq, gain):
    def objective(config):
        import os, random
        return random.Random(os.urandom(4)).gauss(1, 0.01) / (gain if config else 1)
    ciq.assert_beats_baseline(objective, "best.acf")
"""
    session, (better, worse) = run(source)
    assert (better["status"], better["reason"]) == ("pass", None), session.text()
    assert better["numbers"]["calls"] == 10
    assert (worse["status"], worse["reason"]) == ("fail", "slower")
    assert not replay(better["samples"][0]).differences


def test_a_noisy_objective_s_canary(run: Run) -> None:
    source = """
@pytest.mark.parametrize("o0, o3", [(2.0, 1.0), (1.0, 1.0), (2.0, 1.3)])
def test_it(ciq, o0, o3):
    marks = {open(name, "rb").read().hex(): factor
             for name, factor in (("worst.acf", o0), ("best.acf", o3))}
    def objective(config):
        import os, random
        if config and config not in marks:
            return "*"
        return random.Random(os.urandom(4)).gauss(1, 0.01) * marks.get(config or "", 1)
    ciq.assert_canary(objective, o0="worst.acf", o3="best.acf")
"""
    source = source.replace('config or ""', "str(config)")
    session, records = run(source)
    told = [(record["status"], record["reason"]) for record in records]
    assert told == [("pass", None), ("fail", "no-effect"), ("fail", "slower")], session.text()
    assert len(records[0]["samples"]) == 2


def test_clocks_that_did_not_hold_fail_under_require(run: Run, machine: Machine) -> None:
    machine.gpus[0].busy = 1
    machine.gpus[0].extra_reasons = 0x4  # a power cap, for which no unit is thrown away
    session, (record,) = run(WIN.format(minimum=1.0, speedup=1.05), "--ciq-clocks=require")
    assert record["status"] == "pass", session.text()
    assert "--ciq-clocks=require, and the GPU was throttled" in session.text()
    assert "Traceback" not in session.text()


def test_a_hook_that_gives_no_time(run: Run, tmp_path: Path) -> None:
    conftest = tmp_path / "suite" / "conftest.py"
    conftest.write_text(
        CONFTEST.replace("return TIMES[arm] * NOISE.gauss(1, JITTER[0])", "return None")
    )
    session, (record,) = run(WIN.format(minimum=1.0, speedup=1.05))
    assert record["status"] == "fail", session.text()
    assert "pytest_ciq_time_block returned None" in record["message"]


def test_a_slow_noisy_objective_ends_before_its_process_is_killed(run: Run) -> None:
    """Two checks repeat one after the other, within the one limit of an isolated test."""
    source = """
import os, random
def objective(config):
    if config and config != open("best.acf", "rb").read().hex():
        return "*"
    time.sleep(0.2)
    return random.Random(os.urandom(4)).gauss(1, 0.01)

@pytest.mark.ciq_canary(o0="best.acf")
@pytest.mark.ciq_beats_baseline("best.acf")
def test_it(ciq):
    try:
        ciq.assert_canary(objective, o0="best.acf", margin=1)
    except pytest.skip.Exception:
        pass
    ciq.assert_beats_baseline(objective, "best.acf")
"""
    session, records = run(source, "--ciq-timeout=12")
    assert [record["reason"] for record in records] == ["undecided"] * 2, session.text()
    assert "1 skipped" in session.text()
    assert "than time allows" in records[1]["message"]


def test_an_isolated_objective_that_hangs_is_ended_alone(run: Run) -> None:
    """The call ends before its test has to: what is set up is torn down, and the ACF is named."""
    source = """
@pytest.fixture
def torn_down():
    yield
    said("down")

@pytest.mark.ciq_beats_baseline("best.acf")
def test_it(torn_down, ciq):
    ciq.check(lambda config: time.sleep(60) if config else 1)
"""
    session, (record,) = run(source, "--ciq-timeout=4")
    assert (record["status"], record["reason"]) == ("fail", "hung"), session.text()
    assert re.search(r"did not return within 3\.\d+ s on best.acf", record["message"])
    assert session.pid_of("down")
