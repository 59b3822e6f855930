"""Times the units of a comparison: a new seat, then four blocks behind one gate.

A *seat* is one placement: the buffers copied to new addresses and both builds loaded anew. A
*block* is one or more launches of one build; its time comes from CUDA events. Behind a *gate*, a
kernel that spins until all blocks are enqueued, the GPU never waits for the host: without it the
first block of a unit read up to 10 % too slow (traces of an H200), on a faster host not at all.
What runs first or last behind a gate may still be unlike the rest, so CUDA graphs with a cold cache
and the launches of a series have *edges* there, which run and are not read.

Nothing here knows CUDA: what it needs is a ``Driver``.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from random import Random
from statistics import fmean, median
from typing import Any

from pytest_compileiq.errors import CiqError
from pytest_compileiq.measure.blocks import (
    GATE_SECONDS,
    MOST_COLD_LAUNCHES,
    Driver,
    Form,
    Pilot,
    choose_form,
)
from pytest_compileiq.measure.scale import pilot_scale
from pytest_compileiq.measure.units import PILOT_LAUNCHES, Health, Plan, Side, Timed
from pytest_compileiq.subjects.kernel import Build, Kernel, Launch

#: Warm-up (s): GPU work at least, wall time at most, and the pause after which it is lost.
_WARM_WORK, _WARM_WALL, _COOL_AFTER = 0.1, 1.0, 0.25
_WARM_CHUNK = 0.01
#: Launches of one batch of a series at least; the first and the last of them are not read.
_SERIES = 10
#: Warm-up ends when the SM clock moved less than this over so many chunks.
_STEADY, _STEADY_CHUNKS = 0.005, 5

Mark = tuple[Any, Any]
#: Times one block of ``launch`` in a site's own way: (name, side, launch) -> seconds a launch.
TimeBlock = Callable[[str, Side, Launch], float]


@dataclass(frozen=True, slots=True)
class Pair:
    """A kernel's two builds. Both need a ``launch`` or a ``load``."""

    kernel: Kernel
    builds: Mapping[Side, Build]


class Timer:
    """Times blocks on one GPU. :meth:`add` a pair, then the timer is its ``TimeUnit``.

    ``reasons(since)`` gives the clock event reasons seen since a ``time.monotonic()``. A
    ``time_block`` times in its own way, and then the driver is never asked for anything but
    may be None.
    """

    def __init__(
        self,
        driver: Driver | None,
        *,
        seed: int,
        cold: bool = True,
        reasons: Callable[[float], int] = lambda since: 0,
        time_block: TimeBlock | None = None,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._given = driver
        self._cold = cold
        self._reasons = reasons
        self._time_block = time_block
        self._now = now
        self._random = Random(f"{seed}/seats")
        self._pairs: dict[str, tuple[Pair, Pilot]] = {}
        self._events: list[Mark] = []
        self._warm = 0.0
        self._busy_until = -math.inf

    @property
    def _driver(self) -> Driver:
        assert self._given is not None
        return self._given

    def add(self, name: str, pair: Pair) -> Pilot:
        """Warm up, choose the form, time the pilot. Raises CiqError for what cannot be timed."""
        launches = self._seat(pair, (Side.BASE, Side.CANDIDATE))
        if self._time_block is not None:
            time_it = partial(self._time_block, name, Side.BASE, launches[Side.BASE])
            seconds = tuple(time_it() for _ in range(PILOT_LAUNCHES))
            pilot = Pilot(seconds, Form(cold=self._cold), _has_seats(pair), 0.0, 0.0)
        else:
            pilot = self._pilot(launches, _has_seats(pair))
        self._pairs[name] = pair, pilot
        return pilot

    def __call__(self, name: str, plan: Plan) -> Timed:
        """One unit in the order of its plan. A unit whose gate gave up has no times."""
        pair, pilot = self._pairs[name]
        began = self._now()
        launches = self._seat(pair, plan.load)
        if self._time_block is not None:
            own = tuple(self._time_block(name, side, launches[side]) for side in plan.order)
            return Timed(own, 1, self._now() - began, Health(reasons=self._reasons(began)))
        form = pilot.form
        # An edge is of its neighbour's side, so each side follows each once, and has probes like
        # any block, so that all have the same before and behind them.
        order = (plan.order[0], *plan.order, plan.order[-1])
        read = range(1, len(order) - 1)
        ahead, behind = form.edges
        run = [0] * ahead + [*read] + [len(order) - 1] * behind
        blocks = {
            position: self._block(launches[side], position, form)
            for side in plan.capture
            for position in sorted(set(run))
            if order[position] is side
        }
        with self._gated() as gate:
            for position in run:
                self._driver.probe(2 * position)
                blocks[position]()
                self._driver.probe(2 * position + 1)
        seconds = tuple(_a_launch(self._seconds(k, form), form) for k in read)
        if gate.expired:
            seconds = (math.nan,) * len(read)
        mhz = tuple(self._driver.mhz(2 * k, 2 * k + 1) for k in read)
        self._was_busy(0.0)
        health = Health(mhz if all(mhz) else (), self._reasons(began))
        return Timed(seconds, form.launches, self._now() - began, health)

    def series(self, name: str) -> Iterator[float]:
        """Seconds of single launches of the baseline, one seat, without an end.

        A ``time_block`` gives those of its blocks.
        """
        pair, pilot = self._pairs[name]
        launch = self._seat(pair, (Side.BASE,))[Side.BASE]
        # Each launch between events of its own: a mean of several hides how much they differ.
        form = pilot.form if self._cold else replace(pilot.form, launches=1)
        while True:
            if self._time_block is not None:
                yield self._time_block(name, Side.BASE, launch)
                continue
            blocks = self._read(launch, form, math.ceil(_SERIES / form.launches))
            # Without its edges: the first behind a gate took 4 % more of a matrix product on an
            # H200, of an attention 0.4 %; the last in a graph of a 7 us copy about 1 %. An even
            # number: the noise is told from pairs, and no pair may lie across a gate.
            inner = list(chain.from_iterable(blocks))[1:-1]
            yield from inner[: len(inner) // 2 * 2]

    # Seats

    def _seat(self, pair: Pair, order: Sequence[Side]) -> dict[Side, Launch]:
        buffers = pair.kernel.place(self._random)
        launches: dict[Side, Launch] = {}
        for side in order:
            build = pair.builds[side]
            launch = build.load(buffers) if build.load is not None else build.launch
            if launch is None:
                raise CiqError(
                    f"{pair.kernel.name}: the build cannot be launched, so it cannot be timed",
                    remedy="give Build.launch, and Build.load with Kernel.place",
                )
            launches[side] = launch
        # Code is loaded by its first launch, which would wait for ever behind a closed gate.
        for side in order:
            launches[side]()
        return launches

    # Blocks

    def _block(self, launch: Launch, position: int, form: Form) -> Launch:
        """A block between the marks of a position. As a graph it has only one run that is read,
        since a second overwrites its events."""
        block = partial(self._enqueue, launch, self._marks(position, form), form)
        return self._driver.capture(block, form.operations) if form.graph else block

    def _nodes(self, launch: Launch, form: Form) -> int:
        block = partial(self._enqueue, launch, self._marks(0, form), form)
        return self._driver.capture(block, form.operations).nodes

    def _enqueue(self, launch: Launch, marks: Sequence[Mark], form: Form) -> None:
        driver = self._driver
        if form.cold:
            for start, end in marks:
                driver.flush()
                driver.record(start)
                launch()
                driver.record(end)
            return
        ((start, end),) = marks
        launch()
        driver.record(start)
        for _ in range(form.launches):
            launch()
        driver.record(end)

    def _seconds(self, position: int, form: Form) -> list[float]:
        return [self._driver.seconds(*mark) for mark in self._marks(position, form)]

    def _marks(self, position: int, form: Form) -> list[Mark]:
        first = position * form.marks
        while len(self._events) < first + form.marks:
            self._events.append((self._driver.event(), self._driver.event()))
        return self._events[first : first + form.marks]

    def _times(self, launch: Launch, form: Form, count: int) -> list[float]:
        """Seconds a launch of so many blocks of one build in a row."""
        return [_a_launch(marks, form) for marks in self._read(launch, form, count)]

    def _read(self, launch: Launch, form: Form, count: int) -> list[list[float]]:
        """Seconds between the events of each mark of so many blocks of one build in a row."""
        most = max(1, 4 * MOST_COLD_LAUNCHES // form.launches)
        if form.graph and form.launches > 1:
            most = min(most, 4)  # as in a unit, which fits into CUDA's queue
        ahead, behind = form.edges
        edges = [self._block(launch, most, form)] if ahead + behind else []
        found: list[list[float]] = []
        while len(found) < count:
            many = range(min(most, count - len(found)))
            blocks = [self._block(launch, position, form) for position in many]
            self._run(edges * ahead + blocks + edges * behind)
            times = [self._seconds(position, form) for position in many]
            self._was_busy(math.fsum(map(math.fsum, times)))
            found += times
        return found

    def _run(self, blocks: Sequence[Launch]) -> None:
        with self._gated() as gate:
            for block in blocks:
                block()
        if gate.expired:
            raise CiqError(
                f"the GPU waited {GATE_SECONDS:g} s for launches to be enqueued, and they were not",
                remedy="let launch() only enqueue: no .item(), no synchronize(), no copy to the host",
            )

    @contextmanager
    def _gated(self) -> Iterator[_Gate]:
        gate = _Gate()
        self._driver.close_gate()
        try:
            yield gate
        finally:
            gate.expired = not self._driver.open_gate()

    # Warm-up and pilot

    def _pilot(self, launches: Mapping[Side, Launch], seats: bool) -> Pilot:
        began = self._now()
        if began - self._busy_until > _COOL_AFTER:
            self._warm = 0.0
        first = Form(cold=self._cold)
        rough = {side: min(self._times(launch, first, 3)) for side, launch in launches.items()}
        self._warm_up(launches, sum(rough.values()))
        warm_up = self._now() - began
        base = launches[Side.BASE]
        seconds = self._times(base, first, PILOT_LAUNCHES)
        shorter = min(median(seconds), rough[Side.CANDIDATE])
        form = choose_form(shorter, pilot_scale(seconds), cold=self._cold)
        if form.graph:
            form = form.fitting(max(self._nodes(launch, form) for launch in launches.values()))
        if form != first:
            seconds = self._times(base, form, PILOT_LAUNCHES)
        overhead = min(self._times(self._driver.empty, form, 2))
        return Pilot(tuple(seconds), form, seats, overhead, warm_up)

    def _warm_up(self, launches: Mapping[Side, Launch], both: float) -> None:
        """Alternate both builds until the GPU has worked for long and its clock is steady."""
        count = max(1, min(100, math.ceil(_WARM_CHUNK / both)))
        began, clocks = self._now(), list[float]()
        (mark,) = self._marks(0, Form())
        while self._now() - began < _WARM_WALL:
            last = clocks[-_STEADY_CHUNKS:]
            steady = len(last) == _STEADY_CHUNKS and max(last) <= (1 + _STEADY) * min(last)
            if self._warm >= _WARM_WORK and (steady or not clocks or not clocks[-1]):
                return
            with self._gated():
                self._driver.probe(0)
                self._driver.record(mark[0])
                for _ in range(count):
                    for launch in launches.values():
                        launch()
                self._driver.record(mark[1])
                self._driver.probe(1)
            clocks.append(self._driver.mhz(0, 1))
            self._was_busy(self._driver.seconds(*mark))

    def _was_busy(self, seconds: float) -> None:
        self._warm += seconds
        self._busy_until = self._now()


class _Gate:
    expired = False


def _a_launch(marks: Sequence[float], form: Form) -> float:
    """Seconds a launch of a block, from the seconds between its events."""
    return fmean(marks) / (1 if form.cold else form.launches)


def _has_seats(pair: Pair) -> bool:
    return all(build.load is not None for build in pair.builds.values())
