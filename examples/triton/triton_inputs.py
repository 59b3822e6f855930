"""The launches of the kernels in triton_kernels.py: arguments, and the reference that each has to meet.

Without a GPU types stand in the place of tensors, and neither torch nor a check is needed.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import triton_kernels as kernels

with contextlib.suppress(ImportError):
    # Here and not in a function: each isolated test then finds it imported, which saves seconds.
    import torch


@dataclass(frozen=True, kw_only=True)
class Case:
    """A launch. ``outputs`` and ``check`` are there on a GPU only."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    constexprs: dict[str, int]
    options: dict[str, Any]
    outputs: list[Any] = field(default_factory=list)
    check: Callable[[], None] | None = None


def matmul(*, on_gpu: bool) -> Case:
    size, blocks = kernels.MATMUL_SIZE, kernels.MATMUL
    a: Any = "*fp16"
    b: Any = "*fp16"
    c: Any = "*fp16"
    check = None
    if on_gpu:
        torch.manual_seed(0)
        a = torch.randn(size, size, device="cuda", dtype=torch.float16)
        b = torch.randn(size, size, device="cuda", dtype=torch.float16) / math.sqrt(size)
        c = torch.empty_like(a)
        expected = a @ b

        def check() -> None:
            # Two sums of 4096 halves in another order differ by a few roundings of the result.
            torch.testing.assert_close(c, expected, atol=5e-3, rtol=1e-2)

    return Case(
        kernel=kernels.matmul,
        grid=(size // blocks["BLOCK_M"] * (size // blocks["BLOCK_N"]),),
        args=(c, a, b, size, size, size),
        constexprs=blocks,
        options=kernels.MATMUL_OPTIONS,
        outputs=[c] if on_gpu else [],
        check=check,
    )


def attention(*, on_gpu: bool) -> Case:
    heads, length = kernels.ATTENTION_HEADS, kernels.ATTENTION_LENGTH
    width = kernels.ATTENTION_WIDTH
    q: Any = "*fp16"
    k: Any = "*fp16"
    v: Any = "*fp16"
    out: Any = "*fp16"
    check = None
    if on_gpu:
        torch.manual_seed(0)
        q, k, v = torch.randn(3, heads, length, width, device="cuda", dtype=torch.float16)
        out = torch.empty_like(q)
        attend = torch.nn.functional.scaled_dot_product_attention
        expected = attend(q[None], k[None], v[None], is_causal=True)[0]

        def check() -> None:
            torch.testing.assert_close(out, expected, atol=5e-3, rtol=1e-2)

    return Case(
        kernel=kernels.attention,
        grid=(length // kernels.ATTENTION["BLOCK_M"], heads),
        args=(out, q, k, v, length, math.log2(math.e) / math.sqrt(width)),
        constexprs=kernels.ATTENTION,
        options=kernels.ATTENTION_OPTIONS,
        outputs=[out] if on_gpu else [],
        check=check,
    )


def softmax(*, on_gpu: bool) -> Case:
    rows, columns = kernels.SOFTMAX_ROWS, kernels.SOFTMAX_COLUMNS
    x: Any = "*fp32"
    out: Any = "*fp32"
    check = None
    if on_gpu:
        torch.manual_seed(0)
        x = torch.randn(rows, columns, device="cuda")
        out = torch.empty_like(x)
        expected = torch.softmax(x, 1)

        def check() -> None:
            torch.testing.assert_close(out, expected, atol=1e-7, rtol=1e-4)

    return Case(
        kernel=kernels.softmax,
        grid=(rows,),
        args=(out, x, columns),
        constexprs={"BLOCK": columns},
        options=kernels.SOFTMAX_OPTIONS,
        outputs=[out] if on_gpu else [],
        check=check,
    )
