"""Real Triton, real ptxas, no GPU: `tox -e triton` brings Triton."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_compileiq import TritonKernel
from pytest_compileiq.toolchain.acf import Acf, load
from tests.conftest import EXAMPLE

triton = pytest.importorskip("triton", reason="needs Triton; `tox -e triton` brings it")

from triton.backends.compiler import GPUTarget  # noqa: E402
from triton.runtime import driver  # noqa: E402

from tests.triton import kernels  # noqa: E402


@pytest.fixture
def best() -> Acf:
    return load(EXAMPLE / "best.acf")


@pytest.fixture
def worst() -> Acf:
    return load(EXAMPLE / "worst.acf")


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


@pytest.fixture
def as_on_h200(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ptxas: Any) -> Iterator[None]:
    """Triton outside the plugin's hands, with a cache and a ptxas that can take the ACFs."""
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        monkeypatch.setenv(name, str(ptxas.path))
    monkeypatch.setattr(driver, "_active", NoGpu())
    kernels.waves.device_caches.clear()
    yield
    kernels.waves.device_caches.clear()
