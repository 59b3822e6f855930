"""The marks: what each accepts, checked before its test runs.

Each mark is a real signature, so that Python itself reports a missing, doubled or misspelt
argument, and a verb of ``ciq`` takes the same keywords.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Container, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pytest_compileiq.errors import SettingsError
from pytest_compileiq.verdict import Check, Status, Verdict

if TYPE_CHECKING:
    import pytest


def _positive(
    name: str, value: float | None, *, minimum: float = 0.0, maximum: float = math.inf
) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{name} is a number, not {value!r}")
    if value < minimum:
        raise ValueError(f"{name} is at least {minimum:g}, not {value:g}")
    if value > maximum:
        raise ValueError(f"{name} is at most {maximum:g}, not {value:g}")


def _path(name: str, value: object) -> None:
    if not isinstance(value, str | Path) or not str(value):
        raise TypeError(f"{name} is the path of an ACF, not {value!r}")


@dataclass(frozen=True, slots=True)
class ObjectiveParams:
    """``ciq_objective(objectives=1, acf=None)``: the objective's answers have the right shape.

    ``acf`` is the one to call it with; without it that of ``ciq_beats_baseline`` is taken.
    """

    objectives: int = 1
    acf: str | Path | None = None

    def __post_init__(self) -> None:
        if isinstance(self.objectives, bool) or not isinstance(self.objectives, int):
            raise TypeError(f"objectives is a whole number, not {self.objectives!r}")
        _positive("objectives", self.objectives, minimum=1)
        if self.acf is not None:
            _path("acf", self.acf)


@dataclass(frozen=True, slots=True)
class CanaryParams:
    """``ciq_canary(margin=1.05, tolerance=0.05, o0=None, o3=None)``: O0 must regress.

    A damaged ACF has to be refused. O0 has to be worse than the baseline by the factor
    ``margin``; O3 may be worse by at most the fraction ``tolerance``. ``o0`` and ``o3`` are ACFs;
    those of ``--ciq-debug-pack`` come first. Without an O0 ACF ptxas' own ``-O0`` and ``-O3`` are
    tried. An objective, and a ``Kernel`` or ``HelionKernel``, takes no flags, so it needs ``o0``.
    """

    margin: float = 1.05
    tolerance: float = 0.05
    o0: str | Path | None = None
    o3: str | Path | None = None

    def __post_init__(self) -> None:
        _positive("margin", self.margin, minimum=1.0)
        _positive("tolerance", self.tolerance, maximum=1.0)  # a fraction: 5 would be 500 percent
        for name, acf in (("o0", self.o0), ("o3", self.o3)):
            if acf is not None:
                _path(name, acf)


@dataclass(frozen=True, slots=True)
class ResourcesParams:
    """``ciq_resources(...)``: limits on what ``ptxas -v`` reports, with the ACF applied.

    Absolute limits in registers a thread or bytes. ``no_worse`` compares registers and spills
    with the baseline's. ``acf`` defaults to that of ``ciq_beats_baseline``; when there is
    none, the baseline itself is checked.
    """

    max_registers: int | None = None
    max_spill_bytes: int | None = None
    max_stack_bytes: int | None = None
    max_shared_bytes: int | None = None
    max_constant_bytes: int | None = None
    max_barriers: int | None = None
    no_worse: bool = False
    acf: str | Path | None = None

    def __post_init__(self) -> None:
        limits = {name: value for name, value in self.limits().items() if value is not None}
        for name, value in limits.items():
            _positive(name, value)
        if not limits and not self.no_worse:
            raise ValueError("give at least one limit, or no_worse=True")
        if not isinstance(self.no_worse, bool):
            raise TypeError(f"no_worse is True or False, not {self.no_worse!r}")
        if self.acf is not None:
            _path("acf", self.acf)

    def limits(self) -> dict[str, int | None]:
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name.startswith("max_")
        }


@dataclass(frozen=True, slots=True)
class StabilityParams:
    """``ciq_max_cv(percent)``: neighbouring launches differ by a CV below ``percent``.

    Judged is what one launch differs from the next, each outlier up to a cap. Slow drift cancels:
    it, outliers and the plain std/mean of all launches are told in the message, and do not decide.
    """

    percent: float

    def __post_init__(self) -> None:
        _positive("percent", self.percent)
        if self.percent == 0:
            raise ValueError("percent is above 0")


@dataclass(frozen=True, slots=True)
class WinParams:
    """``ciq_beats_baseline(acf="best.acf", min_speedup=1.0)``: the ACF still wins.

    ``min_speedup`` is a ratio of at least 1 (1.02: two percent faster), or "recorded": half of the
    win that the ACF's sidecar records.
    """

    acf: str | Path = "best.acf"
    min_speedup: float | Literal["recorded"] = 1.0

    def __post_init__(self) -> None:
        _path("acf", self.acf)
        if isinstance(self.min_speedup, str):
            if self.min_speedup != "recorded":
                raise ValueError(f'min_speedup is a number or "recorded", not {self.min_speedup!r}')
            return
        _positive("min_speedup", self.min_speedup, minimum=1.0)


Params = ObjectiveParams | CanaryParams | ResourcesParams | StabilityParams | WinParams

#: Marks in the order in which their checks run: proofs that cost no time come first.
MARKS: dict[str, tuple[Check, type[Params]]] = {
    "ciq_objective": (Check.OBJECTIVE, ObjectiveParams),
    "ciq_canary": (Check.CANARY, CanaryParams),
    "ciq_resources": (Check.RESOURCES, ResourcesParams),
    "ciq_max_cv": (Check.CV, StabilityParams),
    "ciq_beats_baseline": (Check.WIN, WinParams),
}


def signature(kind: type[Params]) -> str:
    """The arguments of a mark with their defaults, as ``pytest --markers`` shows them."""
    words = []
    for field in fields(kind):
        default = "" if field.default is MISSING else f"={field.default!r}"
        words.append(field.name + default)
    return f"({', '.join(words)})"


def params_of(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Params:
    """A mark's arguments, checked. Raises SettingsError that says what is accepted."""
    _, kind = MARKS[name]
    try:
        return kind(*args, **kwargs)
    except (TypeError, ValueError, OverflowError) as error:  # 10**400 is no float
        what = str(error).replace(f"{kind.__name__}.__init__()", name)
        known = [field.name for field in fields(kind)]
        remedy = f"the signature is {name}{signature(kind)}"
        for word in kwargs:
            if word not in known and (close := difflib.get_close_matches(word, known, 1)):
                remedy = f"did you mean {close[0]}=? {remedy}"
        raise SettingsError(f"bad mark {name}: {what}", remedy=remedy) from None


def marks_of(item: pytest.Item) -> dict[str, Params]:
    """The checked ``ciq_*`` marks of a test, closest level first.

    A mark on a parameter set wins over one on the function, which wins over one on the class,
    the module and so on. Raises SettingsError for an unknown ``ciq_`` mark, for bad arguments
    and for a mark given twice on one level.
    """
    found: dict[str, Params] = {}
    for level in reversed(item.listchain()):
        marks = [mark for mark in level.own_markers if mark.name.startswith("ciq_")]
        for name in dict.fromkeys(mark.name for mark in marks):
            if name not in MARKS:
                close = difflib.get_close_matches(name, MARKS, 1)
                hint = f"did you mean {close[0]}? " if close else ""
                raise SettingsError(
                    f"there is no mark {name}", remedy=f"{hint}the marks are {', '.join(MARKS)}"
                )
            same = [mark for mark in marks if mark.name == name]
            own = getattr(getattr(level, "obj", None), "__dict__", {}).get("pytestmark", ())
            if len(same) > 1 and level is not item and own:
                # A derived class also carries its bases' marks; its own come first.
                own = own if isinstance(own, list) else [own]
                same = [mark for mark in own if mark.name == name] or same[-1:]
            if len(same) > 1 and level is item:
                on_function = {id(m) for m in getattr(getattr(item, "obj", None), "pytestmark", ())}
                same = [mark for mark in same if id(mark) not in on_function] or same
            if len(same) > 1:
                raise SettingsError(
                    f"the mark {name} stands {len(same)} times on {level.name}",
                    remedy="keep one; to test several ACFs, parametrize the test",
                )
            if name not in found:
                found[name] = params_of(name, same[0].args, same[0].kwargs)
    return {name: found[name] for name in MARKS if name in found}


#: Why a check of a test that failed otherwise is not judged.
FAILED_BEFORE = "the test failed before"


def was_left_open(answer: Mapping[str, Any]) -> bool:
    """Is this record of a verdict no more than that its test had failed?"""
    return (answer["status"], answer["message"]) == (Status.NOT_JUDGED, FAILED_BEFORE)


def left_open(
    item: pytest.Item, answered: Container[Check | str], kernel: str, why: str
) -> list[Verdict]:
    """A verdict on each check that a mark of a failed test asks for, and that has no answer.

    Whatever the marks' arguments: a bad one is what the test may have failed for.
    """
    names = {mark.name for mark in item.iter_markers()}
    return [
        Verdict(
            check=check,
            kernel=kernel,
            status=Status.NOT_JUDGED,
            message=why,
            remedy="mend what the test failed for, and run it again",
        )
        for name, (check, _) in MARKS.items()
        if name in names and check not in answered
    ]
