"""What a timed block is: its form, the pilot that chose it, and what is asked of a GPU for it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, Protocol

from pytest_compileiq.measure.scale import EVENT_QUANTUM
from pytest_compileiq.subjects.kernel import Launch

#: A gate that nobody opens gives up after this time.
GATE_SECONDS = 1.0
#: Clock probes of a unit: two a block, four blocks and two that are edges and may run repeatedly.
MOST_PROBES = 12
#: Below this kernel time (s) launches go into a CUDA graph, whose block lasts _GRAPH_BLOCK.
_GRAPH_BELOW, _GRAPH_BLOCK = 20e-6, 200e-6
#: Above it and below this, a block of several launches where the clock is too coarse for one.
_COARSE_BELOW = 100e-6
#: Nodes of the graphs behind one gate at most: with 1080 the host waited on an H200, for the gate.
_MOST_NODES = 840
#: Launches of a block at most. 30 cold ones are 120 nodes, of which a unit with its edges has 7.
_MOST_LAUNCHES = 128
MOST_COLD_LAUNCHES = 30
#: Cold graphs with so many launches behind them at least are alike within 1 %. On an H200 about the
#: last 30 behind a gate took up to 5 % less (`benchmarks/edges.py`); some more are for safety.
_LAUNCHES_BEHIND = 36


class Driver(Protocol):
    """What a timer asks of a GPU. All but the last five only enqueue on the current stream."""

    def close_gate(self) -> None:
        """Hold back on the GPU whatever is enqueued from now on."""

    def flush(self) -> None:
        """Write twice the size of the L2 cache, so that nothing of value is left in it."""

    def record(self, event: Any) -> None: ...

    def probe(self, slot: int) -> None:
        """Note the SM's cycles and the time."""

    def empty(self) -> None:
        """Launch a kernel that does nothing."""

    def open_gate(self) -> bool:
        """Let everything run and wait for it. False if the gate had opened by itself."""

    def event(self) -> Any: ...

    def seconds(self, start: Any, end: Any) -> float: ...

    def mhz(self, first: int, last: int) -> float:
        """SM clock between two probes; 0 where it cannot be told."""

    def capture(self, enqueue: Callable[[], None], nodes: int) -> Graph:
        """Whatever ``enqueue`` enqueues, at least ``nodes`` operations, as one CUDA graph."""


@dataclass(frozen=True, slots=True)
class Graph:
    """A CUDA graph of so many nodes. Called, it is launched on the current stream."""

    launch: Launch
    nodes: int

    def __call__(self) -> None:
        self.launch()


@dataclass(frozen=True, slots=True)
class Form:
    """How a block is timed: ``launches`` of it, in a CUDA graph or not, L2 cold or warm.

    Cold: the cache is flushed before every single launch, and each has its own pair of events;
    nothing is left to the hope that so many launches touch more than the cache holds (in
    FlashInfer #4468 they did not, and read 36 % too fast). Warm: one untimed launch of the same
    build, then all launches between one pair of events.
    """

    launches: int = 1
    graph: bool = False
    cold: bool = True

    @property
    def marks(self) -> int:
        return self.launches if self.cold else 1

    @property
    def operations(self) -> int:
        """Operations that a block enqueues at least, if each launch is one."""
        return 4 * self.launches if self.cold else self.launches + 3

    @property
    def edges(self) -> tuple[int, int]:
        """How many blocks run unread before those that are read, and how many after them.

        Warm graphs have none: on an H200 the first of four took 0.2 to 0.3 % more with an edge
        before it, and no more without one (`benchmarks/edges.py`).
        """
        if not self.graph or not self.cold:
            return 0, 0
        return 1, math.ceil(_LAUNCHES_BEHIND / self.launches)

    def fitting(self, nodes: int) -> Form:
        """With fewer launches, if the graph of a block has ``nodes`` and a unit were too long.

        There is more than one node for each operation counted here where a launch is several.
        """
        each = nodes / self.operations
        for launches in range(self.launches, 1, -1):
            form = replace(self, launches=launches)
            if (4 + sum(form.edges)) * math.ceil(each * form.operations) <= _MOST_NODES:
                return form
        return replace(self, launches=1)


def choose_form(kernel_seconds: float, jitter: float, *, cold: bool) -> Form:
    """The form for a kernel of this time whose launches differ by ``jitter`` (log units)."""
    graph = kernel_seconds < _GRAPH_BELOW
    coarse = kernel_seconds < _COARSE_BELOW and EVENT_QUANTUM / kernel_seconds > jitter / 4
    launches = 1
    if graph or coarse:
        wanted = _GRAPH_BLOCK if graph else _COARSE_BELOW
        most = MOST_COLD_LAUNCHES if cold else _MOST_LAUNCHES
        launches = min(most, math.ceil(wanted / kernel_seconds))
    return Form(launches, graph, cold)


@dataclass(frozen=True, slots=True)
class Pilot:
    """The end of the warm-up. ``seconds``: blocks of the baseline, a launch each. ``seats``:
    whether units can have seats of their own. ``overhead_seconds``: what an empty kernel takes
    in the same form, by which both sides' times are too long and their ratio too near to 1."""

    seconds: tuple[float, ...]
    form: Form
    seats: bool
    overhead_seconds: float
    warm_up_seconds: float

    @property
    def block_seconds(self) -> float:
        return median(self.seconds) * self.form.launches

    def numbers(self) -> dict[str, object]:
        return {
            "launches_a_block": self.form.launches,
            "cuda_graph": self.form.graph,
            "l2": "cold" if self.form.cold else "warm",
            "seats": self.seats,
            "kernel_seconds": median(self.seconds),
            "overhead_seconds": self.overhead_seconds,
            "warm_up_seconds": self.warm_up_seconds,
        }
