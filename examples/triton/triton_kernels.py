"""Three kernels in Triton: a matrix product, causal attention and a row softmax.

Each has one fixed configuration, written beside it: an ACF belongs to one PTX, and another
block size is another PTX.
"""

from __future__ import annotations

import triton
import triton.language as tl

#: C = A B in half precision, all of them SIZE x SIZE and row-major.
MATMUL = {"BLOCK_M": 128, "BLOCK_N": 128, "BLOCK_K": 64, "GROUP": 8}
MATMUL_OPTIONS = {"num_warps": 8, "num_stages": 3}
MATMUL_SIZE = 4096

#: Causal attention forward in half precision: HEADS sequences of LENGTH tokens of width WIDTH.
ATTENTION = {"BLOCK_M": 128, "BLOCK_N": 64, "WIDTH": 128}
ATTENTION_OPTIONS = {"num_warps": 8, "num_stages": 3}
ATTENTION_HEADS, ATTENTION_LENGTH, ATTENTION_WIDTH = 64, 4096, 128

#: Softmax over the rows of a float32 matrix; a program takes a whole row.
SOFTMAX_OPTIONS = {"num_warps": 1, "num_stages": 1}
SOFTMAX_ROWS, SOFTMAX_COLUMNS = 8192, 4096


@triton.jit
def matmul(
    c, a, b, m, n, k,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    """One BLOCK_M x BLOCK_N tile of C; m, n and k are multiples of the blocks."""
    # GROUP rows of tiles are walked column by column, so that their tiles of B stay in L2.
    program = tl.program_id(0)
    wide = n // BLOCK_N
    band = program // (GROUP * wide)
    inside = program % (GROUP * wide)
    height = tl.minimum(m // BLOCK_M - band * GROUP, GROUP)
    row = (band * GROUP + inside % height) * BLOCK_M
    column = (inside // height) * BLOCK_N

    rows = row + tl.arange(0, BLOCK_M)
    columns = column + tl.arange(0, BLOCK_N)
    depth = tl.arange(0, BLOCK_K)
    left = a + rows[:, None] * k + depth[None, :]
    right = b + depth[:, None] * n + columns[None, :]
    total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for _ in range(0, k, BLOCK_K):
        total = tl.dot(tl.load(left), tl.load(right), total)
        left += BLOCK_K
        right += BLOCK_K * n
    tl.store(c + rows[:, None] * n + columns[None, :], total.to(tl.float16))


@triton.jit
def attention(
    out, q, k, v, length, scale,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """BLOCK_M queries of one head against all keys that are not later than they are.

    ``scale`` is 1 / sqrt(WIDTH) times log2(e): exponentials are taken to the base two.
    """
    # The last queries have the most keys, so they are started first.
    block = tl.num_programs(0) - 1 - tl.program_id(0)
    head = tl.program_id(1).to(tl.int64) * length * WIDTH
    tokens = block * BLOCK_M + tl.arange(0, BLOCK_M)
    width = tl.arange(0, WIDTH)
    keys = tl.arange(0, BLOCK_N)
    own = head + tokens[:, None] * WIDTH + width[None, :]
    query = tl.load(q + own)
    at_k = k + head + keys[None, :] * WIDTH + width[:, None]
    at_v = v + head + keys[:, None] * WIDTH + width[None, :]

    highest = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    weight = tl.zeros((BLOCK_M,), tl.float32)
    total = tl.zeros((BLOCK_M, WIDTH), tl.float32)
    for start in range(0, (block + 1) * BLOCK_M, BLOCK_N):
        score = tl.dot(query, tl.load(at_k + start * WIDTH)) * scale
        score = tl.where(tokens[:, None] >= start + keys[None, :], score, float("-inf"))
        higher = tl.maximum(highest, tl.max(score, 1))
        share = tl.exp2(score - higher[:, None])
        shrink = tl.exp2(highest - higher)
        weight = weight * shrink + tl.sum(share, 1)
        value = tl.load(at_v + start * WIDTH)
        total = tl.dot(share.to(tl.float16), value, total * shrink[:, None])
        highest = higher
    tl.store(out + own, (total / weight[:, None]).to(tl.float16))


@triton.jit
def softmax(out, x, columns, BLOCK: tl.constexpr):
    """One row; BLOCK is a power of two that is not less than ``columns``."""
    at = tl.program_id(0).to(tl.int64) * columns + tl.arange(0, BLOCK)
    inside = tl.arange(0, BLOCK) < columns
    row = tl.load(x + at, mask=inside, other=float("-inf"))
    part = tl.exp(row - tl.max(row, 0))
    tl.store(out + at, part / tl.sum(part, 0), mask=inside)
