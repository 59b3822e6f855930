"""The clock lock of one GPU, as the guardian owns it: journal, set, undo exactly that."""

from __future__ import annotations

import time

from pytest_compileiq.gpu import journal, nvml
from pytest_compileiq.gpu.nvml import Fault

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from pytest_compileiq.gpu.card import Card

#: The clock that the card sustains at its power limit, as NVML's symbolic limit.
TDP = 0xFFFFFF01

SM, MEMORY = "sm", "memory"
_SET = "nvmlDeviceSetGpuLockedClocks"
#: The memory clock is never set here: on Blackwell its lock slows the SM clock, unexplained. It is
#: reset where a journal cannot be read, and where everything is asked for.
_RESET = {SM: "nvmlDeviceResetGpuLockedClocks", MEMORY: "nvmlDeviceResetMemoryLockedClocks"}

# The driver said no, so it changed nothing, and a reset would undo somebody else's lock.
_REFUSED = {
    nvml.INVALID_ARGUMENT, nvml.NOT_SUPPORTED, nvml.NO_PERMISSION,
    nvml.FUNCTION_NOT_FOUND, nvml.DEPRECATED,
}  # fmt: skip
# Worth another try: Megatron-Bridge #5299 saw NOT_READY once, and success on the next call.
_PASSING = {nvml.NOT_READY, nvml.TIMEOUT, nvml.UNKNOWN}
_PAUSES_S = (0.05, 0.1, 0.2, 0.4, 0.0)


class OutOfRange(Exception):
    """A clock below all that the card knows."""


def choose(want: str | int, supported: list[int], default: int | None) -> list[tuple[int, int]]:
    """What to ask the driver for, best first, as (argument in MHz or TDP, MHz or 0 if unknown).

    ``supported`` is in MHz, highest first, empty when the card does not tell. A number is
    snapped down, as other values silently run at some other clock. Raises OutOfRange.
    """
    if want == "base":
        second = [(snap(default, supported),) * 2] if default else []
        return [(TDP, 0), *second]
    if want == "max":
        if not supported:
            raise OutOfRange("the card does not list its clocks, so its highest is not known")
        return [(supported[0],) * 2]
    mhz = snap(int(want), supported)
    return [(mhz, mhz)]


def snap(mhz: int, supported: list[int]) -> int:
    """The next supported clock at or below ``mhz``. Raises OutOfRange."""
    if not supported:
        return mhz
    fitting = [clock for clock in supported if clock <= mhz]
    if not fitting:
        low, high = supported[-1], supported[0]
        raise OutOfRange(f"{mhz} MHz is below all clocks of the card, {low} to {high} MHz")
    return max(fitting)


class Lock:
    """Sets and resets clocks of one card. ``owner`` goes into the journal, for people."""

    def __init__(self, card: Card, folder: int, owner: dict[str, Any]) -> None:
        self._card = card
        self._folder = folder
        self._owner = owner
        #: Domains that are, or may be, locked by us, with what was asked for in MHz.
        self.held: dict[str, list[int]] = {}
        #: Those that a former guardian left and that could not be reset: they stay on record,
        #: but are not for this run to answer for.
        self._inherited: dict[str, list[int]] = {}

    def recover(self) -> dict[str, Any] | None:
        """Undo what a former guardian left: we hold the lease, so its writer is gone."""
        found = journal.read(self._folder, self._card.uuid)
        if found is None:
            return None
        state, content = found
        if state == journal.OTHER_BOOT:
            journal.remove(self._folder, self._card.uuid)
            return {"state": state, "ok": True, "codes": {}}
        if state == journal.FOREIGN:
            return {"state": state, "ok": False, "codes": {}, **content}
        codes = {}
        # An unreadable journal does not say which clocks were set: then both are reset.
        for domain in content.get("domains", (SM, MEMORY)):
            if domain in _RESET:
                codes[domain] = self._reset(domain)
        failed = {domain: code for domain, code in codes.items() if code}
        if state == journal.CORRUPT and codes[SM] == 0:
            failed.pop(MEMORY, None)  # most likely a card without a memory lock
        self._inherited = {domain: [] for domain in failed}
        if not failed:
            journal.remove(self._folder, self._card.uuid)
        return {"state": state, "ok": not failed, "codes": codes}

    def take(self, want: str | int) -> dict[str, Any]:
        """Lock the SM clock; ``refused`` is the driver's fault if it will not. Raises OutOfRange."""
        choices = choose(want, self._card.supported(), self._card.default_mhz())
        for argument, mhz in choices:
            fault = self._set(argument)
            if fault is None:
                return {"sm_mhz": mhz or None, "refused": None}
            if fault.code != nvml.INVALID_ARGUMENT:
                break
        assert fault is not None  # there is a choice at least
        return {"sm_mhz": None, "refused": fault.as_dict()}

    def undo(self) -> dict[str, int]:
        """Reset what is held; codes by domain. Raises OSError once nothing is held any more."""
        codes = {domain: self._reset(domain) for domain in list(self.held)}
        if not self.held:  # else the journal names it already
            self._write()
        return codes

    def reset_all(self) -> dict[str, int]:
        """Reset SM and memory clocks although nothing says that we set them."""
        codes = {domain: self._reset(domain) for domain in (SM, MEMORY)}
        if codes[MEMORY] == nvml.NOT_SUPPORTED:
            codes[MEMORY] = 0  # such a card has no such lock
        if not any(codes.values()):
            journal.remove(self._folder, self._card.uuid)
        return codes

    def _set(self, mhz: int) -> Fault | None:
        self.held[SM] = [mhz, mhz]
        try:
            self._write()  # the intent first: a kill between the two leaves a journal, not a lock
        except OSError:
            del self.held[SM]  # never set, so never to be reset
            raise
        fault, unclear = None, False
        for pause in _PAUSES_S:
            try:
                self._card.call(_SET, mhz, mhz)
                return None
            except Fault as error:
                fault = error
            unclear = unclear or fault.code not in _REFUSED
            if fault.code not in _PASSING:
                break
            time.sleep(pause)
        if unclear:
            self._reset(SM)  # an answer like "unknown error" may hide a lock that is on
        else:
            del self.held[SM]
        self._write()
        return fault

    def _reset(self, domain: str) -> int:
        code = nvml.UNKNOWN
        for pause in _PAUSES_S:
            try:
                self._card.call(_RESET[domain])
            except Fault as fault:
                code = fault.code
            else:
                self.held.pop(domain, None)
                self._inherited.pop(domain, None)
                return 0
            if code not in _PASSING:
                break
            time.sleep(pause)
        return code

    def _write(self) -> None:
        domains = {**self._inherited, **self.held}
        if domains:
            content = {"domains": domains, "owner": self._owner, "time": time.time()}
            journal.write(self._folder, self._card.uuid, content)
        else:
            journal.remove(self._folder, self._card.uuid)
