"""What was started before the fork, and harms the forked: threads, torch's pool, CUDA."""

from __future__ import annotations

import re
import subprocess
from importlib.util import find_spec

import pytest

from .conftest import Suite, needs


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "n2"])
def test_60_items_with_busy_threads(suite: Suite, workers: list[str]) -> None:
    """xdist's worker has execnet's threads; the test module starts three, two of them busy."""
    suite.write(
        test_a="""
import logging, threading
log = logging.getLogger("busy"); log.addHandler(logging.NullHandler())
def busy():
    while True: log.info("x"); bytearray(100_000); time.sleep(0)
for target in busy, busy, lambda: time.sleep(1000):
    threading.Thread(target=target, daemon=True).start()
@pytest.mark.limit(20)
@pytest.mark.parametrize("n", range(60))
def test_1(ciq, n, tmp_path):
    import colorsys, queue
    log.error("x"); print("x"); threading.Thread(target=print).start()
    assert threading.active_count() <= 2
    (tmp_path / "x").write_text("x"); queue.Queue().put(1)
"""
    )
    result = suite.run(*workers, "-q", timeout=180)
    assert result.counts["passed"] == 60, result.out
    assert "failed" not in result.counts
    assert "3 other threads ran when isolated tests' server was forked" in result.out


def test_many_sessions_with_busy_threads(suite: Suite) -> None:
    """The only fork of a process that has threads is the zygote's: once a session and worker."""
    suite.write(
        test_a="""
import logging, threading
log = logging.getLogger("busy"); log.addHandler(logging.NullHandler())
def busy():
    while True: log.info("x"); bytearray(100_000); time.sleep(0)
for target in busy, busy: threading.Thread(target=target, daemon=True).start()
@pytest.mark.limit(20)
def test_1(ciq, tmp_path): log.error("x"); print("x")
"""
    )
    for _ in range(8):
        assert suite.run("-q").counts["passed"] == 1


def test_a_lock_that_was_held_at_the_fork(suite: Suite) -> None:
    """A limit of every fork: the test hangs, and its report shows where and why."""
    suite.write(
        test_a="""
import threading
lock = threading.Lock()
def holder():
    with lock: time.sleep(2)
threading.Thread(target=holder, daemon=True, name="keeper").start()
time.sleep(0.1)
@pytest.mark.limit(1)
def test_1(ciq):
    with lock: pass
"""
    )
    result = suite.run("-q")
    assert result.counts["failed"] == 1
    assert "isolated test hung: no end after 1 s" in result.section("test_1")
    assert re.search(r'test_a.py", line \d+ in test_1', result.section("test_1"))
    assert "(keeper): a lock that one of them held hangs a test" in result.out


@needs("numpy")
def test_numpy_s_pool(suite: Suite) -> None:
    suite.write(
        test_a="""
import numpy as np
A = np.ones((600, 600)); A @ A
@pytest.mark.limit(20)
@pytest.mark.parametrize("n", range(10))
def test_1(ciq, n): assert (A @ A)[0, 0] == 600
"""
    )
    assert suite.run("-q").counts == {"passed": 10}


# Stand-ins for torch, as the zygote sees it: so these run without torch, too.
FAKE_TORCH = """
import os
MAIN = os.getpid()
class _C:
    @staticmethod
    def _cuda_isInBadFork(): return BAD and os.getpid() != MAIN
    BAD = False
BAD = {bad}
THREADS = 8
def set_num_threads(n): global THREADS; THREADS = n
def ones(n):
    if {hangs} and THREADS > 1 and os.getpid() != MAIN:
        import time; time.sleep(100)
"""
USE_TORCH = """
import torch
@pytest.mark.limit(20)
@pytest.mark.parametrize("n", range(2))
def test_1(ciq, n):
    torch.ones(10); print("threads", torch.THREADS); jot(torch._C._cuda_isInBadFork())
def test_2(): pass
"""


def test_torch_s_pool_is_detected(suite: Suite) -> None:
    (suite.path / "torch.py").write_text(FAKE_TORCH.format(bad=False, hangs=True))
    suite.write(test_a=USE_TORCH)
    result = suite.run("-rP")
    assert result.counts == {"passed": 3, "warning": 1}, result.out
    assert result.out.count("threads 1\n") == 2
    assert "torch had started CPU threads while the tests were collected" in result.out


def test_torch_that_works_is_left_alone(suite: Suite) -> None:
    (suite.path / "torch.py").write_text(FAKE_TORCH.format(bad=False, hangs=False))
    suite.write(test_a=USE_TORCH)
    result = suite.run("-rP")
    assert result.counts == {"passed": 3}
    assert result.out.count("threads 8\n") == 2


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "n2"])
def test_cuda_that_a_test_module_starts(suite: Suite, workers: list[str]) -> None:
    """The zygote that was forked before the collection takes over, and a warning says why."""
    (suite.path / "torch.py").write_text(FAKE_TORCH.format(bad=True, hangs=False))
    suite.write(
        test_a="""
import torch
MAIN_IMPORT = jot("import")
@pytest.fixture(scope="module", autouse=True)
def m(): jot("up"); yield; jot("down")
@pytest.mark.parametrize("n", ["a/b", "c::d", "[x]"])
def test_1(ciq, n, tmp_path): assert inside() and not torch._C._cuda_isInBadFork()
def test_2(): assert not inside()
def test_3(ciq): progress("best.acf"); os._exit(1)
class TestIt:
    def test_4(self, ciq): x = 2; assert x == 3, f"{1 + 1}"
""",
        # An assertion in a module of another name is rewritten, too.
        checks="def test_5(ciq): a = [1]; assert a == [2]\n",
        conftest="""
import logging
def pytest_runtest_logreport(report): jot(f"{report.when} {report.outcome}")
""",
    )
    args = ("test_a.py", "checks.py", "-o", "log_cli=true")
    result = suite.run(*args, *workers)
    assert result.counts == {"passed": 4, "failed": 3, "warning": 1 + bool(workers)}, result.out
    assert "isolated test crashed at arm best.acf" in result.section("test_3")
    assert "assert [1] == [2]" in result.section("test_5")
    assert "CUDA was started while the tests were collected, so each isolated test" in result.out
    assert suite.jots.count("child import") == 5
    assert suite.jots.count("main import") == 1 + bool(workers)
    assert suite.jots.count("main call passed") >= 4


def test_poison_in_two_folders_with_one_basename(suite: Suite) -> None:
    """The item is found again by its path, wherever pytest was started."""
    (suite.path / "torch.py").write_text(FAKE_TORCH.format(bad=True, hangs=False))
    (suite.path / "sub").mkdir()
    suite.write(test_a="import torch\ndef test_1(ciq): jot('top')\n")
    (suite.path / "sub" / "test_b.py").write_text(
        "import torch\nfrom suite_support import jot\ndef test_1(ciq): jot('sub')\n"
    )
    result = suite.run("--rootdir=.", "sub/test_b.py", "test_a.py::test_1", "-k", "test_1")
    assert result.counts == {"passed": 2, "warning": 1}, result.out
    assert suite.jots == ["child sub", "child top"]


@pytest.mark.parametrize("isolate", ["require", "auto"])
def test_cuda_that_a_conftest_starts(suite: Suite, isolate: str) -> None:
    """No zygote can be early enough: require fails, auto runs in pytest's process and says so."""
    (suite.path / "torch.py").write_text(FAKE_TORCH.format(bad=True, hangs=False))
    suite.write(
        conftest="""
import torch
def pytest_collection(session):
    session.config.pluginmanager.getplugin("compileiq-isolation").mode = MODE
""".replace("MODE", repr(isolate)),
        test_a="""
@pytest.mark.ciq_objective
def test_1(ciq): jot('ran'); ciq.check(lambda config: "*" if config else 1.0)
def test_2(): pass
""",
    )
    result = suite.run("--ciq-json=x.json")
    if isolate == "auto":
        assert result.counts == {"passed": 2, "warning": 1}
        assert "tests are not isolated, a crash ends the run: CUDA was started" in result.out
        assert suite.jots == ["main ran"]
    else:
        assert result.counts == {"passed": 1, "error": 1}
        assert "unfit: --ciq-isolate=require: CUDA was started before any server" in result.out
        assert "move what asks the GPU at import" in result.section("ERROR at setup of test_1")
        assert '"reason": "unfit"' in (suite.path / "x.json").read_text()
        assert not suite.jots


@needs("torch")
@pytest.mark.parametrize(
    ("body", "warned"),
    [("A = torch.empty(1000, 1000)", False), ("A = torch.ones(1000, 1000); A @ A", True)],
)
def test_real_torch_s_pool(suite: Suite, body: str, warned: bool) -> None:
    """After one parallel operation at collection, libgomp hangs in every fork: one thread."""
    suite.write(
        test_a=f"""
import torch
{body}
@pytest.mark.limit(30)
@pytest.mark.parametrize("n", range(2))
def test_1(ciq, n):
    A.fill_(1.0); assert (A @ A)[0, 0] == 1000
    x = torch.ones(500, 500, requires_grad=True); (x @ x).sum().backward()
    print("threads", torch.get_num_threads())
"""
    )
    result = suite.run("-q", "-rP")
    assert result.counts["passed"] == 2
    assert ("torch had started CPU threads" in result.out) == warned
    assert ("threads 1\n" in result.out) == warned, result.out


@pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")
@pytest.mark.parametrize(
    ("call", "poisoned"),
    [("is_available()", False), ("device_count()", False), ("get_device_capability()", True)],
)
def test_real_torch_s_cuda_at_collection(suite: Suite, call: str, poisoned: bool) -> None:
    """torch's CUDA build without a GPU, and a stub of NVML that reports one."""
    import torch

    if not torch.version.cuda:
        pytest.skip("a CPU build of torch")
    (suite.path / "nvml.c").write_text(
        "int nvmlInit(void){return 0;} int nvmlDeviceGetCount_v2(int *n){*n = 1; return 0;}"
    )
    command = ["cc", "-shared", "-fPIC", "-o", "libnvidia-ml.so.1", "nvml.c"]
    subprocess.run(command, check=True, cwd=suite.path)
    suite.write(
        test_a=f"""
import torch
try: torch.cuda.{call}
except RuntimeError: pass
def test_1(ciq): assert not torch._C._cuda_isInBadFork()
"""
    )
    result = suite.run("-q", env={"LD_LIBRARY_PATH": str(suite.path)})
    assert result.counts["passed"] == 1
    assert ("CUDA was started while" in result.out) == poisoned, result.out


@pytest.mark.parametrize(("isolate", "set_"), [("require", True), ("auto", False), ("off", False)])
def test_torch_asks_nvml_for_devices(suite: Suite, isolate: str, set_: bool) -> None:
    suite.write(
        conftest="jot(os.environ.get('PYTORCH_NVML_BASED_CUDA_CHECK'))\n",
        test_a="def test_1(ciq): pass\n",
    )
    suite.run(isolate=isolate)
    assert suite.jots == [f"main {'1' if set_ else None}"]
    suite.jot_file.unlink()
    suite.run(isolate=isolate, env={"PYTORCH_NVML_BASED_CUDA_CHECK": "0"})
    assert suite.jots == [f"main {'0'}"]
