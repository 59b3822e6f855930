"""Sphinx: ``tox -e docs`` builds the pages into .tox/docs/html; a warning is an error."""

from __future__ import annotations

import tomllib
from pathlib import Path

project = "pytest-compileiq"
author = "pytest-compileiq developers"
copyright = "2026, pytest-compileiq developers"
release = version = tomllib.loads(
    (Path(__file__).parent.parent / "pyproject.toml").read_text(encoding="utf-8")
)["project"]["version"]

extensions = ["myst_parser"]
myst_heading_anchors = 3
exclude_patterns = ["img/demo"]
html_theme = "furo"
html_title = f"pytest-compileiq {release}"
html_show_sphinx = False
