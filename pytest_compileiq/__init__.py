"""pytest-compileiq: kernel-tuning regression tests for NVIDIA CompileIQ.

The names below are imported when they are first used: pytest loads this package at every
start, and a run without ciq tests must cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_compileiq.errors import CiqError as CiqError
    from pytest_compileiq.fixture import CIQ as CIQ
    from pytest_compileiq.fixture import CiqFailure as CiqFailure
    from pytest_compileiq.fixture import Comparison as Comparison
    from pytest_compileiq.search.engine import open_search as open_search
    from pytest_compileiq.search.worker import ForkWorker as ForkWorker
    from pytest_compileiq.subjects.helion import HelionKernel as HelionKernel
    from pytest_compileiq.subjects.kernel import Build as Build
    from pytest_compileiq.subjects.kernel import Kernel as Kernel
    from pytest_compileiq.subjects.nvcc import NvccKernel as NvccKernel
    from pytest_compileiq.subjects.objective import Objective as Objective
    from pytest_compileiq.subjects.ptx import PtxKernel as PtxKernel
    from pytest_compileiq.subjects.triton import TritonKernel as TritonKernel
    from pytest_compileiq.verdict import Verdict as Verdict

_HOME = {
    "CIQ": "fixture",
    "Build": "subjects.kernel",
    "CiqError": "errors",
    "CiqFailure": "fixture",
    "Comparison": "fixture",
    "ForkWorker": "search.worker",
    "HelionKernel": "subjects.helion",
    "Kernel": "subjects.kernel",
    "NvccKernel": "subjects.nvcc",
    "Objective": "subjects.objective",
    "PtxKernel": "subjects.ptx",
    "TritonKernel": "subjects.triton",
    "Verdict": "verdict",
    "open_search": "search.engine",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
