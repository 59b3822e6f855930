"""A stand-in for ``cuda.core`` whose device memory is the host's: what is called, and how.

It has the names and signatures that this plugin uses, from cuda-core 1.2, and no more, so a
misspelt or misplaced argument fails here instead of on a GPU. Work is done at once, except behind
a closed gate. ``install`` puts it in the place of the real module.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_compileiq.gpu import stream


class Machine:
    """One GPU: its queue, its time in ns, and what was launched on it."""

    def __init__(self) -> None:
        self.now = 1000
        self.launched: list[tuple[str, Any, tuple[Any, ...], int]] = []
        self.queue: list[Callable[[], None]] | None = None
        self.graphs: dict[int, list[Callable[[], None]]] = {}
        self.sm = 3
        self.sizes: dict[str, list[int]] = {}
        self.kernel_ns = 50_000

    def enqueue(self, run: Callable[[], None], where: Stream) -> None:
        if where.id in self.graphs:
            self.graphs[where.id].append(run)
        elif self.queue is not None:
            self.queue.append(run)
        else:
            run()

    def release(self) -> None:
        waiting, self.queue = self.queue or [], None
        for run in waiting:
            run()

    def kernel(self, name: str, args: tuple[Any, ...]) -> None:
        if name == "ciq_gate":
            flag = (ctypes.c_uint32 * 2).from_address(args[0])
            if not flag[0]:
                self.now += args[1]
                flag[1] = 1
        elif name == "ciq_probe":
            slot = (ctypes.c_uint64 * 3).from_address(args[0])
            slot[0], slot[1], slot[2] = 2 * self.now, self.now, self.sm
        elif name == "ciq_step":
            ctypes.c_uint64.from_address(args[0]).value = 32
        else:
            self.now += self.kernel_ns


class Stream:
    count = 0

    def __init__(self, machine: Machine) -> None:
        Stream.count += 1
        self.id = self.handle = Stream.count
        self.machine = machine
        self.device = SimpleNamespace(
            device_id=0,
            arch="90",
            properties=SimpleNamespace(l2_cache_size=4096, multiprocessor_count=2),
            allocate=self._allocate,
            create_stream=lambda options=None: Stream(machine),
            create_event=lambda options: Event(),
        )

    def _allocate(self, size: int, *, stream: Stream) -> Buffer:
        memory = ctypes.create_string_buffer(size)
        return Buffer(ctypes.addressof(memory), size, memory)

    def record(self, event: Event) -> Event:
        def run() -> None:
            event.at = self.machine.now

        self.machine.enqueue(run, self)
        return event

    def sync(self) -> None:
        self.machine.release()

    def create_graph_builder(self) -> Builder:
        return Builder(self)


class Event:
    at: int | None = None

    @property
    def handle(self) -> Event:
        return self

    def __sub__(self, other: Event) -> float:
        assert self.at is not None
        assert other.at is not None
        return (self.at - other.at) * 1e-6


class Builder:
    def __init__(self, where: Stream) -> None:
        self._where = where

    def begin_building(self, mode: str = "relaxed") -> None:
        self._where.machine.graphs[self._where.id] = self._found = []

    def end_building(self) -> None:
        del self._where.machine.graphs[self._where.id]

    @property
    def graph_definition(self) -> Any:
        return SimpleNamespace(handle=self._found)

    def complete(self) -> Any:
        found = self._found

        def launch(where: Stream) -> None:
            where.machine.enqueue(lambda: [run() for run in found] and None, where)

        return SimpleNamespace(launch=launch, upload=lambda where: None)


class Buffer:
    def __init__(self, handle: int, size: int, owner: Any) -> None:
        self.handle, self.size, self.memory_resource, self.owner = handle, size, None, owner

    @staticmethod
    def from_handle(ptr: int, size: int, mr: Any = None, owner: Any = None) -> Buffer:
        return Buffer(ptr, size, owner)

    def fill(self, value: int, *, stream: Stream) -> None:
        def run() -> None:
            stream.machine.now += 1000
            ctypes.memset(self.handle, value, self.size)

        stream.machine.enqueue(run, stream)

    def copy_from(self, src: Buffer, *, stream: Stream) -> None:
        assert src.size == self.size
        stream.machine.enqueue(
            lambda: ctypes.memmove(self.handle, src.handle, src.size) and None, stream
        )


@contextmanager
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    """Make this the ``cuda.core`` of ``gpu/stream.py``, with torch and cupy out of sight."""
    machine = Machine()

    def launch(where: Stream, config: Any, kernel: Any, *args: Any) -> None:
        machine.launched.append((kernel.name, config, args, where.id))
        if kernel.name == "ciq_gate":
            ctypes.c_uint32.from_address(args[0]).value = 0
            machine.queue = []
        machine.enqueue(lambda: machine.kernel(kernel.name, args), where)

    def object_code(data: bytes) -> Any:
        def get_kernel(name: str) -> Any:
            sizes = machine.sizes.get(name, [])
            info = [(8 * index, size) for index, size in enumerate(sizes)]
            return SimpleNamespace(name=name, arguments_info=info, handle=1)

        assert isinstance(data, bytes)
        return SimpleNamespace(get_kernel=get_kernel)

    core = ModuleType("cuda.core")  # as after its import
    vars(core).update(
        Buffer=Buffer,
        EventOptions=lambda *, timing_enabled: None,
        StreamOptions=lambda *, nonblocking: None,
        LaunchConfig=lambda *, grid, block, shmem_size=0: (grid, block, shmem_size),
        LegacyPinnedMemoryResource=lambda: SimpleNamespace(allocate=Stream(machine)._allocate),
        ObjectCode=SimpleNamespace(from_cubin=object_code, from_ptx=object_code),
        Device=lambda ordinal: SimpleNamespace(
            set_current=lambda: None, create_stream=lambda options=None: Stream(machine)
        ),
        launch=launch,
    )
    monkeypatch.setattr(stream, "core", lambda: core)
    monkeypatch.setattr(stream, "_streams", {})
    for name in ("torch", "cupy"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    external: list[int] = []
    bindings = ModuleType("cuda.bindings.driver")

    def record(event: Event, where: int, flags: int) -> tuple[int]:
        external.append(flags)
        (capturing,) = machine.graphs.values()
        capturing.append(lambda: setattr(event, "at", machine.now))
        return (0,)

    vars(bindings).update(
        CUevent_record_flags=SimpleNamespace(CU_EVENT_RECORD_EXTERNAL=1),
        CUresult=SimpleNamespace(CUDA_SUCCESS=0),
        cuGraphGetNodes=lambda graph, numNodes=0: (0, [], len(graph)),
        cuEventRecordWithFlags=record,
    )
    package = ModuleType("cuda.bindings")
    package.driver = bindings  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "cuda.bindings", package)
    monkeypatch.setitem(sys.modules, "cuda.bindings.driver", bindings)
    yield machine
    assert set(external) <= {1}
