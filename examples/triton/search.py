"""Search for the ACFs beside this file with NVIDIA CompileIQ, on the GPU that they are for.

python search.py matmul --seconds 90 --out found/matmul
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent))

import tuning


def open_matmul() -> tuning.Opened:
    import inputs

    return _opened(inputs.matmul())


def open_attention() -> tuning.Opened:
    import inputs

    return _opened(inputs.attention())


def open_softmax() -> tuning.Opened:
    import inputs

    return _opened(inputs.softmax())


def _opened(case: object) -> tuning.Opened:
    import inputs

    assert isinstance(case, inputs.Case)
    return tuning.opened_triton(
        case.kernel,
        case.grid,
        case.args,
        {**case.constexprs, **case.options},
        outputs=case.args[:1],
        check=case.check,
    )


if __name__ == "__main__":
    tuning.main(__file__, ("matmul", "attention", "softmax"))
