"""All GPUs of the machine, and the order in which CUDA sees them; in a process of its own."""

from __future__ import annotations

import ctypes

from pytest_compileiq.gpu.nvml import Fault, Nvml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


def machine(lookups: list[str]) -> dict[str, Any]:
    """Driver and GPUs in NVML's order. A card that may not be opened has a ``fault``.

    ``lookups`` are full UUIDs of MIG instances: in a container they may be open to us while
    their parent, and with it the list of its instances, is not.
    """
    library = Nvml()
    answer: dict[str, Any] = {"driver": None, "cuda": None, "gpus": [], "lookups": []}
    answer["driver"] = _maybe(library, "nvmlSystemGetDriverVersion")
    answer["cuda"] = _maybe(library, "nvmlSystemGetCudaDriverVersion_v2")
    for index in range(library.call("nvmlDeviceGetCount")):
        try:
            answer["gpus"].append(_card(library, index))
        except Fault as fault:
            answer["gpus"].append({"index": index, "fault": fault.as_dict()})
    for uuid in lookups:
        try:
            answer["lookups"].append(_lookup(library, uuid))
        except Fault:
            continue
    return answer


def _maybe(library: Nvml, name: str) -> Any:
    try:
        return library.call(name)
    except Fault:
        return None


def _lookup(library: Nvml, uuid: str) -> dict[str, Any]:
    handle = library.call("nvmlDeviceGetHandleByUUID", uuid)
    parent = library.call("nvmlDeviceGetDeviceHandleFromMigDeviceHandle", handle)
    return {
        "index": library.call("nvmlDeviceGetIndex", parent),
        "uuid": library.call("nvmlDeviceGetUUID", parent),
        "name": library.call("nvmlDeviceGetName", parent),
        "pci": _text(library.call("nvmlDeviceGetPciInfo", parent).busId),
        "mig": True,
        "instances": [uuid],
    }


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _card(library: Nvml, index: int) -> dict[str, Any]:
    handle = library.call("nvmlDeviceGetHandleByIndex", index)
    row: dict[str, Any] = {
        "index": index,
        "uuid": library.call("nvmlDeviceGetUUID", handle),
        "name": library.call("nvmlDeviceGetName", handle),
        "pci": _text(library.call("nvmlDeviceGetPciInfo", handle).busId),
        "mig": False,
        "instances": [],
    }
    try:
        row["mig"] = bool(library.call("nvmlDeviceGetMigMode", handle)[0])
    except Fault:
        return row  # a card without MIG says NOT_SUPPORTED
    if row["mig"]:
        row["instances"] = _instances(library, handle)
    return row


def _instances(library: Nvml, handle: Any) -> list[str]:
    found = []
    for number in range(library.call("nvmlDeviceGetMaxMigDeviceCount", handle)):
        try:
            instance = library.call("nvmlDeviceGetMigDeviceHandleByIndex", handle, number)
        except Fault:
            continue  # a slot without an instance
        found.append(library.call("nvmlDeviceGetUUID", instance))
    return found


def cuda_order() -> list[str]:
    """UUIDs as CUDA numbers its devices under the environment of this process.

    Raises OSError without libcuda.so.1, RuntimeError when the driver answers with an error.
    """
    cuda = ctypes.CDLL("libcuda.so.1")
    return devices(cuda, initialise=True)


def devices(cuda: ctypes.CDLL, *, initialise: bool) -> list[str]:
    """The UUIDs of CUDA's devices, hexadecimal without prefix. Creates no context."""
    count, device = ctypes.c_int(), ctypes.c_int()
    text = ctypes.create_string_buffer(16)
    if initialise:
        _check(cuda.cuInit(0), "cuInit")
    _check(cuda.cuDeviceGetCount(ctypes.byref(count)), "cuDeviceGetCount")
    # The second version tells MIG instances apart; the first gives their parent's UUID.
    uuid_of = getattr(cuda, "cuDeviceGetUuid_v2", None) or cuda.cuDeviceGetUuid
    found = []
    for number in range(count.value):
        _check(cuda.cuDeviceGet(ctypes.byref(device), number), "cuDeviceGet")
        _check(uuid_of(text, device), "cuDeviceGetUuid")
        found.append(text.raw.hex())
    return found


def _check(code: int, call: str) -> None:
    if code:
        raise RuntimeError(f"{call} answered {code}")
