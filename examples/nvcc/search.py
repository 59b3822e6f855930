"""Search for the ACF beside this file with NVIDIA CompileIQ, on the GPU that it is for.

python search.py logsumexp --seconds 90 --out found
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "common"))

import tuning

SOURCE = Path(__file__).parent / "logsumexp.cu"
ROWS, COLUMNS = 8192, 16384


def open_logsumexp() -> tuning.Opened:
    import torch

    with tempfile.TemporaryDirectory(prefix="ciq-") as folder:
        ptx = Path(folder, "kernel.ptx")
        subprocess.run(["nvcc", "-ptx", "-arch=sm_90a", SOURCE, "-o", ptx], check=True)
        text = ptx.read_text()
    torch.manual_seed(0)
    x = torch.randn(ROWS, COLUMNS, device="cuda")
    out = torch.empty(ROWS, device="cuda")
    expected = torch.logsumexp(x, 1)
    return tuning.Opened(
        ptx=text,
        grid=(ROWS,),
        threads=256,
        args=(out, x, COLUMNS),
        outputs=[out],
        check=lambda: torch.testing.assert_close(out, expected, atol=1e-4, rtol=1e-5),
    )


if __name__ == "__main__":
    tuning.main(__file__, ("logsumexp",))
