"""Lock a GPU's clocks for the length of a ``with``, or say in words why they are not locked."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Literal

from pytest_compileiq.errors import GpuError
from pytest_compileiq.gpu import guardian_client
from pytest_compileiq.gpu.guardian_client import (
    GuardianClient,
    HungError,
    JournalError,
    LostError,
    reset_command,
)
from pytest_compileiq.gpu.identity import Gpu
from pytest_compileiq.gpu.lease import Lease

Mode = Literal["auto", "require", "observe"]
_NO_PERMISSION, _NOT_SUPPORTED, _BLOCKED = 4, 3, 17


class LockRefused(GpuError):
    """``--ciq-clocks=require``, and the clocks could not be locked."""


class RestoreError(GpuError):
    """Clocks that this run locked may still be locked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ClockState:
    """What is known of a GPU's clocks, in MHz.

    ``sm_mhz`` is the lock; None without one, and for ``base`` until it was seen under load, as
    the driver takes that by name. ``why`` says why nothing is locked.
    """

    locked: bool
    requested: str
    why: str = ""
    sm_mhz: int | None = None
    max_mhz: int | None = None
    step_mhz: int | None = None
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        if not self.locked:
            return f"observed ({self.why})"
        asked = f"{self.requested} MHz" if self.requested.isdecimal() else self.requested
        if self.sm_mhz is None:
            return f"locked ({asked})"
        if str(self.sm_mhz) == self.requested:
            return f"locked ({asked})"
        return f"locked ({self.sm_mhz} MHz, asked for {asked})"


@dataclass(frozen=True, slots=True)
class Guarded:
    """The state of the clocks and the guardian that keeps them."""

    state: ClockState
    link: GuardianClient


@contextmanager
def guarded(
    gpu: Gpu,
    mode: Mode,
    sm_mhz: str | int,
    *,
    lease: Lease,
    start_deadline_s: float = guardian_client.START_DEADLINE_S,
    call_deadline_s: float = guardian_client.CALL_DEADLINE_S,
) -> Iterator[Guarded]:
    """Lock the SM clock to ``base`` (sustainable), ``max`` or a number of MHz, and reset it.

    ``auto`` observes when the driver refuses, ``require`` raises LockRefused, ``observe`` sets
    nothing. Raises GpuError on a bad clock, RestoreError at the end when the reset failed.
    """
    why = "asked to observe" if mode == "observe" else _why_not(gpu)
    link = GuardianClient(
        gpu.uuid,
        lease=lease,
        may_lock=not why,
        start_deadline_s=start_deadline_s,
        call_deadline_s=call_deadline_s,
    )
    # A generator with try around set and yield: pytest runs no finalizer that is registered
    # only after a set-up which Ctrl-C interrupts (pytest #15067).
    try:
        facts = link.ready["facts"]
        state = ClockState(
            locked=False,
            requested=str(sm_mhz),
            why=why,
            max_mhz=facts["max_mhz"],
            step_mhz=facts["step_mhz"],
            notes=tuple(_left_behind(link.ready, reset_command(lease.folder))),
        )
        if not why:
            try:
                answer = link.ask("lock", sm=sm_mhz)
            except JournalError as error:
                if not _is_foreign(link.ready["recovered"]):
                    raise
                # In a folder for all users that journal is its owner's alone to replace.
                state = replace(state, why=f"another user's journal is in the way: {error.what}")
            else:
                state = _state(state, answer, sm_mhz)
        if mode == "require" and not state.locked:
            raise LockRefused(
                f"{gpu}: the clocks are not locked: {state.why}",
                remedy="run with the capability CAP_SYS_ADMIN on the host, let the site lock the "
                "clocks (hook pytest_ciq_lock_clocks), or use --ciq-clocks=auto",
            )
        yield Guarded(state, link)
    finally:
        _give_back(gpu, lease, link, may_lock=not why)


def _why_not(gpu: Gpu) -> str:
    if gpu.parent_uuid is not None:
        return "MIG: the instances of a card share its clocks"
    if "microsoft" in os.uname().release.lower():
        return "WSL: clocks are locked on the Windows host"
    return ""


def _state(state: ClockState, answer: dict[str, Any], sm_mhz: str | int) -> ClockState:
    if answer["refused"] is not None:
        return replace(state, why=_refusal(answer["refused"]))
    notes = list(state.notes)
    mhz, seen = answer["sm_mhz"], answer.get("seen_mhz")
    if mhz is None:
        mhz = seen  # the base clock, by name: known once a busy card shows it
    elif seen is not None and abs(seen - mhz) > max(state.step_mhz or 0, 0.01 * mhz):
        notes.append(f"locked to {mhz} MHz, and the card, already busy, runs at {seen} MHz")
    if isinstance(sm_mhz, int) and mhz != sm_mhz:
        notes.append(f"{sm_mhz} MHz is not in the card's list; the next lower, {mhz}, is locked")
    return replace(state, locked=True, sm_mhz=mhz, notes=tuple(notes))


def _refusal(fault: dict[str, Any]) -> str:
    match fault["code"]:
        case 4:
            return f"no permission: {missing_permission() or fault['text']}"
        case 3:
            return "not supported by this card"
        case 17:
            return "blocked by the operating system: under WSL, lock on the Windows host"
        case code:
            return f"{fault['call']}: {fault['text']} ({code})"


def _is_foreign(recovered: dict[str, Any] | None) -> bool:
    return recovered is not None and recovered["state"] == "foreign"


def _left_behind(ready: dict[str, Any], cure: str) -> Iterator[str]:
    """What a former run left, and what became of it."""
    recovered, stale = ready["recovered"], ready["stale"]
    if recovered is not None and not recovered["ok"]:
        if _is_foreign(recovered):
            yield "another user's run may have left clocks locked; its journal is not ours to act on"
        else:
            yield (
                "a run that was killed left clocks locked, and they could not be reset "
                f"(codes {recovered['codes']}): {cure}"
            )
    elif recovered is not None and recovered["state"] != "other-boot":
        yield "clocks that a killed run left locked were reset first"
    if stale is not None and stale[0] != "other-boot":
        yield f"a run that was killed may have left clocks locked: {cure}"


def _give_back(gpu: Gpu, lease: Lease, link: GuardianClient, *, may_lock: bool) -> None:
    cure = reset_command(lease.folder)
    try:
        answer = link.close()
    except (LostError, HungError) as error:
        if not may_lock:
            return  # it only read; nothing is left behind
        if isinstance(error, HungError):
            raise RestoreError(
                f"{gpu}: the clocks may still be locked: {error.what}", remedy=f"later: {cure}"
            ) from error
        answer = _restore_anew(gpu, lease, cure)
    if not answer["restored"]:
        raise RestoreError(
            f"{gpu}: the clocks could not be reset (codes {answer['codes']})",
            looked_at=[f"journal {gpu.uuid}.json in {lease.folder}"],
            remedy=f"once the GPU answers again: {cure}",
        )


def _restore_anew(gpu: Gpu, lease: Lease, cure: str) -> dict[str, Any]:
    """The guardian died before us: a new one resets what its journal names."""
    try:
        with GuardianClient(
            gpu.uuid, lease=lease, may_lock=True, start_deadline_s=guardian_client.CALL_DEADLINE_S
        ) as link:
            recovered = link.ready["recovered"]
    except GpuError as error:
        raise RestoreError(
            f"{gpu}: the clocks may still be locked: {error.what}", remedy=f"later: {cure}"
        ) from error
    if recovered is None:
        return {"restored": True, "codes": {}}
    return {"restored": recovered["ok"], "codes": recovered["codes"]}


def missing_permission() -> str:
    """Why this process may not lock clocks, or "" when nothing speaks against it. Sets nothing.

    The kernel module asks for CAP_SYS_ADMIN in the initial user namespace; being root in a
    container is not enough, and no group or udev rule helps.
    """
    try:
        with open("/proc/self/status") as file:
            status = dict(line.split(":\t", 1) for line in file if ":\t" in line)
        with open("/proc/self/uid_map") as file:
            initial = file.read().split() == ["0", "0", "4294967295"]
    except (OSError, ValueError):
        return ""
    if not int(status["CapEff"], 16) >> 21 & 1:
        return "the capability CAP_SYS_ADMIN is missing"
    if not initial:
        return "CAP_SYS_ADMIN is held in a user namespace only, not on the host"
    return ""
