"""A seat: where a kernel's arguments lie in memory while it is measured, for every adapter.

Timings of identical code differ from seat to seat, by 0.3 % for a kernel of 6 us on an H200, and
that must not pass for what an ACF is worth. Both arms of a unit share a seat; each unit has a new
one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from random import Random
from typing import Any

import numpy as np

from pytest_compileiq.gpu import stream as _stream
from pytest_compileiq.gpu.stream import Span

#: The GPU's large pages: no copy shares one with another.
_PAGE = 2 << 20
#: Up to this many pages are left free before each copy.
_GAP = 16
#: Copies start at a random multiple of this in their first page.
_STEP = 512
#: Addresses keep what is left of them by this: an allocator promises no more than 256 bytes.
_ALIGNMENT = 256


def is_buffer(arg: Any) -> bool:
    """Is this an array, and no number?"""
    names = ("data_ptr", "memory_resource", "__cuda_array_interface__", "__dlpack__")
    return not isinstance(arg, np.generic) and any(hasattr(arg, name) for name in names)


def place(args: Sequence[Any], random: Random) -> list[Any]:
    """The arguments of a launch with all their GPU memory copied to new addresses.

    A torch tensor becomes one on a copy of its whole storage; what holds a tensor as ``base``
    (Triton's descriptors and reinterpreted tensors) is made anew around it; any other array
    becomes a cuda-core Buffer. Each keeps the copies alive. Arrays that share memory still do,
    and the copies hold what the arrays hold when the current stream gets there. Numbers are
    handed on, and torch tensors in pinned memory of the host. A view of a large storage so costs
    the whole of it, once a unit. Raises CiqError for another array that is not on a GPU.
    """
    arrays = [_array(arg) for arg in args]
    spans = [Span(0, 0) if array is None else _memory(array) for array in arrays]
    regions, offsets, total = layout(spans, random)
    if not total:
        return list(args)
    cuda, where = _stream.core(), _stream.current()
    tensors = [array for array in arrays if _is_tensor(array)]
    if tensors:  # torch would not give back to CUDA what it keeps for itself
        import torch

        memory = torch.empty(total, dtype=torch.uint8, device=tensors[0].device)
        start = int(memory.data_ptr())
    else:
        memory = where.device.allocate(total, stream=where)
        start = int(memory.handle)
    base = start + -start % _PAGE
    for region, offset in zip(regions, offsets, strict=True):
        source = cuda.Buffer.from_handle(region.address, region.size)
        target = cuda.Buffer.from_handle(base + offset, region.size)
        target.copy_from(source, stream=where)

    def moved(arg: Any, array: Any, span: Span) -> Any:
        if not span.size:
            return arg
        address = base + next(
            offset + span.address - region.address
            for region, offset in zip(regions, offsets, strict=True)
            if 0 <= span.address - region.address < region.size
        )
        if not _is_tensor(array):
            return cuda.Buffer.from_handle(address, span.size, owner=memory)
        return _rebuilt(arg, array, _tensor_at(address - start, array, memory))

    return [moved(*one) for one in zip(args, arrays, spans, strict=True)]


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
        inside = random.randrange(0, _PAGE, _STEP) + region.address % _ALIGNMENT
        offsets.append(page * _PAGE + inside)
        end = offsets[-1] + region.size
    return regions, offsets, end + _PAGE if regions else 0


def _array(arg: Any) -> Any:
    """The array that an argument is or stands around; None for what has no seat on the GPU."""
    base = getattr(arg, "base", None)
    array: Any = base if _is_tensor(base) else arg
    if not is_buffer(array) or (_is_tensor(array) and not array.is_cuda and array.is_pinned()):
        return None
    return array


def _is_tensor(value: Any) -> bool:
    return hasattr(value, "untyped_storage")


def _memory(array: Any) -> Span:
    """What has to be copied of an array: of a torch tensor the storage, as it may be a view."""
    if not (_is_tensor(array) and array.is_cuda):
        return _stream.span(array)
    storage = array.untyped_storage()
    return Span(storage.data_ptr(), storage.nbytes())


def _tensor_at(offset: int, tensor: Any, memory: Any) -> Any:
    """A tensor like this one, whose storage begins ``offset`` bytes into ``memory``."""
    import torch

    first = offset // tensor.element_size() + tensor.storage_offset()
    made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return made.set_(memory.untyped_storage(), first, tensor.size(), tensor.stride())


def _rebuilt(arg: Any, array: Any, copy: Any) -> Any:
    if arg is array:
        return copy
    if dataclasses.is_dataclass(arg) and not isinstance(arg, type):
        return dataclasses.replace(arg, base=copy)
    return type(arg)(copy, arg.dtype)
