"""Kernels for the benchmarks that need a GPU: four of the usual kinds, and one of known speed.

torch and Triton are imported by the functions that need them. Every function returns a
``Kernel`` with seats and one or more builds of it; two builds of one call are the same code.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from pytest_compileiq import Build, Kernel
from pytest_compileiq.gpu import stream
from pytest_compileiq.measure.timer import Pair
from pytest_compileiq.measure.units import Side
from pytest_compileiq.subjects import placing
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
    others: Mapping[str, Any],
    check: Callable[[], object],
    **options: int,
) -> Subject:
    """A Triton kernel on torch tensors; ``buffers`` and ``others`` go by the names of its
    parameters.

    A seat clones the tensors behind random padding. A build forgets what Triton has compiled in
    memory, so that its code is loaded anew, from Triton's cache on disk.
    """
    import torch

    def place(random: Random) -> dict[str, Any]:
        padding = torch.empty(random.randrange(1, 64 << 20), dtype=torch.uint8, device="cuda")
        copies = {key: tensor.clone() for key, tensor in buffers.items()}
        del padding
        return copies

    def load(placed: Mapping[str, Any]) -> Callable[[], None]:
        function.device_caches.clear()
        given = {**placed, **others}
        compiled = function.warmup(grid=grid, **given, **options)
        bound = compiled[(*grid, 1, 1)[:3]]
        args = [given[key] for key in function.arg_names]
        return lambda: bound(*args)

    def build() -> Build:
        own = functools.cache(lambda: load(buffers))
        return Build(launch=lambda: own()(), load=load)

    kernel = Kernel(lambda acf: build(), name=name, place=place, check=check)
    return Subject(name, kernel, build)


def subjects(names: Iterable[str] = ("matmul", "attention", "softmax", "small")) -> list[Subject]:
    """The four kernels, checked once against torch. Needs torch and Triton."""
    makers = {
        "matmul": _matmul,
        "attention": _attention,
        "softmax": lambda: _softmax("softmax", 8192, 4096),
        "small": lambda: _softmax("small", 512, 1024),
    }
    found = []
    for name in names:
        subject = makers[name]()
        launch, check = subject.build().launch, subject.kernel.check
        assert launch is not None
        assert check is not None
        launch()
        check()
        found.append(subject)
    return found


def pairs() -> dict[str, Pair]:
    """For ``python -m pytest_compileiq selfcheck --pairs=benchmarks/kernels.py:pairs``."""
    return {subject.name: subject.pair() for subject in subjects()}


def _matmul() -> Subject:
    import torch
    from triton_functions import matmul

    n = 4096
    a, b = (torch.randn(n, n, device="cuda", dtype=torch.float16) for _ in "ab")
    c = torch.empty_like(a)
    return triton_subject(
        "matmul",
        matmul,
        ((n // 128) * (n // 128),),
        {"a": a, "b": b, "c": c},
        {"n": n, "M": 128, "N": 128, "K": 64},
        lambda: torch.testing.assert_close(c, a @ b, rtol=2e-2, atol=0.5),
        num_warps=8,
        num_stages=3,
    )


def _attention() -> Subject:
    import torch
    from triton_functions import attention

    heads, length, depth = 64, 4096, 128
    q, k, v = (torch.randn(heads, length, depth, device="cuda", dtype=torch.float16) for _ in "qkv")
    o = torch.empty_like(q)

    def check() -> None:
        right = torch.nn.functional.scaled_dot_product_attention(
            q[None], k[None], v[None], is_causal=True
        )[0]
        torch.testing.assert_close(o, right, rtol=2e-2, atol=2e-2)

    return triton_subject(
        "attention",
        attention,
        (length // 128, heads),
        {"q": q, "k": k, "v": v, "o": o},
        {"length": length, "scale": depth**-0.5, "D": depth, "M": 128, "N": 64},
        check,
        num_warps=8,
        num_stages=3,
    )


def _softmax(name: str, rows: int, columns: int) -> Subject:
    import torch
    from triton_functions import softmax

    x = torch.randn(rows, columns, device="cuda")
    y = torch.empty_like(x)
    return triton_subject(
        name,
        softmax,
        (rows,),
        {"y": y, "x": x},
        {"columns": columns, "COLUMNS": columns},
        lambda: torch.testing.assert_close(y, torch.softmax(x, 1)),
        num_warps=8,
    )
