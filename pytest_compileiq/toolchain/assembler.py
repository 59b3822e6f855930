"""The session's ptxas: found once, run in parallel, never run twice for the same inputs."""

from __future__ import annotations

import functools
import hashlib
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from pytest_compileiq.errors import CiqError, ToolchainError
from pytest_compileiq.toolchain import ptxas as _ptxas
from pytest_compileiq.toolchain.acf import Acf, Staging
from pytest_compileiq.toolchain.cubin import Cubin
from pytest_compileiq.toolchain.ptxas import Assembled, Ptxas
from pytest_compileiq.verdict import Reason


@dataclass(frozen=True, slots=True)
class Job:
    """One run of ptxas. ``acf`` is None for the baseline."""

    ptx: str
    arch: str
    acf: Acf | None = None
    flags: tuple[str, ...] = ()


class Assembler:
    """Runs ptxas for a whole test session; create one, ``close`` it at the end.

    ``timeout`` is in seconds a run. With ``keep`` the staging folder, every PTX and every
    cubin stay after ``close``.
    """

    def __init__(
        self, *, explicit: Path | None = None, timeout: float = 60.0, keep: bool = False
    ) -> None:
        self._explicit = explicit
        self._timeout = timeout
        self.keep = keep
        self._answers: dict[tuple[str, ...], Assembled | CiqError] = {}

    @functools.cached_property
    def staging(self) -> Staging:
        return Staging()

    def ptxas(self) -> Ptxas:
        """The ptxas in use. Raises ToolchainError when there is none of 13.3 or newer.

        Looked up at every call, as tests change PATH and TRITON_PTXAS_PATH; only the version
        of each program is remembered.
        """
        return _ptxas.find(self._explicit)

    def other(self, code: Cubin) -> str | None:
        """Which ptxas has made this code, if it was another one than that in use."""
        made_by = code.tool_version or "one too old to say which"
        return None if made_by.endswith(f"V{self.ptxas()}") else made_by

    def run_all(self, jobs: Sequence[Job]) -> list[Assembled | CiqError]:
        """Run what is not known yet, as many at once as there are cores; answers in order."""
        ptxas = self.ptxas()
        keys = [self._key(ptxas, job) for job in jobs]
        new = {key: job for key, job in zip(keys, jobs, strict=True) if key not in self._answers}
        for job in new.values():
            if job.acf is not None:
                self.staging.path(job.acf)  # before the threads: one writer for each file
        if new:
            with ThreadPoolExecutor(min(len(new), _cores())) as pool:
                answers = pool.map(lambda job: self._run(ptxas, job), new.values())
                self._answers.update(zip(new, answers, strict=True))
        found = [self._answers[key] for key in keys]
        for key, answer in zip(keys, found, strict=True):
            # A crash or a hang may not come again: a rerun of the test deserves a new try.
            if isinstance(answer, ToolchainError) and answer.reason is not Reason.UNFIT:
                self._answers.pop(key, None)
        return found

    def _run(self, ptxas: Ptxas, job: Job) -> Assembled | CiqError:
        try:
            return _ptxas.assemble(
                ptxas,
                job.ptx,
                arch=job.arch,
                acf=None if job.acf is None else self.staging.path(job.acf),
                flags=job.flags,
                timeout=self._timeout,
                keep=self.staging.folder if self.keep else None,
            )
        except CiqError as error:
            return error

    @staticmethod
    def _key(ptxas: Ptxas, job: Job) -> tuple[str, ...]:
        stat = ptxas.path.stat()
        return (
            str(ptxas.path),
            f"{stat.st_mtime_ns}:{stat.st_size}",
            hashlib.sha256(job.ptx.encode()).hexdigest(),
            job.arch,
            "" if job.acf is None else job.acf.sha256,
            *job.flags,
        )

    @property
    def kept(self) -> Path | None:
        """The folder that stays after ``close``, once there is anything in it."""
        return self.staging.folder if self.keep and "staging" in self.__dict__ else None

    def close(self) -> None:
        """Remove the staging folder, unless it is to be kept."""
        if "staging" in self.__dict__ and not self.keep:
            self.staging.remove()


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
