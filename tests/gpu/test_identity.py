"""What the user calls a GPU, what CUDA calls it, and what it is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_compileiq.errors import GpuError
from pytest_compileiq.gpu import identity
from pytest_compileiq.verdict import Reason
from tests.fake_nvml.machine import Machine
from tests.gpu.conftest import NewMachine

Resolve = Callable[..., list[int]]


@pytest.fixture
def eight(new_machine: NewMachine) -> Machine:
    """Eight cards; 6 and 7 share the first 13 characters of their UUID; 5 is the fastest."""
    machine = new_machine(gpus=8)
    machine.gpus[7].uuid = b"GPU-00000006-9999-2222-3333-444455556666"
    machine.gpus[5].name, machine.gpus[5].speed = b"NVIDIA Faster", 1
    return machine


def indices(spec: str, **env: str) -> list[int]:
    return [gpu.index for gpu in identity.resolve(spec, env={**os.environ, **env})]


@pytest.mark.parametrize(
    ("spec", "expected"),
    [
        ("0", [0]),
        ("nvml:3", [3]),
        ("GPU-00000002-1111-2222-3333-444455556666", [2]),
        ("gpu-00000002", [2]),
        ("GPU-00000006-9", [7]),
        ("13:00.0", [3]),
        ("0000:13:00.0", [3]),
        ("00000000:13:00", [3]),
        ("1,0", [1, 0]),
        (" 2 , nvml:4 ", [2, 4]),
        ("cuda:0", [5]),
        ("cuda:1", [0]),
        ("cuda:6", [6]),
    ],
)
def test_specs(eight: Machine, spec: str, expected: list[int]) -> None:
    assert indices(spec) == expected


@pytest.mark.parametrize(
    ("visible", "order", "spec", "expected"),
    [
        ("3,1", "PCI_BUS_ID", "0", 3),
        ("3,1", "PCI_BUS_ID", "1", 1),
        ("0", "FASTEST_FIRST", "0", 5),  # CUDA's 0 is the fastest card, in the sixth slot
        ("1", "FASTEST_FIRST", "0", 0),
        ("GPU-00000004", "FASTEST_FIRST", "0", 4),
        ("3,1", "PCI_BUS_ID", "nvml:0", 0),  # explicit names do not count in the list
        ("3,1", "PCI_BUS_ID", "cuda:1", 1),
    ],
)
def test_a_bare_number_counts_in_the_callers_list(
    eight: Machine, visible: str, order: str, spec: str, expected: int
) -> None:
    assert indices(spec, CUDA_VISIBLE_DEVICES=visible, CUDA_DEVICE_ORDER=order) == [expected]


@pytest.mark.parametrize(
    ("spec", "env", "message"),
    [
        ("", {}, "'' names no GPU"),
        ("best", {}, "'best' names no GPU"),
        ("0,,1", {}, "'' names no GPU"),
        ("-1", {}, "'-1' names no GPU"),
        ("GPU-xyz", {}, "names no GPU"),
        ("8", {}, "there is no GPU 8: NVML lists 8"),
        ("nvml:99", {}, "there is no GPU nvml:99"),
        ("cuda:8", {}, "there is no cuda:8: CUDA shows 8"),
        ("GPU-00000006", {}, "fits 2 GPUs: GPU-00000006-1111"),
        ("GPU-77", {}, "fits no GPU"),
        ("ff:00.0", {}, "no GPU at PCI ff:00.0"),
        ("0,GPU-00000000", {}, "twice"),
        ("2", {"CUDA_VISIBLE_DEVICES": "0,1"}, "shows 2 GPUs"),
        ("1", {"CUDA_VISIBLE_DEVICES": "0,-1,1"}, "shows 1 GPU"),
        ("1", {"CUDA_VISIBLE_DEVICES": "0,9,1"}, "shows 1 GPU"),
        ("0", {"CUDA_VISIBLE_DEVICES": ""}, "shows no GPU"),
        ("0", {"CUDA_VISIBLE_DEVICES": "9" * 5000}, "shows no GPU"),
        ("0", {"CUDA_VISIBLE_DEVICES": "GPU-00000006"}, "shows no GPU"),
    ],
)
def test_a_bad_spec_says_what_there_is(
    eight: Machine, spec: str, env: dict[str, str], message: str
) -> None:
    with pytest.raises(GpuError) as caught:
        indices(spec, **env)
    assert message in str(caught.value)
    assert not eight.changes()


def test_cuda_does_not_count_a_closed_gpu(eight: Machine) -> None:
    eight.gpus[0].access_ret = 4
    env = {"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
    assert indices("0", **env) == [2] == indices("cuda:0", **env)


def test_environment_shows_cuda_one_gpu(eight: Machine) -> None:
    (gpu,) = identity.resolve("nvml:5")
    assert identity.cuda_environment(gpu) == {
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "CUDA_VISIBLE_DEVICES": "GPU-00000005-1111-2222-3333-444455556666",
    }
    # CUDA itself agrees: under that environment its only device has that UUID.
    again = identity.resolve("cuda:0", env={**os.environ, **identity.cuda_environment(gpu)})
    assert again == [gpu]


def test_mig_instances(new_machine: NewMachine) -> None:
    machine = new_machine()
    machine.gpus[0].mig = 1
    (gpu,) = identity.resolve(machine.mig_uuid(0, 1))
    assert (gpu.uuid, gpu.parent_uuid) == (machine.mig_uuid(0, 1), machine.uuid(0))
    assert identity.resolve("MIG-00000001")[0] == gpu
    with pytest.raises(GpuError, match="cut into 2 MIG instances"):
        identity.resolve("0")
    machine.gpus[0].mig_count = 0
    with pytest.raises(GpuError, match="cut into no MIG instances") as caught:
        identity.resolve("0")
    assert "make one" in caught.value.remedy
    machine.gpus[0].mig_count = 1
    assert identity.resolve("0")[0].uuid == machine.mig_uuid(0, 0)


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        (9, "Driver Not Loaded (9)"),
        (12, "NVML Shared Library Not Found (12)"),
        (17, "blocked the request"),
        (18, "version mismatch"),
        (999, "Unknown Error (999)"),
        (777, "fake NVML error 777"),
    ],
)
def test_nvml_that_does_not_start(machine: Machine, code: int, sentence: str) -> None:
    machine.rule("nvmlInitWithFlags", ret=code)
    with pytest.raises(GpuError) as caught:
        identity.resolve("0")
    assert sentence in str(caught.value)
    assert "to do:" in str(caught.value)


def test_nvml_that_is_absent(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LD_LIBRARY_PATH", "/nowhere")
    with pytest.raises(GpuError, match=r"Library Not Found|Driver Not Loaded"):
        identity.resolve("0")


def test_nvml_that_hangs(machine: Machine) -> None:
    machine.rule("nvmlDeviceGetHandleByIndex_v2", delay_ms=60_000)
    with pytest.raises(GpuError, match=r"has not answered for 0\.5 s") as caught:
        identity.resolve("0", deadline_s=0.5)
    assert caught.value.reason is Reason.HUNG


@pytest.mark.parametrize(("code", "text"), [(4, "Insufficient Permissions"), (15, "lost")])
def test_a_gpu_that_may_not_be_used(machine: Machine, code: int, text: str) -> None:
    machine.gpus[1].access_ret = code
    assert indices("0") == [0]
    with pytest.raises(GpuError, match=rf"GPU 1 may not be used: .*{text}"):
        identity.resolve("1")


CUDA_FIRST = """
import ctypes, os, sys
cuda = ctypes.CDLL("libcuda.so.1")
if sys.argv[1] != "loaded":
    os.environ["CUDA_VISIBLE_DEVICES"] = sys.argv[1]
    assert cuda.cuInit(0) == 0
from pytest_compileiq.gpu import identity
gpus = identity.resolve("nvml:0,nvml:1")
print([gpu.index for gpu in identity.on_started_cuda(gpus)])
for gpu in gpus:
    try:
        identity.check_cuda(gpu)
    except Exception as error:
        print(gpu.index, error.what)
"""


@pytest.mark.parametrize(
    ("visible", "usable", "told"),
    [("1", "[1]", "0 this process started CUDA"), ("loaded", "[0, 1]", "")],
)
def test_cuda_that_was_started_before(
    machine: Machine, visible: str, usable: str, told: str
) -> None:
    run = subprocess.run(
        [sys.executable, "-c", CUDA_FIRST, visible], capture_output=True, text=True, check=True
    )
    first, *rest = run.stdout.splitlines()
    assert first == usable
    assert [line[: len(told)] for line in rest] == ([told] if told else [])
    assert not told or "GPU with UUID 00000001" in rest[0]


def test_resolving_loads_no_nvml_into_this_process(machine: Machine, tmp_path: Path) -> None:
    code = (
        "import sys; from pytest_compileiq.gpu import identity; identity.resolve('0'); "
        "print('pynvml' in sys.modules, 'libnvidia-ml' in open('/proc/self/maps').read())"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.split() == ["False", "False"]
