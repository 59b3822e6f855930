"""Compile caches that hold nothing yet, for one test: nobody else's build can answer for it.

Frameworks key a compiled kernel by the *path* of its ACF, so a cache that has seen another file
under that path serves stale code, without opening the file. When each variable is read:

* Triton (3.5 to 3.9) reads TRITON_CACHE_DIR, TRITON_ALWAYS_COMPILE and both ptxas variables at
  each compilation, unless a program has set the knob of the same meaning, which then wins.
* Helion (1.0) reads HELION_CACHE_DIR and HELION_SKIP_CACHE, and torch TORCHINDUCTOR_CACHE_DIR, at
  each use. Helion and torch also *set* TRITON_CACHE_DIR or their own where it is missing.
* FlashInfer reads FLASHINFER_WORKSPACE_BASE when it is imported.
* The CUDA driver reads CUDA_CACHE_PATH when it is started. In a test whose module starts CUDA at
  import (Helion does) that is too early, and harmless: the driver caches what it compiled from
  PTX itself, where no ACF can be applied.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
import tempfile
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from pytest_compileiq.errors import CiqError, ToolchainError
from pytest_compileiq.toolchain.assembler import Assembler
from pytest_compileiq.verdict import Reason

#: Which tool of ours each variable of Triton names: before 3.9 the second one is for sm_100 and
#: newer only, from 3.9 on it is for sm_90, too.
PTXAS_VARIABLES = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")
_FOLDERS = {
    "TRITON_CACHE_DIR": "triton",
    "HELION_CACHE_DIR": "helion",
    "TORCHINDUCTOR_CACHE_DIR": "inductor",
    "FLASHINFER_WORKSPACE_BASE": "flashinfer",
    "CUDA_CACHE_PATH": "cuda",
}
_SWITCHES = {"TRITON_ALWAYS_COMPILE": "1", "HELION_SKIP_CACHE": "1"}
#: Knobs of Triton that win over their variable once a program has set them.
_KNOBS = {
    "TRITON_CACHE_DIR": ("cache", "dir"),
    "TRITON_ALWAYS_COMPILE": ("compilation", "always_compile"),
    "TRITON_PTXAS_PATH": ("nvidia", "ptxas"),
    "TRITON_PTXAS_BLACKWELL_PATH": ("nvidia", "ptxas_blackwell"),
}
_PREBUILT = ("flashinfer_cubin", "flashinfer_jit_cache")

#: Variables and what they are to be; None: not set.
Environment = Mapping[str, str | None]


class CacheWarning(UserWarning):
    """A cache variable of this test has no effect any more: a library has read it before."""


def fresh(folder: Path, ptxas: Path | None) -> dict[str, str | None]:
    """The variables that make every cache a new one, below ``folder``, which need not exist.

    ``ptxas`` is the one that Triton shall run, too; None leaves its own choice.
    """
    environment: dict[str, str | None] = {
        name: str(folder / inner) for name, inner in _FOLDERS.items()
    }
    environment |= _SWITCHES
    if ptxas is not None:
        environment |= dict.fromkeys(PTXAS_VARIABLES, str(ptxas))
    return environment


@contextmanager
def folder_of_one_test(assembler: Assembler) -> Iterator[dict[str, str | None]]:
    """Variables as by ``fresh``, for folders that are removed afterwards.

    They lie in the session's staging folder, so that pytest removes them when the test dies.
    """
    try:
        ptxas: Path | None = assembler.ptxas().path
    except ToolchainError:  # an objective may bring a compiler of its own
        ptxas = None
    folder = Path(tempfile.mkdtemp(prefix="caches-", dir=assembler.staging.folder))
    try:
        yield fresh(folder, ptxas)
    finally:
        if not assembler.keep:
            shutil.rmtree(folder, ignore_errors=True)


@contextmanager
def in_use(environment: Environment) -> Iterator[None]:
    """Set the variables for a test, and warn of those that come too late for a library."""
    with applied(environment):
        for line in without_effect(environment):
            warnings.warn(
                f"the test has no cache of its own: {line}\n  to do: leave that to the test or its "
                "fixtures, and isolate it (--ciq-isolate=require)",
                CacheWarning,
                stacklevel=2,
            )
        yield


@contextmanager
def applied(environment: Environment) -> Iterator[None]:
    """Set the variables, and put back exactly what was there, however the block ends.

    So a variable that a library sets meanwhile, as torch does with its own, is put back, too.
    """
    former = {name: os.environ.get(name) for name in environment}
    try:
        _set(environment)
        yield
    finally:
        _set(former)


def _set(environment: Environment) -> None:
    for name, value in environment.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def without_effect(environment: Environment) -> list[str]:
    """What the libraries of this process hold in place of these variables, one line each."""
    found: list[str] = []
    knobs = sys.modules.get("triton.knobs")
    for name, (group, knob) in _KNOBS.items():
        held = getattr(getattr(knobs, group, None), "__dict__", {}).get(knob)
        wanted = environment.get(name)
        same = held is (wanted == "1") if isinstance(held, bool) else held == wanted
        if held is not None and name in environment and not same:
            found.append(f"{name}: triton.knobs.{group}.{knob} was set to {held!r}, which wins")
    base, wanted = _flashinfer_base(), environment.get("FLASHINFER_WORKSPACE_BASE")
    if base is not None and wanted is not None and base != Path(wanted):
        found.append(f"FLASHINFER_WORKSPACE_BASE: flashinfer was imported before, with {base}")
    return found


def _flashinfer_base() -> Path | None:
    return getattr(sys.modules.get("flashinfer.jit.env"), "FLASHINFER_BASE_DIR", None)


def unfit() -> CiqError | None:
    """Why a subject that uses FlashInfer cannot be built anew; None when it can, or uses none.

    Prebuilt FlashInfer packages answer before any compiler flag is looked at, and a workspace
    chosen before the test holds the builds of other runs.
    """
    if "flashinfer" not in sys.modules:
        return None
    prebuilt = [name for name in _PREBUILT if importlib.util.find_spec(name) is not None]
    if prebuilt:
        return CiqError(
            f"flashinfer is in use and {' and '.join(prebuilt)} is installed: its prebuilt "
            "kernels are taken before any ACF is looked at",
            looked_at=[f"importlib.util.find_spec({name!r})" for name in _PREBUILT],
            remedy=f"pip uninstall {' '.join(prebuilt).replace('_', '-')}, or run these tests in "
            "an environment without it",
            reason=Reason.UNFIT,
        )
    base, wanted = _flashinfer_base(), os.environ.get("FLASHINFER_WORKSPACE_BASE")
    if base is not None and wanted is not None and base != Path(wanted):
        return CiqError(
            f"flashinfer was imported before FLASHINFER_WORKSPACE_BASE was {wanted}: it builds "
            f"in {base}, where kernels of other runs lie",
            looked_at=["flashinfer.jit.env.FLASHINFER_BASE_DIR", "FLASHINFER_WORKSPACE_BASE"],
            remedy="import flashinfer inside the test or its fixtures, not at collection",
            reason=Reason.UNFIT,
        )
    return None
