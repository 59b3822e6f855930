"""HelionKernel on real Helion, with tensors on the CPU: what it compiles and with which ACF."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("triton", reason="tox -e triton brings it")
pytest.importorskip("helion", reason="needs Helion and torch")

import helion
import helion.language as hl
import torch

from pytest_compileiq import HelionKernel
from pytest_compileiq.checks import proof
from pytest_compileiq.errors import CiqError, SettingsError
from pytest_compileiq.subjects.kernel import BASELINE, Arm, Build, Workbench
from pytest_compileiq.toolchain.acf import Acf
from pytest_compileiq.toolchain.assembler import Assembler

CONFIG = helion.Config(block_sizes=[1], num_warps=4)


@helion.kernel(config=CONFIG, static_shapes=True)
def softmax(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        row = x[tile, :]
        part = torch.exp(row - torch.amax(row, dim=1, keepdim=True))
        out[tile, :] = part / torch.sum(part, dim=1, keepdim=True)
    return out


@helion.kernel(config=CONFIG, static_shapes=True)
def shortened(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :] + 1
    return out.sum(1)


@helion.kernel(configs=[CONFIG, helion.Config(block_sizes=[2])], static_shapes=True)
def undecided(x: torch.Tensor) -> torch.Tensor:
    out = torch.empty_like(x)
    for tile in hl.tile(x.size(0)):
        out[tile, :] = x[tile, :] + 1
    return out


X = torch.randn(64, 1024)


def build(kernel: HelionKernel, assembler: Assembler) -> Build:
    (made,) = kernel.build_all([BASELINE], assembler, Path())
    if isinstance(made, Exception):
        raise made
    return made


def test_proofs_on_helions_own_route(
    assembler: Assembler, best: Acf, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_CACHE_DIR", raising=False)
    bench = Workbench(HelionKernel(softmax, args=(X,), arch="sm_90a"), assembler, Path())
    shown = proof.proven(bench, Arm("best.acf", best))
    assert shown.same_code is False
    assert bench.kernel.entry == "_helion_softmax"
    assert proof.refused(bench, best) == "damaged-best.acf"
    assert bench.kernel.resources_of(shown.build) is not None
    import os

    assert "TRITON_CACHE_DIR" not in os.environ  # which Helion would have set for good


def test_all_arms_share_the_buffers_that_check_sees(assembler: Assembler, best: Acf) -> None:
    seen: list[torch.Tensor] = []
    kernel = HelionKernel(softmax, args=(X,), arch="sm_90a", check=seen.append)
    calls = [kernel._call(acf)[0] for acf in (Path("/some.acf"), None, Path("/other.acf"))]
    assert kernel.check is not None
    kernel.check()
    (out,) = kernel.outputs
    assert seen[0] is out
    assert all(call.args[1] is out and call.args[0] is X for call in calls)
    assert len({id(call.jit) for call in calls}) == 3


def test_what_a_helion_function_must_not_do(assembler: Assembler) -> None:
    with pytest.raises(CiqError, match="does not return what its kernel writes"):
        build(HelionKernel(shortened, args=(X,), arch="sm_90a"), assembler)
    with pytest.raises(SettingsError, match="undecided has 2 configurations"):
        build(HelionKernel(undecided, args=(X,), arch="sm_90a"), assembler)
    with_acf = helion.Config(block_sizes=[1], advanced_controls_file="x.acf")
    with pytest.raises(SettingsError, match="applies an ACF to the baseline"):
        build(HelionKernel(softmax, args=(X,), config=with_acf, arch="sm_90a"), assembler)
