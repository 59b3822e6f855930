"""Reading one GPU through NVML. Each getter is optional: cards and drivers differ."""

from __future__ import annotations

import os
import time

from pytest_compileiq.gpu import nvml
from pytest_compileiq.gpu.nvml import Fault, Nvml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_SM, _MEMORY = 1, 2
_APP_CLOCK_DEFAULT = 2
IDLE = 0x1

#: Field ids of the counters of time spent throttled, in nanoseconds, by the reason's name.
COUNTERS = {
    "sw-power-cap": 74,
    "sync-boost": 76,
    "sw-thermal": 269,
    "hw-thermal": 270,
    "hw-power-brake": 271,
}
_LISTS = {
    "compute": "nvmlDeviceGetComputeRunningProcesses",
    "graphics": "nvmlDeviceGetGraphicsRunningProcesses",
    # A client of MPS shows up in this list only (Syllo/nvtop #93).
    "mps": "nvmlDeviceGetMPSComputeRunningProcesses",
}


class Card:
    """One GPU by its full UUID, or a MIG instance: then clocks are read from its parent."""

    def __init__(self, library: Nvml, uuid: str) -> None:
        self.uuid = uuid
        self._library = library
        self._own = self._handle = library.call("nvmlDeviceGetHandleByUUID", uuid)
        self.is_mig = bool(self.get("nvmlDeviceIsMigDeviceHandle"))
        if self.is_mig:
            self._handle = library.call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", self._own)
        #: Codes of getters that failed for other reasons than "not supported", by name.
        self.faults: dict[str, int] = {}

    def call(self, name: str, *args: Any) -> Any:
        return self._library.call(name, self._handle, *args)

    def get(self, *names: str, args: tuple[Any, ...] = (), own: bool = False) -> Any:
        """The first of several names of one getter that answers, else None."""
        for name in names:
            try:
                return self._library.call(name, self._own if own else self._handle, *args)
            except Fault as fault:
                if fault.code not in (nvml.NOT_SUPPORTED, nvml.FUNCTION_NOT_FOUND):
                    self.faults[name] = fault.code
        return None

    def supported_memory(self) -> list[int]:
        """Memory clocks in MHz, highest first; empty when the card does not tell."""
        clocks = self.get("nvmlDeviceGetSupportedMemoryClocks") or []
        return sorted(map(int, clocks), reverse=True)

    def supported(self) -> list[int]:
        """SM clocks in MHz, highest first: exactly what a lock takes. Empty when not told."""
        memory = self.supported_memory()
        if not memory:
            return []
        clocks = self.get("nvmlDeviceGetSupportedGraphicsClocks", args=(memory[0],)) or []
        return sorted(map(int, clocks), reverse=True)

    def default_mhz(self) -> int | None:
        clock = self.get("nvmlDeviceGetClock", args=(_SM, _APP_CLOCK_DEFAULT))
        return None if clock is None else int(clock)

    def facts(self) -> dict[str, Any]:
        """What does not change while a test runs; None for what the card does not tell."""
        supported = self.supported()
        try:
            mig = self.call("nvmlDeviceGetMigMode")[0]
        except Fault:
            mig = 0
        return {
            "mig": bool(mig) or self.is_mig,
            "virtual": self.get("nvmlDeviceGetVirtualizationMode"),
            "persistence": self.get("nvmlDeviceGetPersistenceMode"),
            # MaxClockInfo is theoretical: a card that lists 3105 MHz ran at 2730 (holohub PR #714).
            "max_mhz": supported[0] if supported else None,
            "step_mhz": supported[0] - supported[1] if len(supported) > 1 else None,
            "power_limit_w": _thousandth(self.get("nvmlDeviceGetEnforcedPowerLimit")),
        }

    def reasons(self) -> int | None:
        """Bits that say what holds the clock; the older name serves drivers before R535."""
        bits = self.get(
            "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"
        )
        return None if bits is None else int(bits)

    def sm_mhz(self) -> int | None:
        mhz = self.get("nvmlDeviceGetClockInfo", args=(_SM,))
        return None if mhz is None else int(mhz)

    def utilization(self) -> int | None:
        rates = self.get("nvmlDeviceGetUtilizationRates")
        return None if rates is None else int(rates.gpu)

    def sample(self) -> list[Any]:
        """[monotonic s, SM MHz, memory MHz, reason bits, W, degrees C, percent busy]."""
        temperature = self.get("nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature", args=(0,))
        return [
            round(time.monotonic(), 4),
            self.sm_mhz(),
            self.get("nvmlDeviceGetClockInfo", args=(_MEMORY,)),
            self.reasons(),
            _thousandth(self.get("nvmlDeviceGetPowerUsage")),
            temperature,
            self.utilization(),
        ]

    def snapshot(self, root: int) -> dict[str, Any]:
        """All that is compared between the start and the end of a window."""
        try:
            values = self._library.field_values(self._handle, tuple(COUNTERS.values()))
        except Fault as fault:
            self.faults[fault.call] = fault.code
            values = [None] * len(COUNTERS)
        return {
            "sample": self.sample(),
            "counters": dict(zip(COUNTERS, values, strict=True)),
            "processes": self.processes(root),
            "memory_bytes": self._memory(),
        }

    def processes(self, root: int) -> list[dict[str, Any]]:
        """Who has a context on the card; ``relation`` is to the process ``root``."""
        found = []
        for kind, name in _LISTS.items():
            for process in self.get(name, own=True) or []:
                pid = int(process.pid)
                entry = {"pid": pid, "kind": kind, "relation": relation(pid, root)}
                found.append({**entry, "name": _name_of(pid)})
        return found

    def _memory(self) -> int | None:
        """Bytes in use, without what the driver keeps for itself where it says so."""
        try:
            version = self._library.constant("nvmlMemory_v2")
            info = self._library.call("nvmlDeviceGetMemoryInfo", self._own, version)
            return int(info.used)
        except (Fault, AttributeError):
            info = self.get("nvmlDeviceGetMemoryInfo", own=True)
            # The first version counts the driver's own share, 0.3 to 0.9 GiB, as used.
            return None if info is None else max(0, int(info.used) - (1 << 30))

    def settle(self, target_mhz: int | None, deadline_s: float) -> dict[str, Any]:
        """Read the clock until it holds still at the lock, or the deadline.

        A single reading right after a Set is often the old clock (triton #316), and an idle card
        shows its idle clock in spite of a lock (TileOPs #225), so idle is no answer.
        """
        end = time.monotonic() + deadline_s
        same, last = 0, None
        while True:
            bits, mhz = self.reasons(), self.sm_mhz()
            if bits is not None and bits & IDLE:
                return {"seen_mhz": None, "idle": True}
            same = same + 1 if mhz == last else 0
            last = mhz
            if same >= 4 and (target_mhz is None or mhz == target_mhz):
                return {"seen_mhz": mhz, "idle": False}
            if time.monotonic() > end:
                return {"seen_mhz": mhz, "idle": False}
            time.sleep(0.01)


def relation(pid: int, root: int) -> str:
    """``ours`` for ``root`` and what descends from it, ``unknown`` for a PID not seen here."""
    known = False
    for _ in range(64):
        if pid == root:  # also for PID 1, which pytest often is in a container
            return "ours"
        try:
            with open(f"/proc/{pid}/stat") as file:
                pid = int(file.read().rpartition(")")[2].split()[1])
        except (OSError, ValueError, IndexError):
            break
        known = True
    return "foreign" if known else "unknown"


def _name_of(pid: int) -> str:
    try:
        with open(f"/proc/{pid}/comm") as file:
            return file.read().strip()
    except OSError:
        return ""


def _thousandth(value: Any) -> float | None:
    return None if value is None else value / 1000


def initial_pid_namespace() -> bool | None:
    """Whether NVML's PIDs mean the same here; None when the kernel does not say."""
    try:
        return os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"
    except OSError:
        return None
