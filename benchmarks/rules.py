"""How others decide which of two kernels is faster, written from their descriptions.

Each rule takes launches of both kernels and answers "faster", "slower" or None (of the second
against the first), with what it cost. Times come from CUDA events, with the L2 cache flushed
before each launch as ``triton.testing.do_bench`` does, or from the host's clock where the tool
uses that.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median, stdev
from typing import Any

Launch = Callable[[], None]
#: Launches a side for the Welch rule, as CompileIQ's validation script advises.
TRIALS = 100
#: Critical value of Student's t at 5 %, two-sided, for 99 degrees of freedom: the least there are.
CRITICAL_T = 1.984
#: Cohen's d above which that script takes a difference for one.
LEAST_D = 0.2


@dataclass(frozen=True)
class Answer:
    claim: str | None
    launches: int
    wall_seconds: float


class Bench:
    """Times launches one by one, as a benchmark without a gate does."""

    def __init__(self) -> None:
        import torch

        self._torch = torch
        self._cache = torch.empty(256 << 20, dtype=torch.int8, device="cuda")

    def events(self, launches: Sequence[Launch]) -> list[float]:
        """Seconds of each launch, in order, the cache flushed before it."""
        marks = []
        for launch in launches:
            self._cache.zero_()
            start, end = (self._torch.cuda.Event(enable_timing=True) for _ in "ab")
            start.record()
            launch()
            end.record()
            marks.append((start, end))
        self._torch.cuda.synchronize()
        return [start.elapsed_time(end) * 1e-3 for start, end in marks]

    def rounds(self, launch: Launch, least: int = 5, seconds: float = 0.03) -> list[float]:
        """Seconds of each call with a wait behind it, by the host's clock."""
        found: list[float] = []
        began = time.perf_counter()
        while len(found) < least or time.perf_counter() - began < seconds:
            start = time.perf_counter()
            launch()
            self._torch.cuda.synchronize()
            found.append(time.perf_counter() - start)
        return found


def _by_ratio(base: float, candidate: float, share: float) -> str | None:
    if candidate < base / (1 + share):
        return "faster"
    return "slower" if candidate > base * (1 + share) else None


def welch(bench: Bench, a: Launch, b: Launch) -> Answer:
    """100 launches of A, then 100 of B: Welch's p below 5 % and Cohen's d above 0.2."""
    began = time.perf_counter()
    bench.events([a] * 25)
    first = bench.events([a] * TRIALS)
    bench.events([b] * 25)
    second = bench.events([b] * TRIALS)
    difference = fmean(first) - fmean(second)
    variances = stdev(first) ** 2, stdev(second) ** 2
    t = difference / math.sqrt(sum(variances) / TRIALS) if any(variances) else 0.0
    d = difference / math.sqrt(sum(variances) / 2) if any(variances) else 0.0
    claim = None
    if abs(t) > CRITICAL_T and abs(d) > LEAST_D:
        claim = "faster" if difference > 0 else "slower"
    return Answer(claim, 2 * TRIALS + 50, time.perf_counter() - began)


def do_bench(bench: Bench, a: Launch, b: Launch) -> Answer:
    """Medians of ``triton.testing.do_bench``, A then B, told apart from 1 % on."""
    from triton import testing

    began = time.perf_counter()
    times = [testing.do_bench(one, return_mode="all") for one in (a, b)]
    claim = _by_ratio(median(times[0]), median(times[1]), 0.01)
    return Answer(claim, sum(map(len, times)), time.perf_counter() - began)


def interleaved(bench: Bench, a: Launch, b: Launch, pairs: int = 50) -> Answer:
    """Medians of launches in turns, A B A B, told apart from 1 % on."""
    began = time.perf_counter()
    bench.events([a, b] * 5)
    times = bench.events([a, b] * pairs)
    claim = _by_ratio(median(times[::2]), median(times[1::2]), 0.01)
    return Answer(claim, 2 * pairs + 10, time.perf_counter() - began)


class Stored:
    """A baseline of an earlier time, as pytest-benchmark compares with one: ``stat:share``."""

    def __init__(self, statistic: Callable[[Sequence[float]], float], share: float) -> None:
        self._statistic, self._share = statistic, share
        self._baseline: float | None = None

    def __call__(self, bench: Bench, a: Launch, b: Launch) -> Answer:
        if self._baseline is None:
            self._baseline = self._statistic(bench.rounds(a))
        began = time.perf_counter()
        times = bench.rounds(b)
        claim = _by_ratio(self._baseline, self._statistic(times), self._share)
        return Answer(claim, len(times), time.perf_counter() - began)


def peers() -> dict[str, Any]:
    """All rules by the name that the tables give them; new ones, with no baseline stored."""
    return {
        "100 A, then 100 B, Welch p < .05 and d > 0.2": welch,
        "do_bench medians, A then B, 1 %": do_bench,
        "stored baseline, min:5%": Stored(min, 0.05),
        "stored baseline, mean:2%": Stored(fmean, 0.02),
        "interleaved medians, 1 %": interleaved,
    }
