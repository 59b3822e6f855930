"""Copies of a kernel's buffers at other addresses: what the placement is worth, not the ACF."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from random import Random
from typing import Any

#: Padding before a copy, in bytes: steps that keep every alignment a compiler may rely on, over
#: a range of several pages of the L2 cache's hash.
STEP, STEPS = 512, 4096


def moved(args: Sequence[Any], random: Random) -> list[Any]:
    """The arguments with each tensor of torch copied behind a padding of random size.

    Tensors that share a storage share the copy, too, and one that stands twice stays one. What
    holds a tensor as ``base`` (Triton's descriptors) is rebuilt around the copy; everything
    else is handed on.
    """
    storages: dict[int, Any] = {}
    tensors: dict[int, Any] = {}

    def move(value: Any) -> Any:
        if hasattr(value, "untyped_storage"):
            if id(value) not in tensors:
                tensors[id(value)] = _copy(value, storages, random)
            return tensors[id(value)]
        base = getattr(value, "base", None)
        if dataclasses.is_dataclass(value) and not isinstance(value, type) and base is not None:
            return dataclasses.replace(value, base=move(base))
        return value

    return [move(value) for value in args]


def _copy(tensor: Any, storages: dict[int, Any], random: Random) -> Any:
    import torch

    old = tensor.untyped_storage()
    if old.data_ptr() not in storages:
        pad = STEP * random.randrange(STEPS)
        memory = torch.empty(old.nbytes() + pad, dtype=torch.uint8, device=tensor.device)[pad:]
        memory.copy_(torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(old))
        storages[old.data_ptr()] = memory
    new = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    memory = storages[old.data_ptr()]
    offset = memory.storage_offset() // tensor.element_size() + tensor.storage_offset()
    return new.set_(memory.untyped_storage(), offset, tensor.size(), tensor.stride())
