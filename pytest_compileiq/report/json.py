"""``--ciq-json``: every verdict with its numbers, in one file with a schema version."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

from pytest_compileiq.files import write_whole

SCHEMA = 1


def environment(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What the verdicts rest on: versions of everything that took part, and the machine's kind."""

    def version(package: str) -> str | None:
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return None

    packages = ("pytest-compileiq", "compileiq", "pytest", "pytest-xdist", "nvidia-cuda-nvcc")
    return {
        "python": platform.python_version(),
        "platform": f"{sys.platform}-{platform.machine()}",
        "packages": {name: version(name) for name in packages},
        "ptxas": sorted({r["numbers"]["ptxas"] for r in records if r["numbers"].get("ptxas")}),
    }


def write(
    path: Path, records: Sequence[dict[str, Any]], gpus: Sequence[dict[str, Any]] = ()
) -> None:
    """Write the report; ``gpus`` is what each test that held a GPU saw of it.

    It is written in one step: a reader sees the old file or the whole new one.

    Raises OSError when the folder cannot be written.
    """
    document: dict[str, Any] = {"schema": SCHEMA, "environment": environment(records)}
    document.update(records=list(records), gpus=list(gpus))
    text = json.dumps(document, indent=1, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text)
