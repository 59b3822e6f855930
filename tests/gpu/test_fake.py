"""The fake NVML itself, driven by the unmodified pynvml in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pynvml
import pytest

from tests.fake_nvml.machine import RESET, SET, Call, Machine
from tests.gpu.conftest import NewMachine

START = "from pynvml import *\nnvmlInit(); h = nvmlDeviceGetHandleByIndex(0)\n"


def run(code: str) -> str:
    """Run a snippet with NVML initialised; returns what it printed."""
    return subprocess.run(
        [sys.executable, "-c", START + code], capture_output=True, text=True, check=True
    ).stdout.strip()


def test_pynvml_is_the_real_one(machine: Machine) -> None:
    origin = run("import pynvml; print(pynvml.__file__, pynvml.nvmlLib._name)")
    assert origin == f"{pynvml.__file__} libnvidia-ml.so.1"
    source = Path(pynvml.__file__).read_text()
    assert "NVIDIA Corporation" in source
    assert "fake" not in source.lower()


def test_lock_read_reset_and_the_log(machine: Machine) -> None:
    machine.gpus[0].busy = 1
    assert (
        run(
            "a = nvmlDeviceGetClockInfo(h, 1); nvmlDeviceSetGpuLockedClocks(h, 1500, 1500)\n"
            "b = nvmlDeviceGetClockInfo(h, 1); nvmlDeviceResetGpuLockedClocks(h)\n"
            "print(a, b, nvmlDeviceGetClockInfo(h, 1))"
        )
        == "1980 1500 1980"
    )
    assert [(call.fn, call.a, call.ret) for call in machine.changes()] == [
        (SET, 1500, 0), (RESET, 0, 0),
    ]  # fmt: skip
    assert machine.log("nvmlDeviceGetClockInfo")[1].b == 1500  # every call is logged


def test_permission_is_a_process_s_own(machine: Machine) -> None:
    code = "try: nvmlDeviceSetGpuLockedClocks(h, 1500, 1500); print('set')\nexcept NVMLError as e: print(e.value)"
    refused = subprocess.run(
        [sys.executable, "-c", START + code], capture_output=True, text=True,
        env={"FAKE_NVML_ADMIN": "0", **machine.env()},
    )  # fmt: skip
    assert refused.stdout == "4\n"
    assert run(code) == "set"


def test_lag_in_reads_and_in_time(machine: Machine) -> None:
    machine.gpus[0].busy = 1
    machine.gpus[0].lag_reads = 3
    code = "nvmlDeviceSetGpuLockedClocks(h, 1200, 1200)\nprint([nvmlDeviceGetClockInfo(h, 1) for _ in range(5)])"
    assert run(code) == "[1980, 1980, 1980, 1200, 1200]"
    run("nvmlDeviceResetGpuLockedClocks(h)")
    machine.gpus[0].lag_reads, machine.gpus[0].lag_ms = 0, 100
    code = (
        "import time; nvmlDeviceSetGpuLockedClocks(h, 1500, 1500); a = nvmlDeviceGetClockInfo(h, 1)\n"
        "time.sleep(0.15); print(a, nvmlDeviceGetClockInfo(h, 1))"
    )
    assert run(code) == "1980 1500"
    run("nvmlDeviceResetGpuLockedClocks(h)")


def test_reasons_and_counters(machine: Machine) -> None:
    assert run("print(nvmlDeviceGetCurrentClocksEventReasons(h))") == "1"
    machine.gpus[0].busy = 1
    machine.power_cap(1320)
    code = (
        "import time; v = nvmlDeviceGetFieldValues(h, [74, 76, 999])\ntime.sleep(0.1)\n"
        "w = nvmlDeviceGetFieldValues(h, [74])\n"
        "print(nvmlDeviceGetClockInfo(h, 1), nvmlDeviceGetCurrentClocksThrottleReasons(h),"
        " [x.nvmlReturn for x in v], w[0].value.ullVal - v[0].value.ullVal >= 10**8)"
    )
    assert run(code) == "1320 4 [0, 0, 3] True"


def test_an_older_driver(new_machine: NewMachine) -> None:
    new_machine(
        hide=["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetComputeRunningProcesses_v3"]
    )
    assert run(
        "for name in ('CurrentClocksEventReasons', 'ComputeRunningProcesses', 'CurrentClocksThrottleReasons'):\n"
        "    try: print(globals()['nvmlDeviceGet' + name](h))\n"
        "    except Exception as e: print(type(e).__name__)"
    ).split() == ["NVMLError_FunctionNotFound", "NVMLLibraryMismatchError", "1"]


def test_mig_and_vgpu_refuse(machine: Machine) -> None:
    machine.gpus[0].mig, machine.gpus[1].virt = 1, 2
    assert run(
        "m = nvmlDeviceGetMigDeviceHandleByIndex(h, 1)\n"
        "for x in (h, m, nvmlDeviceGetHandleByIndex(1)):\n"
        "    try: nvmlDeviceSetGpuLockedClocks(x, 1500, 1500)\n"
        "    except NVMLError as e: print(e.value)\n"
        "print(nvmlDeviceGetUUID(nvmlDeviceGetDeviceHandleFromMigDeviceHandle(m)))"
    ).split() == ["3", "3", "3", machine.uuid()]
    machine.asked = {0, 1}


def test_state_does_not_survive_fork(machine: Machine) -> None:
    assert (
        run(
            "import os\nif os.fork() == 0:\n"
            "    try: nvmlDeviceGetIndex(h)\n"
            "    except NVMLError_Uninitialized: nvmlInit(); print(nvmlDeviceGetIndex(h), flush=True)\n"
            "    os._exit(0)\n"
            "os.wait()"
        )
        == "0"
    )


def test_cuda_orders_by_speed_and_shows_in_the_list(machine: Machine) -> None:
    machine.gpus[1].speed = 1
    assert run(
        "import ctypes; cuda = ctypes.CDLL('libcuda.so.1'); n = ctypes.c_int(); c = ctypes.c_void_p()\n"
        "print(cuda.cuDeviceGetCount(ctypes.byref(n)), cuda.cuInit(0))\n"
        "u = ctypes.create_string_buffer(16); cuda.cuDeviceGetUuid(u, 0); print(u.raw.hex()[:8])\n"
        "cuda.cuDevicePrimaryCtxRetain(ctypes.byref(c), 0); import os\n"
        "print([p.pid == os.getpid() for p in nvmlDeviceGetComputeRunningProcesses(nvmlDeviceGetHandleByIndex(1))])"
    ).splitlines() == ["3 0", "00000001", "[True]"]


def test_the_checks_of_the_log_can_fail(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def log(*calls: tuple[int, str, int]) -> None:
        """(PID, function, GPU) of each call."""
        made = [Call(n, pid, fn, gpu, 1, 1, 0) for n, (pid, fn, gpu) in enumerate(calls)]
        monkeypatch.setattr(machine, "log", lambda *names: made)

    for calls, message in (
        ([(1, SET, 1)], "not asked for"),
        ([(1, "nvmlDeviceSetPersistenceMode", 0)], "other than a clock"),
        ([(1, SET, 0), (2, SET, 0)], "without a reset"),
        ([(1, "observer", -1), (1, RESET, 0)], "started to observe"),
    ):
        log(*calls)
        with pytest.raises(AssertionError, match=message):
            machine.verify()
    log((1, SET, 0), (1, RESET, 0), (2, SET, 0))
    assert machine.verify() == 3
