"""``--ciq-accept``: the sidecars of tests that have passed whole, written when the run ends.

Not before, and by one process: only then is it known whether another test, perhaps of another
xdist worker, wants the same file for another kernel.
"""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from pytest_compileiq.errors import CiqError
from pytest_compileiq.toolchain import acf, sidecar
from pytest_compileiq.toolchain.sidecar import Sidecar


class _Offer(NamedTuple):
    nodeid: str
    described: Sidecar


def write(offered: list[tuple[str, str]]) -> Iterator[str | CiqError]:
    """Notes of what is written, and errors; ``offered`` has node ids and records.OFFER of each."""
    by_acf: dict[Path, list[_Offer]] = {}
    for nodeid, text in offered:
        for path, fields in json.loads(text):
            place = Path(path)
            place = place.parent.resolve() / place.name  # its sidecar is beside a link
            by_acf.setdefault(place, []).append(_Offer(nodeid, sidecar.from_fields(fields)))
    for path, offers in by_acf.items():
        try:
            yield _write(path, offers)
        except CiqError as error:
            yield error


def _write(path: Path, offers: list[_Offer]) -> str:
    found, former = acf.load(path), sidecar.read(path)
    for nodeid, described in offers:
        if found.sha256 != described.sha256:  # a winner of --ciq-retune may have taken its place
            raise CiqError(
                f"{found.name} has changed since the checks of {nodeid} passed with it (its "
                f"SHA-256 begins {found.sha256[:12]}, not {described.sha256[:12]}), and no "
                "sidecar was written for it",
                remedy="run once more, so that the file that is there now is judged",
            )
    for one, other in itertools.combinations(offers, 2):
        if apart := sidecar.other_kernel(one.described, other.described):
            who = f"{one.nodeid} and {other.nodeid} pass"
            if one.nodeid == other.nodeid:
                who = f"{one.nodeid} passes"
            raise CiqError(
                f"{who} with {found.name} for two kernels ({apart}), and no sidecar was written "
                "for it",
                remedy="each kernel needs an ACF file of its own: give one of them a copy",
            )
    described = sidecar.refreshed(former, offers[0].described)
    for one in offers[1:]:
        described = sidecar.refreshed(described, one.described)
    try:
        written = sidecar.write(path, described)
    except OSError as error:
        raise CiqError(
            f"the sidecar {sidecar.path_of(path)} cannot be written ({error.strerror}); the "
            "checks passed, and the file is as it was",
            remedy="make the folder writable and run again, or run without --ciq-accept",
        ) from error
    tests = list(dict.fromkeys(one.nodeid for one in offers))
    more = f" and {len(tests) - 1} more" if tests[1:] else ""
    return f"{tests[0]}{more}: --ciq-accept wrote {written.name}"
