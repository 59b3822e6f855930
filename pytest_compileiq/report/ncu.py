"""``--ciq-ncu``: one launch of the baseline and one with the ACF under Nsight Compute.

Nsight Compute has to start the process that it looks into. So after a kernel's win is judged, it
starts pytest anew on this one test, where ``ciq.check`` only builds both arms, launches each once
to warm up, and once between ``cuProfilerStart`` and ``cuProfilerStop``. Whatever goes wrong with
it is said, and the verdict stands.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_compileiq.checks import proof
from pytest_compileiq.errors import CiqError
from pytest_compileiq.report import github, ncu_csv
from pytest_compileiq.subjects.kernel import Arm, Workbench
from pytest_compileiq.toolchain import process
from pytest_compileiq.toolchain.acf import Acf
from pytest_compileiq.verdict import Check, Reason, Verdict

if TYPE_CHECKING:
    import pytest

    from pytest_compileiq.settings import Settings

#: Tells the pytest under Nsight Compute which kernel to launch.
TARGET = "PYTEST_CIQ_NCU_KERNEL"
#: Seconds for one kernel: seven on an H200 with Triton, process start included.
LIMIT = 120.0
#: Verdicts of a kernel that ran.
_RAN = (None, Reason.SLOWER, Reason.NO_WIN, Reason.NOISY, Reason.UNDECIDED)
_FORBIDDEN = "Nsight Compute may not read the GPU's counters (ERR_NVGPUCTRPERM)"
_ALLOW = (
    "give the container --cap-add=SYS_ADMIN, or load the driver's module with "
    "NVreg_RestrictProfilingToAdminUsers=0"
)


class NcuError(CiqError):
    """There is nothing to show; the text says why."""


@dataclass(frozen=True, slots=True)
class Ncu:
    """Nsight Compute beside the verdicts of one test.

    ``place`` is the test as an argument of pytest, ``arguments`` are those that the run has to
    repeat: the GPU, the ini file.
    """

    place: str
    arguments: tuple[str, ...]
    has_gpu: bool
    timeout: float = LIMIT

    @classmethod
    def of(cls, config: pytest.Config, place: str, settings: Settings) -> Ncu:
        """For a test at ``place``, as an argument of pytest, of a run with these settings."""
        arguments = ["--ciq-ncu", f"--rootdir={config.rootpath}"]
        if config.inipath is not None:
            arguments += ["-c", str(config.inipath)]
        if config.pluginmanager.hasplugin("xdist"):
            arguments += ["-n0"]  # the ini file's addopts may say otherwise
        if config.pluginmanager.hasplugin("html"):
            arguments += ["--html="]
        if config.pluginmanager.hasplugin("pytest_cov"):
            arguments += ["--no-cov"]
        if settings.ptxas is not None:
            arguments += [f"--ciq-ptxas={settings.ptxas}"]
        if settings.gpu is not None:
            # The one that this test holds, where the run has several.
            held = os.environ.get("CUDA_VISIBLE_DEVICES", "")
            alone = held.startswith(("GPU-", "MIG-")) and "," not in held
            arguments += [f"--ciq-gpu={held if alone else settings.gpu}"]
        return cls(place, tuple(arguments), settings.gpu is not None)

    def beside(self, verdict: Verdict, bench: object, acf: str | None) -> Verdict:
        """The verdict with ``numbers["ncu"]``, where it is about a kernel that ran."""
        if verdict.check is not Check.WIN or not isinstance(bench, Workbench):
            return verdict
        if verdict.reason not in _RAN:
            return verdict
        try:
            found: Mapping[str, object] = self._profile(verdict.kernel, acf or "ACF")
        except NcuError as error:
            found = {"unavailable": error.what, "remedy": error.remedy}
        return replace(verdict, numbers={**verdict.numbers, "ncu": found})

    @property
    def under_it(self) -> bool:
        """Is this the process that Nsight Compute has started?"""
        return TARGET in os.environ

    def wants(self, bench: Workbench) -> bool:
        """Under Nsight Compute: is this the kernel to be launched?"""
        return os.environ.get(TARGET) == bench.kernel.name

    def launch_arms(self, bench: Workbench, acf: Acf) -> None:
        """Under Nsight Compute: launch the baseline, then the ACF's build, once each.

        ``launch`` may load the module lazily, so each has run before the profiler looks. Both are
        built anew in this process, so arrival and effect are proven anew. Raises CiqError.
        """
        shown = proof.proven(bench, Arm(acf.name, acf))
        if shown.same_code:
            raise NcuError(f"{bench.kernel.name}: under Nsight Compute both arms are one code")
        launches = []
        for build in (shown.baseline, shown.build):
            if build.launch is None:
                raise NcuError(f"{bench.kernel.name}: its Build has no launch")
            launches.append(build.launch)
        for launch in launches:
            launch()
        cuda = ctypes.CDLL("libcuda.so.1")
        cuda.cuCtxSynchronize()
        for launch in launches:
            cuda.cuProfilerStart()
            launch()
            cuda.cuCtxSynchronize()
            cuda.cuProfilerStop()

    def _profile(self, kernel: str, acf: str) -> dict[str, object]:
        if not self.has_gpu:
            raise NcuError("nothing runs without a GPU", remedy="add --ciq-gpu=SPEC")
        program = find()
        with tempfile.TemporaryDirectory(prefix="ciq-ncu-") as folder:
            log = Path(folder) / "ncu.csv"
            run = command(program, log, self.place, self.arguments)
            env = {**os.environ, TARGET: kernel, "LC_ALL": "C", github.VARIABLE: ""}
            try:
                done = process.run(run, timeout=self.timeout, env=env)
            except OSError as error:
                raise NcuError(f"{program} cannot be started: {error.strerror}") from error
            if done.returncode is None:
                raise NcuError(
                    f"Nsight Compute did not end within {self.timeout:g} s",
                    remedy="profile a smaller problem; the verdict does not need it",
                )
            text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
        return {"acf": acf, "ncu": program, "kernels": _paired(text, done.output)}


def find() -> str:
    """The path of ncu: ``PATH``, then where CUDA and Nsight Compute are installed."""
    given = [os.environ[name] for name in ("CUDA_HOME", "CUDA_PATH") if os.environ.get(name)]
    cuda = [f"{folder}/bin" for folder in (*given, "/usr/local/cuda")]
    installed = sorted(Path("/opt/nvidia/nsight-compute").glob("*"), reverse=True)
    for folder in (None, *cuda, *map(str, installed)):
        if found := shutil.which("ncu", path=folder):
            return found
    places = ", ".join(["PATH", *cuda])
    raise NcuError(
        f"ncu is not installed: it is not in {places} or /opt/nvidia/nsight-compute",
        remedy="install Nsight Compute, or put its folder into PATH",
    )


def command(program: str, log: Path, place: str, arguments: Sequence[str]) -> list[str]:
    """The whole command line. Clocks stay as the test has locked them.

    Nothing that an ini file's addopts name is written to a second time, nor emptied.
    """
    return [
        program,
        "--clock-control=none",
        "--profile-from-start=off",
        "--target-processes=application-only",
        "--csv",
        "--page=raw",
        "--print-units=base",
        f"--metrics={','.join(ncu_csv.METRICS)}",
        f"--log-file={log}",
        *(sys.executable, "-m", "pytest", place, "-q", "-p", "no:cacheprovider"),
        *("--ciq-isolate=off", "--ciq-json=/dev/null", "--junitxml="),
        *(f"--basetemp={log.parent / 'tmp'}", *arguments),
    ]


def _paired(text: str, said: str) -> list[dict[str, object]]:
    """Each CUDA kernel of a launch with the metrics of both arms."""
    launches = ncu_csv.parse(text)
    if "ERR_NVGPUCTRPERM" in text or "ERR_NVGPUCTRPERM" in said:
        raise NcuError(_FORBIDDEN, remedy=_ALLOW)
    half = len(launches) // 2
    if not launches or len(launches) % 2:
        whole = f"{text}\n{said}".splitlines()
        marks = ("==ERROR==", "E  ", "ERROR")
        errors = [line.removeprefix("E").strip() for line in whole if line.startswith(marks)]
        last = errors[0] if errors else next((line for line in reversed(whole) if line.strip()), "")
        raise NcuError(
            f"Nsight Compute saw {len(launches)} launches, which is not one of each arm: {last}",
            remedy="see that the test, run alone, launches its kernel on the current CUDA context",
        )
    return [
        {"kernel": base.kernel, "baseline": base.metrics, "acf": tuned.metrics}
        for base, tuned in zip(launches[:half], launches[half:], strict=True)
    ]
