"""``--ciq-json``: every verdict with its numbers, in one file with a schema version.

``schema.json`` beside this module describes it. The numbers and samples of a timed check are
those of ``measure/samples.py``, so each sample gives its verdict again.
"""

from __future__ import annotations

import json
import os
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from pytest_compileiq.files import write_whole
from pytest_compileiq.verdict import plain

SCHEMA = 1
_PACKAGES = (
    "pytest-compileiq",
    "compileiq",
    "pytest",
    "pytest-xdist",
    "nvidia-cuda-nvcc",
    "torch",
    "triton",
    "helion",
    "cuda-core",
    "numpy",
)
#: What CI systems call the commit under test: GitHub, GitLab, Jenkins, Azure.
_COMMITS = ("GITHUB_SHA", "CI_COMMIT_SHA", "GIT_COMMIT", "BUILD_SOURCEVERSION")


def environment(
    records: Sequence[Mapping[str, Any]],
    site: Mapping[str, Any] | None = None,
    exit_status: int = 0,
) -> dict[str, Any]:
    """What the verdicts rest on: date, commit, and versions of everything that took part.

    ``site`` is what implementations of ``pytest_ciq_machine_info`` add, ``exit_status`` pytest's:
    records alone do not show a test that failed beside its checks, or never ran.
    """

    def version(package: str) -> str | None:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "exit_status": exit_status,
        "commit": next((os.environ[name] for name in _COMMITS if os.environ.get(name)), None),
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "packages": {name: version(name) for name in _PACKAGES},
        "ptxas": sorted({r["numbers"]["ptxas"] for r in records if r["numbers"].get("ptxas")}),
        "site": dict(site or {}),
    }


def write(
    path: Path,
    records: Sequence[Mapping[str, Any]],
    gpus: Sequence[Mapping[str, Any]] = (),
    *,
    site: Mapping[str, Any] | None = None,
    exit_status: int = 0,
) -> None:
    """Write the report; ``gpus`` is what each test that held a GPU saw of it.

    It is written in one step: a reader sees the old file or the whole new one.

    Raises OSError when the folder cannot be written or the disk is full.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, as_text(records, gpus, environment(records, site, exit_status)))


def as_text(
    records: Sequence[Mapping[str, Any]],
    gpus: Sequence[Mapping[str, Any]],
    surroundings: Mapping[str, Any],
) -> str:
    """One record a line: a thousand samples on a line each would hide what is of interest."""

    def lines(entries: Sequence[Mapping[str, Any]]) -> str:
        if not entries:
            return "[]"
        return "[\n  " + ",\n  ".join(map(_dump, entries)) + "\n ]"

    return (
        f'{{\n "schema": {SCHEMA},\n "environment": {_dump(surroundings)},\n'
        f' "records": {lines(records)},\n "gpus": {lines(gpus)}\n}}\n'
    )


def _dump(value: object) -> str:
    # What a hook of a third party answered may be of any type: its text is better than no file.
    return json.dumps(plain(value), allow_nan=False, default=str)
