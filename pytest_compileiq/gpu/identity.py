"""From what the user calls a GPU to its full UUID, and the environment that shows CUDA just it.

Every other name moves: NVML's index follows the PCI bus, CUDA's the speed of the cards or the list in
CUDA_VISIBLE_DEVICES, and both change with a reboot or a job. Users of eleven projects locked or
measured the wrong card that way.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_compileiq.errors import GpuError
from pytest_compileiq.gpu.guardian_client import GuardianClient

FORMS = (
    "an index (0), nvml:0, cuda:0, a UUID or its beginning (GPU-5a3f, MIG-77), a PCI id (3b:00.0)"
)

_UUID = re.compile(r"(GPU|MIG)-[0-9a-f/-]+", re.IGNORECASE)
_FULL = re.compile(r"MIG-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", re.IGNORECASE)
_PCI = re.compile(r"([0-9a-f]{1,8}:)?[0-9a-f]{1,2}:[0-9a-f]{1,2}(\.[0-7])?", re.IGNORECASE)
_INDEX = re.compile(r"[0-9]{1,4}")
_NUMBER = re.compile(r"(?:(nvml|cuda):)?([0-9]{1,4})", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU, or one MIG instance (then ``parent_uuid`` is its card's). ``index`` is NVML's.

    ``driver`` is the version that runs it, where NVML was asked.
    """

    uuid: str
    index: int
    name: str
    pci_bus_id: str
    parent_uuid: str | None = None
    driver: str | None = field(default=None, compare=False)

    def __str__(self) -> str:
        return f"GPU {self.index} {self.name} ({self.uuid})"


@dataclass(frozen=True, slots=True)
class Machine:
    """The driver's version and what NVML says of each GPU, in NVML's order."""

    driver: str
    cuda: int | None
    rows: tuple[Mapping[str, Any], ...]
    lookups: tuple[Mapping[str, Any], ...] = ()

    def described(self) -> str:
        if not self.rows:
            return "NVML lists no GPU"
        return "; ".join(
            f"{row['index']}: {row['fault']['text']}"
            if "fault" in row
            else f"{row['index']}: {row['name']} {row['uuid']} at {row['pci']}"
            + (f" with MIG instances {', '.join(row['instances']) or 'none'}" * row["mig"])
            for row in self.rows
        )


def survey(lookups: Sequence[str] = (), *, deadline_s: float = 60.0) -> Machine:
    """Ask NVML, in a process of its own, for all GPUs. Raises GpuError."""
    found = GuardianClient.survey("machine", lookups=list(lookups), deadline_s=deadline_s)
    return Machine(
        str(found["driver"]), found["cuda"], tuple(found["gpus"]), tuple(found["lookups"])
    )


def check_spec(spec: str) -> str:
    """The SPEC itself if it is well-formed. Raises ValueError; asks no driver."""
    for word in spec.split(","):
        word = word.strip()
        if not any(form.fullmatch(word) for form in (_UUID, _PCI, _NUMBER)):
            raise ValueError(f"{word!r} names no GPU; give {FORMS}, or a comma between several")
    return spec


def resolve(
    spec: str, env: Mapping[str, str] | None = None, *, deadline_s: float = 60.0
) -> list[Gpu]:
    """The GPUs that a SPEC names, in its order.

    A bare number counts in the caller's CUDA_VISIBLE_DEVICES (``env``), or over all GPUs in PCI
    order when that is unset. Raises GpuError that says what there is instead.
    """
    env = os.environ if env is None else env
    try:
        check_spec(spec)
    except ValueError as error:
        raise GpuError(f"--ciq-gpu={spec}: {error}") from None
    words = [word.strip() for word in spec.split(",")]
    machine = survey([w for w in words if _FULL.fullmatch(w)], deadline_s=deadline_s)
    finder = _Finder(machine, env)
    found: list[Gpu] = []
    for word in words:
        gpu = finder.find(word)
        if gpu in found:
            raise GpuError(f"--ciq-gpu={spec} names {gpu} twice", remedy="name each GPU once")
        found.append(replace(gpu, driver=machine.driver))
    return found


class _Finder:
    def __init__(self, machine: Machine, env: Mapping[str, str]) -> None:
        self._machine = machine
        self._env = env

    def find(self, word: str) -> Gpu:
        if match := _NUMBER.fullmatch(word):
            kind, number = (match[1] or "").lower(), int(match[2])
            if kind == "cuda":
                return self._by_cuda(number)
            visible = None if kind == "nvml" else self._env.get("CUDA_VISIBLE_DEVICES")
            if visible is None:
                return self._by_index(number, word)
            return self._in_list(number, visible)
        if _UUID.fullmatch(word):
            return self._by_uuid(word, f"--ciq-gpu={word}")
        return self._by_pci(word)

    def _fail(self, what: str, remedy: str = "") -> GpuError:
        return GpuError(
            what, looked_at=[self._machine.described()], remedy=remedy or f"give {FORMS}"
        )

    def _by_index(self, number: int, word: str) -> Gpu:
        for row in self._machine.rows:
            if row["index"] == number:
                return self._usable(row)
        count = len(self._machine.rows)
        raise self._fail(f"there is no GPU {word}: NVML lists {count or 'none'}")

    def _usable(self, row: Mapping[str, Any]) -> Gpu:
        if "fault" in row:
            fault = row["fault"]
            raise self._fail(
                f"GPU {row['index']} may not be used: {fault['text']} ({fault['code']})",
                "ask for access to it, or name another",
            )
        if not row["mig"]:
            return Gpu(row["uuid"], row["index"], row["name"], row["pci"])
        if len(row["instances"]) == 1:
            return _instance(row, row["instances"][0])
        count = len(row["instances"])
        raise self._fail(
            f"GPU {row['index']} is cut into {count or 'no'} MIG instances",
            "name one instance by its MIG- UUID"
            if count
            else "make one with nvidia-smi mig, leave MIG mode, or name another GPU",
        )

    def _by_uuid(self, word: str, about: str) -> Gpu:
        known: dict[str, Mapping[str, Any]] = {}
        for row in [*self._machine.lookups, *self._machine.rows]:
            if "fault" not in row:
                known.update(dict.fromkeys(row["instances"], row))
        for row in self._machine.rows:
            if "fault" not in row:
                known[row["uuid"]] = row
        found = [uuid for uuid in known if uuid.lower().startswith(word.lower())]
        exact = [uuid for uuid in found if uuid.lower() == word.lower()]
        if len(exact or found) != 1:
            what = f"fits {len(found)} GPUs: {', '.join(found)}" if found else "fits no GPU"
            raise self._fail(f"{about} {what}", "give more of the UUID" if found else "")
        (uuid,) = exact or found
        return self._named(known[uuid], uuid)

    def _named(self, row: Mapping[str, Any], uuid: str) -> Gpu:
        return self._usable(row) if uuid == row["uuid"] else _instance(row, uuid)

    def _by_pci(self, word: str) -> Gpu:
        wanted = _pci_key(word)
        for row in self._machine.rows:
            if "fault" not in row and _pci_key(row["pci"]) == wanted:
                return self._usable(row)
        raise self._fail(f"there is no GPU at PCI {word}")

    def _in_list(self, number: int, visible: str) -> Gpu:
        """Entry ``number`` of CUDA_VISIBLE_DEVICES. CUDA ends that list at its first bad entry."""
        words = [word.strip() for word in visible.split(",")] if visible.strip() else []
        good: list[Gpu] = []
        for word in words:
            try:
                if _UUID.fullmatch(word):
                    good.append(self._by_uuid(word, f"CUDA_VISIBLE_DEVICES: {word}"))
                elif _INDEX.fullmatch(word):
                    good.append(self._by_cuda_index(int(word)))
                else:
                    break
            except GpuError:
                break
            if len(good) > number:
                return good[number]
        raise self._fail(
            f"--ciq-gpu={number} counts in CUDA_VISIBLE_DEVICES={visible!r}, "
            f"which shows {len(good) or 'no'} GPU{'s' * (len(good) != 1)}",
            f"give a smaller number, nvml:{number}, or a UUID",
        )

    def _by_cuda_index(self, number: int) -> Gpu:
        """A number in CUDA_VISIBLE_DEVICES: fastest first, unless told to follow the PCI bus."""
        names = {row.get("name") for row in self._machine.rows}
        # CUDA does not count a card that may not be opened, and NVML does.
        closed = any("fault" in row for row in self._machine.rows)
        by_bus = self._env.get("CUDA_DEVICE_ORDER") == "PCI_BUS_ID"
        if not closed and (by_bus or len(names) == 1):
            return self._by_index(number, str(number))
        env = {k: v for k, v in self._env.items() if k != "CUDA_VISIBLE_DEVICES"}
        return self._in_cuda(number, env)

    def _by_cuda(self, number: int) -> Gpu:
        return self._in_cuda(number, self._env)

    def _in_cuda(self, number: int, env: Mapping[str, str]) -> Gpu:
        answer = GuardianClient.survey("cuda", env=env)
        order = answer["order"]
        if order is None:
            raise self._fail(
                f"CUDA does not say which GPU it calls {number}: {answer['why']}",
                "name it by UUID, or as nvml:N",
            )
        if number >= len(order):
            raise self._fail(f"there is no cuda:{number}: CUDA shows {len(order)}")
        for row in self._machine.rows:
            if "fault" in row:
                continue
            for uuid in [row["uuid"], *row["instances"]]:
                if _hex(uuid) == order[number]:
                    return self._named(row, uuid)
        raise self._fail(f"cuda:{number} has the UUID {order[number]}, which NVML does not list")


def _instance(row: Mapping[str, Any], uuid: str) -> Gpu:
    return Gpu(uuid, row["index"], f"{row['name']} MIG", row["pci"], row["uuid"])


def _pci_key(text: str) -> tuple[int, int, int]:
    *domain, bus, rest = text.split(":")
    return int(domain[0], 16) if domain else 0, int(bus, 16), int(rest.partition(".")[0], 16)


def _hex(uuid: str) -> str:
    return uuid[4:].replace("-", "").lower()


def cuda_environment(gpu: Gpu) -> dict[str, str]:
    """What a process that has not started CUDA needs in order to see this GPU and no other."""
    return {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": gpu.uuid}


def started_cuda() -> list[str] | None:
    """UUIDs (hexadecimal) of CUDA's devices if this process has started CUDA, else None.

    Neither loads nor initialises anything: cuDeviceGetCount answers 3 before cuInit.
    """
    import ctypes

    from pytest_compileiq.gpu.survey import devices

    try:
        cuda = ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
        return devices(cuda, initialise=False)
    except (OSError, RuntimeError, AttributeError):
        return None


def check_cuda(gpu: Gpu) -> None:
    """Raise GpuError if this process has already started CUDA with another GPU in first place."""
    order = started_cuda()
    if order is None or (order and order[0] == _hex(gpu.uuid)):
        return
    seen = f"on the GPU with UUID {order[0]}" if order else "without any GPU"
    raise GpuError(
        f"this process started CUDA {seen} before {gpu} was chosen; setting "
        "CUDA_VISIBLE_DEVICES now has no effect",
        remedy="start pytest with CUDA_VISIBLE_DEVICES set, or keep conftest files and imports "
        "from using CUDA while tests are collected",
    )


def on_started_cuda(gpus: Sequence[Gpu]) -> list[Gpu]:
    """Those of ``gpus`` that this process can still use: all, or the one CUDA was started on."""
    order = started_cuda()
    if order is None:
        return list(gpus)
    return [gpu for gpu in gpus if order and order[0] == _hex(gpu.uuid)]
