"""``--ciq-gpu`` and isolation together: pytest holds the GPU, the test's own process uses it."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from tests.fake_nvml.machine import RESET, SET, Machine

from .sessions import Session

DYING = """
MAIN = os.getpid()

def test_segv(ciq_gpu):
    assert os.getpid() != MAIN
    from pytest_compileiq.isolation.child import progress
    progress("best.acf", kernel="attn", check="win")
    ctypes.string_at(0)

def test_hang(ciq_gpu):
    wait()

def test_leaves_a_process(ciq_gpu):
    if not os.fork():
        os.setsid()
        wait()

def test_env(ciq_gpu):
    assert os.environ["CUDA_VISIBLE_DEVICES"] == ciq_gpu.uuid

def test_plain():
    assert os.getpid() == MAIN
"""


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "n2"])
def test_a_death_costs_neither_the_gpu_nor_its_clocks(
    machine: Machine, folder: Path, tmp_path: Path, workers: list[str]
) -> None:
    args = ["--ciq-timeout=2", "--ciq-json=r.json", "-rfE", *workers]
    session = Session(machine, folder, tmp_path / "suite", DYING, *args)
    assert session.wait() == 1
    text = session.text()
    assert "3 passed" in text, text
    assert "2 failed" in text
    assert "crashed at arm best.acf of attn (win): its process was killed by SIGSEGV" in text
    assert "hung: no end after 2 s, and its process was killed" in text
    records = json.loads((tmp_path / "suite" / "r.json").read_text())["records"]
    assert sorted(record["reason"] for record in records) == ["crashed", "hung"]
    # Each of the four tests that used the GPU had its clocks locked and given back.
    assert len(machine.log(SET)) == len(machine.log(RESET)) == 4
    assert machine.free


def test_every_call_that_changes_clocks_is_outside_of_the_tests(
    machine: Machine, folder: Path, tmp_path: Path
) -> None:
    """Else a death by SIGKILL would take with it who has to reset them."""
    source = "def test_it(ciq_gpu):\n    said('child')\n    wait(0.2)\n"
    session = Session(machine, folder, tmp_path / "suite", source)
    assert session.wait() == 0, session.text()
    child = session.pid_of("child")
    assert child not in {call.pid for call in machine.log(SET, RESET)}
    assert child != os.getpid()


def test_without_isolation_it_runs_in_pytest(
    machine: Machine, folder: Path, tmp_path: Path
) -> None:
    source = "MAIN = os.getpid()\ndef test_it(ciq_gpu): assert os.getpid() == MAIN\n"
    session = Session(machine, folder, tmp_path / "suite", source, "--ciq-isolate=off")
    assert session.wait() == 0, session.text()
    assert machine.free


def test_what_forbids_isolation_is_said(machine: Machine, folder: Path, tmp_path: Path) -> None:
    """A crash would end the whole run, so ``auto`` must not give isolation up in silence."""
    source = "MAIN = os.getpid()\ndef test_it(ciq_gpu): assert os.getpid() == MAIN\n"
    session = Session(machine, folder, tmp_path / "suite", source, "--setup-only", "-v")
    assert session.wait() == 0, session.text()
    text = "tests are not isolated: --setup-only needs the tests in pytest's own process"
    assert text in session.text()
