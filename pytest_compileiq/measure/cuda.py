"""What the timer asks of a GPU, done with cuda-core: gate, events, flush, clock probe, graphs.

Everything runs on the current stream (``gpu/stream.py``). The four kernels below are PTX, which
the driver compiles for whatever GPU there is, in a millisecond.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from pytest_compileiq.errors import CiqError
from pytest_compileiq.gpu import stream as _stream
from pytest_compileiq.measure.blocks import GATE_SECONDS, MOST_PROBES, Graph

# ciq_gate: spins until the host writes to flag[0], at most limit ns; then notes it in flag[1].
# ciq_probe: cycles of its SM, global time in ns, and the SM's number.
# ciq_step: by how many ns the global timer steps; it gives up rather than hang.
_PTX = """
.version 7.0
.target sm_75
.address_size 64
.visible .entry ciq_gate(.param .u64 flag, .param .u64 limit)
{
    .reg .pred %p;
    .reg .b32 %r;
    .reg .b64 %flag, %limit, %start, %now;
    ld.param.u64 %flag, [flag];
    ld.param.u64 %limit, [limit];
    mov.u64 %start, %globaltimer;
again:
    ld.volatile.global.u32 %r, [%flag];
    setp.ne.u32 %p, %r, 0;
    @%p bra open;
    nanosleep.u32 100;
    mov.u64 %now, %globaltimer;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %p, %now, %limit;
    @%p bra again;
    mov.u32 %r, 1;
    st.volatile.global.u32 [%flag+4], %r;
open:
    ret;
}
.visible .entry ciq_probe(.param .u64 slot)
{
    .reg .b32 %r;
    .reg .b64 %slot, %a, %b, %c;
    ld.param.u64 %slot, [slot];
    mov.u64 %b, %globaltimer;
    mov.u64 %a, %clock64;
    mov.u32 %r, %smid;
    cvt.u64.u32 %c, %r;
    st.volatile.global.u64 [%slot], %a;
    st.volatile.global.u64 [%slot+8], %b;
    st.volatile.global.u64 [%slot+16], %c;
    ret;
}
.visible .entry ciq_step(.param .u64 slot)
{
    .reg .pred %p;
    .reg .b32 %left;
    .reg .b64 %slot, %a, %b, %c;
    ld.param.u64 %slot, [slot];
    mov.u32 %left, 1000000;
    mov.u64 %a, %globaltimer;
first:
    mov.u64 %b, %globaltimer;
    sub.u32 %left, %left, 1;
    setp.eq.u64 %p, %a, %b;
    setp.ne.and.u32 %p, %left, 0, %p;
    @%p bra first;
second:
    mov.u64 %c, %globaltimer;
    sub.u32 %left, %left, 1;
    setp.eq.u64 %p, %b, %c;
    setp.gt.and.s32 %p, %left, 0, %p;
    @%p bra second;
    sub.u64 %c, %c, %b;
    st.volatile.global.u64 [%slot], %c;
    ret;
}
.visible .entry ciq_empty()
{
    ret;
}
"""
#: A clock is told only over a time that the global timer resolves this finely.
_STEPS = 200
_PROBE_BYTES = 24
_DEFAULT_L2_BYTES = 64 << 20


class CudaDriver:
    """The GPU of this process. Raises CiqError or GpuError where it cannot be used.

    See :class:`~pytest_compileiq.measure.blocks.Driver` for what each method does.
    """

    def __init__(self) -> None:
        self._cuda = cuda = _stream.core()
        where = _stream.current()
        device = where.device
        self.l2_bytes = int(device.properties.l2_cache_size) or _DEFAULT_L2_BYTES
        code = cuda.ObjectCode.from_ptx(_PTX.encode())
        self._gate, self._probe, step, self._empty = (
            code.get_kernel(f"ciq_{name}") for name in ("gate", "probe", "step", "empty")
        )
        self._one = cuda.LaunchConfig(grid=1, block=1)
        self._flushed = device.allocate(2 * self.l2_bytes, stream=where)
        # Read and written by both sides without a copy: pinned, at one address for both.
        self._host = cuda.LegacyPinnedMemoryResource().allocate(
            16 + MOST_PROBES * _PROBE_BYTES, stream=where
        )
        self._address = int(self._host.handle)
        ctypes.memset(self._address, 0, self._host.size)
        self._flag = (ctypes.c_uint32 * 2).from_address(self._address)
        self._slots = (ctypes.c_uint64 * (3 * MOST_PROBES)).from_address(self._address + 16)
        self._side = device.create_stream()
        self._capturing = False
        self._timing = cuda.EventOptions(timing_enabled=True)
        self._device = device
        self._run(step, self._address + 16)
        where.sync()
        self.step_ns = max(1, self._slots[0])

    def _run(self, kernel: Any, *args: int) -> None:
        self._cuda.launch(_stream.current(), self._one, kernel, *args)

    def close_gate(self) -> None:
        self._flag[0] = self._flag[1] = 0
        self._run(self._gate, self._address, round(GATE_SECONDS * 1e9))

    def open_gate(self) -> bool:
        self._flag[0] = 1
        self.synchronize()
        return not self._flag[1]

    def flush(self) -> None:
        self._flushed.fill(0, stream=_stream.current())

    def empty(self) -> None:
        self._run(self._empty)

    def event(self) -> Any:
        return self._device.create_event(self._timing)

    def record(self, event: Any) -> None:
        if not self._capturing:
            _stream.current().record(event)
            return
        # As a node of the graph, which each launch of the graph records anew. cuda-core's own
        # record() would make it a mark inside the capture, without a time.
        from cuda.bindings import driver

        external = driver.CUevent_record_flags.CU_EVENT_RECORD_EXTERNAL
        where = _stream.current()
        _done(driver.cuEventRecordWithFlags(event.handle, where.handle, int(external)))

    def seconds(self, start: Any, end: Any) -> float:
        return float(end - start) * 1e-3

    def probe(self, slot: int) -> None:
        self._run(self._probe, self._address + 16 + slot * _PROBE_BYTES)

    def mhz(self, first: int, last: int) -> float:
        (c0, t0, sm0), (c1, t1, sm1) = (
            self._slots[3 * slot : 3 * slot + 3] for slot in (first, last)
        )
        # Each SM counts its own cycles.
        if sm0 != sm1 or t1 - t0 < _STEPS * self.step_ns:
            return 0.0
        return 1e3 * (c1 - c0) / (t1 - t0)

    def capture(self, enqueue: Callable[[], None], nodes: int) -> Graph:
        from cuda.bindings import driver

        builder = self._side.create_graph_builder()
        with _stream.using(self._side):
            builder.begin_building("relaxed")
            self._capturing = True
            try:
                enqueue()
            finally:
                self._capturing = False
                builder.end_building()
        # Counted, not listed: cuda-core would make an object of each, and of kernels that it has
        # not loaded itself.
        _, _, found = _done(driver.cuGraphGetNodes(builder.graph_definition.handle))
        if found < nodes:
            raise CiqError(
                f"a CUDA graph of the kernel has {found} nodes, where {nodes} were enqueued",
                remedy="let launch() enqueue on the current stream: torch's, or "
                "pytest_compileiq.gpu.stream.current()",
            )
        graph = builder.complete()
        graph.upload(_stream.current())

        def launch(_keep: Callable[[], None] = enqueue) -> None:  # and with it the buffers
            graph.launch(_stream.current())

        return Graph(launch, found)

    def synchronize(self) -> None:
        _stream.synchronize()


def _done(answer: tuple[Any, ...]) -> tuple[Any, ...]:
    """The answer of a driver call, which begins with its result. Raises CiqError."""
    if answer[0] != 0:
        raise CiqError(f"CUDA refused a step of a graph: {getattr(answer[0], 'name', answer[0])}")
    return answer
