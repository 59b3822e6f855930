"""Search for the ACFs beside this file with NVIDIA CompileIQ, on the GPU that they are for.

python search.py matmul --seconds 90 --out found/matmul
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent.parent / "common"))

import tuning

if TYPE_CHECKING:
    from triton_inputs import Case


def open_matmul() -> tuning.Opened:
    import triton_inputs as inputs

    return _opened(inputs.matmul(on_gpu=True))


def open_attention() -> tuning.Opened:
    import triton_inputs as inputs

    return _opened(inputs.attention(on_gpu=True))


def open_softmax() -> tuning.Opened:
    import triton_inputs as inputs

    return _opened(inputs.softmax(on_gpu=True))


def _opened(case: Case) -> tuning.Opened:
    assert case.check is not None
    return tuning.opened_triton(
        case.kernel,
        case.grid,
        case.args,
        {**case.constexprs, **case.options},
        outputs=case.outputs,
        check=case.check,
    )


if __name__ == "__main__":
    tuning.main(__file__, ("matmul", "attention", "softmax"))
