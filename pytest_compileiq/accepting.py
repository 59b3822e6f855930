"""``--ciq-accept``: the sidecars of a test that has passed, its fixtures' teardown included."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pytest_compileiq import records, state
from pytest_compileiq.errors import CiqError
from pytest_compileiq.isolation import child
from pytest_compileiq.toolchain import sidecar


def accept(item: pytest.Item) -> None:
    """Write what the test has won; a process that ends before the test is over hands it on.

    Raises CiqError when a sidecar cannot be written.
    """
    helper = item.stash.get(state.HELPER, None)
    if helper is None or not helper.offers:
        return
    offers = {str(acf.absolute()): asdict(offer.sidecar) for acf, offer in helper.offers.items()}
    if child.inside():
        item.stash[state.LEFT].append((records.OFFER, json.dumps(offers)))
    else:
        item.stash[state.LEFT] += [(records.NOTE, note) for note in _write(offers)]


def settle(report: pytest.TestReport) -> None:
    """Write what an isolated test has handed on with its last report. Raises CiqError."""
    offered = [str(value) for name, value in report.user_properties if name == records.OFFER]
    for text in offered[-1:]:
        report.user_properties += [(records.NOTE, note) for note in _write(json.loads(text))]


def _write(offers: Mapping[str, Mapping[str, Any]]) -> list[str]:
    notes = []
    for acf, fields in offers.items():
        try:
            written = sidecar.write(Path(acf), sidecar.Sidecar(**fields))
        except OSError as error:
            raise CiqError(
                f"--ciq-accept: the sidecar {sidecar.path_of(Path(acf))} cannot be written "
                f"({error.strerror}); the checks passed, and the file is as it was",
                remedy="make the folder writable and run again, or run without --ciq-accept",
            ) from error
        notes.append(f"--ciq-accept wrote {written.name}")
    return notes
