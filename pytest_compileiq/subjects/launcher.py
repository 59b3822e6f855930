"""A cubin on the GPU: loaded, and launched with arguments of the right C types."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from pytest_compileiq.errors import CiqError
from pytest_compileiq.gpu import stream as _stream
from pytest_compileiq.subjects.kernel import Launch
from pytest_compileiq.subjects.placing import is_buffer

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

    def bind(self, args: Sequence[Any]) -> Launch:
        """A launch with these arguments, which keeps their arrays alive.

        ``args`` are GPU arrays (torch, cupy, cuda-core's Buffer), ints, floats, and numpy
        scalars or ctypes values where the exact C type matters. Raises CiqError when they do
        not fit the kernel's parameters.
        """
        if len(args) != len(self._sizes):
            raise CiqError(
                f"{self.entry} has {len(self._sizes)} parameters, and args= holds {len(args)}",
                looked_at=[f"sizes of its parameters in bytes: {self._sizes}"],
                remedy="give one value for each parameter of the PTX's .entry, in their order",
            )
        pairs = zip(args, self._sizes, strict=True)
        given = [self._one(index, arg, size) for index, (arg, size) in enumerate(pairs)]

        def launch(_keep: Sequence[Any] = args) -> None:
            self._launch(_stream.current(), self._config, self._kernel, *given)

        return launch

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
