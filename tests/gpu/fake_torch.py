"""A stand-in for torch's tensors whose device memory is the host's: as much as tests of ours need."""

from __future__ import annotations

import ctypes
import math
from types import SimpleNamespace
from typing import Any

uint8, half, float32 = 1, 2, 4  # dtypes: the bytes of an element
version = SimpleNamespace(cuda=None)


class Storage:
    def __init__(self, size: int) -> None:
        self._memory = ctypes.create_string_buffer(max(size, 1))
        self._size = size

    def data_ptr(self) -> int:
        return ctypes.addressof(self._memory)

    def nbytes(self) -> int:
        return self._size


class Tensor:
    def __init__(self, size: int, dtype: int, device: str) -> None:
        self.dtype, self.device, self.is_cuda = dtype, device, device == "cuda"
        self.set_(Storage(size * dtype), 0, (size,), (1,))

    def set_(self, storage: Storage, offset: int, size: Any, stride: Any) -> Tensor:
        self._storage, self._offset, self._size, self._stride = storage, offset, size, stride
        return self

    def untyped_storage(self) -> Storage:
        return self._storage

    def storage_offset(self) -> int:
        return self._offset

    def element_size(self) -> int:
        return self.dtype

    def data_ptr(self) -> int:
        return self._storage.data_ptr() + self._offset * self.dtype

    def numel(self) -> int:
        return math.prod(self._size)

    def is_contiguous(self) -> bool:
        return len(self._stride) == 1

    def is_pinned(self) -> bool:
        return self.device == "pinned"

    def size(self) -> Any:
        return self._size

    def stride(self) -> Any:
        return self._stride


def empty(size: int, dtype: int, device: str) -> Tensor:
    return Tensor(size, dtype, device)


def rand(*shape: int, device: str) -> Tensor:
    """Nothing computes with it: a row of zeros."""
    return empty(math.prod(shape), float32, device)


def empty_like(tensor: Tensor) -> Tensor:
    return empty(tensor.numel(), tensor.dtype, tensor.device)


class Wrapped:
    """As Triton's reinterpreted tensor."""

    def __init__(self, base: Tensor, dtype: str) -> None:
        self.base, self.dtype = base, dtype

    def data_ptr(self) -> int:
        return self.base.data_ptr()
