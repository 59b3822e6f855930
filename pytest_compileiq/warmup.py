"""What every isolated test would do again, done once in the process that all are forked from.

Nothing here may read what a test or its fixtures set (its environment, its PATH), or start CUDA.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress

import pytest

from pytest_compileiq import state

#: What the plugin imports where it first needs it; elftools takes 40 ms.
_OURS = (
    "pytest_compileiq.fixture",
    "pytest_compileiq.complaints",
    "resource",
    "elftools.elf.elffile",
)
#: What Triton imports at its first compilation: 0.1 s.
_TRITONS = ("triton.experimental.gluon",)
#: What times kernels on a GPU. Importing it loads no driver.
_GPUS = ("cuda.bindings.driver",)


def warm_up(config: pytest.Config) -> None:
    """Import, and remember the versions of ptxas and Triton. A failure is left to the test."""
    cache = sys.modules.get("triton.runtime.cache")
    on_gpu = config.stash[state.SETTINGS].gpu is not None
    for name in (*_OURS, *_TRITONS * (cache is not None), *_GPUS * on_gpu):
        with suppress(Exception):
            importlib.import_module(name)
    with suppress(Exception):
        state.assembler(config).ptxas()
    # Triton reads its compiler, 0.5 GB, to know its own version: up to 1 s a process.
    with suppress(Exception):
        getattr(cache, "triton_key", lambda: None)()
