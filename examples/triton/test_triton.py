"""Committed ACFs of Triton kernels: proven without a GPU, timed with ``--ciq-gpu``."""

from __future__ import annotations

import pytest

pytest.importorskip("triton", reason="needs Triton")

import triton_inputs as inputs

from pytest_compileiq import CIQ, TritonKernel


def kernel(case: inputs.Case) -> TritonKernel:
    return TritonKernel(
        case.kernel,
        grid=case.grid,
        args=case.args,
        constexprs=case.constexprs,
        outputs=case.outputs,
        check=case.check,
        arch="sm_90a",
        **case.options,
    )


@pytest.mark.ciq_canary
@pytest.mark.ciq_resources(max_registers=255, max_spill_bytes=0)
@pytest.mark.ciq_max_cv(5)
@pytest.mark.ciq_beats_baseline("matmul.acf")
def test_matmul(ciq: CIQ) -> None:
    ciq.check(kernel(inputs.matmul(on_gpu=ciq.on_gpu)))


@pytest.mark.ciq_canary
@pytest.mark.ciq_resources(max_registers=255, max_spill_bytes=0)
@pytest.mark.ciq_max_cv(5)
@pytest.mark.ciq_beats_baseline("attention.acf")
def test_attention(ciq: CIQ) -> None:
    ciq.check(kernel(inputs.attention(on_gpu=ciq.on_gpu)))


@pytest.mark.ciq_canary
@pytest.mark.ciq_resources(max_registers=255, max_spill_bytes=0)
@pytest.mark.ciq_max_cv(5)
@pytest.mark.ciq_beats_baseline("softmax.acf")
def test_softmax(ciq: CIQ) -> None:
    ciq.check(kernel(inputs.softmax(on_gpu=ciq.on_gpu)))


@pytest.mark.ciq_canary
@pytest.mark.ciq_resources(max_registers=255, max_spill_bytes=0)
@pytest.mark.parametrize("name", ["matmul", "attention", "softmax"])
def test_without_an_acf(ciq: CIQ, name: str) -> None:
    """The kernels themselves: right on a GPU, without spills anywhere."""
    ciq.check(kernel(getattr(inputs, name)(on_gpu=ciq.on_gpu)))
