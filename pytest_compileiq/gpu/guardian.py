"""The process that owns the clock lock of one GPU and undoes it when pytest dies, however it dies.

Started by ``guardian_client`` as ``python -I -S`` in a session of its own, with one JSON argument.
It talks in lines of JSON over stdin and stdout. It holds the lease's descriptor, and closes it
last: nobody may take the GPU before its clocks are back. Only SIGKILL ends it early; then lease and
journal tell the next guardian what to reset.
"""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time

from pytest_compileiq.gpu import card as _card
from pytest_compileiq.gpu import journal
from pytest_compileiq.gpu.card import Card
from pytest_compileiq.gpu.lock import Lock, OutOfRange
from pytest_compileiq.gpu.nvml import LOST, RESET_REQUIRED, Fault, Nvml

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

_IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)
_SETTLE_S = 0.25
_SCAN_EVERY_S = 0.5
_MOST_SAMPLES = 50_000


class Parent:
    """The process whose death ends this one, seen by pidfd: a forked orphan may keep the pipe."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        try:
            self.fd = os.pidfd_open(pid)
        except (OSError, AttributeError):
            self.fd = -1  # Linux before 5.3: poll getppid() instead

    @property
    def alive(self) -> bool:
        if self.fd >= 0:
            poll = select.poll()
            poll.register(self.fd, select.POLLIN)
            if poll.poll(0):
                return False
        return os.getppid() == self._pid

    @property
    def look_again_s(self) -> float:
        return 1.0 if self.fd >= 0 else 0.1


class Guardian:
    """Serves one card until asked to quit, the pipe closes, or the parent dies."""

    def __init__(self, config: dict[str, Any], parent: Parent) -> None:
        self._root = int(config["parent"])
        self._parent = parent
        self._interval_s = 0.0
        self._due = self._scan_due = 0.0
        self._samples: list[list[Any]] = []
        self._seen: dict[tuple[int, str], dict[str, Any]] = {}
        self.card = Card(Nvml(), config["uuid"])
        folder = config.get("folder_fd")
        self._lock = None
        self.ready: dict[str, Any] = {"recovered": None, "stale": None}
        if folder is not None and config["may_lock"]:
            self._lock = Lock(self.card, folder, config["owner"])
            self.ready["recovered"] = self._lock.recover()
        elif folder is not None:
            self.ready["stale"] = journal.read(folder, self.card.uuid)
        self.ready.update(facts=self.card.facts(), trusted=_card.initial_pid_namespace())

    def serve(self) -> None:
        poll = select.poll()
        poll.register(0, select.POLLIN | select.POLLHUP)
        if self._parent.fd >= 0:
            poll.register(self._parent.fd, select.POLLIN)
        rest = b""
        while True:
            ready = dict(poll.poll(self._wait_ms()))
            self._sample_if_due()
            if self._parent.fd in ready or (not ready and not self._parent.alive):
                break
            if 0 not in ready:
                continue
            data = os.read(0, 65536)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            if not all(self._answer(json.loads(line)) for line in lines):
                break

    def restore(self) -> dict[str, Any]:
        if self._lock is None:
            return {"restored": True, "codes": {}}
        codes = self._lock.undo() if self._lock.held else {}
        return {"restored": not self._lock.held, "codes": codes}

    # Requests

    def _answer(self, request: dict[str, Any]) -> bool:
        """Answer one request; False after the last one."""
        op: str = request.pop("op")
        number = request.pop("id")
        try:
            reply = getattr(self, f"_do_{op}")(**request)
        except Fault as fault:
            reply = {"fault": fault.as_dict()}
        except OutOfRange as error:
            reply = {"out_of_range": str(error)}
        except OSError as error:
            reply = {"os_error": error.strerror}
        say(self._parent, {"id": number, **reply})
        return op != "quit"

    def _do_lock(self, sm: str | int) -> dict[str, Any]:
        if self._lock is None:
            raise RuntimeError("this guardian was started to observe")
        answer = self._lock.take(sm)
        if answer["refused"] is None:
            answer.update(self.card.settle(answer["sm_mhz"], _SETTLE_S))
        return answer

    def _do_quit(self) -> dict[str, Any]:
        return self.restore()

    def _do_reset_all(self) -> dict[str, Any]:
        if self._lock is None:
            raise RuntimeError("this guardian was started to observe")
        codes = self._lock.reset_all()
        return {"restored": not any(codes.values()), "codes": codes}

    def _do_watch(self, interval_s: float) -> dict[str, Any]:
        self._interval_s = interval_s
        self._due = self._scan_due = time.monotonic()
        return {}

    def _do_mark(self) -> dict[str, Any]:
        self.card.faults.clear()
        snapshot = self.card.snapshot(self._root)
        for name, code in self.card.faults.items():
            if code in (LOST, RESET_REQUIRED):
                raise Fault(code, name, "GPU is lost" if code == LOST else "GPU requires restart")
        self._remember(snapshot["processes"])
        if self._interval_s:
            self._samples.append(snapshot["sample"])
        return {**snapshot, "faults": dict(self.card.faults)}

    def _do_samples(self, since: float, until: float) -> dict[str, Any]:
        return {
            "samples": [s for s in self._samples if since <= s[0] <= until],
            "processes": [
                p for p in self._seen.values() if p["first"] <= until and p["last"] >= since
            ],
        }

    # Watching

    def _wait_ms(self) -> float:
        wait = self._parent.look_again_s
        if self._interval_s:
            wait = min(wait, max(0.0, self._due - time.monotonic()))
        return wait * 1000

    def _sample_if_due(self) -> None:
        now = time.monotonic()
        if not self._interval_s or now < self._due:
            return
        self._samples.append(self.card.sample())
        if len(self._samples) > _MOST_SAMPLES:  # a test of many minutes: thin out, keep its span
            del self._samples[::2]
            self._interval_s *= 2
        if now >= self._scan_due:
            self._remember(self.card.processes(self._root))
            self._scan_due = now + _SCAN_EVERY_S
        self._due = time.monotonic() + self._interval_s

    def _remember(self, processes: list[dict[str, Any]]) -> None:
        now = time.monotonic()
        for process in processes:
            key = (process["pid"], process["kind"])
            known = self._seen.setdefault(key, {**process, "first": now})
            known["last"] = now


def say(parent: Parent, message: dict[str, Any]) -> None:
    """Send one line; give up when the parent is gone, even if an orphan keeps the pipe open."""
    data = (json.dumps(message) + "\n").encode()
    poll = select.poll()
    poll.register(1, select.POLLOUT)
    while data and parent.alive:
        if not poll.poll(100):
            continue
        try:
            data = data[os.write(1, data) :]
        except BlockingIOError:
            continue
        except OSError:
            return


def main(argument: str) -> None:
    """Run until the work is done. ``argument`` is the JSON object that ``guardian_client`` makes."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    config = json.loads(argument)
    parent = Parent(int(config["parent"]))
    os.set_blocking(1, False)
    if not parent.alive:
        os._exit(3)
    try:
        if "uuid" in config:
            guardian = Guardian(config, parent)
            say(parent, {"event": "ready", "pid": os.getpid(), **guardian.ready})
        else:
            say(parent, {"event": "ready", **survey(config)})
            return
    except Fault as fault:
        say(parent, {"event": "failed", "fault": fault.as_dict()})
        os._exit(2)
    except OSError as error:
        say(parent, {"event": "failed", "os_error": str(error)})
        os._exit(2)
    try:
        guardian.serve()
    finally:
        guardian.restore()  # a second time after "quit", which then has nothing left to do
    # Without the interpreter's clean-up: the lease closes now, with the process.
    sys.stdout.flush()
    os._exit(0)


def survey(config: dict[str, Any]) -> dict[str, Any]:
    from pytest_compileiq.gpu import survey as _survey

    if config["survey"] == "machine":
        return _survey.machine(config["lookups"])
    try:
        return {"order": _survey.cuda_order()}
    except (OSError, RuntimeError) as error:
        return {"order": None, "why": str(error)}
