"""The worst that a kernel can do to a real GPU, in whole pytest runs.

On a machine with a GPU: ``pytest -s tests/gpu/test_real_isolation.py --ciq-gpu=0``. What CUDA
itself does in a child of the zygote is proven here and nowhere else.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

from pytest_compileiq import device
from pytest_compileiq.toolchain.ptxas import Ptxas, assemble
from tests.fake_nvml.machine import Machine
from tests.gpu import driver
from tests.isolation.conftest import Result, Suite

KERNELS = "from driver import NOWHERE, check, launch, wait\n"


def test_the_kernels_assemble(ptxas: Ptxas, tmp_path: Path) -> None:
    """Not one of the tests below is worth anything if its kernel does not load."""
    assert assemble(ptxas, driver.PTX, arch="sm_90a", timeout=60).cubin


class GpuSuite(Suite):
    """A suite that runs on the GPU that the tests were given."""

    def __init__(self, path: Path, uuid: str) -> None:
        super().__init__(path)
        shutil.copy(driver.__file__, path)
        self.uuid = uuid
        self.leases = path / "leases"
        self.leases.mkdir(mode=0o700)

    def on_gpu(self, *args: str, timeout: float = 180) -> Result:
        chosen = [f"--ciq-gpu={self.uuid}", f"--ciq-lease-dir={self.leases}"]
        return self.run(*chosen, "--ciq-clocks=observe", *args, timeout=timeout)


@pytest.fixture
def real(pytestconfig: pytest.Config, tmp_path: Path) -> Iterator[GpuSuite]:
    gpus = pytestconfig.stash.get(device.GPUS, ())
    if not gpus:
        pytest.skip("needs a real GPU: run with --ciq-gpu=SPEC")
    suite = GpuSuite(tmp_path, gpus[0].uuid)
    yield suite
    suite.kill()


@pytest.fixture
def fake(machine: Machine, tmp_path: Path) -> Iterator[GpuSuite]:
    """On the fake driver, whose kernels fail by the same codes: for the tests' own sake."""
    folder = tmp_path / "suite"
    folder.mkdir()
    suite = GpuSuite(folder, machine.uuid(0))
    yield suite
    suite.kill()


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.gpu)])
def gpu_suite(request: pytest.FixtureRequest) -> GpuSuite:
    suite: GpuSuite = request.getfixturevalue(request.param)
    return suite


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "n2"])
def test_an_illegal_address(gpu_suite: GpuSuite, workers: list[str]) -> None:
    """One failing report that names the arm; the tests after it find a GPU that works."""
    gpu_suite.write(
        test_a=KERNELS
        + f"""
def test_before(ciq): check(); assert os.environ["CUDA_VISIBLE_DEVICES"] == "{gpu_suite.uuid}"
def test_wild(ciq):
    progress("baseline", kernel="attn", check="win"); check()
    progress("best.acf"); launch("seven", NOWHERE); wait()
def test_after(ciq): check()
def test_nobody_waits(ciq):
    progress("O0", kernel="attn", check="canary"); launch("seven", NOWHERE)
def test_after_that(ciq): check()
def test_ordinary(): assert not inside()
"""
    )
    result = gpu_suite.on_gpu("-rA", *workers)
    assert result.counts == {"passed": 4, "failed": 2}, result.out
    text = "the CUDA context died of CUDA_ERROR_ILLEGAL_ADDRESS"
    wild = result.section("test_wild")
    assert f"isolated test crashed at arm best.acf of attn (win): {text}" in wild
    assert "RuntimeError: CUDA_ERROR_ILLEGAL_ADDRESS (700)" in wild
    assert f"crashed at arm O0 of attn (canary): {text}" in result.section("test_nobody_waits")


def test_a_kernel_that_never_ends(gpu_suite: GpuSuite, capsys: pytest.CaptureFixture[str]) -> None:
    """It is killed at the limit, waited for or not, and the GPU is free for the next test."""
    limit = 5
    gpu_suite.write(
        test_a=KERNELS
        + """
def test_before(ciq): check()
def test_spin(ciq):
    progress("O0", kernel="attn", check="canary")
    check(); launch("spin", 0); jot(f"start {time.time()}"); wait()
def test_after(ciq): jot(f"next {time.time()}"); check(); jot(f"usable {time.time()}")
def test_nobody_waits(ciq): progress("best.acf"); launch("spin", 0)
def test_after_that(ciq): check()
"""
    )
    result = gpu_suite.on_gpu("-rA", f"--ciq-timeout={limit}")
    assert result.counts == {"passed": 3, "failed": 2}, result.out
    text = f"no end after {limit} s, and its process was killed"
    assert f"hung at arm O0 of attn (canary): {text}" in result.section("test_spin")
    assert f"hung at arm best.acf: {text}" in result.section("test_nobody_waits")
    times = {word: float(number) for _, word, number in (jot.split() for jot in gpu_suite.jots)}
    ended, usable = times["next"] - times["start"], times["usable"] - times["next"]
    with capsys.disabled():
        print(f"\na spinning kernel: gone {ended:.2f} s after its launch (limit {limit} s), ")
        print(f"the next process had the GPU after {usable:.2f} s")
    assert ended < limit + 10


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("body", "poisoned"),
    [
        ("import driver; driver.start()", True),
        ("import torch; torch.zeros(1, device='cuda')", True),
        ("import torch; torch.cuda.get_device_capability()", True),
        ("import torch; assert torch.cuda.is_available()", False),
    ],
)
def test_cuda_at_import(real: GpuSuite, body: str, poisoned: bool) -> None:
    """Started there it is useless in every fork: seen, named, and worked around."""
    if "torch" in body and find_spec("torch") is None:
        pytest.skip("torch is not installed")
    use = "import torch; assert float(torch.ones(4, device='cuda').sum()) == 4"
    real.write(
        test_a="def test_0(ciq): pass\n",
        test_b=f"""
{body}
from driver import check
def test_1(ciq): check()
def test_2(ciq): {use if "torch" in body else "check()"}
""",
    )
    result = real.on_gpu()
    assert result.counts["passed"] == 3, result.out
    text = "CUDA was started while the tests were collected by test_b.py"
    assert (text in result.out) == poisoned, result.out


def test_the_module_that_starts_cuda_is_named(fake: GpuSuite) -> None:
    fake.write(
        test_a="def test_1(ciq): pass\n",
        test_b="import driver\ndriver.start()\ndef test_2(ciq): assert 'test_a' not in sys.modules\n",
        test_c="def test_3(ciq): pass\n",
    )
    out = fake.on_gpu().out
    assert "CUDA was started while the tests were collected by test_b.py, so each" in out
    assert "3 passed" in out


def test_cuda_that_is_only_loaded_spoils_nothing(fake: GpuSuite) -> None:
    fake.write(
        test_a="""
import ctypes, pynvml
pynvml.nvmlInit()
ctypes.CDLL("libcuda.so.1")
from driver import check
def test_1(ciq): check()
"""
    )
    out = fake.on_gpu().out
    assert "CUDA was started" not in out
    assert "1 passed" in out


TIMES = """
import pytest, time
TIMES = []
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item):
    start = time.perf_counter()
    yield
    TIMES.append((time.perf_counter() - start) * 1000)
    return True
def pytest_sessionfinish(): print("TIMES", *(f"{ms:.1f}" for ms in sorted(TIMES)))
"""


@pytest.mark.gpu
@pytest.mark.parametrize("module", ["driver", "torch"])
def test_what_a_child_costs(
    real: GpuSuite, module: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Printed: a test's time in pytest without CUDA, with its start, and with a first kernel."""
    if module == "torch" and find_spec("torch") is None:
        pytest.skip("torch is not installed")
    bodies = {
        "nothing": "pass",
        "CUDA started": "driver.start()" if module == "driver" else "torch.cuda.init()",
        "a kernel, checked": "driver.check()"
        if module == "driver"
        else "assert float(torch.ones(4, device='cuda').sum()) == 4",
    }
    rows = []
    for what, body in bodies.items():
        real.write(
            conftest=TIMES,
            test_a=f"import {module}\n@pytest.mark.parametrize('n', range(9))\n"
            f"def test_1(ciq, n): {body}\n",
        )
        result = real.on_gpu("-q", "-s")
        assert result.counts == {"passed": 9}, result.out
        found = re.search("TIMES (.*)", result.out)
        assert found is not None
        times = [float(text) for text in found[1].split()]
        rows.append(f"{module}, {what}: median {times[4]:.1f} ms, of 9 the slowest {times[8]:.1f}")
        assert times[4] < 3000
    with capsys.disabled():
        print("", *rows, sep="\n")
