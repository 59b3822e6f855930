"""One test for each of the 41 ways, taken from bug reports, in which GPU clock locks fail.

The numbers are those of the project's failure table; the sources stand with each test. Endings of
whole pytest processes are in test_endings.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_compileiq.errors import GpuError
from pytest_compileiq.gpu import clocks as _clocks
from pytest_compileiq.gpu import identity
from pytest_compileiq.gpu.clocks import ClockState, LockRefused, RestoreError, guarded
from pytest_compileiq.gpu.evidence import Condition, Evidence
from pytest_compileiq.gpu.guardian_client import DriverError, GuardianClient, HungError
from pytest_compileiq.gpu.identity import Gpu
from pytest_compileiq.gpu.lease import Lease
from pytest_compileiq.gpu.monitor import Monitor
from pytest_compileiq.gpu.session import Held, acquire
from pytest_compileiq.verdict import Reason
from tests.fake_nvml.machine import RESET, RESET_MEMORY, SET, SET_MEMORY, Machine
from tests.gpu.conftest import NewMachine, gpu_of
from tests.gpu.sessions import Session, gone, guardian_of, until

ENOUGH_S = 0.35  # a load long enough for readings to settle and to be believed


@pytest.fixture
def hold(gpu: Gpu, folder: Path) -> object:
    """Hold the GPU: ``with hold(mode=..., sm_mhz=...) as held``."""

    @contextmanager
    def hold(**options: object) -> Iterator[Held]:
        options = {"sm_mhz": 1500, **options}
        with acquire([gpu], folder=folder, label="a test", timeout_s=10, **options) as held:  # type: ignore[arg-type]
            yield held

    return hold


def under_load(machine: Machine, held: Held, seconds: float = ENOUGH_S) -> Evidence:
    with held.window() as window, machine.load():
        time.sleep(seconds)
    return window.evidence


def journals(folder: Path) -> list[Path]:
    return list(folder.glob("*.json"))


def write_journal(folder: Path, machine: Machine, **content: object) -> Path:
    path = folder / f"{machine.uuid()}.json"
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    path.write_text(
        json.dumps({"version": 1, "boot_id": boot, "domains": {"sm": [1500, 1500]}, **content})
    )
    return path


def run_pytest(machine: Machine, leases: Path, folder: Path, source: str, *args: str) -> Session:
    session = Session(machine, leases, folder, source, *args)
    session.wait()
    return session


def test_row_01_killed_tool_leaves_no_lock(machine: Machine, folder: Path, tmp_path: Path) -> None:
    """T-Rex #503 and many miners: after a kill the clock stayed locked for days."""
    session = Session(
        machine, folder, tmp_path / "run", 'def test(ciq_gpu): said("inside"); wait()'
    )
    session.pid_of("inside")
    assert machine.locks(0)[:2] == (1095, 1095)
    session.kill()
    assert until(lambda: machine.free, "the clocks are reset") < 1
    assert len(machine.log(RESET)) == 1


def test_row_02_forgotten_lock_is_noticed(machine: Machine, folder: Path, tmp_path: Path) -> None:
    """CUDA.jl #2194: a forgotten lock falsified benchmarks until reboot, and nobody saw it."""
    machine.gpus[0].lgc_min = machine.gpus[0].lgc_max = 900
    machine.gpus[0].busy = 1
    report = tmp_path / "report.json"
    source = "def test(ciq_gpu): time.sleep(0.3)"
    args = ("--ciq-clocks=observe", f"--ciq-json={report}")
    session = run_pytest(machine, folder, tmp_path / "run", source, *args)
    assert session.process.returncode == 0
    (use,) = json.loads(report.read_text())["gpus"]
    assert use["evidence"]["condition"] == "unexplained-low"
    for text in (session.text(), use["evidence"]["causes"][0]):
        assert "900 MHz under load, far below the card's 1980 MHz" in text
        assert "reset-clocks" in text
    assert not machine.changes()


def test_row_03_endings_without_finalizers() -> None:
    """pytest #5243: SIGTERM, SIGKILL, os._exit, timeouts run no finalizer."""
    from tests.gpu.test_endings import ENDINGS

    assert {"sigterm", "sigkill", "os-exit", "timeout-thread"} <= set(ENDINGS)


def test_row_04_ctrl_c_while_the_lock_is_set(
    machine: Machine, folder: Path, tmp_path: Path
) -> None:
    """pytest #15067: finalizers that set-up registers are not run when Ctrl-C interrupts it."""
    machine.rule(SET, delay_ms=500, times=1)
    session = Session(machine, folder, tmp_path / "run", "def test(ciq_gpu): pass")
    until(lambda: any(call.ret == -1 for call in machine.log(SET)), "Set is on its way")
    assert len(journals(folder)) == 1  # the intent is on disk before the driver has answered
    session.interrupt()
    assert session.wait() == 2
    assert machine.free
    assert [call.fn for call in machine.changes() if call.ret == 0] == [SET, RESET]
    assert not journals(folder)


def test_row_05_killed_worker_is_replaced_only_after_the_reset(
    machine: Machine, folder: Path, tmp_path: Path
) -> None:
    """xdist #124, #679: a killed worker restores nothing, and the run goes on."""
    source = 'def test_a(ciq_gpu): said("inside"); wait()\ndef test_b(ciq_gpu): pass'
    session = Session(machine, folder, tmp_path / "run", source, "-n1")
    os.kill(session.pid_of("inside"), signal.SIGKILL)
    session.go()
    session.wait()
    calls = [(call.fn, call.pid) for call in machine.changes()]
    assert [fn for fn, _ in calls] == [SET, RESET, SET, RESET]
    assert calls[0][1] == calls[1][1] != calls[2][1]


def test_row_06_job_runner_that_kills_every_process(
    machine: Machine, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """actions/runner #598: all processes with its variable are killed, helpers included."""
    monkeypatch.setenv("RUNNER_TRACKING_ID", "github_1")
    session = Session(
        machine, folder, tmp_path / "run", 'def test(ciq_gpu): said("inside"); wait()'
    )
    session.pid_of("inside")
    guardian = guardian_of(machine)
    environ = Path(f"/proc/{guardian}/environ").read_bytes()
    assert b"RUNNER_TRACKING_ID=github_1" in environ  # not hidden from the runner behind its back
    os.kill(guardian, signal.SIGKILL)
    session.kill()
    until(lambda: gone(guardian), "the guardian is dead")
    assert len(journals(folder)) == 1
    # What a CI step with `if: always()` runs:
    command = [sys.executable, "-m", "pytest_compileiq", "reset-clocks"]
    step = subprocess.run([*command, f"--ciq-lease-dir={folder}"], capture_output=True, text=True)
    assert (step.returncode, step.stdout.split()[0]) == (0, "ok")
    assert machine.free
    assert not journals(folder)


def test_row_07_both_killed_next_holder_resets_first(
    machine: Machine, folder: Path, gpu: Gpu, hold: object
) -> None:
    """A container's end kills the guardian too: the driver stays locked."""
    machine.gpus[0].lgc_min = machine.gpus[0].lgc_max = 1500
    write_journal(folder, machine)
    with hold(mode="require") as held:  # type: ignore[operator]
        assert any("reset first" in note for note in held.notes)
    assert [call.fn for call in machine.changes()] == [RESET, SET, RESET]
    assert not journals(folder)


def test_row_08_memory_lock_before_ampere(machine: Machine, gpu: Gpu, folder: Path) -> None:
    """LACT #542: cards before Ampere have no memory lock. That none can be reset is no fault."""
    machine.gpus[0].can_lmc = 0
    (folder / f"{machine.uuid()}.json").write_text("an unreadable one says nothing of clocks")
    with acquire([gpu], folder=folder, sm_mhz=1500) as held:
        assert held.clocks.locked
        assert any("reset first" in note for note in held.notes)
    assert [call.ret for call in machine.log(RESET_MEMORY)] == [3]
    assert machine.free
    assert not journals(folder)


def test_row_09_memory_clock_outside_the_list(machine: Machine, gpu: Gpu, folder: Path) -> None:
    """rigel #194: other values than the listed snap silently. Ours sets none, and resets none."""
    machine.gpus[0].lmc_min = machine.gpus[0].lmc_max = 2000  # somebody else's
    with acquire([gpu], folder=folder, sm_mhz=1500):
        assert machine.locks(0) == (1500, 1500, 2000, 2000)
    assert machine.locks(0) == (0, 0, 2000, 2000)
    assert not machine.log(SET_MEMORY)
    assert not machine.log(RESET_MEMORY)


@pytest.mark.parametrize("code", [27, 10, 999])
@pytest.mark.parametrize("fn", [SET, RESET])
def test_row_10_not_ready_once(machine: Machine, hold: object, fn: str, code: int) -> None:
    """Megatron-Bridge #5299: NOT_READY, and success on the next try."""
    machine.rule(fn, ret=code, times=1)
    with hold(mode="require") as held:  # type: ignore[operator]
        assert held.clocks.locked
    assert [call.ret for call in machine.log(fn)][:2] == [code, 0]
    assert machine.free


def test_row_11_memory_lock_that_slows_the_sm_clock(machine: Machine, hold: object) -> None:
    """LACT #1128: a memory lock cost Blackwell a sixth of its SM clock, without a reason bit."""
    machine.gpus[0].hidden_mhz = 1200
    with hold() as held:  # type: ignore[operator]
        found = under_load(machine, held)
    assert found.condition is Condition.UNEXPLAINED_LOW
    assert found.sm_mhz_max == 1200
    assert not machine.log(SET_MEMORY)


def test_row_12_success_that_is_none(machine: Machine, hold: object) -> None:
    """open-gpu-kernel-modules #1314: Set succeeds, and the card goes below the minimum."""
    machine.gpus[0].hidden_mhz = 1395
    with hold(mode="auto") as held:  # type: ignore[operator]
        assert held.clocks.locked
        found = under_load(machine, held)
    assert "1395 MHz in" in found.causes[0]
    assert "below the lock, and no reason bit is set" in found.causes[0]


def test_row_12_require_fails_the_test(machine: Machine, folder: Path, tmp_path: Path) -> None:
    machine.gpus[0].hidden_mhz = 1395
    machine.gpus[0].busy = 1
    source = "def test(ciq_gpu): time.sleep(0.3)"
    args = ("--ciq-clocks=require", "--ciq-sm-mhz=1500")
    session = run_pytest(machine, folder, tmp_path / "run", source, *args)
    assert session.process.returncode == 1
    assert "--ciq-clocks=require, and the GPU was unexplained-low" in session.text()
    assert machine.free


def test_row_13_power_cap_is_named(machine: Machine, hold: object) -> None:
    """TileOPs #1587: an H200 cannot hold 1830 MHz at 700 W; the default is a clock it can hold."""
    with hold(sm_mhz=1830) as held:  # type: ignore[operator]
        machine.power_cap(1320)
        found = under_load(machine, held)
        machine.power_cap(0)
    assert found.condition is Condition.THROTTLED
    assert found.causes[0].startswith("sw-power-cap: ")
    assert "choose a lower clock" in found.causes[0]
    counted = found.counters_ms["sw-power-cap"]
    assert counted is not None
    assert counted == pytest.approx(found.seconds * 1000, rel=0.3)
    with hold(sm_mhz="base"):  # type: ignore[operator]
        assert machine.locks(0)[:2] == (1095, 1095)


def test_row_14_share_of_samples_by_reason(machine: Machine, hold: object) -> None:
    """ninfer-3090 PR #72: the power cap stood in nearly all samples; the memory clock never moved."""
    with hold() as held, held.window() as window, machine.load():  # type: ignore[operator]
        time.sleep(0.2)
        machine.power_cap(1320)
        time.sleep(0.2)
        machine.power_cap(0)
    found = window.evidence
    assert 0.2 < found.reason_share["sw-power-cap"] < 0.8
    assert (found.sm_mhz_min, found.sm_mhz_max) == (1320, 1500)
    assert (found.mem_mhz_min, found.mem_mhz_max) == (2619, 2619)


@pytest.mark.parametrize(("asked", "given"), [(2100, 1980), (1989, 1980), (1507, 1500), (210, 210)])
def test_row_15_request_is_snapped_down_and_told(
    machine: Machine, hold: object, asked: int, given: int
) -> None:
    """holohub PR #714: locked to the advertised 3105 MHz, a card ran 2730."""
    with hold(sm_mhz=asked) as held:  # type: ignore[operator]
        assert machine.locks(0)[:2] == (given, given)
        assert held.clocks.sm_mhz == given
        if given != asked:
            assert held.state == f"locked ({given} MHz, asked for {asked} MHz)"


def test_row_15_max_is_the_list_s_not_the_theoretical(machine: Machine, hold: object) -> None:
    with hold(sm_mhz="max"):  # type: ignore[operator]
        assert machine.locks(0)[:2] == (1980, 1980)  # MaxClockInfo says 2100


def test_row_15_below_all_clocks_locks_nothing(machine: Machine, hold: object) -> None:
    with (
        pytest.raises(GpuError, match="1 MHz is below all clocks of the card, 210 to 1980 MHz"),
        hold(sm_mhz=1),  # type: ignore[operator]
    ):
        pass
    assert not machine.changes()


def test_row_16_idle_card_is_unverified_not_failed(machine: Machine, hold: object) -> None:
    """TileOPs #225: read back on an idle card, 345 MHz were taken for a failed lock."""
    with hold(mode="require") as held:  # type: ignore[operator]
        assert held.clocks.locked
        with held.window() as window:
            time.sleep(0.1)
    assert window.evidence.condition is Condition.UNVERIFIED


@pytest.mark.parametrize(("reads", "lag_ms"), [(3, 0), (0, 80)])
def test_row_17_reading_that_lags(machine: Machine, hold: object, reads: int, lag_ms: int) -> None:
    """triton #316: the value read just after the lock is still the old one."""
    machine.gpus[0].lag_reads, machine.gpus[0].lag_ms = reads, lag_ms
    with hold() as held:  # type: ignore[operator]
        assert under_load(machine, held).clean
    machine.gpus[0].busy = 1  # and on a card that is busy while it is locked
    with hold(sm_mhz=1200) as held:  # type: ignore[operator]
        assert held.clocks.sm_mhz == 1200
        assert not [note for note in held.notes if "already busy, runs at" in note]


def test_row_19_platform_limit_without_a_reason(machine: Machine, hold: object) -> None:
    """omencore #123: pinned by the BIOS, and no bit says so: bits are evidence, not proof."""
    machine.gpus[0].hidden_mhz = 600
    with hold() as held:  # type: ignore[operator]
        assert under_load(machine, held).condition is Condition.UNEXPLAINED_LOW


def test_row_20_flashes_and_lasting_reasons(machine: Machine, hold: object) -> None:
    """gpud #304, NVSentinel #890: some bits flash, and a real power brake went unseen for 36 h."""
    card = machine.gpus[0]

    def flash(bits: int) -> Evidence:
        """The bits stand in one reading, in the middle of a load."""
        with held.window() as window, machine.load():
            time.sleep(0.2)
            card.flash_reasons, card.flash_left = bits, 1
            time.sleep(0.2)
        assert card.flash_left == 0
        return window.evidence

    with hold() as held:  # type: ignore[operator]
        assert flash(0x8).clean
        assert "hw-power-brake" in flash(0x80).causes[0]
        card.extra_reasons = 0x8
        assert "hw-slowdown" in under_load(machine, held).causes[0]
        card.extra_reasons = 0x2 | 0x100
        assert under_load(machine, held).clean


@pytest.mark.parametrize("mode", ["auto", "require"])
def test_row_21_root_without_the_capability(
    new_machine: NewMachine, folder: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvidia-docker #495: root in a container has no permission. A refused Set is not reset."""
    machine = new_machine(admin=False)
    machine.gpus[0].lgc_min = machine.gpus[0].lgc_max = 1200
    missing = "the capability CAP_SYS_ADMIN is missing"
    monkeypatch.setattr(_clocks, "missing_permission", lambda: missing)
    options = {"mode": mode, "folder": folder}
    if mode == "require":
        with pytest.raises(LockRefused, match=missing), acquire([gpu_of(machine)], **options):  # type: ignore[arg-type]
            pass
    else:
        with acquire([gpu_of(machine)], **options) as held:  # type: ignore[arg-type]
            assert held.state == f"observed (no permission: {missing})"
    assert [(call.fn, call.ret) for call in machine.changes()] == [(SET, 4)]
    assert machine.locks(0)[:2] == (1200, 1200)


def test_row_22_wsl(
    machine: Machine, folder: Path, gpu: Gpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NIM on WSL 2: only the Windows host can lock; NVML may be "blocked by OS" altogether."""
    wsl = type("Name", (), {"release": "5.15.153.1-microsoft-standard-WSL2"})
    monkeypatch.setattr(_clocks.os, "uname", lambda: wsl)
    with acquire([gpu], folder=folder) as held:
        assert held.state == "observed (WSL: clocks are locked on the Windows host)"
    assert not machine.changes()
    machine.rule("nvmlInitWithFlags", ret=17)
    with pytest.raises(DriverError, match=r"blocked the request.*\(17\)") as caught:
        identity.resolve("0")
    assert "Windows host" in caught.value.remedy


def test_row_23_getters_that_a_soc_lacks(machine: Machine, hold: object) -> None:
    """cosmos-reason1 #61, nvitop #168: many getters are NOT_SUPPORTED, and the lock works."""
    card = machine.gpus[0]
    card.nmem = 0
    for name in (
        "GetMemoryInfo_v2", "GetMemoryInfo", "GetUtilizationRates", "GetPowerUsage",
        "GetTemperatureV", "GetTemperature", "GetFieldValues", "GetEnforcedPowerLimit",
    ):  # fmt: skip
        machine.rule(f"nvmlDevice{name}", ret=3)
    with hold(mode="require") as held:  # type: ignore[operator]
        assert machine.locks(0)[:2] == (1500, 1500)
        found = under_load(machine, held)
    assert found.clean
    assert (found.power_w, found.temperature_c) == (None, None)
    assert set(found.counters_ms.values()) == {None}


def test_row_24_low_power_state_under_load(machine: Machine, hold: object) -> None:
    """model-serving-minefield PR #55: GB10 stuck at a low clock until its plug was pulled."""
    machine.gpus[0].hidden_mhz = 300
    with hold(mode="observe") as held:  # type: ignore[operator]
        found = under_load(machine, held)
    assert found.condition is Condition.UNEXPLAINED_LOW
    assert not found.clean
    assert "300 MHz under load" in found.causes[0]


def test_row_25_nvml_index_is_not_cuda_s(
    new_machine: NewMachine, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """pynvml #28 and five more: the other card was locked."""
    machine = new_machine(asked=(1,))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    source = 'def test(ciq_gpu): print("SEES", os.environ["CUDA_VISIBLE_DEVICES"])'
    session = run_pytest(machine, folder, tmp_path / "run", source, "-s")
    assert f"SEES {machine.uuid(1)}" in session.text()
    assert {call.gpu for call in machine.changes()} == {1}


@pytest.mark.parametrize("visible", ["GPU-00000001", "GPU-00000001-1111-2222-3333-444455556666"])
def test_row_26_uuids_in_the_list(new_machine: NewMachine, visible: str) -> None:
    """vLLM #41848: int("GPU-..."); NVML itself finds whole UUIDs only."""
    machine = new_machine()
    env = {**os.environ, "CUDA_VISIBLE_DEVICES": visible}
    assert identity.resolve("0", env=env)[0].uuid == machine.uuid(1)
    with pytest.raises(DriverError, match="Not Found"):
        GuardianClient("GPU-00000001")


def test_row_27_cuda_started_by_a_conftest_is_late_but_right(
    machine: Machine, folder: Path, tmp_path: Path
) -> None:
    """triton #11831: a variable set after CUDA's start has no effect. Ours is set before."""
    run = tmp_path / "run"
    run.mkdir()
    (run / "conftest.py").write_text(
        "import ctypes\ncuda = ctypes.CDLL('libcuda.so.1')\nassert cuda.cuInit(0) == 0\n"
    )
    source = 'def test(ciq_gpu): said("inside")'
    session = Session(machine, folder, run, source, gpu="1")
    machine.asked = {1}
    assert session.wait() == 0, session.text()
    assert machine.log(SET)[0].gpu == 1


PLUGIN_WITH_CUDA = """
import ctypes, os
os.environ["CUDA_VISIBLE_DEVICES"] = "1"
assert ctypes.CDLL("libcuda.so.1").cuInit(0) == 0
del os.environ["CUDA_VISIBLE_DEVICES"]
"""


def test_row_27_cuda_started_before_us_elsewhere(
    machine: Machine, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "early.py").write_text(PLUGIN_WITH_CUDA)
    monkeypatch.setenv("PYTHONPATH", str(run))
    session = run_pytest(machine, folder, run, "def test(ciq_gpu): pass", "-p", "early")
    assert session.process.returncode == 4
    assert "this process started CUDA on the GPU with UUID 00000001" in session.text()
    assert not machine.changes()


def test_row_28_processes_in_containers(machine: Machine, hold: object) -> None:
    """nvidia-docker #179: the list holds the host's PIDs, or nothing while the card is busy."""
    machine.add_process(os.getppid())
    with hold() as held:  # type: ignore[operator]
        found = under_load(machine, held)
    trusted = os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"
    assert (found.condition is Condition.DISTURBED) == trusted
    machine.gpus[0].nproc = 0
    machine.gpus[0].util, machine.gpus[0].mem_used = 80, 8 << 30
    with hold() as held:  # type: ignore[operator]
        found = under_load(machine, held)
    assert found.condition is Condition.DISTURBED
    assert "80 % busy before the test began, with 8.0 GiB" in found.causes[0]


@pytest.mark.parametrize(
    "hidden",
    [
        ["nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetSupportedClocksEventReasons"],
        ["nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetMPSComputeRunningProcesses_v3"],
        ["nvmlDeviceGetTemperatureV", "nvmlDeviceGetFieldValues", "nvmlDeviceGetMemoryInfo_v2"],
        ["nvmlDeviceSetGpuLockedClocks"],
    ],
    ids=["reasons", "processes", "values", "lock"],
)
def test_row_30_symbols_of_another_driver(
    new_machine: NewMachine, folder: Path, hidden: list[str]
) -> None:
    """k8s-device-plugin #331: a symbol is absent; two kinds of exceptions say so."""
    machine = new_machine(hide=hidden)
    with acquire([gpu_of(machine)], folder=folder, sm_mhz=1500) as held:
        found = under_load(machine, held)
    if "Set" in hidden[0]:
        assert "Function Not Found" in held.state
    else:
        assert held.clocks.locked
        assert found.clean
        assert found.temperature_c == 41


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_row_31_fork(machine: Machine, gpu: Gpu, hold: object) -> None:
    """scalene PR #169: NVML's state is not valid after fork; here no NVML is in the parent."""
    with hold() as held, held.window():  # type: ignore[operator]
        child = os.fork()
        if not child:
            status = 1
            try:
                with pytest.raises(GpuError, match="belongs to the process that forked"):
                    held.monitor._link.ask("mark")
                with Monitor(gpu) as own, own.window() as window:
                    time.sleep(0.05)
                status = 0 if window.evidence.condition is Condition.UNVERIFIED else 2
            finally:
                os._exit(status)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert machine.locks(0)[:2] == (1500, 1500)  # the child's end ended nothing
    assert machine.free


@pytest.mark.parametrize("hanging", ["nvmlInitWithFlags", SET, RESET])
def test_row_32_call_that_hangs(machine: Machine, gpu: Gpu, folder: Path, hanging: str) -> None:
    """gpud #117: NVML hangs in the driver, where no signal ends it; pytest gives up on it."""
    machine.rule(hanging, delay_ms=60_000, times=1)
    start = time.monotonic()
    expected = RestoreError if hanging == RESET else HungError
    with (
        Lease(gpu, folder=folder) as lease,
        pytest.raises(expected) as caught,
        guarded(gpu, "auto", 1500, lease=lease, start_deadline_s=2, call_deadline_s=1),
    ):
        pass
    assert time.monotonic() - start < 15
    error = caught.value.__cause__ if hanging == RESET else caught.value
    assert isinstance(error, HungError)
    assert error.reason is Reason.HUNG
    # A hung Set may have worked: a second guardian reset it. A hung Reset leaves the journal.
    assert machine.free == (hanging != RESET)
    assert bool(journals(folder)) == (hanging == RESET)
    with acquire([gpu], folder=folder, sm_mhz=1500):
        pass
    assert machine.free
    assert not journals(folder)


@pytest.mark.parametrize("code", [999, 18, 9])
def test_row_33_device_taken_away(machine: Machine, gpu: Gpu, folder: Path, code: int) -> None:
    """container-toolkit #251: after a daemon-reload all calls fail; the journal waits."""
    machine.gpus[0].lgc_min = machine.gpus[0].lgc_max = 1500
    write_journal(folder, machine)
    machine.rule("nvmlInitWithFlags", ret=code)
    with pytest.raises(DriverError) as caught, acquire([gpu], folder=folder):
        pass
    assert caught.value.code == code
    assert caught.value.remedy
    assert len(journals(folder)) == 1
    machine.clear_rules()
    with acquire([gpu], folder=folder):
        pass
    assert machine.free
    assert not journals(folder)


def test_row_33_reset_that_fails_is_a_loud_error(
    machine: Machine, folder: Path, tmp_path: Path
) -> None:
    machine.rule(RESET, ret=15)
    session = run_pytest(machine, folder, tmp_path / "run", "def test(ciq_gpu): pass")
    assert session.process.returncode == 1
    assert "1 passed, 1 error" in session.text()
    assert "could not be reset (codes {'sm': 15})" in session.text()
    assert "python -m pytest_compileiq reset-clocks" in session.text()
    assert len(journals(folder)) == 1


@pytest.mark.parametrize("access", [0, 4])
def test_row_34_mig(machine: Machine, folder: Path, access: int) -> None:
    """container-toolkit #842: the parent is closed to us, and siblings share its clocks."""
    machine.gpus[0].mig, machine.gpus[0].access_ret = 1, access
    (gpu,) = identity.resolve(machine.mig_uuid(0, 1))
    with acquire([gpu], folder=folder) as held:
        assert held.state == "observed (MIG: the instances of a card share its clocks)"
        assert held.environment["CUDA_VISIBLE_DEVICES"] == machine.mig_uuid(0, 1)
        assert (folder / f"{machine.uuid()}.lock").exists()  # its sibling excludes it
        assert under_load(machine, held).sm_mhz_median == 1980  # read from the card
    assert not machine.changes()


def write_package(
    folder: Path, name: str, version: str, module: str | None, text: str = ""
) -> None:
    info = folder / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
    if module is not None:
        path = folder / module
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)


@pytest.mark.parametrize(
    ("package", "module", "told"),
    [
        (("pynvml", "11.5.3"), "pynvml/__init__.py", "lacks nvmlInitWithFlags"),
        (("nvidia-ml-py3", "7.352.0"), "pynvml.py", "lacks nvmlInitWithFlags"),
        (("pynvml", "13.0.1"), None, ""),
    ],
)
def test_row_35_other_packages_named_pynvml(
    machine: Machine, tmp_path: Path, package: tuple[str, str], module: str | None, told: str
) -> None:
    """OpenJarvis #389: three packages write the module pynvml, and two of them lack the API.

    The old ones are stood for by an empty module; the finder of 13 warns as the real one does.
    """
    site = tmp_path / "site"
    write_package(site, *package, module)
    (site / "sitecustomize.py").write_text(
        "import sys, warnings\n"
        "class Finder:\n"
        "    @staticmethod\n"
        "    def find_spec(name, path=None, target=None):\n"
        "        if name == 'pynvml': warnings.warn('deprecated', FutureWarning)\n"
        "sys.meta_path.insert(0, Finder)\n"
    )
    code = "from pytest_compileiq.gpu import identity; print(identity.resolve('0')[0].index)"
    run = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    assert (told in run.stderr) if told else run.stdout == "0\n", run.stderr
    doctor = subprocess.run(
        [sys.executable, "-m", "pytest_compileiq", "doctor"],
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
    )
    line = next(line for line in doctor.stdout.splitlines() if " pynvml " in line)
    assert line.startswith("FAULT" if told else "note")
    assert "pip uninstall" in line


def test_row_36_lock_changed_by_an_agent(machine: Machine, hold: object) -> None:
    """DCGM #225: an agent re-applies its own clocks in the middle of a test."""

    def meddle() -> None:
        machine.gpus[0].lgc_min = machine.gpus[0].lgc_max = 1980

    with hold() as held:  # type: ignore[operator]
        timer = threading.Timer(0.25, meddle)
        timer.start()
        found = under_load(machine, held, 0.5)
        timer.join()
    assert found.condition is Condition.DISTURBED
    assert "changed from outside" in found.causes[0]
    assert len(machine.log(SET)) == 1  # noticed, not fought


def test_row_37_mps_clients(
    machine: Machine, hold: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """nvtop #93: clients of MPS stand in a list of their own."""
    machine.add_process(os.getppid(), kind=2)
    machine.add_process(os.getppid() + 1, kind=2)
    with hold() as held, held.window() as window:  # type: ignore[operator]
        time.sleep(0.05)
    seen = window.evidence
    assert machine.log("nvmlDeviceGetMPSComputeRunningProcesses_v3")
    trusted = os.readlink("/proc/self/ns/pid") == "pid:[4026531836]"
    assert any("mps" in text for text in seen.foreign) if trusted else seen.notes


def test_row_38_busy_reading_that_is_latched(machine: Machine, hold: object) -> None:
    """lium-io PR #1140: 100 % busy for ever after a kill, on an idle card: no more than a note."""
    machine.gpus[0].util = 100
    with hold() as held:  # type: ignore[operator]
        found = under_load(machine, held)
        assert any("reads 100 % busy" in note for note in held.notes)
    assert found.clean


def test_row_39_no_lock_between_tests(machine: Machine, folder: Path, tmp_path: Path) -> None:
    """LACT #908: a locked card burns more power when idle."""
    source = """
def test_a(ciq_gpu): pass
def test_between(): said("between"); wait()
def test_b(ciq_gpu): pass
"""
    session = Session(machine, folder, tmp_path / "run", source)
    session.pid_of("between")
    assert machine.free
    session.go()
    assert session.wait() == 0
    assert [call.fn for call in machine.changes()] == [SET, RESET, SET, RESET]


def test_row_40_symlink_and_fork(folder: Path, machine: Machine, gpu: Gpu, tmp_path: Path) -> None:
    """filelock CVE-2025-68146. The lease's own tests have the rest; here the journal's."""
    precious = tmp_path / "precious"
    precious.write_text(json.dumps({"domains": {"sm": [1, 1]}}))
    (folder / f"{machine.uuid()}.json").symlink_to(precious)
    with acquire([gpu], folder=folder, mode="require", sm_mhz=1500) as held:
        assert any("not ours to act on" in note for note in held.notes)
    assert [call.fn for call in machine.changes()] == [SET, RESET]  # nothing was reset before
    assert json.loads(precious.read_text()) == {"domains": {"sm": [1, 1]}}


def test_row_41_folder_of_another_user(machine: Machine, gpu: Gpu, folder: Path) -> None:
    """TVM #19942: the first user's folder locks out the second, or excludes nobody."""
    if os.geteuid() != 0:
        pytest.skip("needs root to give a folder away")
    os.chown(folder, 65534, -1)
    with pytest.raises(GpuError, match="belongs to user 65534"), acquire([gpu], folder=folder):
        pass
    assert not machine.log("nvmlInitWithFlags")


def test_row_43_persistence_off(machine: Machine, hold: object) -> None:
    """gpu-operator #118: the lock goes with the last client, and the mode is not ours to change."""
    machine.gpus[0].persist = 0
    code = (
        "from pynvml import *; nvmlInit(); h = nvmlDeviceGetHandleByIndex(0); "
        "nvmlDeviceSetGpuLockedClocks(h, 900, 900)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    subprocess.run([sys.executable, "-c", "from pynvml import *; nvmlInit()"], check=True)
    assert machine.free  # gone with its process
    machine.start_new_log()
    with hold(mode="require") as held:  # type: ignore[operator]
        subprocess.run([sys.executable, "-c", "from pynvml import *; nvmlInit()"], check=True)
        assert machine.locks(0)[:2] == (1500, 1500)  # the guardian stays a client
        assert under_load(machine, held).clean
    assert not machine.log("nvmlDeviceSetPersistenceMode")


def test_row_44_order_of_arguments(machine: Machine, hold: object) -> None:
    """aiconfigurator PR #49: -lgc takes min,max and -ac takes memory,graphics. Here: one number."""
    with hold(sm_mhz=1500):  # type: ignore[operator]
        (call,) = machine.log(SET)
        assert (call.a, call.b) == (1500, 1500)
        assert machine.locks(0) == (1500, 1500, 0, 0)


def test_every_row_has_a_test() -> None:
    rows = {int(name[9:11]) for name in globals() if name.startswith("test_row_")}
    assert rows == {*range(1, 45)} - {18, 29, 42}
    assert len(rows) == 41


def test_clock_states_read_well() -> None:
    assert str(ClockState(locked=True, requested="1500", sm_mhz=1500)) == "locked (1500 MHz)"
    assert str(ClockState(locked=True, requested="base")) == "locked (base)"
