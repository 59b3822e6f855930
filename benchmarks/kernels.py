"""Kernels for the benchmarks that need a GPU: four of the usual kinds, and one of known speed.

torch and Triton are imported by the functions that need them. Every function returns a
``Kernel`` with seats and one or more builds of it; two builds of one call are the same code.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from pytest_compileiq import Build, Kernel
from pytest_compileiq.gpu import stream
from pytest_compileiq.measure.timer import Pair
from pytest_compileiq.measure.units import Side
from pytest_compileiq.subjects import launcher
from pytest_compileiq.subjects.launcher import Loaded

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


@dataclass(frozen=True)
class Subject:
    """A kernel under its short name, with a function that gives one more build of it."""

    name: str
    kernel: Kernel
    build: Callable[[], Build]

    def pair(self) -> Pair:
        """The kernel against itself: the same code, built twice."""
        return Pair(self.kernel, {Side.BASE: self.build(), Side.CANDIDATE: self.build()})


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

        own = launcher.Placed(self._args, None)
        return Build(self._what[0], launch=lambda: load(own)(), load=load)

    def pair(self, base: int, candidate: int) -> Pair:
        """Builds with so many idle cycles."""
        builds = {Side.BASE: self.build(base), Side.CANDIDATE: self.build(candidate)}
        return Pair(self.kernel, builds)


def idle_cubin(arch: str) -> bytes:
    """Assemble IDLE_PTX, such as for ``sm_90``. Raises CiqError."""
    from pytest_compileiq.toolchain.assembler import Assembler, Job

    assembler = Assembler()
    try:
        (answer,) = assembler.run_all([Job(IDLE_PTX, arch)])
    finally:
        assembler.close()
    if isinstance(answer, Exception):
        raise answer
    return answer.cubin


def arch() -> str:
    """Architecture of the current GPU, such as ``sm_90``."""
    return f"sm_{stream.current().device.arch}"


def triton_subject(
    name: str,
    function: Any,
    grid: tuple[int, ...],
    buffers: Mapping[str, Any],
    constants: Mapping[str, Any],
    scalars: Mapping[str, Any],
    **options: int,
) -> Subject:
    """A Triton kernel on torch tensors, whose names are those of the kernel's arguments.

    A seat clones the tensors behind random padding; a build forgets what Triton has compiled
    in memory, so that its code is loaded anew (from Triton's cache on disk).
    """
    import torch

    def place(random: Random) -> dict[str, Any]:
        padding = torch.empty(random.randrange(1, 64 << 20), dtype=torch.uint8, device="cuda")
        copies = {key: tensor.clone() for key, tensor in buffers.items()}
        del padding
        return copies

    def load(placed: Mapping[str, Any]) -> Callable[[], None]:
        function.device_caches.clear()
        compiled = function.warmup(**placed, **scalars, **constants, **options, grid=grid)
        bound = compiled[grid]
        order = list(function.arg_names)
        everything = {**placed, **scalars, **constants}
        args = [everything[key] for key in order]
        return lambda: bound(*args)

    def build() -> Build:
        return Build(launch=lambda: load(buffers)(), load=load)

    kernel = Kernel(lambda acf: build(), name=name, place=place)
    return Subject(name, kernel, build)
