"""A cubin on the GPU: loaded, launched with arguments of the right C types, and moved about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np

from pytest_compileiq.errors import CiqError
from pytest_compileiq.gpu import stream as _stream
from pytest_compileiq.gpu.stream import Span

#: Copies lie on boundaries of the GPU's large pages, so that each gets pages of its own.
_PAGE = 2 << 20
#: Up to this many pages are left free before each copy.
_GAP = 16
#: Addresses keep what is left of them by this: an allocator promises no more than 256 bytes.
_ALIGNMENT = 256

#: Python's own numbers as the C type that a parameter of so many bytes is most likely of.
_FLOATS: dict[int, type[np.generic]] = {2: np.float16, 4: np.float32, 8: np.float64}
_INTEGERS = {1: 8, 2: 16, 4: 32, 8: 64}

Dimensions = int | Sequence[int]


class Loaded:
    """A cubin's ``entry`` function, loaded anew, with its launch configuration.

    ``grid`` and ``block`` are one to three numbers, blocks and threads; ``shared_bytes`` is
    dynamic shared memory. Raises CiqError when the GPU does not take the cubin.
    """

    def __init__(
        self,
        cubin: bytes,
        entry: str,
        grid: Dimensions,
        block: Dimensions,
        shared_bytes: int = 0,
    ) -> None:
        cuda = _stream.core()
        where = _stream.current()  # CUDA has to run before anything is loaded
        self._launch = cuda.launch
        self._config = cuda.LaunchConfig(
            grid=_whole(grid), block=_whole(block), shmem_size=shared_bytes
        )
        try:
            self._kernel = cuda.ObjectCode.from_cubin(cubin).get_kernel(entry)
            self._sizes = [int(size) for _, size in self._kernel.arguments_info]
            if shared_bytes > _FREE_SHARED_BYTES:
                _allow_shared(self._kernel, shared_bytes, where.device.device_id)
        except Exception as error:  # CUDAError, or what a cuda-core version has instead
            raise CiqError(
                f"the GPU does not take the cubin with the entry function {entry}: {error}",
                remedy="build for this GPU: arch= is the cubin's architecture, such as sm_90a",
            ) from error
        self.entry = entry

    def launch(self, args: Sequence[Any]) -> None:
        """Enqueue one launch on the current stream.

        ``args`` are GPU arrays (torch, cupy, cuda-core's Buffer), ints, floats, and numpy
        scalars or ctypes values where the exact C type matters. Raises CiqError when they do
        not fit the kernel's parameters.
        """
        self.launch_prepared(self.prepare(args))

    def prepare(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """The arguments as the driver takes them; arrays must outlive what is launched."""
        if len(args) != len(self._sizes):
            raise CiqError(
                f"{self.entry} has {len(self._sizes)} parameters, and args= holds {len(args)}",
                looked_at=[f"sizes of its parameters in bytes: {self._sizes}"],
                remedy="give one value for each parameter of the PTX's .entry, in their order",
            )
        pairs = zip(args, self._sizes, strict=True)
        return tuple(self._one(index, arg, size) for index, (arg, size) in enumerate(pairs))

    def launch_prepared(self, args: tuple[Any, ...]) -> None:
        self._launch(_stream.current(), self._config, self._kernel, *args)

    def _one(self, index: int, arg: Any, size: int) -> Any:
        if isinstance(arg, bool | int) and size in _INTEGERS:
            # The driver reads as many bytes as the parameter has: of -1, too, the right ones.
            return int(arg) if size == 8 else _integer(int(arg), _INTEGERS[size], index)
        if isinstance(arg, float) and not isinstance(arg, np.generic) and size in _FLOATS:
            return _FLOATS[size](arg)
        if isinstance(arg, np.generic):
            if arg.dtype.itemsize != size:
                raise CiqError(
                    f"parameter {index} of {self.entry} has {size} bytes, and args= gives a "
                    f"{arg.dtype} of {arg.dtype.itemsize}",
                    remedy="give it in the type that the PTX's .entry declares",
                )
            return arg
        if is_buffer(arg):
            return _stream.span(arg).address
        return arg  # ctypes, and what cuda-core itself complains of


#: What any kernel may use without having asked.
_FREE_SHARED_BYTES = 48 << 10


def _allow_shared(kernel: Any, shared_bytes: int, device: int) -> None:
    """Above 48 KiB a kernel has to opt in to dynamic shared memory (cuda-core does not)."""
    from cuda.bindings import driver

    attribute = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
    (code,) = driver.cuKernelSetAttribute(attribute, shared_bytes, kernel.handle, device)
    if code != driver.CUresult.CUDA_SUCCESS:
        raise RuntimeError(f"{shared_bytes} bytes of dynamic shared memory: {code.name}")


def _integer(value: int, bits: int, index: int) -> Any:
    if not -(1 << (bits - 1)) <= value < 1 << bits:
        raise CiqError(
            f"{value} does not fit parameter {index}, which has {bits} bits",
            remedy="correct args=, or declare the parameter wider",
        )
    unsigned: Any = getattr(np, f"uint{bits}")
    return unsigned(value % (1 << bits))


def _whole(dimensions: Dimensions) -> tuple[int, ...]:
    return (dimensions,) if isinstance(dimensions, int) else tuple(map(int, dimensions))


def is_buffer(arg: Any) -> bool:
    """Is this an array, and no number?"""
    names = ("data_ptr", "memory_resource", "__cuda_array_interface__", "__dlpack__")
    return not isinstance(arg, np.generic) and any(hasattr(arg, name) for name in names)


@dataclass(frozen=True, slots=True)
class Placed:
    """Arguments whose arrays were copied elsewhere; ``owner`` holds the copies' memory."""

    args: tuple[Any, ...]
    owner: Any


def place(args: Sequence[Any], random: Random) -> Placed:
    """Copy all arrays among ``args`` to new addresses, behind random gaps in random order.

    Arrays that share memory still do. The copies hold what the arrays hold when the current
    stream gets there.
    """
    cuda = _stream.core()
    where = _stream.current()
    spans = {index: _stream.span(arg) for index, arg in enumerate(args) if is_buffer(arg)}
    regions, offsets, total = layout(list(spans.values()), random)
    if not total:
        return Placed(tuple(args), None)
    memory = where.device.allocate(total, stream=where)
    start = int(memory.handle)
    base = -start % _PAGE
    for region, offset in zip(regions, offsets, strict=True):
        source = cuda.Buffer.from_handle(region.address, region.size)
        target = cuda.Buffer.from_handle(start + base + offset, region.size)
        target.copy_from(source, stream=where)
    moved = list(args)
    for index, span in spans.items():
        for region, offset in zip(regions, offsets, strict=True):
            inside = span.address - region.address
            if inside >= 0 and inside + span.size <= region.size:
                moved[index] = start + base + offset + inside
    return Placed(tuple(moved), memory)


def layout(spans: Sequence[Span], random: Random) -> tuple[list[Span], list[int], int]:
    """Where copies go: (regions to copy, an offset for each from a page boundary, total bytes).

    Overlapping spans become one region. The total leaves room to find a page boundary.
    """
    regions: list[Span] = []
    for span in sorted(set(spans)):
        last = regions[-1] if regions else None
        if last is not None and span.address < last.address + last.size:
            end = max(last.address + last.size, span.address + span.size)
            regions[-1] = Span(last.address, end - last.address)
        elif span.size:
            regions.append(span)
    random.shuffle(regions)
    offsets = []
    end = 0
    for region in regions:
        page = -(-end // _PAGE) + random.randrange(_GAP)
        offsets.append(page * _PAGE + region.address % _ALIGNMENT)
        end = offsets[-1] + region.size
    return regions, offsets, end + _PAGE if regions else 0
