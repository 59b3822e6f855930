"""What can be wrong with a process that forks or was forked: threads, torch's pool, CUDA."""

from __future__ import annotations

import ctypes
import os
import select
import signal
import sys
import threading
from enum import StrEnum


class Problem(StrEnum):
    """A reason why the children of a zygote may not work."""

    CUDA = "cuda"
    TORCH_THREADS = "torch-threads"


#: Errors after which CUDA answers every later call of the process with the same error.
STICKY = frozenset({214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721})


def in_zygote(*, cuda_started: bool) -> list[str]:
    """The problems that this process, just forked from pytest, has inherited.

    ``cuda_started`` is what ``cuda_is_started`` answered in pytest; in a fork it answers no.
    """
    problems: list[str] = []
    if cuda_started or _torch_knows_a_bad_fork():
        problems.append(Problem.CUDA)
    elif _torch_hangs():  # a canary with bad CUDA would prove nothing
        problems.append(Problem.TORCH_THREADS)
    return problems


def cuda_is_started() -> bool:
    """Has this process called cuInit, after which CUDA works in none of its forks?

    Neither loads nor starts anything. Open device files would not tell: NVML opens
    /dev/nvidia-uvm, too (driver 580), and NVML does no harm to a fork.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        return bool(driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())) == 0)
    except (OSError, AttributeError):
        return False


def _torch_knows_a_bad_fork() -> bool:
    torch = sys.modules.get("torch")
    bad_fork = getattr(getattr(torch, "_C", None), "_cuda_isInBadFork", None)
    return bool(bad_fork is not None and bad_fork())


def _torch_hangs() -> bool:
    """Has torch started its CPU threads? They are missing here, and libgomp waits for them.

    Only one parallel operation in a fork of this process can tell.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "ones"):
        return False
    pid = os.fork()
    if pid == 0:
        try:
            torch.ones(1 << 20)
        finally:
            os._exit(0)
    ended = os.pidfd_open(pid)
    try:
        poller = select.poll()
        poller.register(ended, select.POLLIN)
        return not poller.poll(2000)
    finally:
        os.close(ended)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def other_threads() -> list[str]:
    """Names of the Python threads that a fork of this process leaves behind.

    pytest-rerunfailures' server waits in accept() and holds no lock of anybody else.
    """
    known = (threading.current_thread(), threading.main_thread())
    return sorted(
        thread.name
        for thread in threading.enumerate()
        if thread not in known
        and getattr(getattr(thread, "_target", None), "__module__", "") != "pytest_rerunfailures"
    )


def sticky_cuda_error() -> str | None:
    """The error that this thread's CUDA context is dead of, such as CUDA_ERROR_ILLEGAL_ADDRESS.

    Waits for the work in the context. None without CUDA, which is never loaded or started here.
    """
    try:
        driver = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        context = ctypes.c_void_p()
        code = driver.cuCtxGetCurrent(ctypes.byref(context))
        if code == 0 and context.value:
            code = driver.cuCtxSynchronize()
        if code not in STICKY:
            return None
        name = ctypes.c_char_p()
        driver.cuGetErrorName(code, ctypes.byref(name))
    except (OSError, AttributeError):
        return None
    return (name.value or b"CUDA error %d" % code).decode()
