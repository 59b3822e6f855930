"""A result is checked on outputs full of NaN, and a wrong one is blamed on who made it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pytest_compileiq.checks import correctness
from pytest_compileiq.errors import CiqError
from pytest_compileiq.gpu import stream
from pytest_compileiq.subjects.kernel import BASELINE, Arm, Build, Kernel, Workbench
from pytest_compileiq.toolchain.acf import nonsense
from pytest_compileiq.toolchain.assembler import Assembler
from pytest_compileiq.verdict import Reason

BEST = Arm("best.acf", nonsense())


@pytest.fixture(autouse=True)
def host_memory(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """numpy arrays in the place of GPU buffers; the list says what was done, in order."""
    done: list[str] = []

    def fill(buffer: np.ndarray, byte: int = 0xFF) -> None:
        buffer.view(np.uint8)[:] = byte
        done.append("fill")

    monkeypatch.setattr(stream, "fill", fill)
    monkeypatch.setattr(stream, "synchronize", lambda: done.append("synchronize"))
    return done


class Doubler:
    """A kernel that doubles ``x`` into ``out``; each arm may do something else instead."""

    def __init__(self, assembler: Assembler, **arms: Callable[[], None]) -> None:
        self.x = np.arange(4, dtype=np.float32)
        self.out = np.zeros(4, dtype=np.float32)
        self.arms = arms
        kernel = Kernel(self.build, name="doubler", check=self.check, outputs=[self.out])
        self.bench = Workbench(kernel, assembler, Path())

    def build(self, acf: Path | None) -> Build:
        return Build(launch=self.arms.get("plain" if acf is None else "tuned", self.double))

    def double(self) -> None:
        self.out[:] = 2 * self.x

    def check(self) -> None:
        np.testing.assert_allclose(self.out, [0, 2, 4, 6])


def test_right_results_and_the_order_of_things(
    assembler: Assembler, host_memory: list[str]
) -> None:
    doubler = Doubler(assembler)
    doubler.bench.kernel.check = lambda: host_memory.append("check")
    launch = lambda: host_memory.append("launch")  # noqa: E731
    assert correctness.fault_of(doubler.bench, BEST, launch=launch) is None
    assert host_memory == ["fill", "launch", "synchronize", "check"]


def test_an_arm_that_writes_nothing_does_not_pass_with_the_others_result(
    assembler: Assembler,
) -> None:
    doubler = Doubler(assembler, tuned=lambda: None)
    assert correctness.fault_of(doubler.bench, BASELINE) is None
    fault = correctness.fault_of(doubler.bench, BEST)
    assert fault is not None
    assert fault.reason is Reason.WRONG_RESULT
    assert "best.acf: the result is wrong before timing: AssertionError" in fault.what
    assert "nan" in fault.what


def test_a_wrong_baseline_is_the_tests_own_fault(assembler: Assembler) -> None:
    doubler = Doubler(assembler, plain=lambda: None)
    fault = correctness.fault_of(doubler.bench, BASELINE, when="after timing")
    assert fault is not None
    assert fault.reason is Reason.UNFIT
    assert "baseline: the result is wrong after timing, without any ACF" in fault.what
    assert "not the ACF's doing" in fault.remedy


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        (False, False), (np.False_, False), (np.array([True, False]), False),
        (None, True), (True, True), (np.True_, True), (np.array([True, True]), True), (0, True),
    ],
)  # fmt: skip
def test_a_check_that_returns_false(assembler: Assembler, answer: object, right: bool) -> None:
    """``check=lambda: np.allclose(out, ref)`` raises nothing; 0 may be a number of differences."""
    doubler = Doubler(assembler)
    doubler.bench.kernel.check = lambda: answer
    fault = correctness.fault_of(doubler.bench, BEST)
    assert (fault is None) == right
    if fault is not None:
        assert fault.reason is Reason.WRONG_RESULT
        assert "check() returned" in fault.what


def test_raw_flags_are_no_baseline(assembler: Assembler) -> None:
    doubler = Doubler(assembler, plain=lambda: None)
    fault = correctness.fault_of(doubler.bench, Arm("raw -O0", flags=("-O0",)))
    assert fault is not None
    assert fault.reason is Reason.WRONG_RESULT


@pytest.mark.parametrize("arm", [BASELINE, BEST], ids=["baseline", "acf"])
def test_a_launch_that_fails_is_a_crash(assembler: Assembler, arm: Arm) -> None:
    def fails() -> None:
        raise RuntimeError("an illegal memory access was encountered")

    doubler = Doubler(assembler, plain=fails, tuned=fails)
    fault = correctness.fault_of(doubler.bench, arm)
    assert fault is not None
    assert fault.reason is Reason.CRASHED
    assert "illegal memory access" in fault.what
    assert ("no ACF is applied" in fault.remedy) == (arm is BASELINE)


def test_without_a_check_nothing_is_launched(assembler: Assembler, host_memory: list[str]) -> None:
    doubler = Doubler(assembler)
    doubler.bench.kernel.check = None
    assert correctness.fault_of(doubler.bench, BEST) is None
    assert host_memory == []


def test_without_a_launch_a_check_is_an_error(assembler: Assembler) -> None:
    bench = Workbench(Kernel(lambda acf: Build(), check=lambda: None), assembler, Path())
    with pytest.raises(CiqError, match="gives no launch"):
        correctness.fault_of(bench, BASELINE)


def test_what_does_not_build_raises_what_the_build_said(assembler: Assembler) -> None:
    def build(acf: Path | None) -> Build:
        raise ValueError("no compiler")

    bench = Workbench(Kernel(build, check=lambda: None), assembler, Path())
    with pytest.raises(ValueError, match="no compiler"):
        correctness.fault_of(bench, BASELINE)
