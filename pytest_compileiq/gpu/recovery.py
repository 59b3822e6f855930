"""``reset-clocks``: undo by hand what killed runs left locked."""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from pytest_compileiq.errors import GpuError
from pytest_compileiq.gpu.guardian_client import GuardianClient
from pytest_compileiq.gpu.identity import resolve, survey
from pytest_compileiq.gpu.lease import Folder, Lease, choose
from pytest_compileiq.settings import OPTIONS, ini_only

# Whoever may write into the folder may put there what is to be printed on a terminal.
_JOURNAL = re.compile(r"(GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\.json")

#: As pytest reads it.
(_lease_dir,) = (option.parse for option in OPTIONS if option.name == "lease_dir")


class Outcome(NamedTuple):
    """What became of one GPU."""

    uuid: str
    done: bool
    text: str


def left_behind(folder: Path | None = None) -> list[str]:
    """UUIDs of GPUs with a journal in the lease folder. Raises GpuError."""
    opened = Folder(folder)
    try:
        names = os.listdir(opened.fd)
    finally:
        opened.close()
    return sorted(match[1] for match in map(_JOURNAL.fullmatch, names) if match)


def reset(uuids: Sequence[str], folder: Path | None = None, *, force: bool) -> list[Outcome]:
    """Reset each GPU that nobody holds: what its journal names, or with ``force`` every clock."""
    return [_reset(uuid, folder, force=force) for uuid in uuids]


def _reset(uuid: str, folder: Path | None, *, force: bool) -> Outcome:
    lease = Lease(uuid, 0.0, folder, label="reset-clocks")
    try:
        if not lease.try_acquire():
            return Outcome(uuid, False, f"not touched: held by {lease.holder()}")
        with GuardianClient(uuid, lease=lease, may_lock=True) as link:
            recovered = link.ready["recovered"]
            if force:
                answer = link.ask("reset_all")
                return Outcome(uuid, answer["restored"], _told(answer["restored"], answer["codes"]))
        if recovered is None:
            return Outcome(uuid, True, "nothing to reset: no journal")
        if recovered["state"] == "foreign":
            text = "not touched: its journal belongs to another user, who must run this"
            return Outcome(uuid, False, text)
        if recovered["state"] == "other-boot":
            return Outcome(uuid, True, "nothing to reset: the machine was started anew since")
        return Outcome(uuid, recovered["ok"], _told(recovered["ok"], recovered["codes"]))
    except GpuError as error:
        return Outcome(uuid, False, f"not reset: {error.what}")
    finally:
        lease.release()


def _told(done: bool, codes: dict[str, int]) -> str:
    if done:
        return f"reset: {', '.join(codes) or 'nothing was locked'}"
    return f"not reset: NVML answered {codes}"


def main(arguments: Sequence[str]) -> int:
    """``python -m pytest_compileiq reset-clocks``: exit status 0 only if all is as it should be."""
    parser = argparse.ArgumentParser(
        prog="python -m pytest_compileiq reset-clocks",
        description="Reset the clocks of GPUs on which a killed test run may have left them locked. "
        "A GPU that a test holds is not touched. Pytest's ini file is not read.",
    )
    parser.add_argument(
        "--all", action="store_true", help="also GPUs of which no run left a journal"
    )
    parser.add_argument("--ciq-gpu", metavar="SPEC", help="just these GPUs (as for pytest)")
    parser.add_argument("--ciq-lease-dir", metavar="DIR", type=_lease_dir, help="(as for pytest)")
    options = parser.parse_args(arguments)
    folder: Path | None = options.ciq_lease_dir
    if folder is None and (text := os.environ.get("PYTEST_CIQ_LEASE_DIR")):
        folder = _lease_dir(text)
    if folder is None and (unread := ini_only(("lease_dir",), os.environ, Path.cwd())):
        # No refusal: what is locked by the journals that are here would stay so.
        print(
            f"note: {unread[0][1]} sets ciq_lease_dir, which only pytest reads; for the journals "
            "that are there, name the folder by --ciq-lease-dir=DIR",
            file=sys.stderr,
        )
    try:
        uuids = left_behind(folder)
        if options.ciq_gpu:
            named = [gpu.parent_uuid or gpu.uuid for gpu in resolve(options.ciq_gpu)]
            uuids = [uuid for uuid in named if options.all or uuid in uuids]
        elif options.all:
            # A card that may not be opened is missing here, and its journal tells of it.
            found = [row["uuid"] for row in survey().rows if "fault" not in row]
            uuids = list(dict.fromkeys([*found, *uuids]))
    except GpuError as error:
        print(error)
        return 1
    outcomes = reset(uuids, folder, force=options.all)
    for outcome in outcomes:
        print(f"{'ok   ' if outcome.done else 'FAULT'}  {outcome.uuid}  {outcome.text}")
    if not outcomes:
        print(f"nothing to reset: no run has left a journal in {choose(folder)[0]}")
    return 0 if all(outcome.done for outcome in outcomes) else 1
