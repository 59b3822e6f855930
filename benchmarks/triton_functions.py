"""Three Triton kernels of the usual kinds, for benchmarks: plain, and fast enough to be real."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def matmul(a, b, c, n, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """c = a @ b in fp16 with fp32 sums; n x n, row major, n a multiple of each tile side."""
    group = 8
    tile, columns = tl.program_id(0), n // N
    first = tile // (group * columns) * group
    row = first + tile % group
    column = tile % (group * columns) // group
    i = row * M + tl.arange(0, M)
    j = column * N + tl.arange(0, N)
    k = tl.arange(0, K)
    left = a + i[:, None] * n + k[None, :]
    right = b + k[:, None] * n + j[None, :]
    total = tl.zeros((M, N), dtype=tl.float32)
    for _ in range(0, n, K):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += K
        right += K * n
    tl.store(c + i[:, None] * n + j[None, :], total.to(tl.float16))


@triton.jit
def attention(q, k, v, o, length, scale, D: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    """Causal attention, heads in the second grid dimension, fp16; ``length`` a multiple of M.

    Keys are taken in blocks of N, a divisor of M, with a running maximum and sum.
    """
    head = tl.program_id(1).to(tl.int64) * length * D
    start = tl.program_id(0) * M
    i, d = start + tl.arange(0, M), tl.arange(0, D)
    queries = tl.load(q + head + i[:, None] * D + d[None, :])
    best = tl.full((M,), float("-inf"), tl.float32)
    total = tl.zeros((M,), tl.float32)
    result = tl.zeros((M, D), tl.float32)
    for at in range(0, start + M, N):
        j = at + tl.arange(0, N)
        keys = tl.load(k + head + j[None, :] * D + d[:, None])
        score = tl.dot(queries, keys) * (scale * 1.4426950408889634)
        score = tl.where(i[:, None] >= j[None, :], score, float("-inf"))
        now = tl.maximum(best, tl.max(score, 1))
        weight = tl.exp2(score - now[:, None])
        keep = tl.exp2(best - now)
        total = total * keep + tl.sum(weight, 1)
        values = tl.load(v + head + j[:, None] * D + d[None, :])
        result = tl.dot(weight.to(tl.float16), values, result * keep[:, None])
        best = now
    result = result / total[:, None]
    tl.store(o + head + i[:, None] * D + d[None, :], result.to(tl.float16))


@triton.jit
def softmax(y, x, columns, COLUMNS: tl.constexpr):
    """Softmax of each row in fp32; COLUMNS is the power of two from ``columns`` on."""
    row = tl.program_id(0).to(tl.int64) * columns
    j = tl.arange(0, COLUMNS)
    values = tl.load(x + row + j, mask=j < columns, other=float("-inf"))
    values = tl.exp(values - tl.max(values, 0))
    tl.store(y + row + j, values / tl.sum(values, 0), mask=j < columns)
