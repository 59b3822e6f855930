"""Numbers in ``--junitxml``: under names and in words that a CI system can show.

pytest writes user properties as ``<properties>`` of the test case. The family ``xunit1`` allows
that; the schema of ``xunit2``, the default, does not, so there they move into the test case's
``<system-out>``, which Jenkins shows as the standard output of the test. GitLab shows the text of
a failure, which has the numbers anyway.
"""

from __future__ import annotations

import os
import xml.etree.ElementTree as ET
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pytest_compileiq.files import write_whole
from pytest_compileiq.report.figures import Record, figures, verdict

_PREFIX = "ciq_"


def properties(records: Sequence[Record]) -> list[tuple[str, object]]:
    """Names such as ``ciq_win`` and ``ciq_win_speedup`` with values in decimal notation.

    The kernel is in the name only where a test has several.
    """
    several = len({record["kernel"] for record in records}) > 1
    found: list[tuple[str, object]] = []
    for record in records:
        one = figures(record)
        suffix = f"[{record['kernel']}]" if several else ""
        values = {
            "": verdict(record),
            "_speedup": _decimal(one.speedup, ".6g"),
            "_speedup_low": _decimal(one.interval[0], ".6g"),
            "_speedup_high": _decimal(one.interval[1], ".6g"),
            "_min_speedup": _decimal(one.wanted, ".6g"),
            "_percent": _decimal(one.cv_percent, ".4g"),
            "_launches": _decimal(one.launches, "d"),
            "_gpu_seconds": _decimal(one.gpu_seconds, ".4g"),
        }
        found += [
            (f"{_PREFIX}{record['check']}{name}{suffix}", value)
            for name, value in values.items()
            if value
        ]
    return found


def gpu_properties(use: Mapping[str, Any]) -> list[tuple[str, object]]:
    """The GPU that the test held and what its clocks did."""
    return [
        (f"{_PREFIX}gpu", str(use["gpu"])),
        (f"{_PREFIX}clocks", str(use["clocks"])),
        (f"{_PREFIX}gpu_condition", str(use["summary"])),
    ]


def other_properties(kept: Sequence[str], notes: Sequence[str]) -> list[tuple[str, object]]:
    """Folders that ``--ciq-keep`` left, and what was said of the test beside its verdicts."""
    return [
        *((f"{_PREFIX}kept", folder) for folder in kept),
        *((f"{_PREFIX}note", note) for note in notes),
    ]


def _decimal(value: float | None, form: str) -> str:
    return "" if value is None else format(value, form)


def path_of(option: str) -> Path:
    """Where pytest wrote the file that ``--junitxml`` names."""
    return Path(os.path.expanduser(os.path.expandvars(option)))


def move_to_output(path: Path) -> None:
    """Make a file of the family ``xunit2`` valid: our properties become output of the test.

    Properties that tests recorded themselves stay. Raises OSError and ``ET.ParseError``.
    """
    tree = ET.parse(path)
    moved = False
    for case in tree.iter("testcase"):
        holder = case.find("properties")
        if holder is None:
            continue
        own = [one for one in holder if one.get("name", "").startswith(_PREFIX)]
        for one in own:
            holder.remove(one)
        if not len(holder):
            case.remove(holder)
        if own:
            moved = True
            text = "".join(f"{one.get('name')}: {one.get('value')}\n" for one in own)
            output = case.find("system-out")
            if output is None:
                output = ET.SubElement(case, "system-out")
            output.text = (output.text or "") + text
    if moved:
        whole = ET.tostring(tree.getroot(), encoding="unicode")
        write_whole(path, f'<?xml version="1.0" encoding="utf-8"?>{whole}')
