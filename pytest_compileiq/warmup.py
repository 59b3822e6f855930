"""What every isolated test would do again, done once in the process that all are forked from.

Nothing here may read what a test or its fixtures set (its environment, its PATH), or start CUDA.
"""

from __future__ import annotations

import importlib
import sys
from contextlib import suppress

import pytest

from pytest_compileiq import state

#: Imported where a check first needs them; elftools alone takes 40 ms.
_MODULES = ("resource", "elftools.elf.elffile", "pytest_compileiq.complaints")


def warm_up(config: pytest.Config) -> None:
    """Import, and remember the versions of ptxas and Triton. A failure is left to the test."""
    from pytest_compileiq import fixture  # noqa: F401

    on_gpu = config.stash[state.SETTINGS].gpu is not None
    for name in (*_MODULES, "cuda.bindings.driver") if on_gpu else _MODULES:
        with suppress(ImportError):
            importlib.import_module(name)
    with suppress(Exception):
        state.assembler(config).ptxas()
    # Triton reads all of its own files, libtriton.so too, to know itself: 0.3 s a process.
    cache = sys.modules.get("triton.runtime.cache")
    with suppress(Exception):
        getattr(cache, "triton_key", lambda: None)()
