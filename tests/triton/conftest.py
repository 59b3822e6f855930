"""Real Triton, real ptxas, no GPU: `tox -e triton` brings Triton."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pytest_compileiq.toolchain.acf import Acf, load
from tests.conftest import EXAMPLE


@pytest.fixture
def best() -> Acf:
    return load(EXAMPLE / "best.acf")


@pytest.fixture
def worst() -> Acf:
    return load(EXAMPLE / "worst.acf")


@pytest.fixture
def as_on_h200(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ptxas: Any) -> Iterator[None]:
    """Triton outside the plugin's hands, with a cache and a ptxas that can take the ACFs."""
    from triton.runtime import driver

    from tests.triton import kernels, support

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        monkeypatch.setenv(name, str(ptxas.path))
    monkeypatch.setattr(driver, "_active", support.NoGpu())
    kernels.waves.device_caches.clear()
    yield
    kernels.waves.device_caches.clear()
