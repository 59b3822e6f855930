"""The kernel of these tests, and Triton as its own users have it. Needs Triton."""

from __future__ import annotations

from typing import Any

from triton.backends.compiler import GPUTarget

from pytest_compileiq import TritonKernel
from tests.triton import kernels


def waves(**more: Any) -> TritonKernel:
    """The kernel of these tests, for an H200 that is not there."""
    settings: dict[str, Any] = {
        "grid": (4,),
        "args": ("*fp32", 4096),
        "constexprs": {"BLOCK": 1024},
        "arch": "sm_90a",
        "num_warps": 4,
    }
    return TritonKernel(kernels.waves, **{**settings, **more})


class NoGpu:
    """Enough of a driver for Triton to compile for an H200, as its own users would do it."""

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", 90, 32)
