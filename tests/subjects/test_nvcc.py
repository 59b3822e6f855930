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
    assert "no ACF has come to it yet" in error.value.remedy
    with pytest.raises(CiqError, match=r"missing\.cu does not exist") as missing:
        build(NvccKernel("missing.cu", arch="sm_90a"), assembler, tmp_path)
    assert missing.value.looked_at == (f"{tmp_path}: no *.cu file in it",)
    with pytest.raises(ToolchainError, match="there is no my-nvcc on PATH"):
        build(NvccKernel(SOURCE, arch="sm_90a", nvcc="my-nvcc"), assembler)
