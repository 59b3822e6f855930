"""The CUDA stream that a test's kernels run on, through ``cuda-core``.

When torch is loaded this is torch's current stream, so that a kernel under test, torch's own
work and ours stay in order; else it is a stream of our own, which waits for the legacy default
stream and is waited for by it, so that the work of cupy and others stays in order with it, too.

``cuda-core`` is an optional dependency, imported by the first call that needs a GPU.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any, NamedTuple

from pytest_compileiq.errors import CiqError, GpuError

#: The first version with all that is used here.
_LEAST = (1, 2)
_REMEDY = 'install them with `pip install "pytest-compileiq[gpu]"`'
#: torch's streams by their handles, our own by "own", and one that stands in for it by "instead".
_streams: dict[int | str, Any] = {}


class Span(NamedTuple):
    """Where a buffer lies on the GPU: its address and its size in bytes."""

    address: int
    size: int


def core() -> ModuleType:
    """The module ``cuda.core``. Raises GpuError where it is not installed."""
    try:
        import cuda.core
    except ImportError as error:
        raise GpuError(
            f"running a kernel needs cuda-core and cuda-bindings, and they do not import: {error}",
            remedy=_REMEDY,
        ) from error
    module: ModuleType = cuda.core
    version = str(getattr(module, "__version__", "0"))
    if tuple(int(part) for part in re.findall(r"\d+", version)[:2]) < _LEAST:
        raise GpuError(f"cuda-core {version} is too old: 1.2 is needed", remedy=_REMEDY)
    return module


def current() -> Any:
    """The ``cuda.core.Stream`` to enqueue on, with its device current in this thread.

    Raises GpuError when there is no cuda-core or CUDA does not start.
    """
    cuda = core()
    torch = _torch()
    if torch is not None:
        handle = torch.cuda.current_stream().cuda_stream
        if handle not in _streams:
            # torch's context is the device's primary one; cuda-core wants to be told of it.
            _start(cuda, torch.cuda.current_device())
            _streams[handle] = cuda.Stream.from_handle(handle)
        return _streams[handle]
    if "instead" in _streams:
        return _streams["instead"]
    if "own" not in _streams:
        device = _start(cuda, 0)
        _streams["own"] = device.create_stream(options=cuda.StreamOptions(nonblocking=False))
    return _streams["own"]


@contextmanager
def using(stream: Any) -> Iterator[None]:
    """Make ``stream``, a ``cuda.core.Stream``, the current one, for torch and cupy as well."""
    handle = int(stream.handle)
    with ExitStack() as stack:
        if (torch := _torch()) is not None:
            stack.enter_context(torch.cuda.stream(torch.cuda.ExternalStream(handle)))
        if (cupy := sys.modules.get("cupy")) is not None:
            stack.enter_context(cupy.cuda.ExternalStream(handle))
        former = _streams.get("instead")
        _streams["instead"] = _streams[handle] = stream
        try:
            yield
        finally:
            del _streams[handle], _streams["instead"]
            if former is not None:
                _streams["instead"] = former


def synchronize() -> None:
    """Wait for everything on the current stream. CUDA's own error goes through."""
    current().sync()


def fill(buffer: Any, byte: int = 0xFF) -> None:
    """Set every byte of a GPU buffer, in order on the current stream.

    0xFF bytes are NaN in every float format. Raises CiqError for what is no buffer on a GPU.
    """
    address, size = span(buffer)
    if size:
        whole = core().Buffer.from_handle(address, size, owner=buffer)
        whole.fill(byte, stream=current())


def span(buffer: Any) -> Span:
    """Where a buffer lies: a torch tensor, cuda-core's Buffer, anything with DLPack or
    ``__cuda_array_interface__``. Raises CiqError for one that is not on a GPU or has holes."""
    if hasattr(buffer, "data_ptr"):  # torch: its array interface knows no bfloat16
        if not buffer.is_cuda:
            raise _unusable(buffer, f"it is on {buffer.device}")
        if not buffer.is_contiguous():
            raise _unusable(buffer, "it is not contiguous")
        return Span(buffer.data_ptr(), buffer.numel() * buffer.element_size())
    if hasattr(buffer, "memory_resource"):  # a cuda.core.Buffer, whose handle is its address
        return Span(int(buffer.handle), int(buffer.size))
    interface = getattr(buffer, "__cuda_array_interface__", None)
    if interface is not None:
        shape, itemsize = interface["shape"], int(interface["typestr"][2:])
        steps = interface.get("strides")
        if steps is not None and not _packed(shape, steps, itemsize):
            raise _unusable(buffer, f"its strides {steps} leave holes")
        return Span(interface["data"][0], math.prod(shape) * itemsize)
    if hasattr(buffer, "__dlpack__"):
        view = core().utils.StridedMemoryView.from_dlpack(buffer, stream_ptr=-1)
        if not view.is_device_accessible:
            raise _unusable(buffer, "it is not on a GPU")
        if view.strides is not None and not _packed(view.shape, view.strides, 1):
            raise _unusable(buffer, f"its strides {view.strides} leave holes")
        return Span(view.ptr, math.prod(view.shape) * view.dtype.itemsize)
    raise _unusable(buffer, "it has neither __cuda_array_interface__ nor DLPack")


def _packed(shape: Any, strides: Any, step: int) -> bool:
    """Whether elements follow each other without holes, in C order. Strides count as ``step``."""
    if 0 in shape:
        return True
    for length, stride in zip(reversed(shape), reversed(strides), strict=True):
        if length > 1 and stride != step:
            return False
        step *= length
    return True


def _start(cuda: ModuleType, ordinal: int) -> Any:
    device = cuda.Device(ordinal)
    try:
        device.set_current()
    except Exception as error:  # no driver, no device: each cuda-core version has its own class
        raise GpuError(
            f"CUDA does not start: {error}",
            remedy="run `python -m pytest_compileiq doctor`",
        ) from error
    return device


def _torch() -> Any:
    """torch, if it is loaded and built for CUDA."""
    torch = sys.modules.get("torch")
    return torch if getattr(getattr(torch, "version", None), "cuda", None) else None


def _unusable(buffer: Any, why: str) -> CiqError:
    kind = f"{type(buffer).__module__}.{type(buffer).__qualname__}"
    return CiqError(
        f"a {kind} is no buffer that a kernel can be given: {why}",
        remedy="hand over a contiguous GPU array: torch, cupy, or a cuda.core Buffer",
    )
