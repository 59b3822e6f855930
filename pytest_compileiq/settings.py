"""What the user asked for: options, environment and ini file, as one frozen value.

Precedence, the same for every option: command line, then ``PYTEST_CIQ_<NAME>``, then the ini
key ``ciq_<name>``, then the default; an empty variable is none. For what a mark or a verb decides (limits, ACF paths) the
call's argument wins over the closest mark; no option changes them.

This module is imported at every start of pytest: it must stay cheap (see test_startup.py).
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import pytest


class Option:
    """One option with its three doors: ``--ciq-x-y``, ``PYTEST_CIQ_X_Y`` and ini ``ciq_x_y``.

    ``metavar`` is None for a switch without a value, and ``const`` the value of the bare flag,
    where it may be bare. A plain class: a NamedTuple or dataclass is made by ``exec``, which
    costs each start of pytest more than all else in this module.
    """

    def __init__(
        self,
        name: str,
        parse: Callable[[str], Any],
        default: Any,
        help: str,
        metavar: str | None = None,
        const: str | None = None,
    ) -> None:
        self.name = name
        self.flag = "--ciq-" + name.replace("_", "-")
        self.variable = "PYTEST_CIQ_" + name.upper()
        self.ini = "ciq_" + name
        self.parse = parse
        self.default = default
        self.help = help
        self.metavar = metavar
        self.const = const


def _switch(text: str) -> bool:
    lowered = text.strip().lower()
    if lowered in ("1", "true", "yes", "on"):
        return True
    if lowered in ("0", "false", "no", "off"):
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


def _one_of(*words: str) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(f"give {', '.join(words[:-1])} or {words[-1]}")
        return text

    return parse


def _generations(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 10_000:
        raise ValueError("give a number of generations after =, as in --ciq-retune=12")
    return int(text)


def _path(text: str) -> Path:
    if not text.strip():
        raise ValueError("give a path")
    try:
        return Path(text).expanduser()
    except RuntimeError as error:  # ~ of nobody
        raise ValueError(str(error)) from None


def _text(text: str) -> str:
    if not text.strip():
        raise ValueError("give a name")
    return text.strip()


def _sm_mhz(text: str) -> str | int:
    if text in ("base", "max"):
        return text
    # No GPU has run at 5 GHz; 150000 is a typing error, not a wish.
    if not text.isdecimal() or not 1 <= int(text) <= 5000:
        raise ValueError("give base, max or a clock from 1 to 5000 MHz")
    return int(text)


OPTIONS = (
    Option("gpu", _text, None, "Run the GPU tier here: 0, GPU-5a3f, cuda:0, 3b:00.0, 0,1", "SPEC"),
    Option(
        "clocks",
        _one_of("auto", "require", "observe"),
        "auto",
        "Lock clocks if allowed, or fail, or never",
        "auto|require|observe",
    ),
    Option("sm_mhz", _sm_mhz, "base", "Lock the SM clock to this", "base|max|MHZ"),
    Option("gpu_timeout", _seconds, 600.0, "Wait this long for a GPU in use", "SECONDS"),
    Option("lease_dir", _path, None, "Where tests that share GPUs keep their leases", "DIR"),
    Option("budget", _seconds, 2.0, "Measure a kernel for at most this long", "SECONDS"),
    Option(
        "l2",
        _one_of("cold", "warm"),
        "cold",
        "Time launches with the L2 cache flushed before each, or not",
        "cold|warm",
    ),
    Option("ptxas", _path, None, "Use this ptxas, 13.3 or newer, and no other", "PATH"),
    Option("ptxas_timeout", _seconds, 60.0, "Kill a run of ptxas after this time", "SECONDS"),
    Option(
        "timeout",
        _seconds,
        600.0,
        "Kill an isolated test, or an objective's call, after this time",
        "SECONDS",
    ),
    Option(
        "isolate",
        _one_of("auto", "require", "off"),
        "auto",
        "Run each test in a process of its own: with a GPU, always (require), never (off)",
        "auto|require|off",
    ),
    Option("debug_pack", _path, None, "Take O0.acf and O3.acf from this folder or zip", "DIR|ZIP"),
    Option("json", _path, None, "Write every verdict with its numbers to this file", "PATH"),
    Option("plots", _path, None, "Draw each kernel's measurements into this folder", "DIR"),
    Option("ncu", _switch, False, "Show baseline and ACF under Nsight Compute, side by side"),
    Option(
        "strict",
        _switch,
        False,
        "Fail what would be skipped, and what could have been judged and was not",
    ),
    Option("accept", _switch, False, "Write or refresh the sidecars of ACFs whose tests pass"),
    Option(
        "retune",
        _generations,
        None,
        "Search for an ACF where one is missing or wins no more, for so many generations (12)",
        "GENERATIONS",
        "12",
    ),
    Option("keep", _switch, False, "Keep staged ACFs and built cubins and print where they are"),
    Option("disable", _switch, False, "Run every subject once and judge nothing"),
)


class Settings:
    """The options of one run; times in seconds. ``sources`` says where each value is from."""

    gpu: str | None
    clocks: Literal["auto", "require", "observe"]
    sm_mhz: str | int
    gpu_timeout: float
    lease_dir: Path | None
    budget: float
    l2: Literal["cold", "warm"]
    ptxas: Path | None
    ptxas_timeout: float
    timeout: float
    isolate: Literal["auto", "require", "off"]
    debug_pack: Path | None
    json: Path | None
    plots: Path | None
    ncu: bool
    strict: bool
    accept: bool
    retune: int | None
    keep: bool
    disable: bool
    sources: Mapping[str, str]

    __slots__ = (*(option.name for option in OPTIONS), "sources")

    def __init__(self, values: Mapping[str, Any], sources: Mapping[str, str]) -> None:
        for name, value in values.items():
            object.__setattr__(self, name, value)
        object.__setattr__(self, "sources", sources)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"the settings of a run are fixed, {name} too")

    def but(self, **values: object) -> Settings:
        """These settings with other values."""
        mine = {option.name: getattr(self, option.name) for option in OPTIONS}
        return Settings(mine | values, self.sources)

    @property
    def test_timeout(self) -> float:
        """Seconds after which an isolated test is killed: --ciq-retune gets as many once more."""
        return self.timeout if self.retune is None else 2 * self.timeout


def _shown(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def add_options(parser: pytest.Parser) -> None:
    group = parser.getgroup("compileiq", "kernel-tuning regression tests (pytest-compileiq)")
    for option in OPTIONS:
        how: dict[str, Any] = {"action": "store_const", "const": "1"}
        if option.metavar is not None:
            how = {"metavar": option.metavar}
        if option.const is not None:
            how |= {"nargs": "?", "const": option.const}
        group.addoption(option.flag, dest=f"ciq_{option.name}", help=option.help, **how)
        default = "" if option.default in (None, False) else f" (default {_shown(option.default)})"
        parser.addini(option.ini, f"{option.help}{default}")


def _given(
    config: pytest.Config, option: Option, parsed: Any, env: Mapping[str, str]
) -> tuple[str | None, str]:
    """The text of an option and the door that it came through."""
    text = getattr(parsed, f"ciq_{option.name}", None)
    if text is not None:
        return text, option.flag
    if env.get(option.variable, "").strip():  # CI sets what it has no value for to nothing
        return env[option.variable], option.variable
    return config.getini(option.ini) or None, option.ini


def isolation_is_asked(early_config: pytest.Config, env: Mapping[str, str] = os.environ) -> bool:
    """May tests run in forks of this process? To be asked before conftests are loaded."""
    text = _early(early_config, "isolate", env)
    return text == "require" or (text != "off" and gpu_spec(early_config, env) is not None)


def gpu_spec(early_config: pytest.Config, env: Mapping[str, str] = os.environ) -> str | None:
    """``--ciq-gpu`` before conftests are loaded: only there can CUDA still be told which GPU."""
    text = _early(early_config, "gpu", env)
    return text.strip() if text else None


def _early(config: pytest.Config, name: str, env: Mapping[str, str]) -> str | None:
    (option,) = (option for option in OPTIONS if option.name == name)
    return _given(config, option, config.known_args_namespace, env)[0]


def load(config: pytest.Config, env: Mapping[str, str] = os.environ) -> Settings:
    """Resolve all options. Raises ValueError that names the source of a bad value.

    A relative path is relative to the folder that pytest was started in, or, from the ini
    file, to the rootdir.
    """
    values: dict[str, Any] = {}
    sources: dict[str, str] = {}
    for option in OPTIONS:
        text, source = _given(config, option, config.option, env)
        base = config.rootpath if source == option.ini else None
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
    return Settings(values, sources)


#: In the order in which pytest looks; it reads the others only for the section that is named.
_INI_FILES = {
    **dict.fromkeys(("pytest.toml", ".pytest.toml", "pytest.ini", ".pytest.ini"), ""),
    "pyproject.toml": "[tool.pytest",
    "tox.ini": "[pytest]",
    "setup.cfg": "[tool:pytest]",
}


def ini_only(
    names: tuple[str, ...], env: Mapping[str, str], folder: Path
) -> list[tuple[Option, Path]]:
    """Those of the options that only an ini file sets, for who runs without pytest, with the file.

    It is the first that pytest takes, from ``folder`` on upwards. Pytest has no public way to
    have it read, so such a value can only be named.
    """
    keys = {one.ini: one for one in OPTIONS if one.name in names and not env.get(one.variable)}
    for path in (place / name for place in (folder, *folder.parents) for name in _INI_FILES):
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError):
            continue
        if f"\n{_INI_FILES[path.name]}" in f"\n{text}":
            pairs = (line.partition("=") for line in text.splitlines())
            given = dict.fromkeys(key.strip() for key, _, value in pairs if value.strip(" '\""))
            return [(keys[key], path) for key in given if key in keys]
    return []


def report_folder(config: pytest.Config, nodeid: str) -> Path:
    """Where a test leaves files for people: ``ciq-report/<test>`` in the rootdir."""
    plain = "".join(char if char.isalnum() or char in "._-[]" else "-" for char in nodeid)
    return config.rootpath / "ciq-report" / plain[-150:]


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
    "ciq_max_cv(percent): neighbouring launches differ by a CV below this; drift is only told",
    "ciq_beats_baseline(acf='best.acf', min_speedup=1.0): the committed ACF still wins",
)
