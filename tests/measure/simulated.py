"""A GPU for the timer: a queue, a host that takes time to fill it, a cache, a clock, a gate."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from pytest_compileiq.measure.blocks import Graph
from pytest_compileiq.subjects.kernel import Build, Kernel, Launch

FLUSH_SECONDS = 40e-6
#: So many launches of graphs at the end of what is enqueued are not like the rest; as many as the
#: timer allows for.
END_LAUNCHES = 36


@dataclass
class Event:
    at: float = math.nan


@dataclass
class SimulatedGpu:
    """Implements ``blocks.Driver``. All times in seconds of one simulated clock.

    ``host_seconds`` passes on the host with each call that enqueues; ``gate`` False is a GPU
    whose gate holds nothing back and starts a unit when the GPU is idle. ``drift`` slows kernels
    down by that share a second, ``clock(t)`` is the SM clock in MHz. ``first`` is the share that
    the first launch behind a gate takes more, ``last`` that which the last one of a graph does,
    and ``end`` what the last END_LAUNCHES of graphs take less, if nothing is enqueued behind them.
    ``log`` holds what ran, in order, with its detail, ``longest`` how many operations there were
    at most behind a gate, those within graphs counted.
    """

    host_seconds: float = 5e-6
    gate: bool = True
    jitter: float = 0.0
    drift: float = 0.0
    warm_gain: float = 0.3
    first: float = 0.0
    last: float = 0.0
    end: float = 0.0
    clock: Callable[[float], float] = lambda t: 1980.0
    quantum: float = 0.0
    longest: int = 0
    host: float = 0.0
    gpu: float = 0.0
    gate_limit: float = 1.0
    log: list[tuple[str, Any]] = field(default_factory=list)
    captured: list[tuple[str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._queue: list[tuple[float, Callable[[], None]]] = []
        self._closed_at: float | None = None
        self._capturing: list[Callable[[], None]] | None = None
        self._hot: str | None = None
        self._cycles: dict[int, tuple[float, float]] = {}
        self._random = Random(7)
        self._is_first = False
        self._share = 1.0
        self.expired = False

    def now(self) -> float:
        return self.host

    # What a timer calls

    def close_gate(self) -> None:
        def run() -> None:
            self.log.append(("gate", None))
            self._is_first = True

        self._put(run)
        if self.gate:
            self._closed_at = self.host
        else:
            self._drain()

    def open_gate(self) -> bool:
        expired, self.expired = self.expired, False
        if self._closed_at is not None:
            opened = min(self.host, self._closed_at + self.gate_limit)
            expired = expired or opened < self.host
            self._closed_at = None
            self.gpu = max(self.gpu, opened)
        self._drain()
        return not expired

    def flush(self) -> None:
        self._put(self._run_flush)

    def record(self, event: Event) -> None:
        def run() -> None:
            at = self.gpu
            event.at = round(at / self.quantum) * self.quantum if self.quantum else at
            self.log.append(("event", id(event)))

        self._put(run)

    def probe(self, slot: int) -> None:
        def run() -> None:
            self._cycles[slot] = (self.gpu, self.clock(self.gpu))
            self.log.append(("probe", slot))

        self._put(run)

    def empty(self) -> None:
        def run() -> None:
            self._pass(2e-6 * self._share)

        run.kernel = "empty"  # type: ignore[attr-defined]
        self._put(run)

    def event(self) -> Event:
        return Event()

    def seconds(self, start: Event, end: Event) -> float:
        return end.at - start.at

    def mhz(self, first: int, last: int) -> float:
        return 0.5 * (self._cycles[first][1] + self._cycles[last][1])

    def capture(self, enqueue: Callable[[], None], nodes: int) -> Graph:
        self._capturing = found = []
        before = len(self.log)
        enqueue()
        self._capturing = None
        assert len(self.log) == before
        assert len(found) >= nodes
        self.captured.append((str(getattr(found[2], "kernel", "?")), len(found)))
        launches = sum(hasattr(one, "kernel") for one in found)

        def run() -> None:
            left = launches
            beyond = sum(getattr(one, "launches", 0) for one in self._behind)
            for one in found:
                left -= hasattr(one, "kernel")
                self._share = 1 - self.end if left + beyond < END_LAUNCHES else 1.0
                if not left:
                    self._share *= 1 + self.last
                one()
            self._share = 1.0

        run.launches = launches  # type: ignore[attr-defined]
        run.operations = len(found)  # type: ignore[attr-defined]

        return Graph(lambda: self._put(run), len(found))

    # What a user's code calls

    def kernel(self, name: str, seconds: float, operations: int = 1) -> Launch:
        """A launch of a kernel that takes so long when the L2 cache is cold.

        It is so many operations, all but the last of which take no time.
        """

        def run() -> None:
            cold = self._hot != name
            self._hot = name
            noise = math.exp(self._random.gauss(0, self.jitter)) if self.jitter else 1.0
            gain = 1.0 if cold else 1 - self.warm_gain
            slow = 1980.0 / self.clock(self.gpu)
            share = self._share * (1 + self.first if self._is_first else 1.0)
            self._is_first = False
            self._pass(seconds * gain * noise * slow * share * (1 + self.drift * self.gpu))
            self.log.append(("cold" if cold else "warm", name))

        run.kernel = name  # type: ignore[attr-defined]

        def launch() -> None:
            for _ in range(operations - 1):
                self._put(lambda: None)
            self._put(run)

        return launch

    def wait(self) -> None:
        """A launch that waits for the GPU: behind a closed gate, until the gate gives up."""
        if self._closed_at is not None:
            self.host = self._closed_at + self.gate_limit
            self.expired = True
            self.open_gate()
            self.expired = True
        self._drain()

    # The machine

    def _put(self, run: Callable[[], None]) -> None:
        if self._capturing is not None:
            self._capturing.append(run)
            return
        self.host += self.host_seconds
        self._queue.append((self.host, run))
        if self._closed_at is None:
            self._drain(wait=False)

    def _drain(self, *, wait: bool = True) -> None:
        queued = sum(getattr(run, "operations", 1) for _, run in self._queue)
        self.longest = max(self.longest, queued)
        for index, (at, run) in enumerate(self._queue):
            self.gpu = max(self.gpu, at)
            self._behind = [one for _, one in self._queue[index + 1 :]]
            run()
        self._queue.clear()
        if wait:
            self.host = max(self.host, self.gpu)

    def _pass(self, seconds: float) -> None:
        self.gpu += seconds

    def _run_flush(self) -> None:
        self._pass(FLUSH_SECONDS)
        self._hot = None
        self.log.append(("flush", None))


def kernel(
    gpu: SimulatedGpu, base: float, candidate: float, operations: tuple[int, int] = (1, 1)
) -> tuple[Kernel, Build, Build]:
    """A kernel with seats, and its two builds, whose launches take so many seconds and operations."""
    made = Kernel(lambda acf: Build(), name="k", place=lambda random: random.random())

    def build(name: str, seconds: float) -> Build:
        launch = gpu.kernel(name, seconds, operations["AB".index(name)])

        def load(buffers: float) -> Launch:
            gpu.log.append((f"load {name}", buffers))
            return launch

        return Build(b"", launch=launch, load=load)

    return made, build("A", base), build("B", candidate)
