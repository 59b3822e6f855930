"""One test, one lease: whoever of its fixtures comes to the GPU first, and whoever ends first."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fake_nvml.machine import RESET, SET

from .conftest import NewMachine
from .sessions import Session

SOURCE = """
from compileiq.search_spaces import base as ss

library = ctypes.CDLL("libnvidia-ml.so.1")

def objective(config):
    return "*" if isinstance(config, str) else 1 + config.get("x", 0)

@pytest.fixture
def between():
    yield  # after the teardown of ciq, and before that of ciq_search, or the other way round
    library.fake_mark(b"between", 0)

def use(ciq, ciq_search, first):
    for what in sorted(("search", "time"), key=lambda what: what != first):
        if what == "time":
            ciq.assert_objective(objective)
        else:
            space = {"x": ss.range(0, 9, 1)}
            ciq_search(objective, space, generations=1, pool_size=6, workers=1).start()
        library.fake_mark(b"used", 0)

@pytest.mark.parametrize("first", ["search", "time"])
def test_the_search_ends_last(ciq_search, between, ciq, first):
    use(ciq, ciq_search, first)

@pytest.mark.parametrize("first", ["search", "time"])
def test_the_search_ends_first(ciq, between, ciq_search, first):
    use(ciq, ciq_search, first)

def test_nothing_is_left_behind():
    assert "PYTEST_CIQ_HELD_GPU" not in os.environ
    assert "," not in os.environ["CUDA_VISIBLE_DEVICES"]
"""


@pytest.mark.parametrize("isolate", ["off", "auto"])
def test_a_search_and_a_check_share_one_lease(
    new_machine: NewMachine, folder: Path, tmp_path: Path, isolate: str
) -> None:
    """Neither waits for the other, and the first to end does not take the GPU from the other."""
    machine = new_machine()
    arguments = (f"--ciq-isolate={isolate}", "--ciq-gpu-timeout=5", "-p", "no:randomly")
    session = Session(machine, folder, tmp_path / "run", SOURCE, *arguments)
    assert session.wait() == 0, session.text()
    calls = [call.fn for call in machine.log(SET, RESET, "used", "between")]
    once = [SET, "used", "used", "between", RESET]
    if isolate == "auto":  # the lease is that of the process around the test
        assert calls == once * 4
        return
    for number in range(4):
        one = calls[5 * number : 5 * number + 5]
        # Where both came to the GPU, it is free only when both have ended.
        assert one == once, (number, calls)
    assert len(calls) == 20
    assert machine.free


def test_an_objective_is_called_on_the_gpu_that_is_held_for_it(
    new_machine: NewMachine, folder: Path, tmp_path: Path
) -> None:
    """From the first call on: whatever it launches there, no other test may be measured."""
    source = """
ACF = pathlib.Path(__file__).with_name("best.acf")
ACF.write_bytes(bytes(range(256)) * 4)
library = ctypes.CDLL("libnvidia-ml.so.1")

def objective(config):
    library.fake_mark(b"called", 0)
    assert "PYTEST_CIQ_HELD_GPU" in os.environ
    return "*" if config and config != ACF.read_bytes().hex() else 2 - bool(config)

@pytest.mark.ciq_objective
@pytest.mark.ciq_canary(o0="best.acf", margin=1)
@pytest.mark.ciq_beats_baseline("best.acf")
@pytest.mark.parametrize("marks", [1])
def test_check(ciq, marks): ciq.check(objective)

def test_disabled(ciq): ciq.assert_beats_baseline(objective)
"""
    for arguments in ((), ("--ciq-disable",)):
        machine = new_machine()
        session = Session(
            machine, folder, tmp_path / "run", source, "--ciq-isolate=off", *arguments
        )
        session.wait()
        calls = [call.fn for call in machine.log(SET, RESET, "called")]
        assert calls[0] == SET, session.text()
        assert calls[-1] == RESET
        assert calls.count("called") >= 2, session.text()
        assert "PYTEST_CIQ_HELD_GPU" not in session.text(), session.text()
