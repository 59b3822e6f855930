"""A search's workers, each on a GPU of its own, and never on one that somebody else holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_compileiq.gpu.lease import Lease
from tests.fake_nvml.machine import RESET, SET, Machine

from .conftest import NewMachine, gpu_of
from .sessions import Session

SEARCH = """
from compileiq.search_spaces import base as ss

def objective(config):
    time.sleep(0.05)
    return int(os.environ["CUDA_VISIBLE_DEVICES"].split("-")[1], 16)

def test_search(ciq_search):
    search = ciq_search(objective, {"x": ss.range(0, 99, 1)}, generations=1, pool_size=8, workers=2)
    print("GPUS", sorted(set(search.start().get_results()["score_1"])), search.notes)

def test_next():
    ctypes.CDLL("libnvidia-ml.so.1").fake_mark(b"next", 0)
"""


@pytest.mark.parametrize("isolate", ["auto", "off"])
def test_each_worker_has_a_gpu_of_its_own(
    new_machine: NewMachine, folder: Path, tmp_path: Path, isolate: str
) -> None:
    machine = new_machine(gpus=2, asked=(0, 1))
    options = ("-s", "-p", "no:randomly", f"--ciq-isolate={isolate}")
    session = Session(machine, folder, tmp_path / "run", SEARCH, *options, gpu="0,1")
    assert session.wait() == 0, session.text()
    assert "GPUS [0, 1] []" in session.text()
    # Both are given back when the test of the search ends.
    calls = [call.fn for call in machine.log(SET, RESET, "next")]
    assert calls == [SET, SET, RESET, RESET, "next"]
    assert machine.free


def test_clocks_that_are_not_given_back_fail_the_search_that_held_them(
    machine: Machine, folder: Path, tmp_path: Path
) -> None:
    machine.rule(RESET, ret=15)
    session = Session(machine, folder, tmp_path / "run", SEARCH, "--ciq-isolate=off")
    assert session.wait() == 1, session.text()
    assert "2 passed, 1 error" in session.text()
    assert "could not be reset (codes {'sm': 15})" in session.text()
    assert "searching.py" not in session.text()  # the text says it all, without a traceback


def test_a_gpu_in_use_is_left_alone(new_machine: NewMachine, folder: Path, tmp_path: Path) -> None:
    machine = new_machine(gpus=2, asked=(0, 1))
    with Lease(gpu_of(machine, 1), 5.0, folder, label="somebody else"):
        session = Session(machine, folder, tmp_path / "run", SEARCH, "-s", gpu="0,1")
        assert session.wait() == 0, session.text()
    assert "GPUS [0] ['1 workers, not 2: so many GPUs were free']" in session.text()
