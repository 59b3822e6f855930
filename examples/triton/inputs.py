"""Inputs on the GPU for the kernels of kernels.py, and the reference that each has to meet."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kernels
import torch


@dataclass(frozen=True, kw_only=True)
class Case:
    """A launch: everything that a call of the kernel needs, and its check."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constexprs: dict[str, int]
    options: dict[str, int]
    check: Callable[[], None]


def matmul() -> Case:
    size = kernels.MATMUL_SIZE
    torch.manual_seed(0)
    a = torch.randn(size, size, device="cuda", dtype=torch.float16)
    b = torch.randn(size, size, device="cuda", dtype=torch.float16) / math.sqrt(size)
    c = torch.empty_like(a)
    expected = a @ b
    blocks = kernels.MATMUL
    return Case(
        kernel=kernels.matmul,
        grid=(size // blocks["BLOCK_M"] * (size // blocks["BLOCK_N"]),),
        args=(c, a, b, size, size, size),
        constexprs=blocks,
        options=kernels.MATMUL_OPTIONS,
        # Two sums of 4096 halves in another order differ by a few roundings of the result.
        check=lambda: torch.testing.assert_close(c, expected, atol=5e-3, rtol=1e-2),
    )


def attention() -> Case:
    heads, length, width = (
        kernels.ATTENTION_HEADS, kernels.ATTENTION_LENGTH, kernels.ATTENTION_WIDTH,
    )  # fmt: skip
    torch.manual_seed(0)
    q, k, v = torch.randn(3, heads, length, width, device="cuda", dtype=torch.float16)
    out = torch.empty_like(q)
    expected = torch.nn.functional.scaled_dot_product_attention(
        q[None], k[None], v[None], is_causal=True
    )[0]
    return Case(
        kernel=kernels.attention,
        grid=(length // kernels.ATTENTION["BLOCK_M"], heads),
        args=(out, q, k, v, length, math.log2(math.e) / math.sqrt(width)),
        constexprs=kernels.ATTENTION,
        options=kernels.ATTENTION_OPTIONS,
        check=lambda: torch.testing.assert_close(out, expected, atol=5e-3, rtol=1e-2),
    )


def softmax() -> Case:
    rows, columns = kernels.SOFTMAX_ROWS, kernels.SOFTMAX_COLUMNS
    torch.manual_seed(0)
    x = torch.randn(rows, columns, device="cuda")
    out = torch.empty_like(x)
    expected = torch.softmax(x, 1)
    return Case(
        kernel=kernels.softmax,
        grid=(rows,),
        args=(out, x, columns),
        constexprs={"BLOCK": columns},
        options=kernels.SOFTMAX_OPTIONS,
        check=lambda: torch.testing.assert_close(out, expected, atol=1e-7, rtol=1e-4),
    )
