"""``--ciq-ncu`` with a stand-in for ncu and for libcuda: which launches it sees, and what it says."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_compileiq.report import github, ncu, ncu_csv
from pytest_compileiq.report.ncu import Ncu, NcuError
from pytest_compileiq.settings import OPTIONS, Settings
from pytest_compileiq.subjects.kernel import Build, Kernel, Workbench
from pytest_compileiq.toolchain.acf import load
from pytest_compileiq.toolchain.assembler import Assembler, Job
from pytest_compileiq.toolchain.ptxas import Assembled
from pytest_compileiq.verdict import Reason, Status, Verdict

from ..conftest import EXAMPLE, TINY, RunJson
from . import simulated as sim

#: As ncu 2025 writes them with --print-units base; one launch of each arm.
WIDE = """\
==PROF== Connected to process 4711 (/usr/bin/python3.12)
==PROF== Profiling "softmax_kernel": 0%....50%....100% - 9 passes
==PROF== Disconnected from process 4711
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed","gpu__time_duration.sum","launch__registers_per_thread","lts__throughput.avg.pct_of_peak_sustained_elapsed","sm__throughput.avg.pct_of_peak_sustained_elapsed","sm__warps_active.avg.pct_of_peak_sustained_active"
"","","","","","","","","","","","%","ns","register/thread","%","%","%"
"0","4711","python3.12","127.0.0.1","softmax_kernel","1","7","(128, 1, 1)","(8,192, 1, 1)","0","9.0","71.50","41,200.00","80","44.25","35.10","61.00"
"1","4711","python3.12","127.0.0.1","softmax_kernel","1","7","(128, 1, 1)","(8,192, 1, 1)","0","9.0","75.00","38,900.00","72","46.00","38.00","n/a"
"""
NO_PERMISSION = """\
==PROF== Connected to process 4711 (/usr/bin/python3.12)
==ERROR== ERR_NVGPUCTRPERM - The user does not have permission to access NVIDIA GPU Performance Counters on the target device 0.
"""


def test_a_line_a_launch_with_units_below_the_header() -> None:
    base, tuned = ncu_csv.parse(WIDE)
    assert base.kernel == "softmax_kernel"
    assert base.metrics == {
        "duration_seconds": pytest.approx(41.2e-6),
        "compute_throughput_percent": 35.1,
        "memory_throughput_percent": 71.5,
        "achieved_occupancy_percent": 61.0,
        "registers_per_thread": 80,
        "l2_throughput_percent": 44.25,
    }
    assert tuned.metrics["achieved_occupancy_percent"] is None
    assert tuned.metrics["registers_per_thread"] == 72


@pytest.mark.parametrize(
    ("unit", "seconds"),
    [("ns", 41.2e-6), ("nsecond", 41.2e-6), ("us", 0.0412), ("msecond", 41.2), ("second", 41_200),
     ("nanosecond", None), ("cycle", None), ("", None)],
)  # fmt: skip
def test_a_unit_of_time_that_is_unknown_is_no_second(unit: str, seconds: float | None) -> None:
    launch = ncu_csv.parse(WIDE.replace('"ns"', f'"{unit}"'))[0]
    assert launch.metrics["duration_seconds"] == (seconds and pytest.approx(seconds))
    assert launch.metrics["compute_throughput_percent"] == 35.1


@pytest.mark.parametrize(
    "text", ["", "no csv\nat all", NO_PERMISSION, '"ID","Kernel Name"\n"x","k"\n']
)
def test_no_launch_is_no_error(text: str) -> None:
    assert ncu_csv.parse(text) == []


def test_the_metrics_are_the_five_and_the_duration() -> None:
    assert [metric.label for metric in ncu_csv.METRICS.values()] == [
        "duration", "compute throughput", "memory throughput", "achieved occupancy",
        "registers a thread", "L2 throughput",
    ]  # fmt: skip


def test_the_terminal_shows_both_arms() -> None:
    base, tuned = ncu_csv.parse(WIDE)
    pair = {"kernel": base.kernel, "baseline": base.metrics, "acf": tuned.metrics}
    record = {"numbers": {"ncu": {"acf": "best.acf", "kernels": [pair]}}}
    assert ncu_csv.lines(record, "softmax") == [
        "--ciq-ncu: softmax, one launch of softmax_kernel",
        "                            baseline      best.acf    change",
        "  duration                   41.2 us       38.9 us     -5.6%",
        "  compute throughput          35.1 %          38 %     +8.3%",
        "  memory throughput           71.5 %          75 %     +4.9%",
        "  achieved occupancy            61 %             -",
        "  registers a thread              80            72    -10.0%",
        "  L2 throughput              44.25 %          46 %     +4.0%",
    ]
    assert ncu_csv.lines({"numbers": {}}, "softmax") == []


CONFTEST = """
import os, pathlib
from pytest_compileiq import Build, Kernel

def kernel():
    def build(acf):
        arm = "acf" if acf else "base"
        def launch():
            with open(os.environ["JOT"], "a") as file: file.write(f"launch {arm}\\n")
        return Build(launch=launch)
    return Kernel(build, name="softmax")
"""
TEST = """
import pytest
from conftest import kernel
from pytest_compileiq import Kernel

@pytest.mark.ciq_beats_baseline("best.acf")
def test_it(ciq):
    other = kernel()
    other.name = "other"
    ciq.check(other)
    ciq.check(kernel())
    raise RuntimeError("not reached by the profiled process")
"""
LIBCUDA = """
#include <stdio.h>
#include <stdlib.h>
static int jot(const char *what) {
    FILE *file = fopen(getenv("JOT"), "a");
    fprintf(file, "%s\\n", what);
    return fclose(file);
}
int cuCtxSynchronize(void) { return jot("synchronize"); }
int cuProfilerStart(void) { return jot("start"); }
int cuProfilerStop(void) { return jot("stop"); }
"""

FakeNcu = Callable[[str, str], None]


@pytest.fixture
def fake_ncu(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, script: Callable[[str, str], Path]
) -> FakeNcu:
    """An ncu in PATH that runs the command it is given and then writes a canned log."""
    compiler = shutil.which("cc") or pytest.skip("needs a C compiler")
    (pytester.path / "cuda.c").write_text(LIBCUDA)
    library = pytester.path / "libcuda.so.1"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, "cuda.c"], check=True)
    monkeypatch.setenv("LD_LIBRARY_PATH", str(pytester.path))
    monkeypatch.setenv("JOT", str(pytester.path / "jot"))
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

    def make(log: str, then: str = "") -> None:
        (pytester.path / "canned.csv").write_text(log)
        made = script(
            "ncu",
            f"""
            for word; do case $word in
                --log-file=*) log=${{word#*=}} ;;
            esac; done
            printf '%s\\n' "$@" > {pytester.path}/arguments
            while [ "${{1#--}}" != "$1" ]; do shift; done
            "$@"
            cp {pytester.path}/canned.csv "$log"
            {then}""",
        )
        monkeypatch.setenv("PATH", str(made.parent), prepend=os.pathsep)

    return make


@pytest.fixture
def bench(pytester: pytest.Pytester) -> Workbench:
    pytester.makeconftest(CONFTEST)
    pytester.makepyfile(test_it=TEST)
    (pytester.path / "best.acf").write_bytes(b"not read by this kernel")
    kernel = Kernel(lambda acf: Build(), name="softmax")
    return Workbench(kernel, None, pytester.path)  # type: ignore[arg-type]


def profiled(pytester: pytest.Pytester, bench: Workbench, **changes: Any) -> dict[str, Any]:
    place = f"{pytester.path}/test_it.py::test_it"
    one = replace(Ncu(place, ("--ciq-ncu",), has_gpu=True), **changes)
    verdict = one.beside(sim.win("softmax", speedup=1.06), bench, "best.acf")
    assert verdict.status is Status.PASS
    found = verdict.to_record("")["numbers"]
    assert isinstance(found, dict)
    assert found["speedup"] > 1
    shown = found["ncu"]
    assert isinstance(shown, dict)
    return shown


def test_each_arm_is_launched_once_under_the_profiler(
    pytester: pytest.Pytester, bench: Workbench, fake_ncu: FakeNcu
) -> None:
    fake_ncu(WIDE, "")
    shown = profiled(pytester, bench)
    (pair,) = shown["kernels"]
    assert pair["kernel"] == "softmax_kernel"
    assert pair["baseline"]["duration_seconds"] == pytest.approx(41.2e-6)
    assert pair["acf"]["registers_per_thread"] == 72
    assert (pytester.path / "jot").read_text().split("\n") == [
        *("launch base", "launch acf", "synchronize"),
        *("start", "launch base", "synchronize", "stop"),
        *("start", "launch acf", "synchronize", "stop"),
        "",
    ]
    arguments = (pytester.path / "arguments").read_text().splitlines()
    assert "--clock-control=none" in arguments
    assert f"--metrics={','.join(ncu_csv.METRICS)}" in arguments
    assert "--ciq-isolate=off" in arguments


def test_what_addopts_name_is_left_alone(
    pytester: pytest.Pytester,
    bench: Workbench,
    fake_ncu: FakeNcu,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The pytest under ncu reads the same ini file, and would empty the test's own tmp_path."""
    monkeypatch.setenv(github.VARIABLE, str(pytester.path / "summary.md"))
    addopts = ["--basetemp=base", "--junitxml=j.xml"]
    for plugin, option in (("pytest_html", "--html=r.html"), ("pytest_cov", "--cov=.")):
        if importlib.util.find_spec(plugin) is not None:
            addopts.append(option)
    pytester.makeini(f"[pytest]\naddopts = {' '.join(addopts)}")
    pytester.makepyfile(test_it=TEST.replace("(ciq):", "(ciq, tmp_path):"))
    (pytester.path / "base").mkdir()
    precious = pytester.path / "base" / "precious"
    precious.write_text("of the test that is being judged")
    fake_ncu(WIDE, "")
    config = pytester.parseconfig()
    settings = Settings({option.name: option.default for option in OPTIONS}, {})
    one = Ncu.of(config, f"{pytester.path}/test_it.py::test_it", settings)
    profiled(pytester, bench, place=one.place, arguments=one.arguments)
    assert "launch acf" in (pytester.path / "jot").read_text()
    assert precious.exists()
    for name in ("r.html", "j.xml", ".coverage", "summary.md"):
        assert not (pytester.path / name).exists(), name


SAME = """
import pathlib
from pytest_compileiq import Build, Kernel

def kernel():
    return Kernel(lambda acf: Build(pathlib.Path("k.cubin"), launch=int), name="softmax")
"""


@pytest.mark.parametrize("acf", ["", "best.acf"], ids=["baseline", "acf"])
def test_one_build_in_both_arms_is_not_shown_as_two(
    pytester: pytest.Pytester, bench: Workbench, fake_ncu: FakeNcu, assembler: Assembler, acf: str
) -> None:
    """Here the fake ncu's log has two launches, and they are of no two builds."""
    fake_ncu("", "")
    pytester.makeconftest(SAME)
    job = Job(TINY, "sm_90", load(EXAMPLE / acf) if acf else None)
    (answer,) = assembler.run_all([job])
    assert isinstance(answer, Assembled)
    (pytester.path / "k.cubin").write_bytes(answer.cubin)
    said = profiled(pytester, bench)["unavailable"]
    assert ("the baseline has an ACF applied" if acf else "never reached ptxas") in said


@pytest.mark.parametrize(
    ("log", "then", "says", "to_do"),
    [
        (NO_PERMISSION, "", "may not read the GPU's counters", "--cap-add=SYS_ADMIN"),
        ("", "", "saw 0 launches", "run alone"),
        ("\n".join(WIDE.splitlines()[:-1]), "", "saw 1 launches", "run alone"),
        ("", "sleep 60", "did not end within 5 s", "smaller problem"),
    ],
    ids=["permission", "nothing", "odd", "hangs"],
)
def test_what_goes_wrong_is_said(
    pytester: pytest.Pytester,
    bench: Workbench,
    fake_ncu: FakeNcu,
    log: str,
    then: str,
    says: str,
    to_do: str,
) -> None:
    fake_ncu(log, then)
    shown = profiled(pytester, bench, timeout=5.0 if then else 60.0)
    assert says in shown["unavailable"]
    assert to_do in shown["remedy"]
    (line,) = ncu_csv.lines({"numbers": {"ncu": shown}}, "softmax")
    assert line.endswith("; the verdict stands")


def test_an_absent_ncu_is_said(
    pytester: pytest.Pytester, bench: Workbench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ncu.shutil, "which", lambda name, path=None: None)
    assert "ncu is not installed" in profiled(pytester, bench)["unavailable"]
    with pytest.raises(NcuError, match="not in PATH"):
        ncu.find()


def test_a_kernel_that_did_not_run_is_not_profiled(bench: Workbench) -> None:
    failed = Verdict(
        check=sim.win("k", speedup=1.06).check,
        kernel="k",
        status=Status.FAIL,
        reason=Reason.CRASHED,
    )
    one = Ncu("t.py::t", (), has_gpu=True)
    assert one.beside(failed, bench, None) is failed
    assert one.beside(sim.cv("k"), bench, None).numbers.get("ncu") is None


def test_without_a_gpu_it_says_so_and_the_verdict_stands(
    sgemm: pytest.Pytester, run_json: RunJson
) -> None:
    sgemm.makepyfile(
        "import pytest\nfrom pytest_compileiq import PtxKernel\n"
        "@pytest.mark.ciq_beats_baseline('best.acf')\n"
        "def test(ciq): ciq.check(PtxKernel('sgemm.ptx', arch='sm_90'))"
    )
    result, (record,) = run_json("--ciq-ncu")
    result.assert_outcomes(passed=1)
    assert record["numbers"]["ncu"]["unavailable"] == "nothing runs without a GPU"
    result.stdout.fnmatch_lines(
        ["--ciq-ncu: sgemm: nothing runs without a GPU; to do: add --ciq-gpu=SPEC*"]
    )
