"""From readings to a judgement: pure, so every case can be written down."""

from __future__ import annotations

import json
from contextlib import nullcontext
from typing import Any

import pytest

from pytest_compileiq.errors import GpuError
from pytest_compileiq.gpu.clocks import ClockState
from pytest_compileiq.gpu.evidence import Condition, Evidence, Sample, busy_before, judge
from pytest_compileiq.gpu.session import Policy, require_fit

LOCKED = ClockState(locked=True, requested="1500", sm_mhz=1500, max_mhz=1980, step_mhz=15)
BY_NAME = ClockState(locked=True, requested="base", max_mhz=1980, step_mhz=15)
UNLOCKED = ClockState(
    locked=False, requested="base", why="no permission", max_mhz=1980, step_mhz=15
)
NO_COUNTERS: dict[str, int | None] = {"sw-power-cap": 0, "hw-thermal": None}
IDLE = (345, 0x1)


def samples(*readings: tuple[int, int], every_s: float = 0.02) -> list[Sample]:
    """(SM MHz, reason bits) at even distances."""
    return [
        Sample(n * every_s, mhz, 2619, bits, 300.0, 50 + n % 3, 100)
        for n, (mhz, bits) in enumerate(readings)
    ]


def evidence(
    *readings: tuple[int, int],
    state: ClockState = LOCKED,
    counters: dict[str, int | None] | None = None,
    processes: tuple[dict[str, Any], ...] = (),
    at_start: tuple[dict[str, Any], ...] = (),
    trusted: bool | None = True,
    before: str = "",
) -> Evidence:
    series = samples(*readings)
    start = {"sample": [0.0], "counters": NO_COUNTERS, "processes": at_start}
    end = {"sample": [len(series) * 0.02], "counters": counters or NO_COUNTERS}
    return judge(
        series,
        start=start,
        end=end,
        processes=processes,
        state=state,
        trusted=trusted,
        before=before,
    )


def process(pid: int, kind: str = "compute", relation: str = "foreign") -> dict[str, Any]:
    return {"pid": pid, "kind": kind, "relation": relation, "name": "python"}


HELD = [(1500, 0)] * 20


def test_clean() -> None:
    found = evidence(IDLE, *HELD, IDLE)
    assert found.condition is Condition.CLEAN
    assert found.causes == ()
    assert (found.sm_mhz_min, found.sm_mhz_median, found.sm_mhz_max) == (1500, 1500, 1500)
    assert found.busy_samples == 20
    assert found.seconds == pytest.approx(0.44)
    assert (found.temperature_c, found.power_w) == (52, 300.0)
    assert str(found) == "clean, SM 1500 MHz"


@pytest.mark.parametrize(
    ("mhz", "condition"), [(1485, "clean"), (1515, "clean"), (1470, "unexplained-low")]
)
def test_the_band_is_one_step_or_one_percent(mhz: int, condition: str) -> None:
    assert evidence(*[(mhz, 0)] * 20).condition.value == condition


def test_a_card_that_stays_awake_after_its_last_kernel_is_not_busy() -> None:
    """Read on an H200: for 2 s no idle bit and the highest clock, and 0 % utilisation."""
    awake = [sample._replace(busy_percent=0) for sample in samples(*[(1980, 0)] * 20)]
    ends = {"counters": NO_COUNTERS, "processes": ()}
    found = judge(
        awake,
        start={"sample": [0.0], **ends},
        end={"sample": [0.4], **ends},
        processes=(),
        state=UNLOCKED,
        trusted=True,
    )
    assert found.condition is Condition.UNVERIFIED
    assert found.busy_samples == 0


def test_a_lagging_reading_at_the_start_is_not_counted() -> None:
    found = evidence((345, 0), (345, 0), (1200, 0), *HELD)
    assert found.condition is Condition.CLEAN
    assert found.busy_samples == 20
    # Each load anew: an idle stretch in between begins another one.
    assert evidence((345, 0), *HELD, IDLE, (345, 0), (345, 0), *HELD).clean
    # But not for ever: after 150 ms the reading counts.
    assert evidence(*[(1200, 0)] * 20).condition is Condition.UNEXPLAINED_LOW


def test_idle_readings_say_nothing() -> None:
    found = evidence(*[IDLE] * 20)
    assert found.condition is Condition.UNVERIFIED
    assert found.causes == ("the GPU was never seen busy",)
    assert found.sm_mhz_median is None


@pytest.mark.parametrize(
    ("bits", "name"),
    [(0x4, "sw-power-cap"), (0x10, "sync-boost"), (0x20, "sw-thermal"), (0x40, "hw-thermal"),
     (0x80, "hw-power-brake"), (0x200, "board-limit"), (0x400, "reliability"), (0x8000, "0x8000")],
)  # fmt: skip
def test_one_sample_with_a_reason_is_throttling(bits: int, name: str) -> None:
    found = evidence(*HELD, (1500, bits))
    assert found.condition is Condition.THROTTLED
    assert name in found.causes[0]
    assert found.reason_share == {name: round(1 / 21, 4)}


@pytest.mark.parametrize("bits", [0x2, 0x100])
def test_harmless_bits(bits: int) -> None:
    assert evidence(*HELD, (1500, bits)).clean


def test_a_flash_of_hw_slowdown_is_not_throttling() -> None:
    assert evidence(*HELD, (1500, 0x8)).clean
    assert evidence(*HELD, (1500, 0x8), (1500, 0x8)).condition is Condition.THROTTLED
    counted = evidence(*HELD, (1500, 0x8), counters={"sw-power-cap": 0, "hw-thermal": 0})
    assert counted.clean


def test_a_counter_sees_what_falls_between_samples() -> None:
    found = evidence(*HELD, counters={"sw-power-cap": 7_000_000, "hw-thermal": None})
    assert found.condition is Condition.THROTTLED
    assert found.causes == ("sw-power-cap: 7 ms by the driver's counter; choose a lower clock",)
    assert found.counters_ms == {"sw-power-cap": 7.0, "hw-thermal": None}


def test_the_share_of_samples_is_told() -> None:
    found = evidence(*[(1320, 0x4), (1500, 0)] * 15)
    assert found.causes[0].startswith("sw-power-cap: 50% of busy samples")


def test_a_lock_that_changes_midway_was_changed_from_outside() -> None:
    found = evidence(*HELD, *[(1980, 0)] * 20)
    assert found.condition is Condition.DISTURBED
    assert "changed from outside: 1980 MHz in 20 of 40" in found.causes[0]
    assert evidence(*HELD, *[(900, 0)] * 20).condition is Condition.DISTURBED
    # With a reason it is throttling, not a stranger.
    assert evidence(*HELD, *[(900, 0x20)] * 20).condition is Condition.THROTTLED


def test_one_stray_reading_is_a_note() -> None:
    found = evidence(*HELD, (1200, 0), *HELD)
    assert found.clean
    assert found.notes == ("one reading of 1200 MHz is not counted",)


def test_a_lock_by_name_is_compared_with_what_was_seen_most() -> None:
    assert evidence(*[(1095, 0)] * 20, state=BY_NAME).clean
    found = evidence(*[(1095, 0)] * 20, *[(1395, 0)] * 10, state=BY_NAME)
    assert found.condition is Condition.DISTURBED
    assert found.expected_mhz == 1095


def test_unlocked_clocks() -> None:
    assert evidence(*[(1980, 0), (1905, 0)] * 10, state=UNLOCKED).clean
    found = evidence(*[(900, 0)] * 20, state=UNLOCKED)
    assert found.condition is Condition.UNEXPLAINED_LOW
    assert "perhaps a forgotten lock" in found.causes[0]
    assert evidence(*[(900, 0x4)] * 20, state=UNLOCKED).condition is Condition.THROTTLED


@pytest.mark.parametrize(
    ("readings", "more", "fits"),
    [
        (HELD, {}, True),
        ([IDLE] * 20, {}, True),  # a test that ran nothing on the GPU
        ([(1200, 0)] * 20, {}, False),
        ([(1500, 0x4)] * 20, {}, False),
        (HELD, {"processes": (process(77),)}, False),
    ],
)
def test_require_takes_no_clock_that_did_not_hold(
    readings: list[tuple[int, int]], more: Any, fits: bool
) -> None:
    found = evidence(*readings, **more)
    require_fit(found, Policy("auto", 1500))
    with nullcontext() if fits else pytest.raises(GpuError, match=f"the GPU was {found.condition}"):
        require_fit(found, Policy("require", 1500))


def test_foreign_processes() -> None:
    found = evidence(*HELD, processes=(process(77), process(5, relation="ours")))
    assert found.condition is Condition.DISTURBED
    assert found.foreign == ("compute 77 'python'",)
    assert evidence(*HELD, processes=(process(5, relation="ours"),)).clean
    desktop = process(9, "graphics")
    quiet = evidence(*HELD, processes=(desktop,), at_start=(desktop,))
    assert quiet.clean
    assert "graphics 9" in quiet.notes[0]
    assert not evidence(*HELD, processes=(desktop,)).clean
    assert not evidence(*HELD, processes=(process(9, "mps"),), at_start=(process(9, "mps"),)).clean


def test_a_process_that_cannot_be_looked_up_is_not_ours() -> None:
    """It ended meanwhile, or is of a user whose processes are hidden: it was on the GPU."""
    gone = process(77, relation="unknown")
    assert evidence(*HELD, processes=(gone,)).condition is Condition.DISTURBED


def test_a_foreign_process_weighs_more_than_throttling() -> None:
    """Its load may be what throttled the card, so a lower clock would be the wrong advice."""
    found = evidence(*[(1500, 0x4)] * 20, processes=(process(77),))
    assert found.condition is Condition.DISTURBED
    assert found.causes[0] == "another process is on the GPU: compute 77 'python'"
    assert found.causes[1].startswith("sw-power-cap: 100% of busy samples")


@pytest.mark.parametrize("trusted", [False, None])
def test_another_pid_namespace_counts_differences_only(trusted: bool | None) -> None:
    old, new, newer = (process(pid, relation="unknown") for pid in (1, 2, 3))
    found = evidence(*HELD, processes=(old, new), at_start=(old,), trusted=trusted)
    assert found.clean  # the new one is most likely this test itself
    assert "not trustworthy" in found.notes[0]
    assert not evidence(*HELD, processes=(new, newer), trusted=trusted).clean


def test_a_card_without_reason_bits() -> None:
    series = [Sample(n * 0.02, 1500, None, None, None, None, 90) for n in range(20)]
    state = {"sample": [0.0], "counters": {}, "processes": ()}
    found = judge(series, start=state, end=state, processes=(), state=LOCKED, trusted=True)
    assert found.clean
    assert (found.mem_mhz_min, found.power_w, found.temperature_c) == (None, None, None)


@pytest.mark.parametrize(
    ("util", "used", "processes", "own", "cause", "note"),
    [
        (0, 0, (), False, "", ""),
        (80, 4 << 30, (), False, "80 % busy before the test began, with 4.0 GiB", ""),
        (80, 0, (process(7),), False, "80 % busy", ""),
        (80, 0, (process(7, relation="unknown"),), False, "80 % busy", ""),
        (100, 0, (), False, "", "reads 100 % busy before the test began, without a process"),
        (80, 4 << 30, (), True, "", ""),  # our own context: what we did ourselves
        (5, 4 << 30, (), False, "", ""),
        (None, None, (), False, "", ""),
    ],
)
def test_busy_before(
    util: int | None, used: int | None, processes: Any, own: bool, cause: str, note: str
) -> None:
    sample = [0.0, 345, 2619, 1, 70.0, 40, util]
    snapshot = {"sample": sample, "memory_bytes": used, "processes": processes}
    found = busy_before(snapshot, own_context=own)
    assert cause in found[0]
    assert bool(found[0]) == bool(cause)
    assert note in found[1]
    assert bool(found[1]) == bool(note)


def test_busy_before_makes_every_window_disturbed() -> None:
    assert evidence(*HELD, before="the GPU was busy").causes == ("the GPU was busy",)


def test_numbers_are_plain_and_short() -> None:
    found = evidence(*HELD * 100)
    numbers = found.to_numbers(most_samples=50)
    assert json.loads(json.dumps(numbers)) == numbers
    assert len(numbers["samples"]) == 50
    assert numbers["samples"][1][0] == pytest.approx(0.8)
    assert numbers["sample_fields"][:2] == ["seconds", "sm_mhz"]
    assert numbers["condition"] == "clean"
