"""Kernels for the benchmarks that need a GPU: four of the usual kinds, and one of known speed.

The four are the launches of ``examples/triton``, and its softmax on a small matrix. torch and
Triton are imported by the functions that need them.
"""

from __future__ import annotations

import atexit
import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_compileiq import Build, Kernel, TritonKernel
from pytest_compileiq.gpu import stream
from pytest_compileiq.measure.timer import Pair
from pytest_compileiq.measure.units import Side
from pytest_compileiq.selfcheck import COPY_PTX
from pytest_compileiq.subjects import placing
from pytest_compileiq.subjects.kernel import BASELINE
from pytest_compileiq.subjects.launcher import Loaded
from pytest_compileiq.toolchain.assembler import Assembler, Job

EXAMPLES = Path(__file__).parents[1] / "examples" / "triton"
NAMES = ("matmul", "attention", "softmax", "small")


class Idle:
    """The kernel of known speed. ``bytes_`` are read, and as many written; needs torch.

    ``cubin`` is what ptxas made of selfcheck's COPY_PTX for this GPU.
    """

    def __init__(self, cubin: bytes, bytes_: int) -> None:
        import torch

        n = bytes_ // 4
        self.source = torch.rand(n, device="cuda")
        self.target = torch.empty_like(self.source)
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        self._what = (cubin, "copy", 2 * sms, 1024)
        self._args = (self.target, self.source, n)
        self.kernel = Kernel(
            lambda acf: self.build(0),
            name=f"idle {bytes_ >> 10} KiB",
            check=lambda: torch.testing.assert_close(self.target, 2 * self.source),
            outputs=[self.target],
            place=lambda random: placing.place(self._args, random),
        )

    def build(self, cycles: int) -> Build:
        """The kernel with so many idle cycles at its end."""

        def load(args: Sequence[Any]) -> Callable[[], None]:
            return Loaded(*self._what).bind((*args, cycles))

        own = functools.cache(lambda: load(self._args))
        return Build(self._what[0], launch=lambda: own()(), load=load)

    def pair(self, base: int, candidate: int) -> Pair:
        """Builds with so many idle cycles."""
        builds = {Side.BASE: self.build(base), Side.CANDIDATE: self.build(candidate)}
        return Pair(self.kernel, builds)


@functools.cache
def assembler() -> Assembler:
    """The one of this process; Triton's builds need its folder as long as they are loaded."""
    made = Assembler()
    atexit.register(made.close)
    return made


def idle_cubin(arch: str) -> bytes:
    """Assemble COPY_PTX, such as for ``sm_90``. Raises CiqError."""
    (answer,) = assembler().run_all([Job(COPY_PTX, arch)])
    if isinstance(answer, Exception):
        raise answer
    return answer.cubin


def arch() -> str:
    """Architecture of the current GPU, such as ``sm_90``."""
    return f"sm_{stream.current().device.arch}"


def triton_kernel(name: str) -> TritonKernel:
    """One of NAMES, with its arguments on the GPU and a check against torch."""
    if str(EXAMPLES) not in sys.path:
        sys.path.insert(0, str(EXAMPLES))
    import triton_inputs

    case = _small(triton_inputs) if name == "small" else getattr(triton_inputs, name)(on_gpu=True)
    return TritonKernel(
        case.kernel,
        grid=case.grid,
        args=case.args,
        constexprs=case.constexprs,
        check=case.check,
        outputs=case.outputs,
        name=name,
        **case.options,
    )


def identical(kernel: Kernel) -> Pair:
    """A kernel against itself: the same code built twice, each once with its result checked."""
    builds = []
    for build in kernel.build_all([BASELINE, BASELINE], assembler(), EXAMPLES):
        if isinstance(build, Exception):
            raise build
        assert build.launch is not None
        assert kernel.check is not None
        build.launch()
        kernel.check()
        builds.append(build)
    return Pair(kernel, dict(zip(Side, builds, strict=True)))


def pairs(names: Iterable[str] = NAMES) -> dict[str, Pair]:
    """For ``python -m pytest_compileiq selfcheck --pairs=benchmarks/kernels.py:pairs``."""
    return {name: identical(triton_kernel(name)) for name in names}


def _small(inputs: ModuleType) -> Any:
    """Softmax of 512 rows of 1024 numbers, about 6 us."""
    import torch

    case, columns = inputs.softmax(on_gpu=False), 1024
    x = torch.randn(512, columns, device="cuda")
    out = torch.empty_like(x)
    return replace(
        case,
        grid=(512,),
        args=(out, x, columns),
        constexprs={"BLOCK": columns},
        options={"num_warps": 8},
        outputs=[out],
        check=lambda: torch.testing.assert_close(out, torch.softmax(x, 1)),
    )
