"""``measure/cuda.py``, ``launcher.py`` and ``placing.py`` on stand-ins for cuda-core and torch."""

from __future__ import annotations

import ctypes
import itertools
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest

from pytest_compileiq.errors import CiqError
from pytest_compileiq.gpu import stream
from pytest_compileiq.gpu.stream import Span
from pytest_compileiq.measure.cuda import CudaDriver
from pytest_compileiq.measure.timer import Pair, Timer
from pytest_compileiq.measure.units import Plan, Side
from pytest_compileiq.subjects import launcher
from pytest_compileiq.subjects.kernel import Build, Kernel
from pytest_compileiq.subjects.launcher import Loaded
from pytest_compileiq.subjects.placing import layout, place
from pytest_compileiq.subjects.ptx import PtxKernel
from pytest_compileiq.toolchain.ptxas import Assembled

from . import fake_torch
from .fake_core import Buffer, Machine, install

A, B = Side.BASE, Side.CANDIDATE


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    with install(monkeypatch) as made:
        yield made


def names(machine: Machine) -> list[str]:
    return [name for name, *_ in machine.launched]


def test_nothing_runs_before_the_gate_opens(machine: Machine) -> None:
    driver = CudaDriver()
    assert driver.l2_bytes == 4096
    assert driver.step_ns == 32
    start, end = driver.event(), driver.event()
    driver.close_gate()
    driver.probe(0)
    driver.record(start)
    driver.empty()
    driver.record(end)
    driver.probe(1)
    assert end.at is None
    assert driver.open_gate()
    assert driver.seconds(start, end) == pytest.approx(50e-6)
    assert driver.mhz(0, 1) == pytest.approx(2000)
    assert names(machine)[-4:] == ["ciq_gate", "ciq_probe", "ciq_empty", "ciq_probe"]


def test_a_gate_that_gave_up_is_told(machine: Machine) -> None:
    driver = CudaDriver()
    driver.close_gate()
    driver.synchronize()  # as if a launch waited for the GPU
    assert not driver.open_gate()
    driver.close_gate()
    assert driver.open_gate()


def test_a_clock_is_only_told_of_one_sm_and_a_time_long_enough(machine: Machine) -> None:
    driver = CudaDriver()
    driver.probe(0)
    machine.now += 200 * 32 - 1
    driver.probe(1)
    machine.now += 1
    driver.probe(2)
    machine.sm += 1
    driver.probe(3)
    assert driver.mhz(0, 1) == 0
    assert driver.mhz(0, 2) == pytest.approx(2000)
    assert driver.mhz(0, 3) == 0


def test_a_graph_records_its_events_anew_at_each_launch(machine: Machine) -> None:
    driver = CudaDriver()
    start, end = driver.event(), driver.event()

    def enqueue() -> None:
        driver.flush()
        driver.record(start)
        driver.empty()
        driver.record(end)

    graph = driver.capture(enqueue, 4)
    assert end.at is None
    times = []
    for _ in range(2):
        driver.close_gate()
        graph()
        assert driver.open_gate()
        assert driver.seconds(start, end) == pytest.approx(50e-6)
        times.append(end.at)
    assert times[0] < times[1]
    with pytest.raises(CiqError, match="has 4 nodes, where 5 were enqueued"):
        driver.capture(enqueue, 5)
    assert "instead" not in stream._streams


@pytest.mark.parametrize("cold", [True, False])
def test_a_timer_runs_on_it(machine: Machine, cold: bool) -> None:
    machine.sizes["k"] = [8, 4]
    out = stream.current().device.allocate(4096, stream=stream.current())

    def load(args: list[Any]) -> Any:
        return Loaded(b"cubin", "k", 1, 32).bind(args)

    build = Build(b"cubin", load=load)
    kernel = Kernel(lambda acf: build, place=lambda random: place((out, 3), random))
    timer = Timer(CudaDriver(), seed=1, cold=cold)
    pilot = timer.add("k", Pair(kernel, {A: build, B: build}))
    assert pilot.seconds == pytest.approx([50e-6] * 16)
    for _ in range(6):
        timed = timer("k", Plan((A, B), (B, A), (A, B, B, A)))
    assert timed.seconds == pytest.approx([50e-6] * 4)
    assert timed.health.mhz == pytest.approx([2000] * 4)
    addresses = {args[0] for name, _, args, _ in machine.launched if name == "k"}
    assert len(addresses) > 1  # each seat elsewhere
    assert int(out.handle) not in addresses


def test_a_ptx_kernel_is_loaded_when_it_is_first_launched(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine.sizes["k"] = [4]
    loaded: list[Loaded] = []

    class Noted(Loaded):
        def __init__(self, *what: Any) -> None:
            super().__init__(*what)
            loaded.append(self)

    monkeypatch.setattr(launcher, "Loaded", Noted)
    kernel = PtxKernel("k.ptx", arch="sm_90", entry="k", grid=2, block=32, args=(7,))
    build = kernel._built(Assembled(b"cubin", ""))
    assert loaded == []  # a build alone needs no GPU
    assert build.launch is not None
    assert build.load is not None
    for launch in (build.launch, build.launch, build.load((8,))):
        launch()
    assert len(loaded) == 2
    assert [int(args[0]) for name, _, args, _ in machine.launched if name == "k"] == [7, 7, 8]


@pytest.mark.parametrize("cold", [True, False])
def test_single_launches_of_a_short_kernel_are_timed_in_graphs(
    machine: Machine, cold: bool
) -> None:
    machine.kernel_ns = 6_000
    machine.sizes["k"] = []
    build = Build(launch=Loaded(b"cubin", "k", 1, 32).bind(()))
    driver = CudaDriver()
    timer = Timer(driver, seed=1, cold=cold)
    pilot = timer.add("k", Pair(Kernel(lambda acf: build), {A: build, B: build}))
    assert pilot.form.graph
    assert pilot.form.launches > 1
    timed = timer("k", Plan(load=(A, B), capture=(A, B), order=(A, B, B, A)))
    assert (len(timed.seconds), len(timed.health.mhz)) == (4, 4)
    probed = {int(args[0]) for name, _, args, _ in machine.launched if name == "ciq_probe"}
    assert len(probed) == (12 if cold else 10)  # all in memory of the driver's
    assert max(probed) + 24 <= driver._address + driver._host.size
    plain, turn = machine.kernel, itertools.cycle([6_000, 6_000, 9_000])

    def uneven(name: str, args: tuple[Any, ...]) -> None:
        machine.kernel_ns = next(turn) if name == "k" else 6_000
        plain(name, args)

    machine.kernel = uneven  # type: ignore[method-assign]
    series = timer.series("k")
    times = [round(1e9 * next(series)) for _ in range(120)]
    assert set(times) == {6_000, 9_000}
    assert times.count(9_000) == pytest.approx(40, abs=5)  # a batch's edges are not read


def arguments(machine: Machine, sizes: list[int], *args: Any) -> tuple[Any, ...]:
    machine.sizes["k"] = sizes
    Loaded(b"cubin", "k", (2, 3), 64).bind(args)()
    name, config, given, _ = machine.launched[-1]
    assert (name, config) == ("k", ((2, 3), (64,), 0))
    return given


def test_numbers_take_the_parameter_s_c_type(machine: Machine) -> None:
    memory = (ctypes.c_float * 4)()
    buffer = Buffer(ctypes.addressof(memory), 16, memory)
    given = arguments(machine, [8, 4, 4, 8, 2], buffer, -1, 0.5, 7, np.float16(2))
    address, minus_one, half, seven, two = given
    assert address == ctypes.addressof(memory)
    assert (type(minus_one), int(minus_one)) == (np.uint32, 2**32 - 1)
    assert (type(half), float(half)) == (np.float32, 0.5)
    assert (type(seven), seven) == (int, 7)
    assert type(two) is np.float16


@pytest.mark.parametrize(
    ("sizes", "args", "told"),
    [
        ([8], (1, 2), "has 1 parameters, and args= holds 2"),
        ([4], (2**32,), "does not fit parameter 0, which has 32 bits"),
        ([4], (-(2**31) - 1,), "does not fit parameter 0"),
        ([4], (np.float64(1),), "has 4 bytes, and args= gives a float64 of 8"),
    ],
)
def test_arguments_that_do_not_fit(
    machine: Machine, sizes: list[int], args: tuple[Any, ...], told: str
) -> None:
    with pytest.raises(CiqError, match=told):
        arguments(machine, sizes, *args)


def test_copies_hold_what_the_arrays_held_and_share_what_they_shared(machine: Machine) -> None:
    memory = (ctypes.c_uint8 * 1000)(*[k % 251 for k in range(1000)])
    start = ctypes.addressof(memory)
    whole, part = Buffer(start, 1000, memory), Buffer(start + 100, 50, memory)
    empty = Buffer(start, 0, memory)
    first, five, second, third, none = place((whole, 5, part, whole, empty), Random(1))
    assert five == 5
    assert none is empty
    assert first.handle == third.handle
    assert second.handle == first.handle + 100
    assert (first.size, second.size) == (1000, 50)
    assert first.handle != start
    assert ctypes.string_at(first.handle, 1000) == bytes(memory)
    assert first.owner is second.owner is not None  # the memory lives as long as they do
    one, other = place((whole,), Random(2))[0], place((whole,), Random(3))[0]
    assert one.handle % (2 << 20) != other.handle % (2 << 20)
    assert place((1, 2.0), Random(1)) == [1, 2.0]


def test_tensors_move_with_their_storages(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "torch", fake_torch)
    whole = fake_torch.empty(1000, fake_torch.half, "cuda")
    content = bytes(k % 251 for k in range(2000))
    ctypes.memmove(whole.data_ptr(), content, 2000)
    view = fake_torch.empty(0, fake_torch.half, "cuda").set_(
        whole.untyped_storage(), 200, (10, 3), (40, 2)
    )
    described = Described(view, 16)
    wrapped = fake_torch.Wrapped(whole, "float8")
    foreign = Buffer(whole.data_ptr() + 20, 8, whole)
    first, second, third, fourth, fifth, n = place(
        (whole, view, described, wrapped, foreign, 7), Random(1)
    )
    assert ctypes.string_at(first.data_ptr(), 2000) == content
    assert first.data_ptr() - whole.data_ptr() not in range(-2000, 2000)
    assert first.data_ptr() % 256 == whole.data_ptr() % 256
    assert second.data_ptr() == first.data_ptr() + 400
    assert (second.size(), second.stride(), second.dtype) == ((10, 3), (40, 2), fake_torch.half)
    assert third == Described(third.base, 16)
    assert third.base.data_ptr() == second.data_ptr()
    assert (type(fourth), fourth.dtype) == (fake_torch.Wrapped, "float8")
    assert fourth.base.data_ptr() == first.data_ptr()
    assert fifth.handle == first.data_ptr() + 20
    assert n == 7
    with pytest.raises(CiqError, match="it is on cpu"):
        place((whole, fake_torch.empty(1, fake_torch.half, "cpu")), Random(1))
    host = fake_torch.empty(1, fake_torch.half, "pinned")  # what a GPU can read from the host
    assert place((whole, host), Random(1))[1] is host


@dataclass
class Described:
    """As one of Triton's descriptors."""

    base: Any
    block: int


@pytest.mark.parametrize("seed", range(20))
def test_layout_keeps_alignment_and_overlaps_nothing(seed: int) -> None:
    spans = [Span(4096 + 16, 100), Span(1 << 22, 5 << 20), Span(4096 + 20, 4), Span(1 << 30, 0)]
    regions, offsets, total = layout(spans, Random(seed))
    assert sorted(regions) == [Span(4112, 100), Span(1 << 22, 5 << 20)]
    placed = sorted(zip(offsets, regions, strict=True))
    assert all(offset % 256 == region.address % 256 for offset, region in placed)
    assert placed[0][0] + placed[0][1].size <= placed[1][0]
    assert placed[1][0] + placed[1][1].size + (2 << 20) <= total


def test_a_ptx_kernel_is_loaded_when_it_is_launched_and_not_before(machine: Machine) -> None:
    machine.sizes["tiny"] = [8]
    memory = (ctypes.c_float * 4)()
    buffer = Buffer(ctypes.addressof(memory), 16, memory)
    text = ".version 8.0\n.target sm_90\n.visible .entry tiny(.param .u64 p) { ret; }\n"
    kernel = PtxKernel(text, arch="sm_90", grid=1, block=32, args=[buffer], shared_bytes=128)
    kernel.entry = "tiny"
    from pytest_compileiq.toolchain.ptxas import Assembled

    build = kernel._built(Assembled(b"cubin", ""))
    assert not machine.launched
    assert build.launch is not None
    assert build.load is not None
    build.launch()
    assert machine.launched[-1][:3] == ("tiny", ((1,), (32,), 128), (ctypes.addressof(memory),))
    build.load(kernel.place(Random(1)))()
    assert machine.launched[-1][2] != (ctypes.addressof(memory),)
    plain = PtxKernel(text, arch="sm_90")
    assert plain._built(Assembled(b"cubin", "")).launch is None
    assert plain.place(Random(1)) is None


def test_grid_without_block(machine: Machine) -> None:
    with pytest.raises(CiqError, match="grid and block go together"):
        PtxKernel("x.ptx", arch="sm_90", grid=1)


def test_fill_is_in_order_behind_the_gate(machine: Machine) -> None:
    memory = (ctypes.c_uint8 * 8)()
    buffer = Buffer(ctypes.addressof(memory), 8, memory)
    driver = CudaDriver()
    driver.close_gate()
    stream.fill(buffer)
    assert bytes(memory) == bytes(8)
    driver.open_gate()
    assert bytes(memory) == b"\xff" * 8
