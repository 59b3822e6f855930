"""How others decide which of two kernels is faster, written from their descriptions.

Each has two halves: a *recording*, launches of both kernels in the tool's own order and timed in
its own way, and a *claim*, made from the recorded times alone: "faster", "slower" or None, of the
second kernel against the first. Times come from CUDA events, with the L2 cache flushed before each
launch as ``triton.testing.do_bench`` does, or from the host's clock where the tool uses that. No
two rules but those of one recording can share their times, nor any of them those of our units: the
order, the missing gate and the tool's own flush are what is compared.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from statistics import fmean, median, stdev
from typing import Any, NamedTuple

Launch = Callable[[], None]
#: Seconds of the first kernel's launches and of the second's, as they came.
Times = tuple[list[float], list[float]]
#: Launches a side for the Welch rule, as CompileIQ's validation script advises.
TRIALS, WARM = 100, 25
#: Critical value of Student's t at 5 %, two-sided, for 99 degrees of freedom: the least there are.
CRITICAL_T = 1.984
#: Cohen's d above which that script takes a difference for one.
LEAST_D = 0.2
#: Launches a side in turns.
TURNS, WARM_TURNS = 50, 5


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

    def do_bench(self, launch: Launch) -> list[float]:
        """Seconds as ``triton.testing.do_bench`` measures them."""
        from triton import testing

        return [1e-3 * one for one in testing.do_bench(launch, return_mode="all")]


def one_after_the_other(bench: Bench, a: Launch, b: Launch) -> Times:
    bench.events([a] * WARM)
    first = bench.events([a] * TRIALS)
    bench.events([b] * WARM)
    return first, bench.events([b] * TRIALS)


def in_turns(bench: Bench, a: Launch, b: Launch) -> Times:
    bench.events([a, b] * WARM_TURNS)
    times = bench.events([a, b] * TURNS)
    return times[::2], times[1::2]


#: Each rule's way to time both kernels. A stored baseline is one session's first half.
RECORDINGS: dict[str, Callable[[Bench, Launch, Launch], Times]] = {
    "blocks": one_after_the_other,
    "do_bench": lambda bench, a, b: (bench.do_bench(a), bench.do_bench(b)),
    "rounds": lambda bench, a, b: (bench.rounds(a), bench.rounds(b)),
    "turns": in_turns,
}


def welch(times: Times, _: Times) -> str | None:
    """Welch's p below 5 % and Cohen's d above 0.2."""
    first, second = times
    difference = fmean(first) - fmean(second)
    variance = stdev(first) ** 2 + stdev(second) ** 2
    if not variance:
        return None
    t = difference / math.sqrt(variance / TRIALS)
    d = difference / math.sqrt(variance / 2)
    if abs(t) <= CRITICAL_T or abs(d) <= LEAST_D:
        return None
    return "faster" if difference > 0 else "slower"


def medians(times: Times, _: Times) -> str | None:
    """Medians, told apart from 1 % on."""
    return _by_ratio(median(times[0]), median(times[1]), share=0.01)


def least_5(times: Times, stored: Times) -> str | None:
    """pytest-benchmark's ``min:5%`` against the baseline of an earlier time."""
    return _by_ratio(min(stored[0]), min(times[1]), share=0.05)


def mean_2(times: Times, stored: Times) -> str | None:
    """pytest-benchmark's ``mean:2%`` against the baseline of an earlier time."""
    return _by_ratio(fmean(stored[0]), fmean(times[1]), share=0.02)


def _by_ratio(base: float, candidate: float, share: float) -> str | None:
    if candidate < base / (1 + share):
        return "faster"
    return "slower" if candidate > base * (1 + share) else None


class Rule(NamedTuple):
    """``claim(times, first)`` sees a session's times and those of its run's first session."""

    recording: str
    claim: Callable[[Times, Times], str | None]
    untimed: int = 0
    stored: bool = False

    def launches(self, times: Times) -> int:
        return self.untimed + len(times[1]) + (0 if self.stored else len(times[0]))

    def wall_seconds(self, times: Times, recorded: float) -> float:
        """What the rule costs, of a recording that took so long: half of it, with a baseline."""
        return sum(times[1]) if self.stored else recorded


#: All rules by the name that the tables give them.
PEERS = {
    "100 A, then 100 B, Welch p < .05 and d > 0.2": Rule("blocks", welch, 2 * WARM),
    "do_bench medians, A then B, 1 %": Rule("do_bench", medians),
    "stored baseline, min:5%": Rule("rounds", least_5, stored=True),
    "stored baseline, mean:2%": Rule("rounds", mean_2, stored=True),
    "interleaved medians, 1 %": Rule("turns", medians, 2 * WARM_TURNS),
}


def recorded(bench: Bench, name: str, a: Launch, b: Launch) -> dict[str, Any]:
    """One recording, as it is kept: the times of both kernels and the wall time of all."""
    began = time.perf_counter()
    times = RECORDINGS[name](bench, a, b)
    return {"times": times, "wall_seconds": time.perf_counter() - began}
