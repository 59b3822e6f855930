"""Where a buffer lies, and what is said of one that no kernel can use; no GPU is needed."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pytest_compileiq.errors import CiqError, GpuError
from pytest_compileiq.gpu import stream


def interface(shape: tuple[int, ...], strides: Any = None, typestr: str = "<f4") -> Any:
    fields = {"shape": shape, "typestr": typestr, "data": (4096, False), "strides": strides}
    return SimpleNamespace(__cuda_array_interface__=fields)


class Tensor:
    """What ``span`` asks of a torch tensor, here one of bfloat16."""

    def __init__(self, *, cuda: bool = True, contiguous: bool = True) -> None:
        self.is_cuda, self.device, self._contiguous = cuda, "cpu", contiguous

    def data_ptr(self) -> int:
        return 8192

    def is_contiguous(self) -> bool:
        return self._contiguous

    def numel(self) -> int:
        return 10

    def element_size(self) -> int:
        return 2


@pytest.mark.parametrize(
    ("buffer", "expected"),
    [
        (interface((3, 5)), (4096, 60)),
        (interface((3, 5), (20, 4)), (4096, 60)),
        (interface((1, 5), (999, 4)), (4096, 20)),
        (interface((0, 5), (7, 7)), (4096, 0)),
        (interface((), typestr="|u1"), (4096, 1)),
        (SimpleNamespace(memory_resource=None, handle=512, size=7), (512, 7)),
        (Tensor(), (8192, 20)),
    ],
)
def test_span(buffer: Any, expected: tuple[int, int]) -> None:
    assert stream.span(buffer) == expected


@pytest.mark.parametrize(
    ("buffer", "why"),
    [
        (interface((3, 5), (4, 12)), "leave holes"),
        (interface((3, 5), (40, 8)), "leave holes"),
        (Tensor(cuda=False), "it is on cpu"),
        (Tensor(contiguous=False), "not contiguous"),
        (object(), "neither __cuda_array_interface__ nor DLPack"),
    ],
)
def test_no_buffer(buffer: Any, why: str) -> None:
    with pytest.raises(CiqError, match=why):
        stream.span(buffer)


def test_dlpack_on_the_host_is_no_gpu_buffer() -> None:
    pytest.importorskip("cuda.core")
    with pytest.raises(CiqError, match="not on a GPU"):
        stream.span(np.zeros(3))


def test_without_cuda_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    with pytest.raises(GpuError, match="needs cuda-core") as raised:
        stream.current()
    assert "pytest-compileiq[gpu]" in raised.value.remedy


def test_a_cuda_core_that_is_too_old(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("cuda.core")
    monkeypatch.setattr("cuda.core.__version__", "1.1.9")
    with pytest.raises(GpuError, match=r"cuda-core 1\.1\.9 is too old"):
        stream.core()
