"""Triton on a real GPU: ``pytest tests/triton/test_gpu.py --ciq-gpu=0``."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

pytest.importorskip("triton", reason="tox -e triton brings it")
pytest.importorskip("torch", reason="needs torch")

import torch

from pytest_compileiq.checks import correctness
from pytest_compileiq.gpu import stream
from pytest_compileiq.subjects.kernel import BASELINE, Arm, Build, Workbench
from pytest_compileiq.toolchain.acf import Acf
from pytest_compileiq.toolchain.assembler import Assembler
from pytest_compileiq.verdict import Reason
from tests.conftest import ROOT
from tests.triton import kernels, support, test_traps

# The same traps, on the driver and the tensors of a GPU in the place of ours.
from tests.triton.test_traps import (  # noqa: F401
    at,
    test_a_new_cache_folder_alone,
    test_always_compile_alone,
    test_an_option_in_the_environment_that_comes_too_late,
    test_new_content_at_the_same_path,
)

pytestmark = pytest.mark.gpu
EXAMPLES = ROOT / "examples" / "triton"


def waves(**more: Any) -> Any:
    return support.waves(args=(torch.zeros(4096, device="cuda"), 4096), **more)


@pytest.fixture
def as_on_h200(
    ciq_gpu: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ptxas: Any
) -> Iterator[None]:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        monkeypatch.setenv(name, str(ptxas.path))
    monkeypatch.setattr(test_traps, "waves", waves)
    kernels.waves.device_caches.clear()
    yield
    kernels.waves.device_caches.clear()


BASELINE_UNDER_A_GLOBAL_OPTION = """
import torch
from pytest_compileiq.toolchain import cubin
from tests.triton import kernels
from tests.triton.test_gpu import waves

x = torch.zeros(4096, device="cuda")
made = kernels.waves[(4,)](x, 4096, BLOCK=1024, num_warps=4)
print("TRITON", cubin.read(made.asm["cubin"]).controls())
build = waves().build(None)
build.launch()
torch.cuda.synchronize()
print("PLUGIN", build.code.controls())
"""


def test_a_baseline_under_a_global_option(
    ciq_gpu: object,
    at: Path,  # noqa: F811
    best: Acf,
    ptxas: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    at.write_bytes(best.content)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("PTXAS_OPTIONS", f"--apply-controls={at}")
    for name in ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH"):
        monkeypatch.setenv(name, str(ptxas.path))
    command = [sys.executable, "-c", BASELINE_UNDER_A_GLOBAL_OPTION]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"TRITON ['{at}']", "PLUGIN []"]


# Launches


@pytest.mark.usefixtures("ciq_gpu")
def test_results_are_checked_on_both_arms(assembler: Assembler, best: Acf) -> None:
    x = torch.linspace(0, 1e-4, 4096, device="cuda")
    start = x.clone()
    right = start.clone()
    for _ in range(8):
        right = torch.exp(right) * torch.sin(right) + right

    def check() -> None:
        # In place: what a second launch starts from has to be put back.
        torch.testing.assert_close(x, right, rtol=1e-3, atol=1e-3)
        x.copy_(start)

    kernel = support.waves(args=(x, 4096), check=check)
    bench = Workbench(kernel, assembler, Path())
    for arm in (BASELINE, Arm("best.acf", best)):
        for when in ("before timing", "after timing"):
            assert correctness.fault_of(bench, arm, when=when) is None
    x += 1
    fault = correctness.fault_of(bench, BASELINE)
    assert fault is not None
    assert fault.reason is Reason.UNFIT


@pytest.mark.usefixtures("ciq_gpu")
def test_a_new_seat_runs_on_buffers_elsewhere(assembler: Assembler) -> None:
    x = torch.linspace(0, 1e-4, 4096, device="cuda")
    kernel = support.waves(args=(x, 4096))
    (made,) = kernel.build_all([BASELINE], assembler, Path())
    assert isinstance(made, Build)
    assert made.load is not None
    assert made.launch is not None
    places = [kernel.place(Random(seed)) for seed in range(4)]
    for place in places:
        made.load(place)()
    stream.synchronize()
    made.launch()
    stream.synchronize()
    assert all(torch.equal(place[0], x) for place in places)
    assert len({place[0].data_ptr() % (2 << 20) for place in places}) == 4


# Whole sessions


Session = Callable[..., tuple[str, list[dict[str, Any]]]]


@pytest.fixture
def session(request: pytest.FixtureRequest, tmp_path: Path) -> Session:
    """Run test files with this run's GPU; returns the output and the verdicts."""
    spec = request.config.getoption("--ciq-gpu")
    if spec is None:
        pytest.skip("needs a GPU: run with --ciq-gpu=SPEC")

    def run(text: str, *args: str) -> tuple[str, list[dict[str, Any]]]:
        (tmp_path / "test_inner.py").write_text(text)
        report = tmp_path / "report.json"
        command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-rA", *args]
        command += [f"--ciq-gpu={spec}", f"--ciq-json={report}", "--rootdir", str(tmp_path)]
        done = subprocess.run(
            [*command, "test_inner.py"], cwd=tmp_path, capture_output=True, text=True, timeout=300
        )
        return done.stdout + done.stderr, json.loads(report.read_text())["records"]

    return run


HEAD = f"""
import sys
sys.path.insert(0, {str(EXAMPLES)!r})
import pytest, triton_inputs
from pytest_compileiq import TritonKernel

def kernel(name):
    case = getattr(triton_inputs, name)(on_gpu=True)
    return TritonKernel(
        case.kernel, grid=case.grid, args=case.args, constexprs=case.constexprs,
        outputs=case.outputs, check=case.check, **case.options,
    )
"""


def test_an_acf_of_random_bytes_is_rejected(session: Session, tmp_path: Path) -> None:
    (tmp_path / "random.acf").write_bytes(Random(1).randbytes(2400))
    out, records = session(
        HEAD
        + """
@pytest.mark.ciq_beats_baseline("random.acf")
def test_random(ciq):
    ciq.check(kernel("softmax"))
"""
    )
    assert [record["reason"] for record in records] == ["rejected"], out


def test_an_acf_that_reads_illegal_memory_is_a_crash_of_its_arm(
    session: Session, tmp_path: Path
) -> None:
    crash = EXAMPLES / "crash.acf"
    if not crash.exists():
        pytest.skip("needs examples/triton/crash.acf, which a search may find")
    (tmp_path / "crash.acf").write_bytes(crash.read_bytes())
    out, records = session(
        HEAD
        + """
@pytest.mark.ciq_beats_baseline("crash.acf")
def test_1(ciq):
    ciq.check(kernel("attention"))

@pytest.mark.ciq_canary
def test_2(ciq):
    ciq.check(kernel("attention"))
"""
    )
    (first,) = [record for record in records if record["nodeid"].endswith("test_1")]
    assert first["reason"] == "crashed", out
    assert "crash.acf" in first["message"], out
    assert re.search(r"PASSED \S*test_2", out), out


def test_a_whole_test_takes_at_most_three_seconds(session: Session, tmp_path: Path) -> None:
    """Child, CUDA's start, two builds, checks: the difference between four tests and one."""
    text = """
@pytest.mark.parametrize("run", range({}))
def test_it(ciq, run):
    assert ciq.compare(kernel("softmax"), "softmax.acf").verdict.status == "pass"
"""
    (tmp_path / "softmax.acf").write_bytes((EXAMPLES / "softmax.acf").read_bytes())
    seconds = []
    for tests in (1, 4):
        began = time.monotonic()
        out, _ = session(HEAD + text.format(tests))
        seconds.append(time.monotonic() - began)
        assert f"{tests} passed" in out, out
    print(f"{(seconds[1] - seconds[0]) / 3:.2f} s a test")
    assert (seconds[1] - seconds[0]) / 3 <= 3.0
