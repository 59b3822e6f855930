"""Records of what was measured, and the same verdict again from the record alone.

``record_units``, ``record_opaque`` and ``record_spread`` make a JSON-able record of a test
with its outcome; :func:`replay` feeds the stored samples and coins to the same code. Floats
survive JSON exactly, so on the machine that measured, every number comes back bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from pytest_compileiq.errors import CiqError
from pytest_compileiq.measure.decide import End, Rule
from pytest_compileiq.measure.opaque import OpaqueTest
from pytest_compileiq.measure.spread import SpreadTest
from pytest_compileiq.measure.units import Comparison, Health, Plan, Side, Timed, Unit
from pytest_compileiq.verdict import Reason

#: Units of schema 1 were judged with what the order of their blocks had done to them. Its spreads
#: are of blocks, of several launches each where a kernel is short, without a look at the clock.
_SCHEMA, _NOW = 1, 2
#: The rule of each schema, in words.
RULES = {
    _SCHEMA: "before order effects were taken off; spreads of blocks",
    _NOW: "order effects taken off; spreads of single launches",
}


class RecordError(CiqError):
    """A record that is truncated, foreign, or contradicts itself."""


@dataclass(frozen=True, slots=True)
class Replay:
    """``stored`` numbers of a record and the ``recomputed`` ones."""

    stored: dict[str, object]
    recomputed: dict[str, object]

    @property
    def differences(self) -> list[str]:
        """Names of the numbers that came out otherwise; empty for an honest record."""
        names = {*self.stored, *self.recomputed}
        return sorted(n for n in names if self.stored.get(n) != self.recomputed.get(n))


def record_units(comparison: Comparison) -> dict[str, object]:
    """A comparison of two kernels with its outcome, which must be there."""
    if comparison.outcome is None:
        raise ValueError(f"{comparison.name} has no outcome yet")
    return {
        "schema": _NOW if comparison.order_effect else _SCHEMA,
        "kind": "units",
        "name": comparison.name,
        "seed": comparison.seed,
        "rule": _rule_out(comparison.rule),
        "pilot": [_number_out(one) for one in comparison.pilot],
        "block_seconds": _number_out(comparison.block_seconds),
        "units": [_unit_out(unit) for unit in comparison.units],
        "outcome": comparison.outcome.numbers(),
    }


def record_opaque(test: OpaqueTest) -> dict[str, object]:
    if test.outcome is None:
        raise ValueError("the objective has no outcome yet")
    return {
        "schema": _SCHEMA,
        "kind": "opaque",
        "seed": test.seed,
        "rules": [_rule_out(rule) for rule in test.given_rules],
        "problem_type": test.problem_type,
        "pairs": test.pairs,
        "calls": [[side.value, told and list(told)] for side, told in test.calls],
        "outcome": test.outcome.numbers(),
    }


def record_spread(test: SpreadTest) -> dict[str, object]:
    if test.outcome is None:
        raise ValueError("the check has no outcome yet")
    return {
        "schema": _NOW,
        "kind": "spread",
        "limit": test.limit,
        "alpha_pass": test.alpha_pass,
        "alpha_fail": test.alpha_fail,
        "events": test.events,
        "seconds": [_number_out(one) for one in test.seconds],
        "outcome": test.outcome.numbers(),
    }


def replay(record: object) -> Replay:
    """Recompute a record's outcome. RecordError says what is wrong with a record."""
    if not isinstance(record, Mapping) or "kind" not in record:
        raise RecordError(
            "this is no record of a measurement: it has no kind",
            remedy="give a record that this plugin wrote into its JSON report",
        )
    kinds = {"units": _replay_units, "opaque": _replay_opaque, "spread": _replay_spread}
    if record.get("schema") not in list(RULES) or record["kind"] not in kinds:
        raise RecordError(
            f"schema {record.get('schema')!r}, kind {record['kind']!r}: this version reads the "
            f"schemas {_SCHEMA} and {_NOW} and the kinds {', '.join(kinds)}",
            remedy="use the version of the plugin that wrote the record",
        )
    with _whole():
        return Replay(dict(record["outcome"]), kinds[record["kind"]](record))


def comparison_of(record: Mapping[str, Any]) -> Comparison:
    """The comparison that ``record_units`` recorded, with its units. Raises RecordError."""
    with _whole():
        return _comparison(record)


@contextmanager
def _whole() -> Iterator[None]:
    """Whatever a record lacks is a RecordError."""
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise RecordError(
            f"the record is incomplete or was altered: {type(error).__name__}: {error}",
            remedy="take the file from the run that wrote it",
        ) from error


def _replay_units(record: Mapping[str, Any]) -> dict[str, object]:
    end = End(record["outcome"]["end"])
    return _comparison(record).judge.end(end).numbers()


def _comparison(record: Mapping[str, Any]) -> Comparison:
    comparison = Comparison(
        name=record["name"],
        rule=_rule_in(record["rule"]),
        pilot=[_number_in(one) for one in record["pilot"]],
        seed=record["seed"],
        block_seconds=_number_in(record["block_seconds"]),
        order_effect=record["schema"] == _NOW,
    )
    for index, stored in enumerate(record["units"]):
        unit = _unit_in(stored)
        if unit.plan != comparison.plan():
            raise RecordError(f"unit {index}: its coins do not follow from the seed")
        comparison.add(unit)
    return comparison


def _replay_opaque(record: Mapping[str, Any]) -> dict[str, object]:
    test = OpaqueTest(
        [_rule_in(rule) for rule in record["rules"]],
        seed=record["seed"],
        problem_type=record["problem_type"],
        pairs=record["pairs"],
    )
    for index, (side, told) in enumerate(record["calls"]):
        if test.ask() != side:
            raise RecordError(f"call {index}: the coins asked for another side than {side!r}")
        test.tell(told)
    return test.stop().numbers()


def _replay_spread(record: Mapping[str, Any]) -> dict[str, object]:
    test = SpreadTest(
        record["limit"],
        alpha_pass=record["alpha_pass"],
        alpha_fail=record["alpha_fail"],
        events=record["events"] if record["schema"] == _NOW else False,
    )
    for one in record["seconds"]:
        test.update(_number_in(one))
    return test.end().numbers()


def _rule_out(rule: Rule) -> dict[str, object]:
    return {name: getattr(rule, name) for name in Rule.__slots__}


def _rule_in(stored: Mapping[str, Any]) -> Rule:
    return Rule(**{**stored, "fail_reason": Reason(stored["fail_reason"])})


def _unit_out(unit: Unit) -> dict[str, object]:
    plan, timed = unit.plan, unit.timed
    return {
        "load": "".join(plan.load),
        "capture": "".join(plan.capture),
        "order": "".join(plan.order),
        "seconds": [_number_out(one) for one in timed.seconds],
        "launches": timed.launches,
        "gpu_seconds": timed.gpu_seconds,
        "mhz": list(timed.health.mhz),
        "reasons": timed.health.reasons,
        "rejected": unit.rejected,
    }


def _unit_in(stored: Mapping[str, Any]) -> Unit:
    load, capture, order = (tuple(map(Side, stored[name])) for name in ("load", "capture", "order"))
    health = Health(tuple(stored["mhz"]), stored["reasons"])
    seconds = tuple(_number_in(one) for one in stored["seconds"])
    timed = Timed(seconds, stored["launches"], stored["gpu_seconds"], health)
    return Unit(Plan(load, capture, order), timed, stored["rejected"])


def _number_out(value: float | None) -> float | None:
    """JSON has no NaN: a time that is no number is null."""
    return value if value is not None and math.isfinite(value) else None


def _number_in(value: float | None) -> float:
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{value!r} is no time")
    return float(value)
