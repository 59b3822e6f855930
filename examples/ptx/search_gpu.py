"""Search for an ACF that makes sgemm.ptx faster, on a GPU; search.py needs none and cuts spills.

python search_gpu.py sgemm --seconds 90 --out found
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "common"))

import tuning

PTX = Path(__file__).parent / "sgemm.ptx"
SIZE, TILE = 2048, 128


def open_sgemm() -> tuning.Opened:
    import torch

    torch.manual_seed(0)
    a = torch.randn(SIZE, SIZE, device="cuda")
    b = torch.randn(SIZE, SIZE, device="cuda")
    c = torch.empty_like(a)
    expected = (a.double() @ b.double()).float()
    return tuning.Opened(
        ptx=PTX.read_text(),
        grid=(SIZE // TILE, SIZE // TILE),
        threads=256,
        args=(c, a, b, SIZE),
        outputs=[c],
        check=lambda: torch.testing.assert_close(c, expected, atol=2e-3, rtol=1e-4),
    )


if __name__ == "__main__":
    tuning.main(__file__, ("sgemm",))
