"""Small kernels in Triton, quick to compile, on which the example's ACFs have an effect."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def waves(x, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n)
    for _ in range(8):
        value = tl.exp(value) * tl.sin(value) + value
    tl.store(x + at, value, mask=at < n)


@triton.heuristics({"BLOCK": lambda args: 2 * args["HALF"]})
@triton.jit
def halves(x, n, HALF: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + HALF + tl.arange(0, BLOCK)
    tl.store(x + at, tl.load(x + at, mask=at < n), mask=at < n)


CONFIGS = [triton.Config({"HALF": 64}, num_warps=1), triton.Config({"HALF": 256}, num_warps=2)]

tuned = triton.autotune(CONFIGS, key=["n"])(halves)
tuned_once = triton.autotune(CONFIGS[:1], key=["n"])(halves)
