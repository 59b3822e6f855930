"""Where Triton serves old code, or applies an ACF to the wrong build, and what is done about it.

Each trap is shown on Triton as it is, and then on TritonKernel, which must not fall into it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton", reason="tox -e triton brings it")

from triton import knobs

from pytest_compileiq.subjects.kernel import BASELINE, Arm, Build
from pytest_compileiq.toolchain import cubin
from pytest_compileiq.toolchain.acf import Acf
from pytest_compileiq.toolchain.assembler import Assembler
from tests.conftest import ROOT
from tests.triton import kernels
from tests.triton.support import waves


def code(path: Path | None) -> str:
    """What Triton itself answers for the ACF at a path: a fingerprint of the machine code."""
    from triton import MockTensor
    from triton import language as tl

    options = {} if path is None else {"ptx_options": f"--apply-controls={path}"}
    built = kernels.waves.warmup(
        MockTensor(tl.float32), 4096, BLOCK=1024, grid=(4,), num_warps=4, **options
    )
    return cubin.read(built.asm["cubin"]).fingerprint()


def built(path: Path, acf: Acf) -> str:
    """What TritonKernel answers for the same path, once ``acf`` lies there."""
    path.write_bytes(acf.content)
    made = waves().build(path).code
    assert made is not None
    return made.fingerprint()


@pytest.fixture
def at(tmp_path: Path) -> Path:
    return tmp_path / "best.acf"


@pytest.mark.usefixtures("as_on_h200")
def test_new_content_at_the_same_path(at: Path, best: Acf, worst: Acf) -> None:
    at.write_bytes(best.content)
    old = code(at)
    at.write_bytes(worst.content)
    assert code(at) == old  # stale: the file was not opened
    at.unlink()
    assert code(at) == old
    assert built(at, best) == old
    assert built(at, worst) != old


@pytest.mark.usefixtures("as_on_h200")
def test_always_compile_alone(
    at: Path, best: Acf, worst: Acf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    at.write_bytes(best.content)
    old = code(at)
    at.write_bytes(worst.content)
    assert code(at) == old  # stale: the function's own memory answers before the compiler
    assert built(at, worst) != old


@pytest.mark.usefixtures("as_on_h200")
def test_a_new_cache_folder_alone(
    at: Path, best: Acf, worst: Acf, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at.write_bytes(best.content)
    old = code(at)
    at.write_bytes(worst.content)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "another"))
    assert code(at) == old  # stale, as above
    kernels.waves.device_caches.clear()
    assert code(at) != old  # and no more, once that memory is gone, too
    assert built(at, best) == old


@pytest.mark.usefixtures("as_on_h200")
def test_an_option_in_the_environment_that_comes_too_late(
    at: Path, best: Acf, assembler: Assembler, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = code(None)
    kernels.waves.device_caches.clear()
    at.write_bytes(best.content)
    monkeypatch.setenv("TRITON_ALWAYS_COMPILE", "1")
    monkeypatch.setenv("PTXAS_OPTIONS", f"--apply-controls={at}")
    assert code(None) == plain  # ignored: Triton's backend has read the variable before
    (answer,) = waves().build_all([Arm("best.acf", best)], assembler, Path())
    assert isinstance(answer, Build)
    assert answer.code is not None
    assert answer.code.controls() == [str(assembler.staging.path(best))]
    assert answer.code.fingerprint() != plain


UNDER_A_GLOBAL_OPTION = """
from pathlib import Path
from pytest_compileiq.toolchain import cubin
from tests.triton import kernels
from tests.triton.support import NoGpu, waves
from triton import MockTensor, language as tl
from triton.runtime import driver

driver.set_active(NoGpu())
for options in ({}, {"ptx_options": None}):
    kernels.waves.device_caches.clear()
    made = kernels.waves.warmup(
        MockTensor(tl.float32), 4096, BLOCK=1024, grid=(4,), num_warps=4, **options
    )
    print("TRITON", cubin.read(made.asm["cubin"]).controls())
print("PLUGIN", waves().build(None).code.controls())
"""


def test_a_baseline_under_a_global_option(
    at: Path, best: Acf, ptxas: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The speed-up would read 1.00x: both sides would be the ACF's."""
    if not hasattr(knobs.nvidia, "ptxas_options"):
        pytest.skip("this Triton reads no option for ptxas from the environment")
    at.write_bytes(best.content)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PTXAS_OPTIONS", f"--apply-controls={at}")
    for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        monkeypatch.setenv(name, str(ptxas.path))  # type: ignore[attr-defined]
    done = subprocess.run(
        [sys.executable, "-c", UNDER_A_GLOBAL_OPTION], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"TRITON ['{at}']"] * 2 + ["PLUGIN []"]


@pytest.mark.usefixtures("as_on_h200")
def test_what_others_compiled_stays_theirs(assembler: Assembler) -> None:
    code(None)
    (known,) = kernels.waves.device_caches.values()
    assert isinstance(waves().build_all([BASELINE], assembler, Path())[0], Build)
    assert list(kernels.waves.device_caches.values()) == [known]
