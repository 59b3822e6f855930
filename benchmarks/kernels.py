"""Kernels for the benchmarks that need a GPU: four of the usual kinds, and one of known speed.

The four are the launches of ``examples/triton``, and its softmax on a small matrix. torch and
Triton are imported by the functions that need them.
"""

from __future__ import annotations

import atexit
import functools
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from pytest_compileiq import Build, Kernel, TritonKernel
from pytest_compileiq.gpu import stream
from pytest_compileiq.measure.timer import Pair
from pytest_compileiq.measure.units import Side
from pytest_compileiq.subjects import launcher
from pytest_compileiq.subjects.kernel import BASELINE
from pytest_compileiq.subjects.launcher import Loaded
from pytest_compileiq.toolchain.assembler import Assembler, Job

EXAMPLES = Path(__file__).parents[1] / "examples" / "triton"
NAMES = ("matmul", "attention", "softmax", "small")

#: out[i] = 2 in[i] for all i, by as many blocks as run at once; then each thread idles for
#: ``cycles``. All blocks end together, so the kernel takes just so many cycles longer.
IDLE_PTX = """
.version 7.8
.target sm_80
.address_size 64
.visible .entry idle(.param .u64 out, .param .u64 in, .param .u32 n, .param .u64 cycles)
{
    .reg .pred %p;
    .reg .b32 %i, %n, %step, %t, %b;
    .reg .f32 %f;
    .reg .b64 %out, %in, %a, %o, %cycles, %start, %now;
    ld.param.u64 %out, [out];
    ld.param.u64 %in, [in];
    ld.param.u32 %n, [n];
    ld.param.u64 %cycles, [cycles];
    mov.u32 %t, %tid.x;
    mov.u32 %b, %ntid.x;
    mov.u32 %i, %ctaid.x;
    mad.lo.u32 %i, %i, %b, %t;
    mov.u32 %step, %nctaid.x;
    mul.lo.u32 %step, %step, %b;
again:
    setp.ge.u32 %p, %i, %n;
    @%p bra copied;
    mul.wide.u32 %o, %i, 4;
    add.u64 %a, %in, %o;
    ld.global.f32 %f, [%a];
    add.f32 %f, %f, %f;
    add.u64 %a, %out, %o;
    st.global.f32 [%a], %f;
    add.u32 %i, %i, %step;
    bra again;
copied:
    setp.eq.u64 %p, %cycles, 0;
    @%p bra done;
    bar.sync 0;
    mov.u64 %start, %clock64;
idle:
    mov.u64 %now, %clock64;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %p, %now, %cycles;
    @%p bra idle;
done:
    ret;
}
"""


class Idle:
    """The kernel of known speed. ``bytes_`` are read, and as many written; needs torch.

    ``cubin`` is what ptxas made of IDLE_PTX for this GPU.
    """

    def __init__(self, cubin: bytes, bytes_: int) -> None:
        import torch

        n = bytes_ // 4
        self.source = torch.rand(n, device="cuda")
        self.target = torch.empty_like(self.source)
        sms = torch.cuda.get_device_properties(0).multi_processor_count
        self._what = (cubin, "idle", 2 * sms, 1024)
        self._args = (self.target, self.source, n)
        self.kernel = Kernel(
            lambda acf: self.build(0),
            name=f"idle {bytes_ >> 10} KiB",
            check=lambda: torch.testing.assert_close(self.target, 2 * self.source),
            outputs=[self.target],
            place=lambda random: launcher.place(self._args, random),
        )

    def build(self, cycles: int) -> Build:
        """The kernel with so many idle cycles at its end."""

        def load(placed: launcher.Placed) -> Callable[[], None]:
            loaded = Loaded(*self._what)
            args = loaded.prepare((*placed.args, cycles))

            def launch(_keep: launcher.Placed = placed) -> None:
                loaded.launch_prepared(args)

            return launch

        own = functools.cache(lambda: load(launcher.Placed(self._args, None)))
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
    """Assemble IDLE_PTX, such as for ``sm_90``. Raises CiqError."""
    (answer,) = assembler().run_all([Job(IDLE_PTX, arch)])
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
