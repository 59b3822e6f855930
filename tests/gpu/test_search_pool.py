"""A search's workers, each on a GPU of its own, and never on one that somebody else holds."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_compileiq.gpu.lease import Lease
from tests.fake_nvml.machine import RESET, SET

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
"""


@pytest.mark.parametrize("isolate", ["auto", "off"])
def test_each_worker_has_a_gpu_of_its_own(
    new_machine: NewMachine, folder: Path, tmp_path: Path, isolate: str
) -> None:
    machine = new_machine(gpus=2, asked=(0, 1))
    session = Session(
        machine, folder, tmp_path / "run", SEARCH, "-s", f"--ciq-isolate={isolate}", gpu="0,1"
    )
    assert session.wait() == 0, session.text()
    assert "GPUS [0, 1] []" in session.text()
    assert len(machine.log(SET)) == len(machine.log(RESET)) == 2
    assert machine.free


def test_a_gpu_in_use_is_left_alone(new_machine: NewMachine, folder: Path, tmp_path: Path) -> None:
    machine = new_machine(gpus=2, asked=(0, 1))
    with Lease(gpu_of(machine, 1), 5.0, folder, label="somebody else"):
        session = Session(machine, folder, tmp_path / "run", SEARCH, "-s", gpu="0,1")
        assert session.wait() == 0, session.text()
    assert "GPUS [0] ['1 workers, not 2: so many GPUs were free']" in session.text()
