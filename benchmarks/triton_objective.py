"""The time of a Triton matrix product with an ACF, checked, in a process that ends afterwards."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl

from pytest_compileiq.files import write_whole

SIZE = 1024


@triton.jit
def matmul(a, b, c, N: tl.constexpr, M: tl.constexpr, K: tl.constexpr):  # type: ignore[no-untyped-def]
    rows = tl.program_id(0) * M + tl.arange(0, M)
    columns = tl.program_id(1) * M + tl.arange(0, M)
    total = tl.zeros((M, M), dtype=tl.float32)
    for start in range(0, N, K):
        inner = start + tl.arange(0, K)
        left = tl.load(a + rows[:, None] * N + inner[None, :])
        right = tl.load(b + inner[:, None] * N + columns[None, :])
        total += tl.dot(left, right)
    tl.store(c + rows[:, None] * N + columns[None, :], total.to(tl.float16))


def objective(config: Any) -> float | str:
    """Milliseconds a launch with the ACF (hex), or without any for ``{}``.

    TRITON_CACHE_DIR has to name a folder of this search, which the calls share: Triton's own
    helpers are compiled once. Its key of a kernel holds the ACF's path, and that the ACF's hash.
    """
    options = {}
    if config:
        content = bytes.fromhex(config)
        name = f"{hashlib.sha256(content).hexdigest()}.acf"
        acf = Path(os.environ["TRITON_CACHE_DIR"], name)
        write_whole(acf, content)
        options["ptx_options"] = f"--apply-controls={acf}"
    torch.manual_seed(0)
    a, b = (torch.randn(SIZE, SIZE, device="cuda", dtype=torch.float16) for _ in range(2))
    c = torch.empty_like(a)

    def launch() -> None:
        matmul[(SIZE // 128, SIZE // 128)](
            a, b, c, N=SIZE, M=128, K=32, num_warps=8, num_stages=3, **options
        )

    launch()
    if not torch.allclose(c, a @ b, atol=0.25, rtol=0.02):
        return "*"
    return float(triton.testing.do_bench(launch, warmup=5, rep=20))
