"""A few kernels through the CUDA driver alone: no library between a test and what the GPU does.

Suites of ``test_real_isolation.py`` get a copy of this file.
"""

from __future__ import annotations

import ctypes
import functools

PTX = """
.version 8.0
.target sm_80
.address_size 64

// Writes 7 to where it is told.
.visible .entry seven(.param .u64 where)
{
    .reg .b64 %a;
    .reg .b32 %v;
    ld.param.u64 %a, [where];
    mov.u32 %v, 7;
    st.global.u32 [%a], %v;
    ret;
}

// Reads the clock until it stands at zero, which is never.
.visible .entry spin(.param .u64 where)
{
    .reg .b64 %t;
    .reg .pred %p;
again:
    mov.u64 %t, %globaltimer;
    setp.ne.u64 %p, %t, 0;
    @%p bra again;
    ret;
}
"""

#: An address that belongs to nobody.
NOWHERE = 64


def _ok(code: int) -> None:
    if code:
        name = ctypes.c_char_p()
        _driver().cuGetErrorName(code, ctypes.byref(name))
        raise RuntimeError((name.value or b"CUDA error").decode() + f" ({code})")


@functools.cache
def _driver() -> ctypes.CDLL:
    return ctypes.CDLL("libcuda.so.1")


@functools.cache
def _module() -> ctypes.c_void_p:
    """Start CUDA on the first GPU that this process sees, and load the kernels."""
    driver = _driver()
    _ok(driver.cuInit(0))
    device, context, module = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_void_p()
    _ok(driver.cuDeviceGet(ctypes.byref(device), 0))
    _ok(driver.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
    _ok(driver.cuCtxSetCurrent(context))
    _ok(driver.cuModuleLoadData(ctypes.byref(module), PTX.encode()))
    return module


def start() -> None:
    """Start CUDA in this process."""
    _module()


def launch(name: str, where: int) -> None:
    """Enqueue one thread of a kernel on the default stream, and do not wait for it."""
    function, address = ctypes.c_void_p(), ctypes.c_uint64(where)
    _ok(_driver().cuModuleGetFunction(ctypes.byref(function), _module(), name.encode()))
    arguments = (ctypes.c_void_p * 1)(ctypes.addressof(address))
    _ok(_driver().cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, None, arguments, None))


def wait() -> None:
    """Wait for all launches. Raises RuntimeError with the name of CUDA's error."""
    _ok(_driver().cuCtxSynchronize())


def check() -> None:
    """The GPU works: a kernel writes, and the host reads it."""
    _module()
    where, read = ctypes.c_uint64(), ctypes.c_uint32()
    _ok(_driver().cuMemAlloc_v2(ctypes.byref(where), ctypes.c_size_t(4)))
    launch("seven", where.value)
    _ok(_driver().cuMemcpyDtoH_v2(ctypes.byref(read), where, ctypes.c_size_t(4)))
    assert read.value == 7
