"""A fake machine for each test; what must hold of every log of the suite is checked at its end."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from pytest_compileiq.gpu.identity import Gpu
from tests.fake_nvml.machine import AUDIT, Machine, build

NewMachine = Callable[..., Machine]


@pytest.fixture(scope="session")
def fake_libraries(tmp_path_factory: pytest.TempPathFactory) -> Callable[[tuple[str, ...]], Path]:
    """Both libraries, compiled once for each set of hidden symbols."""
    if shutil.which("gcc") is None:
        pytest.skip("needs gcc, to compile the fake NVML")
    built: dict[tuple[str, ...], Path] = {}

    def get(hide: tuple[str, ...] = ()) -> Path:
        if hide not in built:
            built[hide] = build(tmp_path_factory.mktemp("nvml") / "lib", hide=hide)
        return built[hide]

    return get


@pytest.fixture
def new_machine(
    fake_libraries: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[NewMachine]:
    """Make a fake machine and live on it: every process started from now on sees its GPUs."""
    made: list[Machine] = []

    def new(*, hide: Sequence[str] = (), **options: Any) -> Machine:
        path = tmp_path / f"machine{len(made)}"
        machine = Machine(path, fake_libraries(tuple(hide)), **options)
        made.append(machine)
        for name, value in machine.env().items():
            monkeypatch.setenv(name, value)
        return machine

    for name in [name for name in os.environ if name.startswith(("CUDA_", "PYTEST_CIQ_"))]:
        monkeypatch.delenv(name)
    yield new
    for machine in made:
        machine.verify()


@pytest.fixture
def machine(new_machine: NewMachine) -> Machine:
    """Two GPUs, and the permission to lock clocks."""
    return new_machine()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A lease folder of the test's own."""
    path = tmp_path / "leases"
    path.mkdir(mode=0o700)
    return path


@pytest.fixture
def gpu(machine: Machine) -> Gpu:
    return gpu_of(machine)


def gpu_of(machine: Machine, index: int = 0) -> Gpu:
    """The identity of a fake GPU, without asking NVML for it."""
    card = machine.gpus[index]
    return Gpu(machine.uuid(index), index, card.name.decode(), card.bus.decode())


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if AUDIT:
        seen = ", ".join(f"{count} {name}" for name, count in AUDIT.items())
        terminalreporter.write_line(f"logs of the fake NVML checked: {seen}")
