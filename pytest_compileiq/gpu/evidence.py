"""What a GPU did while something was measured, and whether the measurement can be believed.

Pure: readings in, Evidence out.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

from pytest_compileiq.gpu.clocks import ClockState

IDLE = 0x1
#: Not throttling: idle, the user's own clock setting, a display's clock.
_HARMLESS = 0x1 | 0x2 | 0x100
# nvidia-ml-py has no names for the last two bits, and its mask of all of them omits both.
_NAMES = {
    0x1: "idle",
    0x2: "applications-clock",
    0x4: "sw-power-cap",
    0x8: "hw-slowdown",
    0x10: "sync-boost",
    0x20: "sw-thermal",
    0x40: "hw-thermal",
    0x80: "hw-power-brake",
    0x100: "display-clock",
    0x200: "board-limit",
    0x400: "reliability",
}
_HW_SLOWDOWN = 0x8
#: After load begins the reading may lag; NVML renews it every 20 to 100 ms.
_SETTLE_S = 0.15
#: Unlocked clocks this far below the card's highest want a reason.
_FAR_BELOW = 0.9
_BUSY_PERCENT, _USED_BYTES = 10, 256 << 20


class Condition(StrEnum):
    CLEAN = "clean"
    THROTTLED = "throttled"
    UNEXPLAINED_LOW = "unexplained-low"  # below the lock, and no reason bit says why
    UNVERIFIED = "unverified"  # never busy while sampled
    DISTURBED = "disturbed"  # a foreign process, or the lock was changed from outside


class Sample(NamedTuple):
    """One reading; ``t`` is time.monotonic(). None: the card does not tell."""

    t: float
    sm_mhz: int | None
    mem_mhz: int | None
    reasons: int | None
    power_w: float | None
    temperature_c: int | None
    busy_percent: int | None

    @property
    def busy(self) -> bool:
        if self.reasons is not None:
            return not self.reasons & IDLE
        return self.busy_percent is None or self.busy_percent > 0


@dataclass(frozen=True, kw_only=True, slots=True)
class Evidence:
    """One measuring window. Clocks are statistics over its busy, settled samples, in MHz.

    ``causes`` explains the condition in words; ``reason_share`` is the share of busy samples in
    which a reason stood, ``counters_ms`` the driver's own count of throttled time, which sees what
    falls between samples.
    """

    condition: Condition
    causes: tuple[str, ...]
    notes: tuple[str, ...]
    clocks: str
    seconds: float
    expected_mhz: int | None
    sm_mhz_min: int | None
    sm_mhz_median: float | None
    sm_mhz_max: int | None
    mem_mhz_min: int | None
    mem_mhz_max: int | None
    busy_samples: int
    reason_share: Mapping[str, float]
    counters_ms: Mapping[str, float | None]
    foreign: tuple[str, ...]
    temperature_c: int | None
    power_w: float | None
    samples: tuple[Sample, ...]

    @property
    def clean(self) -> bool:
        return self.condition is Condition.CLEAN

    def __str__(self) -> str:
        clock = "" if self.sm_mhz_median is None else f", SM {self.sm_mhz_median:g} MHz"
        if self.sm_mhz_min != self.sm_mhz_max:
            clock += f" ({self.sm_mhz_min} to {self.sm_mhz_max})"
        why = f" ({'; '.join(self.causes)})" if self.causes else ""
        return f"{self.condition}{why}{clock}"

    def to_numbers(self, *, most_samples: int = 500) -> dict[str, Any]:
        """Plain data for JSON; of many samples every n-th is kept."""
        step = -(-len(self.samples) // most_samples) or 1
        start = self.samples[0].t if self.samples else 0.0
        skipped = ("samples", "condition")
        numbers = {name: getattr(self, name) for name in self.__slots__ if name not in skipped}
        return {
            "condition": self.condition.value,
            **{key: list(v) if isinstance(v, tuple) else v for key, v in numbers.items()},
            "reason_share": dict(self.reason_share),
            "counters_ms": dict(self.counters_ms),
            "sample_fields": ["seconds", *Sample._fields[1:]],
            "samples": [[round(s.t - start, 3), *s[1:]] for s in self.samples[::step]],
        }


def judge(
    samples: Sequence[Sample],
    *,
    start: Mapping[str, Any],
    end: Mapping[str, Any],
    processes: Sequence[Mapping[str, Any]],
    state: ClockState,
    trusted: bool | None,
    before: str = "",
) -> Evidence:
    """Weigh one window. ``start`` and ``end`` are the guardian's snapshots, ``processes`` all that
    were seen in it, ``trusted`` whether PIDs mean the same here, ``before`` who was busy earlier."""
    notes: list[str] = []
    # An H200 leaves the idle bit off, and its clock up, for 2 s after its last kernel.
    worked = any(s.busy_percent is None or s.busy_percent > 0 for s in samples)
    loaded = samples if worked else ()
    busy = [s for s in loaded if s.busy and s.sm_mhz is not None]
    expected = _expected(busy, state)
    band = _band(expected, state)
    settled = _settled(loaded, band)
    counters = _grown(start["counters"], end["counters"])
    throttling = _throttling(settled, counters)
    foreign = _foreign(processes, start["processes"], trusted, notes)
    disturbed = [before] if before else []
    disturbed += [f"another process is on the GPU: {name}" for name in foreign]
    low, moved = _out_of_band(settled, band, state, notes)
    if not throttling:
        disturbed += moved
    condition, causes = _conclude(disturbed, throttling, low, bool(settled))
    clocks = [s.sm_mhz for s in settled if s.sm_mhz is not None]
    memory = [s.mem_mhz for s in settled if s.mem_mhz is not None]
    power = [s.power_w for s in settled if s.power_w is not None]
    heat = [s.temperature_c for s in samples if s.temperature_c is not None]
    return Evidence(
        condition=condition,
        causes=tuple(causes),
        notes=(*state.notes, *notes),
        clocks=str(state),
        seconds=round(end["sample"][0] - start["sample"][0], 4),
        expected_mhz=expected,
        sm_mhz_min=min(clocks, default=None),
        sm_mhz_median=statistics.median(clocks) if clocks else None,
        sm_mhz_max=max(clocks, default=None),
        mem_mhz_min=min(memory, default=None),
        mem_mhz_max=max(memory, default=None),
        busy_samples=len(settled),
        reason_share=_shares(settled),
        counters_ms=counters,
        foreign=tuple(foreign),
        temperature_c=max(heat, default=None),
        power_w=round(statistics.fmean(power), 1) if power else None,
        samples=tuple(samples),
    )


def _conclude(
    disturbed: list[str], throttling: list[str], low: str, verified: bool
) -> tuple[Condition, list[str]]:
    if disturbed:
        return Condition.DISTURBED, disturbed + throttling
    if throttling:
        return Condition.THROTTLED, throttling
    if not verified:
        return Condition.UNVERIFIED, ["the GPU was never seen busy"]
    if low:
        return Condition.UNEXPLAINED_LOW, [low]
    return Condition.CLEAN, []


def _expected(busy: Sequence[Sample], state: ClockState) -> int | None:
    """The clock that the lock should give; for ``base`` the one that was seen most."""
    if not state.locked or state.sm_mhz is not None:
        return state.sm_mhz
    seen = Counter(s.sm_mhz for s in busy)
    return seen.most_common(1)[0][0] if seen else None


def _band(expected: int | None, state: ClockState) -> tuple[float, float] | None:
    if expected is None:
        return None
    tolerance = max(state.step_mhz or 0, 0.01 * expected)
    return expected - tolerance, expected + tolerance


def _settled(samples: Sequence[Sample], band: tuple[float, float] | None) -> list[Sample]:
    """Busy samples, without those at the start of each load whose reading still lags."""
    kept: list[Sample] = []
    since: float | None = None
    for sample in samples:
        if not sample.busy or sample.sm_mhz is None:
            since = None
            continue
        if since is None:
            since, settled = sample.t, band is None
        inside = band is not None and band[0] <= sample.sm_mhz <= band[1]
        # A reason is no lag, unless it is the umbrella bit, which flashes at just this moment.
        held_back = bool((sample.reasons or 0) & ~(_HARMLESS | _HW_SLOWDOWN))
        settled = settled or inside or held_back or sample.t - since > _SETTLE_S
        if settled:
            kept.append(sample)
    return kept


def _out_of_band(
    settled: Sequence[Sample],
    band: tuple[float, float] | None,
    state: ClockState,
    notes: list[str],
) -> tuple[str, list[str]]:
    """(why the clock is too low, or "", signs that somebody changed the lock)."""
    clocks = [s.sm_mhz for s in settled if s.sm_mhz is not None]
    if not clocks:
        return "", []
    median = statistics.median(clocks)
    if band is None:
        top = state.max_mhz
        if top and median < _FAR_BELOW * top:
            return (
                f"{median:g} MHz under load, far below the card's {top} MHz, and no reason bit is "
                "set: perhaps a forgotten lock (python -m pytest_compileiq reset-clocks --all)"
            ), []
        return "", []
    outside = [mhz for mhz in clocks if not band[0] <= mhz <= band[1]]
    if not outside:
        return "", []
    if len(outside) == 1 and len(clocks) > 2:
        notes.append(f"one reading of {outside[0]} MHz is not counted")
        return "", []
    text = f"{statistics.median(outside):g} MHz in {len(outside)} of {len(clocks)} busy samples"
    if max(outside) > band[1] or band[0] <= clocks[0] <= band[1]:
        return "", [f"the lock was changed from outside: {text}"]
    return f"{text}, below the lock, and no reason bit is set", []


def _grown(
    start: Mapping[str, int | None], end: Mapping[str, int | None]
) -> dict[str, float | None]:
    grown: dict[str, float | None] = {}
    for name, before in start.items():
        after = end.get(name)
        known = before is not None and after is not None
        grown[name] = round((after - before) / 1e6, 3) if known else None  # type: ignore[operator]
    return grown


def _throttling(settled: Sequence[Sample], counters: Mapping[str, float | None]) -> list[str]:
    grown = {name: ms for name, ms in counters.items() if ms}
    shares = _shares(settled)
    harmless = {_NAMES[bit] for bit in _NAMES if bit & _HARMLESS}
    found = {name for name in shares if name not in harmless} | set(grown)
    # The umbrella bit flashes when the performance state changes (NVSentinel #890).
    flashes = sum(bool(s.reasons and s.reasons & _HW_SLOWDOWN) for s in settled)
    if flashes == 1 and not any(name.startswith("hw-") for name in grown):
        found.discard(_NAMES[_HW_SLOWDOWN])
    texts = []
    for name in sorted(found):
        parts = []
        if name in shares:
            parts.append(f"{shares[name]:.0%} of busy samples")
        if name in grown:
            parts.append(f"{grown[name]:g} ms by the driver's counter")
        advice = "; choose a lower clock" if name == "sw-power-cap" else ""
        texts.append(f"{name}: {', '.join(parts)}{advice}")
    return texts


def _shares(settled: Sequence[Sample]) -> dict[str, float]:
    counts: Counter[str] = Counter()
    for sample in settled:
        bits = sample.reasons or 0
        for position in range(bits.bit_length()):
            bit = 1 << position
            if bits & bit:
                counts[_NAMES.get(bit, hex(bit))] += 1
    return {name: round(count / len(settled), 4) for name, count in counts.items()}


def _foreign(
    processes: Sequence[Mapping[str, Any]],
    at_start: Sequence[Mapping[str, Any]],
    trusted: bool | None,
    notes: list[str],
) -> list[str]:
    """Processes on the GPU that are not ours, in words."""
    known = {(p["pid"], p["kind"]) for p in at_start}
    others = [p for p in processes if p["relation"] != "ours"]
    if not others:
        return []
    names = {(p["pid"], p["kind"]): f"{p['kind']} {p['pid']} {p['name']!r}" for p in others}
    if trusted:
        # A desktop's own processes are always there; only new ones change anything.
        quiet = {key for key in names if key[1] == "graphics" and key in known}
        if quiet:
            notes.append(f"graphics processes share the GPU: {', '.join(names[k] for k in quiet)}")
        return [text for key, text in names.items() if key not in quiet]
    notes.append("the process list is not trustworthy here: PIDs are those of another namespace")
    new = [text for key, text in names.items() if key not in known]
    return new if len(new) > 1 else []  # one new process is most likely ourselves


def busy_before(snapshot: Mapping[str, Any], *, own_context: bool) -> tuple[str, str]:
    """(cause, note) if the GPU was in use before the test: both "" on a free GPU.

    Utilisation alone proves nothing: after a killed process Blackwell shows 100 % for ever
    (lium-io PR #1140), and every card shows an average over the last second.
    """
    sample = Sample(*snapshot["sample"])
    used = snapshot["memory_bytes"] or 0
    processes = [p for p in snapshot["processes"] if p["relation"] != "ours"]
    if own_context or (sample.busy_percent or 0) < _BUSY_PERCENT:
        return "", ""
    text = f"{sample.busy_percent} % busy before the test began"
    if used > _USED_BYTES or processes:
        return f"the GPU was {text}, with {used / 2**30:.1f} GiB in use", ""
    return "", f"the GPU reads {text}, without a process or memory in use"
