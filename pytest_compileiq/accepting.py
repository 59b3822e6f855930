"""``--ciq-accept``: the sidecars of a test that has passed, its fixtures' teardown included."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from pytest_compileiq import records, state
from pytest_compileiq.errors import CiqError
from pytest_compileiq.isolation import child
from pytest_compileiq.toolchain import acf, sidecar


def accept(item: pytest.Item) -> None:
    """Write what the test has won; a process that ends before the test is over hands it on.

    Raises CiqError when a sidecar cannot be written.
    """
    helper = item.stash.get(state.HELPER, None)
    if helper is None or not helper.offers:
        return
    offers = {str(path.absolute()): asdict(offered) for path, offered in helper.offers.items()}
    left = item.stash[state.LEFT]
    if child.inside():
        left.append((records.OFFER, json.dumps(offers)))
        return
    for note in _write(offers):
        left.append((records.NOTE, note))


def write_handed_on(report: pytest.TestReport) -> None:
    """Write what an isolated test has handed on with its last report. Raises CiqError."""
    offered = [str(value) for name, value in report.user_properties if name == records.OFFER]
    for text in offered[-1:]:
        for note in _write(json.loads(text)):
            report.user_properties.append((records.NOTE, note))


def _write(offers: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Notes of what is written, one by one: what fails later takes none of them back."""
    for path, fields in offers.items():
        found, described = acf.load(Path(path)), sidecar.Sidecar(**fields)
        if found.sha256 != described.sha256:  # a winner of --ciq-retune may have taken its place
            raise CiqError(
                f"--ciq-accept: {found.name} has changed since the checks passed with it (its "
                f"SHA-256 begins {found.sha256[:12]}, not {described.sha256[:12]}), and no "
                "sidecar was written for it",
                remedy="run once more, so that the file that is there now is judged",
            )
        try:
            written = sidecar.write(found.source, described)
        except OSError as error:
            raise CiqError(
                f"--ciq-accept: the sidecar {sidecar.path_of(found.source)} cannot be written "
                f"({error.strerror}); the checks passed, and the file is as it was",
                remedy="make the folder writable and run again, or run without --ciq-accept",
            ) from error
        yield f"--ciq-accept wrote {written.name}"
