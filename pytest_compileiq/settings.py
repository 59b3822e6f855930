"""What the user asked for: options, environment and ini file, as one frozen value.

Precedence, the same for every option: command line, then ``PYTEST_CIQ_<NAME>``, then the ini
key ``ciq_<name>``, then the default. For what a mark or a verb decides (limits, ACF paths) the
call's argument wins over the closest mark; no option changes them.

This module is imported at every start of pytest: it must stay cheap (see test_startup.py).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import pytest


class Option(NamedTuple):
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
    return min(value, 1e6)  # eleven days: the system's timers take no more


def _path(text: str) -> Path:
    if not text.strip():
        raise ValueError("give a path")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # ~ of nobody
        raise ValueError(str(error)) from None


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
    """Resolve all options. Raises ValueError that names the source of a bad value.

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
            raise ValueError(f"bad value {str(text)!r} from {source}: {error}") from None
        if isinstance(value, Path):
            value = (base or config.invocation_params.dir) / value
        values[option.name], sources[option.name] = value, source
    return Settings(**values, sources=sources)


#: For ``pytest --markers``. Written out, so that no start has to import the signatures of
#: marks.py; a test compares the two.
MARK_LINES = (
    "ciq_objective(objectives=1, acf=None): CompileIQ can read what the objective answers",
    (
        "ciq_canary(margin=1.05, tolerance=0.05, o0=None, o3=None): O0 must regress, O3 must not, a "
        "damaged ACF must be refused"
    ),
    (
        "ciq_resources(max_registers=None, max_spill_bytes=None, max_stack_bytes=None, "
        "max_shared_bytes=None, max_constant_bytes=None, max_barriers=None, no_worse=False, "
        "acf=None): limits on what ptxas -v reports"
    ),
    "ciq_max_cv(percent): the spread of the timings, std/mean, stays below this",
    "ciq_beats_baseline(acf='best.acf', min_speedup=1.0): the committed ACF still wins",
)
