"""Watch one GPU while something runs on it: a window of time becomes Evidence."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from pytest_compileiq.errors import GpuError
from pytest_compileiq.gpu.clocks import ClockState
from pytest_compileiq.gpu.evidence import Evidence, Sample, busy_before, judge
from pytest_compileiq.gpu.guardian_client import GuardianClient
from pytest_compileiq.gpu.identity import Gpu

INTERVAL_S = 0.02


class Window:
    """A stretch of time being watched; ``evidence`` is there once it is over."""

    def __init__(self) -> None:
        self._evidence: Evidence | None = None

    @property
    def evidence(self) -> Evidence:
        if self._evidence is None:
            raise GpuError("the window is still open", remedy="read .evidence after its `with`")
        return self._evidence


class Monitor:
    """Samples a GPU from a process of its own, every ``interval_s`` seconds. A context manager.

    ``clocks`` is what the readings are compared with; without it nothing is taken as locked.
    ``link`` is a guardian that already serves this GPU; without it one is started to observe.
    Windows may overlap. Raises GpuError.
    """

    def __init__(
        self,
        gpu: Gpu,
        clocks: ClockState | None = None,
        *,
        link: GuardianClient | None = None,
        interval_s: float = INTERVAL_S,
    ) -> None:
        self.gpu = gpu
        self._clocks = clocks
        self._given = link
        self._link: GuardianClient | None = None
        self._interval_s = interval_s
        self._before = ""
        self.notes: tuple[str, ...] = ()

    def __enter__(self) -> Monitor:
        link = self._given or GuardianClient(self.gpu.uuid)
        self._link = link
        try:
            first = link.ask("mark")
            self._before, note = busy_before(first, own_context=_own_context(first))
            self.notes = (note,) if note else ()
            link.ask("watch", interval_s=self._interval_s)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        link, self._link = self._link, None
        if link is None:
            return
        if self._given is not None:
            if link.alive:
                link.ask("watch", interval_s=0.0)
            return
        with suppress(GpuError):  # it only read: nothing depends on how it ended
            link.close()

    @property
    def clocks(self) -> ClockState:
        if self._clocks is not None:
            return self._clocks
        facts: dict[str, Any] = {} if self._link is None else self._link.ready["facts"]
        return ClockState(
            locked=False,
            requested="none",
            why="not locked by this run",
            max_mhz=facts.get("max_mhz"),
            step_mhz=facts.get("step_mhz"),
            notes=self.notes,
        )

    def reasons(self, since: float) -> int:
        """Clock event reasons, as NVML's mask, seen from ``since`` (time.monotonic()) on.

        The last sample before ``since`` counts, too. Raises GpuError.
        """
        if self._link is None:
            raise GpuError("this monitor is not running", remedy="use it as a context manager")
        until = time.monotonic()
        seen = self._link.ask("samples", since=since - 10 * self._interval_s, until=until)
        samples = [Sample(*one) for one in seen["samples"]]
        before = [one for one in samples if one.t <= since]
        mask = 0
        for one in (*before[-1:], *samples[len(before) :]):
            mask |= one.reasons or 0
        return mask

    @contextmanager
    def window(self) -> Iterator[Window]:
        """Watch what runs inside the ``with``; then the window has its evidence.

        An error inside goes through, and the window then has evidence if the GPU still answers.
        """
        link = self._link
        if link is None:
            raise GpuError("this monitor is not running", remedy="use it as a context manager")
        window = Window()
        start = link.ask("mark")
        failed = True
        try:
            yield window
            failed = False
        finally:
            try:
                window._evidence = self._evidence(link, start)
            except GpuError:
                if not failed:
                    raise

    def _evidence(self, link: GuardianClient, start: dict[str, Any]) -> Evidence:
        end = link.ask("mark")
        seen = link.ask("samples", since=start["sample"][0], until=end["sample"][0])
        return judge(
            [Sample(*sample) for sample in seen["samples"]],
            start=start,
            end=end,
            processes=seen["processes"],
            state=self.clocks,
            trusted=link.ready["trusted"],
            before=self._before,
        )


def _own_context(snapshot: dict[str, Any]) -> bool:
    """Whether this process has already used the GPU: then past utilisation is our own."""
    if any(process["relation"] == "ours" for process in snapshot["processes"]):
        return True
    try:
        targets = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
    except OSError:
        return False
    return "/dev/nvidia-uvm" in targets
