"""What the user asked for: options, environment, ini file and marks, as frozen values.

Precedence, the same for every option: command line, then ``PYTEST_CIQ_<NAME>``, then the ini
key ``ciq_<name>``, then the default. For what a mark or a verb decides (limits, ACF paths) the
call's argument wins over the closest mark; no option changes them.
"""

from __future__ import annotations

import difflib
import inspect
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pytest_compileiq.errors import SettingsError
from pytest_compileiq.verdict import Check

if TYPE_CHECKING:
    import pytest


@dataclass(frozen=True, slots=True)
class Option:
    """One option with its three doors: ``--ciq-x-y``, ``PYTEST_CIQ_X_Y`` and ini ``ciq_x_y``."""

    name: str
    parse: Callable[[str], Any]
    default: Any
    help: str
    metavar: str | None = None  # None: a switch without a value

    @property
    def flag(self) -> str:
        return "--ciq-" + self.name.replace("_", "-")

    @property
    def variable(self) -> str:
        return "PYTEST_CIQ_" + self.name.upper()

    @property
    def ini(self) -> str:
        return "ciq_" + self.name


def _switch(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("", "0", "false", "no", "off"):
        return False
    raise ValueError("give 1 or 0, true or false, yes or no")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value < math.inf:
        raise ValueError("give a number of seconds above 0")
    return value


def _path(text: str) -> Path:
    if not text.strip():
        raise ValueError("give a path")
    return Path(text).expanduser()


OPTIONS = (
    Option("ptxas", _path, None, "Use this ptxas, 13.3 or newer, and no other", "PATH"),
    Option("ptxas_timeout", _seconds, 60.0, "Kill a run of ptxas after this time", "SECONDS"),
    Option("timeout", _seconds, 600.0, "Kill an objective's call after this time", "SECONDS"),
    Option("debug_pack", _path, None, "Take O0.acf and O3.acf from this folder or zip", "DIR|ZIP"),
    Option("json", _path, None, "Write every verdict with its numbers to this file", "PATH"),
    Option("strict", _switch, False, "Fail what would be skipped because it could not be decided"),
    Option("accept", _switch, False, "Write or refresh the sidecars of ACFs whose tests pass"),
    Option("keep", _switch, False, "Keep staged ACFs and built cubins and print where they are"),
    Option("disable", _switch, False, "Run every subject once and judge nothing"),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """The options of one run; times in seconds. ``sources`` says where each value is from."""

    ptxas: Path | None
    ptxas_timeout: float
    timeout: float
    debug_pack: Path | None
    json: Path | None
    strict: bool
    accept: bool
    keep: bool
    disable: bool
    sources: Mapping[str, str]


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("compileiq", "kernel-tuning regression tests (pytest-compileiq)")
    for option in OPTIONS:
        dest = f"ciq_{option.name}"
        if option.metavar is None:
            group.addoption(
                option.flag, dest=dest, action="store_const", const="1", help=option.help
            )
        else:
            group.addoption(option.flag, dest=dest, metavar=option.metavar, help=option.help)
        default = "" if option.default in (None, False) else f" (default {option.default:g})"
        parser.addini(option.ini, f"{option.help}{default}")


def load(config: pytest.Config, env: Mapping[str, str] = os.environ) -> Settings:
    """Resolve all options. Raises SettingsError that names the source of a bad value.

    A relative path is relative to the folder that pytest was started in, or, from the ini
    file, to the rootdir.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for option in OPTIONS:
        text, source, base = config.getoption(f"ciq_{option.name}"), option.flag, None
        if text is None:
            text, source = env.get(option.variable), option.variable
        if text is None:
            text, source, base = config.getini(option.ini) or None, option.ini, config.rootpath
        if text is None:
            values[option.name], sources[option.name] = option.default, "default"
            continue
        try:
            value = option.parse(str(text))
        except ValueError as error:
            raise SettingsError(f"bad value {str(text)!r} from {source}: {error}") from None
        if isinstance(value, Path):
            value = (base or config.invocation_params.dir) / value
        values[option.name], sources[option.name] = value, source
    return Settings(**values, sources=sources)


# Marks. Each is a real signature: Python itself reports a missing, doubled or misspelt
# argument, and a verb of `ciq` takes the same keywords.


def _positive(name: str, value: float | None, *, minimum: float = 0.0) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise TypeError(f"{name} is a number, not {value!r}")
    if value < minimum:
        raise ValueError(f"{name} is at least {minimum:g}, not {value:g}")


@dataclass(frozen=True, slots=True)
class Objective:
    """``ciq_objective(objectives=1, acf=None)``: the objective's answers have the right shape.

    ``acf`` is the one to call it with; without it that of ``ciq_beats_baseline`` is taken.
    """

    objectives: int = 1
    acf: str | Path | None = None

    def __post_init__(self) -> None:
        if isinstance(self.objectives, bool) or not isinstance(self.objectives, int):
            raise TypeError(f"objectives is a whole number, not {self.objectives!r}")
        _positive("objectives", self.objectives, minimum=1)


@dataclass(frozen=True, slots=True)
class Canary:
    """``ciq_canary(margin=1.05, tolerance=0.05, o0=None, o3=None)``: O0 must regress.

    O0 has to be worse than the baseline by the factor ``margin``; O3 may be worse by at most
    the fraction ``tolerance``. ``o0`` and ``o3`` are ACFs; see also ``--ciq-debug-pack``.
    """

    margin: float = 1.05
    tolerance: float = 0.05
    o0: str | Path | None = None
    o3: str | Path | None = None

    def __post_init__(self) -> None:
        _positive("margin", self.margin, minimum=1.0)
        _positive("tolerance", self.tolerance)


@dataclass(frozen=True, slots=True)
class Resources:
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

    def limits(self) -> dict[str, int | None]:
        return {
            field.name: getattr(self, field.name)
            for field in fields(self)
            if field.name.startswith("max_")
        }


@dataclass(frozen=True, slots=True)
class Stability:
    """``ciq_max_cv(percent)``: the spread of the timings, std/mean, stays below ``percent``."""

    percent: float

    def __post_init__(self) -> None:
        _positive("percent", self.percent)
        if self.percent == 0:
            raise ValueError("percent is above 0")


@dataclass(frozen=True, slots=True)
class Win:
    """``ciq_beats_baseline(acf="best.acf", min_speedup=1.0)``: the ACF still wins.

    ``min_speedup`` is a ratio (1.02: two percent faster), or "recorded": half of the win that
    the ACF's sidecar records.
    """

    acf: str | Path = "best.acf"
    min_speedup: float | Literal["recorded"] = 1.0

    def __post_init__(self) -> None:
        if not isinstance(self.acf, str | Path) or not str(self.acf):
            raise TypeError(f"acf is the path of an ACF, not {self.acf!r}")
        if isinstance(self.min_speedup, str):
            if self.min_speedup != "recorded":
                raise ValueError(f'min_speedup is a number or "recorded", not {self.min_speedup!r}')
            return
        _positive("min_speedup", self.min_speedup)
        if self.min_speedup == 0:
            raise ValueError("min_speedup is above 0")


Params = Objective | Canary | Resources | Stability | Win

#: Marks in the order in which their checks run: proofs that cost no time come first.
MARKS: dict[str, tuple[Check, type[Params]]] = {
    "ciq_objective": (Check.OBJECTIVE, Objective),
    "ciq_canary": (Check.CANARY, Canary),
    "ciq_resources": (Check.RESOURCES, Resources),
    "ciq_max_cv": (Check.CV, Stability),
    "ciq_beats_baseline": (Check.WIN, Win),
}


def mark_lines() -> list[str]:
    """Text for ``pytest --markers``."""
    return [
        f"{name}{_signature(kind)}: {(inspect.getdoc(kind) or '').split(': ', 1)[1].splitlines()[0]}"
        for name, (_, kind) in MARKS.items()
    ]


def _signature(kind: type[Params]) -> str:
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
    except (TypeError, ValueError) as error:
        what = str(error).replace(f"{kind.__name__}.__init__()", name)
        known = [field.name for field in fields(kind)]
        remedy = f"the signature is {name}{_signature(kind)}"
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
