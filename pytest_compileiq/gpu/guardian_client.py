"""The pytest side of the guardian: start it, ask it with a deadline, give up on it when it hangs."""

from __future__ import annotations

import importlib.machinery
import json
import os
import select
import shlex
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pytest_compileiq.errors import GpuError
from pytest_compileiq.verdict import Reason

if TYPE_CHECKING:
    from pytest_compileiq.gpu.lease import Lease

#: Seconds. With persistence off the driver may load first, which takes long on big machines.
START_DEADLINE_S, CALL_DEADLINE_S, QUIT_DEADLINE_S = 60.0, 10.0, 5.0

_ROOT = Path(__file__).resolve().parents[2]
# The folder of pynvml goes in after our own package is loaded, so that neither shadows the other.
_BOOT = """import sys
sys.path.append({root!r})
import pytest_compileiq.gpu.guardian as guardian
sys.path[-1:] = [{pynvml!r}, {root!r}]
guardian.main(sys.argv[1])"""

#: Guardians that would not die: kept, so that no one waits for them and none warns about them.
_abandoned: list[subprocess.Popen[bytes]] = []

#: Followed by the folder, as the command does not read pytest's ini file.
_RESET = "python -m pytest_compileiq reset-clocks"

_CURES = {
    -1: "pip uninstall pynvml nvidia-ml-py3 nvidia-ml-py, then pip install nvidia-ml-py",
    4: "ask for access to the device nodes /dev/nvidia*; in a container, pass the GPU in",
    9: "load NVIDIA's driver; in a container, start it with the NVIDIA runtime",
    12: "install NVIDIA's driver, or run without --ciq-gpu: the static tier needs no GPU",
    15: "see the kernel log for an Xid; the card comes back with a reset or a reboot",
    16: "the card needs a reset by the machine's administrator",
    17: "under WSL this is done on the Windows host",
    18: "the driver was upgraded under a running kernel module: reboot, or reload the module",
    999: "in a container this follows a daemon-reload that took the device away: restart it",
}


def _state_of(pid: int) -> str:
    """The kernel's letter for what a process does: D waits in a driver, T is stopped."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return "?"


def find_pynvml() -> Path | None:
    """The file that ``import pynvml`` would run, without importing it.

    Only sys.path is searched: the finder that the old package pynvml 12 and 13 installs beside
    nvidia-ml-py warns at each look-up, an error under ``-W error``.
    """
    spec = importlib.machinery.PathFinder.find_spec("pynvml")
    return None if spec is None or spec.origin is None else Path(spec.origin)


class DriverError(GpuError):
    """NVML answered with an error; ``code`` is its nvmlReturn_t, ``call`` its function."""

    def __init__(self, fault: Mapping[str, Any], about: str) -> None:
        self.code, self.call = int(fault["code"]), str(fault["call"])
        number = f" ({self.code})" if self.code >= 0 else ""
        super().__init__(
            f"{about}: {fault['text']}{number}",
            looked_at=[self.call],
            remedy=_CURES.get(self.code, "run `python -m pytest_compileiq doctor`"),
        )


class HungError(GpuError):
    """NVML did not come back in time. Nothing in pytest waits for it any longer."""

    default_reason = Reason.HUNG


class LostError(GpuError):
    """The guardian died before its time."""


class JournalError(GpuError):
    """The journal cannot be written or removed; without one nothing is locked."""


def reset_command(folder: Path | None) -> str:
    """What to type to undo by hand what was left locked, with the folder of its journal."""
    return _RESET if folder is None else f"{_RESET} --ciq-lease-dir={shlex.quote(str(folder))}"


class GuardianClient:
    """A running guardian. ``ready`` is its first message. Close it, or use it as a context.

    Belongs to the process that started it: in a forked child every request raises GpuError.
    """

    def __init__(
        self,
        uuid: str,
        *,
        lease: Lease | None = None,
        may_lock: bool = False,
        start_deadline_s: float = START_DEADLINE_S,
        call_deadline_s: float = CALL_DEADLINE_S,
    ) -> None:
        """Start a guardian for the GPU and wait until it is ready.

        With ``lease`` it inherits the lease, and with ``may_lock`` it resets at once what a
        former guardian's journal names. Raises DriverError, HungError, LostError.
        """
        config: dict[str, Any] = {"uuid": uuid, "may_lock": may_lock, "folder_fd": None}
        fds: tuple[int, ...] = ()
        self._folder = None if lease is None else lease.folder
        self._may_lock = may_lock
        if lease is not None:
            fds = (lease.fd, lease.folder_fd)
            config["folder_fd"] = lease.folder_fd
            config["owner"] = {
                "pid": os.getpid(), "host": socket.gethostname(), "test": lease.label,
            }  # fmt: skip
        self._about = uuid
        self._call_deadline_s = call_deadline_s
        self._start(config, fds)
        self.ready = self._first(start_deadline_s)

    @classmethod
    def survey(
        cls, what: str, *, env: Mapping[str, str] | None = None, lookups: list[str] | None = None,
        deadline_s: float = START_DEADLINE_S,
    ) -> dict[str, Any]:  # fmt: skip
        """One answer about the machine, from a process that ends with it. Raises GpuError."""
        link = cls.__new__(cls)
        link._about = "NVML"
        link._folder, link._may_lock = None, False
        link._call_deadline_s = deadline_s
        link._start({"survey": what, "lookups": lookups or []}, (), env)
        try:
            return link._first(deadline_s)
        finally:
            link._end(1.0)

    def _start(
        self, config: dict[str, Any], fds: tuple[int, ...], env: Mapping[str, str] | None = None
    ) -> None:
        origin = find_pynvml()
        if origin is None:
            raise GpuError(
                "the module pynvml is not installed, so no GPU can be asked anything",
                remedy="pip install nvidia-ml-py",
            )
        folder = origin.parent.parent if origin.name == "__init__.py" else origin.parent
        boot = _BOOT.format(root=str(_ROOT), pynvml=str(folder))
        self._pid = os.getpid()
        self._number = 0
        self._rest = b""
        self._said = ""
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed by _end
        self.process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", boot, json.dumps({**config, "parent": self._pid})],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            pass_fds=fds,
            # Ctrl-C goes to pytest's process group; the guardian must outlive it to clean up.
            start_new_session=True,
            cwd="/",
            env=None if env is None else dict(env),
        )

    def _first(self, deadline_s: float) -> dict[str, Any]:
        try:
            message = self._receive(deadline_s)
        except GpuError:
            raise
        except BaseException:
            self._leave()
            raise
        if message.get("event") == "ready":
            return message
        self._end(1.0)
        if "fault" in message:
            raise DriverError(message["fault"], f"{self._about} cannot be used")
        raise GpuError(f"{self._about} cannot be used: {message.get('os_error')}")

    def ask(self, op: str, *, deadline_s: float | None = None, **args: Any) -> dict[str, Any]:
        """Send a request and wait for its answer, in seconds. Raises DriverError and so on."""
        if os.getpid() != self._pid:
            raise GpuError(
                "the guardian of this GPU belongs to the process that forked this one",
                remedy="open a Monitor in this process",
            )
        self._number += 1
        request = {"id": self._number, "op": op, **args}
        assert self.process.stdin is not None
        try:
            os.write(self.process.stdin.fileno(), (json.dumps(request) + "\n").encode())
        except (BrokenPipeError, ValueError):
            raise self._lost() from None
        end = time.monotonic() + (self._call_deadline_s if deadline_s is None else deadline_s)
        while True:
            reply = self._receive(max(0.0, end - time.monotonic()))
            # An interrupted request leaves its answer in the pipe: skip it.
            if reply.get("id") == self._number:
                break
        if "fault" in reply:
            raise DriverError(reply["fault"], f"{self._about}: {op} failed")
        if "out_of_range" in reply:
            raise GpuError(
                reply["out_of_range"], remedy="choose base, max or a clock in that range"
            )
        if "os_error" in reply:
            journal = f"{self._about}.json in the lease folder {self._folder}"
            outcome = {"lock": "nothing was locked: ", "quit": "the clocks are reset: "}
            raise JournalError(
                f"{outcome.get(op, '')}the journal {journal} cannot be written or removed "
                f"({reply['os_error']})",
                remedy="see who owns it and whether the disk is full, or name another folder with "
                "--ciq-lease-dir",
            )
        return reply

    def _receive(self, deadline_s: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        fd = self.process.stdout.fileno()
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        end = time.monotonic() + deadline_s
        while b"\n" not in self._rest:
            if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
                pid, state = self.process.pid, _state_of(self.process.pid)
                self._end(0.0)
                if state == "T":
                    raise HungError(
                        f"{self._about}: the guardian was stopped by a signal, and has not "
                        f"answered for {deadline_s:.3g} s",
                        looked_at=[f"process {pid}"],
                        remedy="let it run: only SIGSTOP, a debugger or a freezer does that",
                    )
                raise HungError(
                    f"{self._about}: NVML has not answered for {deadline_s:.3g} s",
                    looked_at=[f"process {pid}, in state {state}"],
                    remedy="nothing here can end a call that hangs in the driver; see the kernel "
                    "log, keep tests off this GPU, and reboot if nvidia-smi hangs as well",
                )
            data = os.read(fd, 1 << 16)
            if not data:
                raise self._lost()
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        message: dict[str, Any] = json.loads(line)
        return message

    def _lost(self) -> LostError:
        self._end(0.5)
        status = self.process.returncode
        if self._may_lock:
            remedy = reset_command(self._folder)
        elif status is not None and status < 0:
            remedy = "it only read, so nothing is left behind; see the kernel log for who killed it"
        else:
            remedy = "it only read, so nothing is left behind; report what it said as a fault"
        return LostError(
            f"the guardian of {self._about} died (exit status {status})",
            looked_at=[repr(self._said)] if self._said else [],
            remedy=remedy,
        )

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def close(self, deadline_s: float = QUIT_DEADLINE_S) -> dict[str, Any]:
        """Ask it to restore the clocks and quit; its answer has ``restored`` and ``codes``.

        Returns when the process, and with it its share of the lease, is gone. Raises HungError
        when it does not answer in ``deadline_s`` seconds, LostError when it died before.
        """
        if os.getpid() != self._pid:
            return {"restored": True, "codes": {}}  # the child of a fork owns nothing here
        try:
            answer = self.ask("quit", deadline_s=deadline_s)
        except GpuError:
            self._end(1.0)
            raise
        except BaseException:
            self._leave()
            raise
        self._end(1.0)
        return answer

    def _leave(self) -> None:
        """Go without waiting, on a second Ctrl-C: it restores the clocks at the end of the pipe."""
        self._close()
        _abandoned.append(self.process)

    def _close(self) -> None:
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        if not self._errors.closed:
            self._errors.seek(0)
            self._said = self._errors.read().decode(errors="replace").strip()[-400:]
            self._errors.close()

    def _end(self, grace_s: float) -> None:
        """Wait for the process to end, then kill it; never wait for one stuck in the driver."""
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                pipe.close()
        for patience_s in (grace_s, 0.5):
            try:
                self.process.wait(patience_s)
                break
            except subprocess.TimeoutExpired:
                self.process.kill()
        else:
            _abandoned.append(self.process)
        self._close()

    def __enter__(self) -> GuardianClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
