"""The rules of the house: data walks one way, no private pytest names, small modules."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import pytest_compileiq
from pytest_compileiq import plugin, records

PACKAGE = Path(pytest_compileiq.__file__).parent
MODULES = sorted(PACKAGE.rglob("*.py"))

# A stage may import stages of a lower number and itself. Data comes from settings, goes through
# gpu, toolchain, subjects, measure and checks, and ends in a report, so each stage knows only
# where its data comes from.
RANK = {
    "verdict": 0,
    "errors": 1,
    "files": 1,
    "records": 1,
    "settings": 2,
    "score_table": 2,
    "diagnose": 3,
    "hookspecs": 2,
    "marks": 2,
    "isolation": 3,
    "gpu": 4,
    "toolchain": 5,
    "subjects": 6,
    "measure": 7,
    "checks": 8,
    "report": 9,
    "search": 9,
    "judge": 10,
    "replay": 10,
    "retune": 11,
    "fixture": 12,
    "device": 12,
    "doctor": 12,
    "selfcheck": 12,
    "searching": 13,
    "state": 12,
    "warmup": 13,
    "complaints": 13,
    "pytest_fixtures": 14,
    "plugin": 15,
    "__init__": 16,
    "__main__": 16,
}
LAST = max(RANK.values())

#: By what names the package knows the objects of pytest.
PYTESTS = {
    *("caplog", "collector", "config", "excinfo", "fixturedef", "hook", "item", "nextitem", "node"),
    *("pluginmanager", "pytest", "report", "reporter", "request", "session", "terminalreporter"),
}


def stage(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(tree: ast.Module) -> list[str]:
    """Names that a module imports, inside functions too, but not those for type checkers."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            source = "." * node.level + (node.module or "")
            names += [f"{source}.{alias.name}" for alias in node.names]
    return names


def private_attributes(tree: ast.Module) -> list[str]:
    """Private attributes that are read from, or set on, an object of pytest's."""
    return [
        ast.unparse(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and re.match("_[^_]", node.attr)
        and ast.unparse(node.value).rpartition(".")[2].lstrip("_") in PYTESTS
    ]


def faults(own: str, source: str) -> list[str]:
    """What a module of the stage ``own`` does that it must not."""
    found = []
    for name in imports(ast.parse(source)):
        top, _, rest = name.partition(".")
        if top == "pytest_compileiq":  # without a module's name it would reach everything
            other = rest.partition(".")[0]
            if other != own and RANK.get(other, LAST) >= RANK[own]:
                found.append(f"{own} must not import {name}")
        elif not top:
            found.append(f"an import has the whole name, not {name}")
        elif top in ("_pytest", "pluggy") and own != "isolation":
            found.append(f"private names of {top} stay in isolation/: {name}")
    if own != "isolation":
        private = private_attributes(ast.parse(source))
        found += [f"private attributes of pytest stay in isolation/: {name}" for name in private]
    return found


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_data_walks_one_way_and_private_names_stay_in_isolation(path: Path) -> None:
    assert faults(stage(path), path.read_text()) == []


@pytest.mark.parametrize(
    ("own", "source"),
    [
        ("settings", "from pytest_compileiq.report import terminal"),
        ("settings", "from .report import terminal"),
        ("report", "from . import terminal"),
        ("checks", "from .. import judge"),
        ("checks", "def f():\n    import pytest_compileiq.judge"),
        ("checks", "import pytest_compileiq; pytest_compileiq.CIQ"),
        ("checks", "import pytest_compileiq as ciq"),
        ("checks", "from pytest_compileiq import CIQ"),
        ("report", "from _pytest.terminal import TerminalReporter"),
        ("plugin", "import pluggy"),
        ("report", "def f(session): session._setupstate.teardown_exact(None)"),
        ("report", "class A:\n    def f(self): self._config._store = 1"),
        ("fixture", "def f(request): return request._pyfuncitem"),
    ],
)
def test_whoever_breaks_a_rule_is_found(own: str, source: str) -> None:
    assert len(faults(own, source)) == 1


@pytest.mark.parametrize(
    ("own", "source"),
    [
        ("report", "from pytest_compileiq.verdict import Check"),
        ("report", "from pytest_compileiq.report import figures"),
        ("settings", "if TYPE_CHECKING:\n    from pytest_compileiq.report import terminal"),
        ("isolation", "from _pytest.runner import runtestprotocol"),
        ("isolation", "def f(session): session._setupstate"),
        ("report", "def f(self, item): self._item = item.config.__class__"),
    ],
)
def test_what_is_allowed_is_no_fault(own: str, source: str) -> None:
    assert faults(own, source) == []


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_is_one_idea(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 350


def test_every_public_name_resolves() -> None:
    for name in pytest_compileiq.__all__:
        assert getattr(pytest_compileiq, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Kernal'"):
        pytest_compileiq.Kernal  # noqa: B018


def test_the_doors_know_the_prefix_of_the_records() -> None:
    """By heart: a run without ciq tests does not import the module."""
    assert plugin._PREFIX == records.PREFIX
