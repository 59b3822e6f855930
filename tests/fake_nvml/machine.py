"""One fake machine with GPUs: build its libraries, set its state, read its log.

``Machine`` maps the same file as the C libraries, so ``machine.gpus[0].busy = 1`` is seen at
once by every process of the test. The layout is read from ``state.h``, not repeated here.
"""

from __future__ import annotations

import ctypes
import mmap
import re
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
MAGIC = 0xC1C0DE03
ANY_GPU = 99
FOREVER = 2**40
SET, RESET = "nvmlDeviceSetGpuLockedClocks", "nvmlDeviceResetGpuLockedClocks"
SET_MEMORY, RESET_MEMORY = "nvmlDeviceSetMemoryLockedClocks", "nvmlDeviceResetMemoryLockedClocks"
CLOCK_CALLS = (SET, RESET, SET_MEMORY, RESET_MEMORY)
#: What ``verify`` has looked through in this process.
AUDIT: Counter[str] = Counter()
_MUTATING = re.compile(r"nvmlDevice(Set|Reset|Clear)")

_HEADER = (HERE / "state.h").read_text()
_LIMITS = dict(re.findall(r"(MAX_\w+|TEXT) = (\d+)", _HEADER))


def _numbers(macro: str) -> list[tuple[str, Any]]:
    body = re.search(rf"#define {macro}\(X\)((?:.*\\\n)*.*)", _HEADER)
    assert body is not None
    code = re.sub(r"/\*.*?\*/", "", body[1], flags=re.DOTALL)
    return [(name, ctypes.c_uint64) for name in re.findall(r"X\((\w+)\)", code)]


_Text = ctypes.c_char * int(_LIMITS["TEXT"])


class _Proc(ctypes.Structure):
    _fields_ = _numbers("PROC_NUMBERS")


class _Rule(ctypes.Structure):
    _fields_ = [("fn", _Text), *_numbers("RULE_NUMBERS")]


class _Gpu(ctypes.Structure):
    _fields_ = [
        *[(name, _Text) for name in ("uuid", "name", "bus")],
        ("mig_uuid", _Text * int(_LIMITS["MAX_MIG"])),
        *_numbers("GPU_NUMBERS"),
        ("proc", _Proc * int(_LIMITS["MAX_PROCS"])),
    ]


class _State(ctypes.Structure):
    _fields_ = [
        *_numbers("MACHINE_NUMBERS"),
        ("driver", _Text),
        ("client", ctypes.c_uint64 * int(_LIMITS["MAX_CLIENTS"])),
        ("rule", _Rule * int(_LIMITS["MAX_RULES"])),
        ("gpu", _Gpu * int(_LIMITS["MAX_GPUS"])),
    ]


def build(folder: Path, *, hide: Sequence[str] = ()) -> Path:
    """Compile both libraries into ``folder``. ``hide`` drops symbols, as an older driver would."""
    folder.mkdir(parents=True, exist_ok=True)
    compiler = shutil.which("gcc") or "gcc"
    for source, name in (("fake_nvml.c", "libnvidia-ml.so.1"), ("fake_cuda.c", "libcuda.so.1")):
        command = [compiler, "-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror"]
        command += [f"-Wl,-soname,{name}", "-o", str(folder / name), str(HERE / source)]
        if hide and source == "fake_nvml.c":
            script = folder / "hidden.map"
            script.write_text(f"{{ local: {'; '.join(hide)}; }};\n")
            command.append(f"-Wl,--version-script={script}")
        subprocess.run(command, check=True)
    size = ctypes.CDLL(str(folder / "libnvidia-ml.so.1")).fake_sizeof_state
    size.restype = ctypes.c_uint64
    assert size() == ctypes.sizeof(_State)
    return folder


@dataclass(frozen=True, slots=True)
class Call:
    """One line of the log; ``ns`` is CLOCK_MONOTONIC, ``ret`` -1 stands for a call on its way."""

    ns: int
    pid: int
    fn: str
    gpu: int
    a: int
    b: int
    ret: int

    @property
    def mutates(self) -> bool:
        return _MUTATING.match(self.fn) is not None


class Machine:
    """A machine with ``gpus`` fake H100s. ``admin``: whether its processes may set clocks.

    ``asked`` names the GPUs whose clocks a test may touch; ``verify`` asserts it from the log.
    """

    def __init__(
        self,
        path: Path,
        libraries: Path,
        *,
        gpus: int = 2,
        admin: bool = True,
        asked: Sequence[int] = (0,),
    ) -> None:
        self.path = path
        self.libraries = libraries
        self.asked = set(asked)
        path.write_bytes(bytes(ctypes.sizeof(_State)))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), ctypes.sizeof(_State))
        self.state = _State.from_buffer(self._map)
        self.state.ngpu, self.state.admin = gpus, int(admin)
        self.state.driver, self.state.cuda_version = b"615.71.00", 13000
        for index in range(gpus):
            self._furnish(index)
        self.state.magic = MAGIC

    def _furnish(self, index: int) -> None:
        gpu = self.state.gpu[index]
        gpu.uuid = f"GPU-{index:08x}-1111-2222-3333-444455556666".encode()
        gpu.name = b"NVIDIA Fake H100"
        gpu.bus = f"00000000:{0x10 + index:02X}:00.0".encode()
        gpu.mig_count = 2
        for k in range(int(_LIMITS["MAX_MIG"])):
            gpu.mig_uuid[k].value = f"MIG-{index:04x}{k:04x}-aaaa-bbbb-cccc-ddddeeeeffff".encode()
        gpu.persist = gpu.can_lgc = gpu.can_lmc = gpu.can_symbolic = 1
        gpu.idle_mhz, gpu.boost_mhz, gpu.base_mhz = 345, 1980, 1095
        gpu.low_mhz, gpu.step_mhz, gpu.app_mhz = 210, 15, 1410
        gpu.nmem, gpu.mem0_mhz, gpu.mem1_mhz = 2, 2619, 1593
        gpu.temp, gpu.power_mw, gpu.limit_mw = 41, 72_000, 700_000

    @property
    def gpus(self) -> Any:
        return self.state.gpu

    def uuid(self, index: int = 0) -> str:
        return str(self.gpus[index].uuid.decode())

    def mig_uuid(self, index: int = 0, instance: int = 0) -> str:
        return str(self.gpus[index].mig_uuid[instance].value.decode())

    def locks(self, index: int = 0) -> tuple[int, int, int, int]:
        """(SM min, SM max, memory min, memory max) in MHz, zeros without a lock."""
        gpu = self.gpus[index]
        return gpu.lgc_min, gpu.lgc_max, gpu.lmc_min, gpu.lmc_max

    @property
    def free(self) -> bool:
        return not any(any(self.locks(index)) for index in range(self.state.ngpu))

    def rule(
        self, fn: str, ret: int = 0, *, gpu: int = ANY_GPU, times: int = FOREVER, delay_ms: int = 0
    ) -> None:
        """Make the next ``times`` calls of ``fn`` slow, or answer ``ret``."""
        rule = self.state.rule[self.state.nrule]
        rule.fn, rule.gpu, rule.ret, rule.left = fn.encode(), gpu, ret, times
        rule.delay_ms = delay_ms
        self.state.nrule += 1

    def clear_rules(self) -> None:
        self.state.nrule = 0

    def add_process(self, pid: int, *, kind: int = 0, mem: int = 1 << 30, gpu: int = 0) -> None:
        """A process that NVML lists: kind 0 compute, 1 graphics, 2 MPS."""
        card = self.gpus[gpu]
        entry = card.proc[card.nproc]
        entry.pid, entry.kind, entry.mem = pid, kind, mem
        card.nproc += 1

    def power_cap(self, mhz: int, *, gpu: int = 0) -> None:
        """Cap the clock from now on; its counter grows with time. 0 ends it."""
        card, now = self.gpus[gpu], time.monotonic_ns()
        if card.pcap_mhz:
            card.pcap_ns += now - card.pcap_since
        card.pcap_since, card.pcap_mhz = now, mhz

    @contextmanager
    def load(self, gpu: int = 0) -> Iterator[None]:
        self.gpus[gpu].busy = 1
        try:
            yield
        finally:
            self.gpus[gpu].busy = 0

    def env(self, *, admin: bool | None = None) -> dict[str, str]:
        """What a process needs to live on this machine, to be laid over its environment."""
        env = {"LD_LIBRARY_PATH": str(self.libraries), "FAKE_NVML_STATE": str(self.path)}
        if admin is not None:
            env["FAKE_NVML_ADMIN"] = str(int(admin))
        return env

    def log(self, *names: str) -> list[Call]:
        """All calls in order, or those of the functions named."""
        path = Path(f"{self.path}.log")
        if not path.exists():
            return []
        calls = []
        for line in path.read_text().splitlines():
            ns, pid, fn, *rest = line.split()
            if not names or fn in names:
                calls.append(Call(int(ns), int(pid), fn, *map(int, rest)))
        return calls

    def changes(self) -> list[Call]:
        return [call for call in self.log() if call.mutates]

    def verify(self) -> int:
        """Assert what must hold of every log of the suite; returns the number of changes seen."""
        changes = self.changes()
        strangers = [call for call in changes if call.gpu not in self.asked]
        assert not strangers, f"a clock call for a GPU that was not asked for: {strangers}"
        others = [call for call in changes if call.fn not in CLOCK_CALLS]
        assert not others, f"a state other than a clock was changed: {others}"
        observers = {call.pid for call in self.log("observer") if call.fn == "observer"}
        tried = [call for call in changes if call.pid in observers]
        assert not tried, f"a guardian that was started to observe changed something: {tried}"
        self._verify_resets(changes)
        AUDIT.update(machines=1, calls=len(self.log()), changes=len(changes))
        return len(changes)

    def _verify_resets(self, changes: Sequence[Call]) -> None:
        """Between two successful Sets of different processes on one GPU lies a Reset."""
        for setter, resetter in ((SET, RESET), (SET_MEMORY, RESET_MEMORY)):
            owner: dict[int, int] = {}
            for call in changes:
                if call.ret:
                    continue
                if call.fn == setter:
                    before = owner.get(call.gpu)
                    assert before in (None, call.pid), f"set twice without a reset: {call}"
                    owner[call.gpu] = call.pid
                elif call.fn == resetter:
                    owner.pop(call.gpu, None)

    def start_new_log(self) -> None:
        """Check the log so far, then begin an empty one: for tests of many rounds."""
        self.verify()
        Path(f"{self.path}.log").unlink()
