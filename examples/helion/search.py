"""Search for the ACF beside this file with NVIDIA CompileIQ, on the GPU that it is for.

python search.py softmax --seconds 90 --out found
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "common"))

import tuning


def open_softmax() -> tuning.Opened:
    import helion_kernel as kernel
    import torch

    torch.manual_seed(0)
    x = torch.randn(kernel.ROWS, kernel.COLUMNS, device="cuda")
    expected = torch.softmax(x, 1)
    calls: list[tuple[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]]] = []

    def capture(fn: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
        """In the place of Helion's launcher: what it would launch, and no launch."""
        calls.append((fn, grid, args, options))

    run = kernel.softmax.bind((x,)).compile_config(kernel.CONFIG)
    out = run(x, _launcher=capture)
    ((fn, grid, args, options),) = calls
    return tuning.opened_triton(
        fn,
        grid,
        args,
        options,
        outputs=[out],
        check=lambda: torch.testing.assert_close(out, expected, atol=1e-7, rtol=1e-4),
    )


if __name__ == "__main__":
    tuning.main(__file__, ("softmax",))
