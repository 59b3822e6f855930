"""The rules of the house: data walks one way, no private pytest names, small modules."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import pytest_compileiq

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
    "accepting": 13,
    "complaints": 13,
    "pytest_fixtures": 14,
    "plugin": 15,
    "__init__": 16,
    "__main__": 16,
}


def stage(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imports(path: Path) -> list[str]:
    """Names that a module imports, inside functions too, but not those for type checkers."""
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            node.body = []
    names = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names += [f"{node.module}.{alias.name}" for alias in node.names]
    return names


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_to_where_data_comes_from(path: Path) -> None:
    own = stage(path)
    for name in imports(path):
        if name.startswith("pytest_compileiq."):
            other = name.split(".")[1]
            assert other == own or RANK[other] < RANK[own], f"{own} must not import {name}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_private_pytest_names_stay_in_isolation(path: Path) -> None:
    private = [name for name in imports(path) if name.split(".")[0] in ("_pytest", "pluggy")]
    assert stage(path) == "isolation" or not private


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_a_module_is_one_idea(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= 350


def test_every_public_name_resolves() -> None:
    for name in pytest_compileiq.__all__:
        assert getattr(pytest_compileiq, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'Kernal'"):
        pytest_compileiq.Kernal  # noqa: B018
