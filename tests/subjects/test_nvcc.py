"""NvccKernel: a real nvcc makes PTX, and the session's ptxas makes the cubin with the ACF."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pytest_compileiq import NvccKernel
from pytest_compileiq.checks import proof
from pytest_compileiq.errors import CiqError, ToolchainError
from pytest_compileiq.subjects.kernel import BASELINE, Arm, Build, Workbench
from pytest_compileiq.toolchain.acf import load
from pytest_compileiq.toolchain.assembler import Assembler
from pytest_compileiq.verdict import Reason
from tests.conftest import EXAMPLE, ROOT

pytestmark = pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc on PATH")

SOURCE = """
extern "C" __global__ void axpy(float *y, const float *x, float a, int n)
{
    const int at = blockIdx.x * blockDim.x + threadIdx.x;
    if (at < n) y[at] = fmaf(a, x[at], FACTOR * y[at]);
}
"""


def build(kernel: NvccKernel, assembler: Assembler, folder: Path = Path()) -> Build:
    (made,) = kernel.build_all([BASELINE], assembler, folder)
    if isinstance(made, Exception):
        raise made
    return made


def test_the_acf_arrives_and_the_cubin_is_of_our_ptxas(assembler: Assembler) -> None:
    kernel = NvccKernel("logsumexp.cu", arch="sm_90a")
    bench = Workbench(kernel, assembler, ROOT / "examples" / "nvcc")
    best = load(EXAMPLE / "best.acf")
    shown = proof.proven(bench, Arm("best.acf", best))
    assert kernel.name == kernel.entry == "logsumexp"
    assert shown.same_code is False
    assert proof.ptxas_of(bench, shown.build) == str(assembler.ptxas())
    used = kernel.resources_of(shown.build)
    assert used is not None
    assert used.shared_bytes == 64


def test_text_flags_and_the_hash(assembler: Assembler, tmp_path: Path) -> None:
    kernel = NvccKernel(SOURCE, arch="sm_90a", flags=["-DFACTOR=1.0f"])
    other = NvccKernel(SOURCE, arch="sm_90a", flags=["-DFACTOR=2.0f"])
    (tmp_path / "axpy.cu").write_text(SOURCE)
    file = NvccKernel("axpy.cu", arch="sm_90a", flags=["-DFACTOR=1.0f"])
    hashes = [one.ptx_sha256(tmp_path) for one in (kernel, file, other)]
    assert hashes[0] == hashes[1] != hashes[2]
    assert kernel.entry == "axpy"
    assert build(kernel, assembler).resources["axpy"].registers > 0


#: nvcc writes the paths of both files into the PTX, as text, and a hash of them into two names.
WITH_PATHS = """
#include <cassert>
#include "half.cuh"
static __device__ int calls;
namespace {
__device__ __noinline__ float root(float x) { return sqrtf(x) + atomicAdd(&calls, 1); }
__global__ void roots(float *p, int n) { assert(n > 0); p[0] = root(half_of(p[0])); }
}
void unused(float *p) { roots<<<1, 1>>>(p, 1); }
"""
HEADER = """
#include <cassert>
__device__ inline float half_of(float x) { assert(x > 0); return x / 2; }
"""


@pytest.mark.parametrize("given", ["text", "relative", "absolute"])
def test_the_folder_of_a_source_is_not_in_its_hash(tmp_path: Path, given: str) -> None:
    hashes = set()
    for name in ("here", "a longer/way"):
        folder = tmp_path / name
        (folder / "tests").mkdir(parents=True)
        (folder / "roots.cu").write_text(WITH_PATHS)
        (folder / "half.cuh").write_text(HEADER)
        sources = {
            "text": WITH_PATHS,
            "relative": "../roots.cu",
            "absolute": folder / "roots.cu",
        }
        for _ in range(2):
            kernel = NvccKernel(sources[given], arch="sm_90a", flags=["-I.."])
            hashes.add(kernel.ptx_sha256(folder / "tests"))
        text = kernel.text(folder / "tests")
        assert "__assertfail" in text
        for part in ("way", "ciq-nvcc"):  # strings are lists of bytes there
            assert ", ".join(map(str, part.encode())) not in text
    assert len(hashes) == 1


def test_an_nvcc_named_from_another_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tools").mkdir()
    (tmp_path / "tools" / "nvcc").symlink_to(str(shutil.which("nvcc")))
    (tmp_path / "tests").mkdir()
    monkeypatch.chdir(tmp_path)
    kernel = NvccKernel(SOURCE, arch="sm_90a", flags=["-DFACTOR=1.0f"], nvcc="tools/nvcc")
    assert ".entry axpy" in kernel.text(tmp_path / "tests")


def test_flags_behind_the_users_back_are_kept_out(
    assembler: Assembler, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernel = NvccKernel(SOURCE, arch="sm_90a", flags=["-DFACTOR=1.0f"])
    expected = kernel.ptx_sha256(Path())
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DFACTOR=3.0f")
    monkeypatch.setenv("NVCC_PREPEND_FLAGS", "--no-such-flag")
    again = NvccKernel(SOURCE, arch="sm_90a", flags=["-DFACTOR=1.0f"])
    assert again.ptx_sha256(Path()) == expected


def test_what_nvcc_says_to_a_mistake(assembler: Assembler, tmp_path: Path) -> None:
    with pytest.raises(CiqError, match='identifier "FACTOR" is undefined') as error:
        build(NvccKernel(SOURCE, arch="sm_90a"), assembler)
    assert error.value.reason is Reason.CRASHED
    assert "kernel.cu(5): error" in error.value.what  # the text's own line
    assert error.value.looked_at[0] == "cd ."
    assert "no ACF has come to it yet" in error.value.remedy
    with pytest.raises(CiqError, match=r"missing\.cu does not exist") as missing:
        build(NvccKernel("missing.cu", arch="sm_90a"), assembler, tmp_path)
    assert missing.value.looked_at == (f"{tmp_path}: no *.cu file in it",)
    with pytest.raises(ToolchainError, match="there is no my-nvcc on PATH"):
        build(NvccKernel(SOURCE, arch="sm_90a", nvcc="my-nvcc"), assembler)
