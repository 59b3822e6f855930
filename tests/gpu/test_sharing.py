"""Several runs and workers on few GPUs: one holder at a time, nobody waits for ever."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.fake_nvml.machine import RESET, SET, Call, Machine
from tests.gpu.conftest import NewMachine
from tests.gpu.sessions import Session

#: Each test writes into the machine's log when it holds which GPU.
SOURCE = """
library = ctypes.CDLL("libnvidia-ml.so.1")

@pytest.mark.parametrize("n", range(4))
def test_hold(ciq_gpu, n):
    library.fake_mark(b"enter", ciq_gpu.gpu.index)
    time.sleep(0.02)
    library.fake_mark(b"leave", ciq_gpu.gpu.index)
"""


def assert_one_holder_at_a_time(calls: Sequence[Call], tests: int) -> None:
    """From the log alone: between an "enter" and its "leave" no one else acts as the holder."""
    inside: dict[int, int] = {}
    locked: dict[int, int] = {}
    entered = 0
    for call in calls:
        if call.fn == "enter":
            assert call.gpu not in inside, f"two tests hold GPU {call.gpu}: {call}"
            inside[call.gpu] = call.pid
            entered += 1
        elif call.fn == "leave":
            assert inside.pop(call.gpu) == call.pid
        elif call.fn == SET and not call.ret:
            assert call.gpu not in inside, f"GPU {call.gpu} was set under a running test: {call}"
            assert call.gpu not in locked
            locked[call.gpu] = call.pid
        elif call.fn == RESET:
            assert call.gpu not in inside, f"GPU {call.gpu} was reset under a running test: {call}"
            assert locked.pop(call.gpu) == call.pid
    assert not inside
    assert not locked
    assert entered == tests


def share(machine: Machine, leases: Path, folder: Path) -> set[int]:
    """Two runs of two workers each; returns the GPUs that were used."""
    runs = [
        Session(machine, leases, folder / f"run{number}", SOURCE, "-n2", gpu="0,1")
        for number in range(2)
    ]
    try:
        for run in runs:
            assert run.wait() == 0, run.text()
    finally:
        for run in runs:
            run.kill()
    calls = machine.log("enter", "leave", SET, RESET)
    assert_one_holder_at_a_time(calls, tests=8)
    return {call.gpu for call in calls if call.fn == "enter"}


@pytest.mark.parametrize("rounds", [1, pytest.param(100, marks=pytest.mark.slow)])
@pytest.mark.parametrize("admin", [True, False], ids=["may-lock", "may-not"])
def test_two_runs_and_four_workers_on_two_gpus(
    rounds: int, admin: bool, new_machine: NewMachine, folder: Path, tmp_path: Path
) -> None:
    if rounds > 1 and not admin:
        pytest.skip("the lease is the same; the rounds that count are those with locks")
    machine = new_machine(gpus=2, admin=admin, asked=(0, 1))
    used: set[int] = set()
    for number in range(rounds):
        where = tmp_path / f"round{number}"
        where.mkdir()
        used |= share(machine, folder, where)
        machine.start_new_log()
    assert machine.free
    assert used == {0, 1}


def test_the_check_sees_two_holders() -> None:
    """The guard above can fail."""
    log = [Call(1, 10, "enter", 0, 0, 0, 0), Call(2, 11, "enter", 0, 0, 0, 0)]
    with pytest.raises(AssertionError, match="two tests hold GPU 0"):
        assert_one_holder_at_a_time(log, 2)
    log = [Call(1, 10, "enter", 0, 0, 0, 0), Call(2, 11, SET, 0, 1500, 1500, 0)]
    with pytest.raises(AssertionError, match="under a running test"):
        assert_one_holder_at_a_time(log, 1)
