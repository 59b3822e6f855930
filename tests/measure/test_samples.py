from __future__ import annotations

import copy
import json
import math
from typing import Any

import numpy as np
import pytest

from pytest_compileiq.measure.decide import not_slower, win
from pytest_compileiq.measure.opaque import OpaqueTest
from pytest_compileiq.measure.samples import (
    RecordError,
    record_opaque,
    record_spread,
    record_units,
    replay,
)
from pytest_compileiq.measure.spread import SpreadTest
from pytest_compileiq.measure.units import Budget, Comparison, Health, Plan, Side, Timed, run

Record = dict[str, Any]


def units(speedup: float, seed: int = 3) -> Record:
    rng = np.random.default_rng(seed)
    pilot = np.exp(0.01 * rng.standard_normal(16) - 9).tolist()

    def time_unit(_: str, plan: Plan) -> Timed:
        logs = 0.01 * rng.standard_normal(4) - 9
        logs -= [math.log(speedup) * (side is Side.CANDIDATE) for side in plan.order]
        health = Health(mhz=(1980.0, 1975.0, 1977.0, 1978.0), reasons=int(rng.choice([4, 4, 64])))
        seconds = np.exp(logs).tolist()
        if rng.random() < 0.1:
            seconds[2] = math.nan
        return Timed(tuple(seconds), gpu_seconds=1e-3, health=health)

    one = Comparison("kernel", win(1.0), pilot, seed)
    run([one], time_unit, budget=Budget(blocks=300), pause=lambda _: None)
    return record_units(one)


def opaque(speedup: float, seed: int = 3, stop_after: int = 99) -> Record:
    rng = np.random.default_rng(seed)
    test = OpaqueTest([win(), not_slower()], seed=seed)
    while (side := test.ask()) is not None:
        scores = np.exp(0.01 * rng.standard_normal(2)) / (speedup if side is Side.CANDIDATE else 1)
        test.tell(None if len(test.calls) == 5 and side is Side.CANDIDATE else scores.tolist())
        if len(test.calls) == stop_after:
            test.stop()
    return record_opaque(test)


def spread(cv: float) -> Record:
    rng = np.random.default_rng(3)
    test = SpreadTest(0.02)
    for one in np.exp(cv * rng.standard_normal(400) - 9):
        if test.update(float(one)):
            break
    test.end()
    return record_spread(test)


RECORDS = {
    "pass": lambda: units(1.05),
    "fail": lambda: units(0.95),
    "budget": lambda: units(1.001),
    "opaque": lambda: opaque(1.3),
    "opaque fails": lambda: opaque(0.8),
    "opaque budget": lambda: opaque(1.001),
    "opaque stopped": lambda: opaque(1.001, stop_after=21),
    "steady": lambda: spread(0.01),
    "noisy": lambda: spread(0.04),
    "undecided": lambda: spread(0.02),
}


@pytest.fixture(params=RECORDS)
def record(request: pytest.FixtureRequest) -> Record:
    made: Record = json.loads(json.dumps(RECORDS[request.param](), allow_nan=False))
    return made


def test_bit_for_bit(record: Record) -> None:
    again = replay(record)
    assert again.recomputed == again.stored == record["outcome"]
    assert again.differences == []


def test_records_cover_the_ends() -> None:
    assert replay(units(1.001)).recomputed["end"] == "budget"
    assert {unit["rejected"] for unit in units(1.001)["units"]} > {None}
    assert None in [s for unit in units(1.001)["units"] for s in unit["seconds"]]


def test_one_changed_sample_changes_the_numbers(record: Record) -> None:
    changed = copy.deepcopy(record)
    if record["kind"] == "units":
        kept = [u for u in changed["units"] if not u["rejected"] and None not in u["seconds"]]
        kept[0]["seconds"][0] *= 1.001
    elif record["kind"] == "spread":
        changed["seconds"][0] *= 1.001
    else:
        changed["calls"][4][1][0] *= 1.001
    assert replay(changed).differences


def test_a_forged_verdict_is_seen() -> None:
    forged = units(0.95)
    forged["outcome"] |= {"status": "pass", "reason": None}
    assert replay(forged).differences == ["reason", "status"]


def test_a_forged_coin_is_seen() -> None:
    forged = units(1.05)
    unit = forged["units"][2]
    unit["order"] = "ABBA" if unit["order"] == "BAAB" else "BAAB"
    with pytest.raises(RecordError, match="unit 2: its coins do not follow from the seed"):
        replay(forged)
    forged = opaque(1.3)
    forged["seed"] += 1
    with pytest.raises(RecordError, match=r"call \d+: the coins asked for another side"):
        replay(forged)


@pytest.mark.parametrize("junk", [None, 3, [], {}, "text", {"schema": 1}])
def test_foreign(junk: object) -> None:
    with pytest.raises(RecordError, match="no record of a measurement"):
        replay(junk)


def test_other_schema_or_kind() -> None:
    with pytest.raises(RecordError, match="this version reads the schemas 1 and 2"):
        replay({**units(1.05), "schema": 3})
    with pytest.raises(RecordError, match="kind 'other'"):
        replay({"schema": 1, "kind": "other"})


def test_every_missing_or_spoiled_part_gets_a_clear_error(record: Record) -> None:
    for name in record:
        if name in ("schema", "kind"):
            continue
        less = {key: value for key, value in record.items() if key != name}
        with pytest.raises(RecordError, match="incomplete or was altered"):
            replay(less)
    parts = {"units": "units", "opaque": "calls", "spread": "seconds"}
    spoiled = {**record, parts[record["kind"]]: [{"x": 1}]}
    with pytest.raises(RecordError):
        replay(spoiled)
    # A record cut short says so by its numbers.
    part = parts[record["kind"]]
    assert replay({**record, part: record[part][:4]}).differences


def test_nothing_to_record_yet() -> None:
    with pytest.raises(ValueError, match="no outcome"):
        record_units(Comparison("k", win(), [1.0] * 16, 1))
    with pytest.raises(ValueError, match="no outcome"):
        record_opaque(OpaqueTest([win()], seed=1))
    with pytest.raises(ValueError, match="no outcome"):
        record_spread(SpreadTest(0.02))
