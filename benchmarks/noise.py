"""What a GPU's launch times do when nobody looks: seven models and a recorded trace.

All numbers are logarithms of seconds relative to a 100 us kernel, in which an effect is a
shift. The models act on the kernel and its candidate alike, except for the placement of a seat,
which each of them draws for itself.
"""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]

KERNEL_SECONDS = 100e-6
LAUNCH_SECONDS = 0.4e-3  # wall time from one cold launch to the next
STEP = 0.03  # a change of the SM clock
THROTTLE = (0.08, 0.25)
THROTTLE_SECONDS = 5.0
OUTLIER = math.log(1.5)


@dataclass(frozen=True)
class Scenario:
    """Standard deviations in log units, rates in events per second.

    ``drift`` is an Ornstein-Uhlenbeck process of 60 s, ``fast`` an AR(1) of 0.9 a launch,
    ``stress`` puts a clock step into every session and throttling into a fifth of them. ``last``
    is what the last launch of a unit takes more.
    """

    jitter: float
    drift: float = 0.0
    fast: float = 0.0
    steps: float = 0.0
    throttling: float = 0.0
    outliers: float = 0.0
    process: float = 0.0
    placement: float = 0.0
    stress: bool = False
    last: float = 0.0


_CI = Scenario(0.01, 0.01, 0.003, 1 / 600, 1 / 1200, 0.01, 0.003)
SCENARIOS = {
    "iid": Scenario(0.01),
    "quiet": Scenario(0.005, 0.003, 0.002, outliers=0.01, process=0.002),
    "ci": _CI,
    "noisy": Scenario(0.03, 0.015, 0.01, 1 / 300, 1 / 600, 0.01, 0.005),
    "stress": Scenario(0.01, 0.01, 0.01, outliers=0.02, process=0.003, stress=True),
    "placed": Scenario(**{**_CI.__dict__, "placement": 0.005}),
    # As a softmax of 6 us on an H200, in CUDA graphs without edges.
    "ordered": Scenario(0.017, last=-0.06),
}


def autoregression(
    rng: np.random.Generator, shape: tuple[int, int], sd: float, phi: float
) -> Floats:
    """A stationary AR(1) along the second axis."""
    path = rng.standard_normal(shape)
    if sd == 0:
        return np.zeros(shape)
    path[:, 1:] *= math.sqrt(1 - phi * phi)
    for k in range(1, shape[1]):
        path[:, k] += phi * path[:, k - 1]
    path *= sd
    return path


def slow(
    rng: np.random.Generator, scene: Scenario, runs: int, n: int, every: float, session: float
) -> Floats:
    """Drift, clock steps and throttling at ``n`` times, ``every`` seconds apart."""
    path = autoregression(rng, (runs, n), scene.drift, math.exp(-every / 60))
    at = np.arange(n) * every
    whole = n * every

    def throttle(start: Floats, seconds: Floats) -> None:
        depth = rng.uniform(*THROTTLE, len(start))[:, None]
        inside = (at >= start[:, None]) & (at < (start + seconds)[:, None])
        path[:] += depth * inside

    if scene.stress:
        sign = np.where(rng.random(runs) < 0.5, STEP, -STEP)
        path += sign[:, None] * (at >= session * rng.random(runs)[:, None])
        struck = np.where(rng.random(runs) < 0.2, session * rng.random(runs), np.inf)
        throttle(struck, np.full(runs, 0.3 * session))
        return path
    if scene.steps:
        high = rng.random((runs, 1)) < 0.5
        count = rng.poisson(scene.steps * whole, runs)
        state = np.repeat(high, n, axis=1)
        for k in range(count.max(initial=0)):
            toggle = np.where(count > k, whole * rng.random(runs), np.inf)
            state ^= at >= toggle[:, None]
        path += STEP * state
    if scene.throttling:
        # Episodes that began before the session reach into it.
        span = whole + THROTTLE_SECONDS
        count = rng.poisson(scene.throttling * span, runs)
        for k in range(count.max(initial=0)):
            start = np.where(count > k, span * rng.random(runs) - THROTTLE_SECONDS, np.inf)
            throttle(start, rng.exponential(THROTTLE_SECONDS, runs))
    return path


def launches(rng: np.random.Generator, scene: Scenario, shape: tuple[int, ...]) -> Floats:
    """What differs from one launch to the next: jitter and outliers."""
    noise: Floats = scene.jitter * rng.standard_normal(shape)
    if scene.outliers:
        noise += OUTLIER * (rng.random(shape) < scene.outliers)
    return noise


def sessions(rng: np.random.Generator, scene: Scenario, runs: int, n: int) -> Floats:
    """``runs`` sessions of ``n`` launches in a row, shape (runs, n)."""
    reference = (16 + 4 * 60) * LAUNCH_SECONDS
    path = slow(rng, scene, runs, n, LAUNCH_SECONDS, reference)
    path += autoregression(rng, (runs, n), scene.fast, 0.9)
    return path + launches(rng, scene, (runs, n))


def seats(rng: np.random.Generator, scene: Scenario, runs: int, units: int) -> Floats:
    """What each of two kernels has from its placement, shape (runs, units, 2)."""
    places: Floats = scene.placement * rng.standard_normal((runs, units, 2))
    return places


def calls(rng: np.random.Generator, scene: Scenario, runs: int, n: int) -> Floats:
    """Scores of an opaque objective: each call a process, 20 s, the median of 15 launches."""
    inner: Floats = np.median(np.exp(launches(rng, scene, (runs, n, 15))), axis=2)
    process: Floats = max(scene.process, 0.002) * rng.standard_normal((runs, n))
    process += scene.placement * rng.standard_normal((runs, n))
    process += slow(rng, scene, runs, n, 20.0, 20.0 * n)
    process += np.log(inner)
    return process


@dataclass(frozen=True)
class Trace:
    """One kernel timed against itself: quads[process][seat] = (order, four log seconds)."""

    quads: list[list[tuple[str, Floats]]]

    def session(self, rng: np.random.Generator, units: int) -> tuple[Floats, Floats]:
        """A pilot of 16 launches and ``units`` quads, as they were recorded, one seat each.

        Processes come in random order and the first starts at a random seat; inside a
        process, seats keep their order in time.
        """
        rows = [quad for k in rng.permutation(len(self.quads)) for _, quad in self.quads[k]]
        start = rng.integers(len(self.quads[0]))
        rows = (rows[start:] + rows[:start])[: units + 4]
        return np.concatenate(rows[:4]), np.array(rows[4:])


def read_traces(kind: str) -> dict[str, Trace]:
    """Kernel -> "gated" or "ungated" trace; the first quad of each seat, as a unit is a new seat."""
    path = Path(__file__).parent / "traces" / f"h200_aa_seats_{kind}.json.gz"
    with gzip.open(path, "rt") as stream:
        kernels = json.load(stream)["kernels"]
    return {
        name: Trace(
            [
                [(q["order"], np.log(np.array(q["ms"]) / 1e3)) for q in process if q["quad"] == 0]
                for process in processes
            ]
        )
        for name, processes in kernels.items()
    }


Sessions = Callable[[np.random.Generator, int], tuple[Floats, Floats, Floats]]
"""(rng, runs) -> pilots (runs, 16), quads (runs, units, 4), seats (runs, units, 2)."""


def modelled(scene: Scenario, units: int) -> Sessions:
    def draw(rng: np.random.Generator, runs: int) -> tuple[Floats, Floats, Floats]:
        path = sessions(rng, scene, runs, 16 + 4 * units) + math.log(KERNEL_SECONDS)
        quads = path[:, 16:].reshape(runs, units, 4)
        quads[:, :, 3] += scene.last
        return path[:, :16], quads, seats(rng, scene, runs, units)

    return draw


def recorded(trace: Trace, units: int) -> Sessions:
    def draw(rng: np.random.Generator, runs: int) -> tuple[Floats, Floats, Floats]:
        pilots, quads = zip(*(trace.session(rng, units) for _ in range(runs)), strict=True)
        return np.array(pilots), np.array(quads), np.zeros((runs, units, 2))

    return draw
