"""--ciq-gpu and ciq_gpu in whole pytest runs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.fake_nvml.machine import SET, Machine

Run = Callable[..., pytest.RunResult]
HOLD = "import os, time\ndef test_it(ciq_gpu): time.sleep(0.2)\n"


@pytest.fixture
def run(pytester: pytest.Pytester, folder: Path, request: pytest.FixtureRequest) -> Run:
    """Run pytest in a process of its own on the fake machine."""

    def run(source: str, *args: str) -> pytest.RunResult:
        pytester.makepyfile(test_it=source)
        return pytester.runpytest_subprocess(
            f"--ciq-lease-dir={folder}", "-p", "no:cacheprovider", *args, timeout=120
        )

    return run


def test_without_the_option_it_skips_and_nvml_is_never_loaded(
    machine: Machine, run: Run, pytester: pytest.Pytester
) -> None:
    result = run(HOLD, "-rs")
    result.assert_outcomes(skipped=1)
    result.stdout.fnmatch_lines(["*needs a GPU: run with --ciq-gpu=SPEC"])
    assert not machine.log()


def test_what_a_test_is_given(machine: Machine, run: Run) -> None:
    machine.gpus[0].busy = 1
    result = run(
        """
import os, time
def test_it(ciq_gpu):
    assert ciq_gpu.uuid == ciq_gpu.gpu.uuid == os.environ["CUDA_VISIBLE_DEVICES"]
    assert os.environ["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    with ciq_gpu.window() as window:
        time.sleep(0.2)
    assert window.evidence.clean
    assert window.evidence.sm_mhz_median == 1500
    print("STATE", ciq_gpu.state)
""",
        "-s", "--ciq-gpu=0", "--ciq-sm-mhz=1510",
    )  # fmt: skip
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [
            f"compileiq: GPU 0 NVIDIA Fake H100 ({machine.uuid()}), clocks: auto at 1510",
            "*STATE locked (1500 MHz, asked for 1510 MHz)",
            f"GPU 0 * ({machine.uuid()}): clocks locked (1500 MHz, *; 1 tests: 1 clean",
            "*1510 MHz is not in the card's list; the next lower, 1500, is locked",
        ]
    )


def test_json_and_junit_carry_the_evidence(
    machine: Machine, run: Run, pytester: pytest.Pytester
) -> None:
    machine.gpus[0].busy = 1
    machine.power_cap(1320)
    run(HOLD, "--ciq-gpu=0", "--ciq-clocks=observe", "--ciq-json=r.json", "--junitxml=r.xml")
    (use,) = json.loads((pytester.path / "r.json").read_text())["gpus"]
    assert use["nodeid"] == "test_it.py::test_it"
    assert use["clocks"] == "observed (asked to observe)"
    numbers = use["evidence"]
    assert numbers["condition"] == "throttled"
    assert "sw-power-cap: 100%" in numbers["causes"][0]
    assert numbers["counters_ms"]["sw-power-cap"] > 150
    assert numbers["sm_mhz_max"] == 1320
    assert len(numbers["samples"]) >= 5
    (told,) = ElementTree.parse(pytester.path / "r.xml").iter("system-out")
    assert "ciq_gpu_condition: throttled (sw-power-cap: 100% " in (told.text or "")
    assert not machine.changes()


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--ciq-gpu=zz"], "'zz' names no GPU; give an index (0)"),
        (["--ciq-gpu=2"], "there is no GPU 2: NVML lists 2"),
        (["--ciq-gpu=GPU-0000000"], "fits 2 GPUs"),
        (
            ["--ciq-gpu=0", "--ciq-clocks=always"],
            "from --ciq-clocks: give auto, require or observe",
        ),
        (["--ciq-gpu=0", "--ciq-sm-mhz=99999"], "give base, max or a clock from 1 to 5000 MHz"),
        (["--ciq-gpu=0", "--ciq-sm-mhz=fast"], "give base, max or a clock"),
        (["--ciq-gpu=0", "--ciq-gpu-timeout=0"], "seconds above 0"),
    ],
)
def test_usage_errors(machine: Machine, run: Run, args: list[str], message: str) -> None:
    result = run(HOLD, *args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert message in result.stderr.str() + result.stdout.str()
    assert "Traceback" not in result.stderr.str()
    assert not machine.changes()


def test_a_clock_below_all_is_the_tests_error(machine: Machine, run: Run) -> None:
    result = run(HOLD, "--ciq-gpu=0", "--ciq-sm-mhz=1")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["1 MHz is below all clocks of the card, 210 to 1980 MHz"])
    assert not machine.changes()


def test_nvml_that_does_not_start_ends_the_run(machine: Machine, run: Run) -> None:
    machine.rule("nvmlInitWithFlags", ret=18)
    result = run(HOLD, "--ciq-gpu=0")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*version mismatch*(18)", "*to do: *reboot*"])


def test_help_needs_no_gpu(machine: Machine, run: Run) -> None:
    machine.rule("nvmlInitWithFlags", ret=18)
    assert run(HOLD, "--ciq-gpu=0", "--help").ret == 0


def test_a_plugin_that_is_loaded_by_a_conftest_comes_too_late(
    machine: Machine, run: Run, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Skipped, all tests of the GPU would make a green run of it."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makeconftest("pytest_plugins = ['pytest_compileiq.plugin']")
    result = run(HOLD, "--ciq-gpu=0")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["*--ciq-gpu comes too late*", "*to do: load it by *-p pytest_compileiq.plugin"]
    )
    assert run(HOLD).ret == 0
    assert run(HOLD, "--ciq-gpu=0", "--help").ret == 0
    assert run(HOLD, "-p", "pytest_compileiq.plugin", "--ciq-gpu=0").ret == 0


def test_workers_get_the_gpu_and_not_a_number_of_their_own(machine: Machine, run: Run) -> None:
    machine.asked = {1}
    source = "import os\ndef test_it(ciq_gpu): assert ciq_gpu.gpu.index == 1\n"
    result = run(source, "--ciq-gpu=1", "-n1")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"GPU 1 * ({machine.uuid(1)}): clocks locked *"])
    assert {call.gpu for call in machine.log(SET)} == {1}


def test_the_environment_is_put_back(machine: Machine, pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass")
    code = (
        "import os, pytest\nos.environ['CUDA_VISIBLE_DEVICES'] = '1,0'\n"
        "assert pytest.main(['--ciq-gpu=0', '-p', 'no:cacheprovider']) == 0\n"
        "print(os.environ['CUDA_VISIBLE_DEVICES'], 'CUDA_DEVICE_ORDER' in os.environ)\n"
    )
    result = pytester.run(sys.executable, "-c", code)
    result.stdout.fnmatch_lines([f"compileiq: GPU 1 * ({machine.uuid(1)})*", "1,0 False"])


def test_a_site_may_lock_in_its_own_way(
    machine: Machine, run: Run, pytester: pytest.Pytester
) -> None:
    machine.gpus[0].busy = 1
    machine.gpus[0].lgc_min = machine.gpus[0].lgc_max = 1500
    pytester.makeconftest(
        """
from contextlib import nullcontext
from pytest_compileiq.gpu.clocks import ClockState

def pytest_ciq_lock_clocks(config, gpu, policy):
    assert (gpu.index, policy.mode, policy.sm_mhz) == (0, "auto", "base")
    return nullcontext(ClockState(locked=True, requested="site", sm_mhz=1500, step_mhz=15))
"""
    )
    result = run(HOLD, "--ciq-gpu=0")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["GPU 0 *: clocks locked (1500 MHz, asked for site); 1 tests: 1 clean"]
    )
    assert not machine.changes()


@pytest.mark.parametrize(
    ("mode", "outcome", "text"),
    [
        ("auto", {"passed": 1}, "clocks observed (not today)"),
        ("observe", {"passed": 1}, "clocks observed (asked to observe)"),
        ("require", {"errors": 1}, "has not locked GPU 0 *: not today"),
    ],
)
def test_a_site_s_lock_is_asked_and_believed_as_our_own(
    machine: Machine,
    run: Run,
    pytester: pytest.Pytester,
    mode: str,
    outcome: dict[str, int],
    text: str,
) -> None:
    """To observe is to set nothing, by no one's hand; to require is to have a lock."""
    pytester.makeconftest(
        """
from contextlib import nullcontext
from pytest_compileiq.gpu.clocks import ClockState

def pytest_ciq_lock_clocks(config, gpu, policy):
    assert policy.mode != "observe"
    return nullcontext(ClockState(locked=False, requested="site", why="not today"))
"""
    )
    result = run(HOLD, "--ciq-gpu=0", f"--ciq-clocks={mode}")
    result.assert_outcomes(**outcome)
    result.stdout.fnmatch_lines([f"*{text}*"])
    assert not machine.changes()


def test_a_process_of_its_own_uses_what_is_held_for_it(
    machine: Machine, run: Run, pytester: pytest.Pytester
) -> None:
    """As isolation does it: the GPU is held outside, the test runs inside and takes no other."""
    pytester.makeconftest(
        """
import os, subprocess, sys
import pytest
from pytest_compileiq import device
from pytest_compileiq.state import SETTINGS

@pytest.fixture
def inner(request):
    item, config = request.node, request.config
    with device.environment_for(config, item, config.stash[SETTINGS]) as env:
        command = [sys.executable, "-m", "pytest", *config.invocation_params.args, "-k", "inside"]
        yield subprocess.run(command, env={**os.environ, **env}, capture_output=True, text=True)
"""
    )
    source = HOLD.replace("test_it", "test_inside") + (
        "def test_outside(inner):\n    assert '1 passed' in inner.stdout, inner.stdout\n"
    )
    result = run(source, "--ciq-gpu=1", "--ciq-gpu-timeout=3", "-k", "outside")
    machine.asked = {1}
    result.assert_outcomes(passed=1, deselected=1)
    assert len(machine.log(SET)) == 1


NESTED = """
import os, subprocess, sys
def test_inside(ciq_gpu): print("INSIDE", ciq_gpu.gpu.index)
def test_outside(ciq_gpu):
    command = [sys.executable, "-m", "pytest", "-s", "-k", "inside", {args!r}, "--ciq-lease-dir={folder}"]
    print(subprocess.run(command, capture_output=True, text=True).stdout)
"""


@pytest.mark.parametrize(
    ("outer", "inner", "used", "locks"),
    [("0", "nvml:1", 1, 2), ("0,1", "0,1", 0, 1), ("1", "1", 1, 1)],
)
def test_a_run_inside_a_test_uses_the_gpu_it_asked_for(
    machine: Machine, run: Run, folder: Path, outer: str, inner: str, used: int, locks: int
) -> None:
    machine.asked = {0, 1}
    source = NESTED.format(args=f"--ciq-gpu={inner}", folder=folder)
    result = run(source, "-s", f"--ciq-gpu={outer}", "-k", "outside")
    result.stdout.fnmatch_lines([f"*INSIDE {used}", "*1 passed*", "*1 passed*"])
    assert len(machine.log(SET)) == locks


@pytest.mark.parametrize("text", ["", "null", "7", '{"spec": "0"}', '{"spec": "0", "uuids": 1}'])
def test_a_choice_handed_on_that_cannot_be_read(
    machine: Machine, run: Run, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("PYTEST_CIQ_CHOSEN_GPU", text)
    run("def test_it(): pass", "--ciq-gpu=0", "--ciq-isolate=off").assert_outcomes(passed=1)


@pytest.mark.parametrize("broken", ["option", "conftest"])
def test_the_environment_is_put_back_after_a_usage_error(
    machine: Machine, pytester: pytest.Pytester, broken: str
) -> None:
    if broken == "conftest":
        pytester.makeconftest("1 / 0")
    clocks = "always" if broken == "option" else "auto"
    code = (
        f"import os, pytest\nassert pytest.main(['--ciq-gpu=0', '--ciq-clocks={clocks}']) == 4\n"
        "print('LEFT', [name for name in os.environ if name.startswith(('CUDA_', 'PYTEST_CIQ_'))])"
    )
    pytester.run(sys.executable, "-c", code).stdout.fnmatch_lines(["LEFT []"])


def test_a_gpu_in_use_is_an_error_that_names_the_holder(
    machine: Machine, run: Run, folder: Path
) -> None:
    from pytest_compileiq.gpu.lease import Lease

    with Lease(machine.uuid(), folder=folder, label="somebody's test"):
        result = run(HOLD, "--ciq-gpu=0", "--ciq-gpu-timeout=0.2")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*did not become free in 0.2 s", "*somebody's test*"])


def test_a_rerun_shows_its_last_attempt_only(
    machine: Machine, run: Run, pytester: pytest.Pytester
) -> None:
    pytest.importorskip("pytest_rerunfailures")
    # A file, as each attempt has a process of its own.
    source = "import os\ndef test_it(ciq_gpu):\n    os.path.exists('n') or 1 / open('n', 'w').write('')\n"
    result = run(source, "--ciq-gpu=0", "--reruns=1", "--ciq-json=r.json")
    assert result.ret == 0
    assert len(json.loads((pytester.path / "r.json").read_text())["gpus"]) == 1
    assert len(machine.log(SET)) == 2


def command(*args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest_compileiq", *args], capture_output=True, text=True
    )


def test_commands() -> None:
    assert command().returncode == 0
    assert "reset-clocks" in command("--help").stdout
    unknown = command("docter")
    assert unknown.returncode == 2
    assert "there is no command 'docter'" in unknown.stderr
    empty = command("reset-clocks", "--ciq-lease-dir=")
    assert empty.returncode == 2
    assert "--ciq-lease-dir" in empty.stderr
    for name in ("doctor", "reset-clocks"):
        assert command(name, "--help").returncode == 0


def test_reset_clocks(machine: Machine, folder: Path) -> None:
    from pytest_compileiq.gpu.lease import Lease
    from tests.gpu.test_rows import journals, write_journal

    where = f"--ciq-lease-dir={folder}"
    nothing = command("reset-clocks", where)
    assert (nothing.returncode, nothing.stdout) == (
        0, f"nothing to reset: no run has left a journal in {folder}\n",
    )  # fmt: skip
    assert not machine.log()
    for index in (0, 1):
        machine.gpus[index].lgc_min = machine.gpus[index].lgc_max = 1500
    write_journal(folder, machine)
    with Lease(machine.uuid(), folder=folder, label="a running test"):
        held = command("reset-clocks", where)
    assert held.returncode == 1
    assert "not touched: held by" in held.stdout
    assert "a running test" in held.stdout
    assert machine.locks(0)[:2] == (1500, 1500)
    done = command("reset-clocks", where)
    assert done.returncode == 0
    assert f"ok     {machine.uuid()}  reset: sm" in done.stdout
    assert machine.locks(0)[:2] == (0, 0)
    assert machine.locks(1)[:2] == (1500, 1500)  # no journal: not known to be ours
    assert not journals(folder)
    machine.asked = {0, 1}
    assert command("reset-clocks", where, "--all").returncode == 0
    assert machine.free


def test_reset_clocks_finds_the_folder_that_pytest_finds(
    machine: Machine, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tests.gpu.test_rows import write_journal

    monkeypatch.setenv("HOME", str(folder.parent))
    write_journal(folder, machine)
    assert command("reset-clocks", f"--ciq-lease-dir=~/{folder.name}").stdout.startswith("ok")
    write_journal(folder, machine)
    monkeypatch.setenv("PYTEST_CIQ_LEASE_DIR", f"~/{folder.name}")
    assert command("reset-clocks").stdout.startswith("ok")


def test_reset_clocks_names_a_folder_that_only_pytest_knows_and_goes_on(
    machine: Machine, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytest_compileiq.gpu.lease import choose
    from tests.gpu.test_rows import write_journal

    monkeypatch.chdir(tmp_path)
    (tmp_path / "pytest.ini").write_text(f"[pytest]\nciq_lease_dir = {folder}\n")
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    default, shared = choose(None)
    if shared:
        pytest.skip(f"the journals of this machine's own runs are in {default}")
    default.mkdir(mode=0o700)
    write_journal(default, machine)
    done = command("reset-clocks")
    assert (done.returncode, done.stdout[:3]) == (0, "ok ")
    assert f"{tmp_path / 'pytest.ini'} sets ciq_lease_dir, which only pytest" in done.stderr
    assert command("reset-clocks", f"--ciq-lease-dir={folder}").stderr == ""


def test_reset_clocks_prints_no_name_that_somebody_made_up(machine: Machine, folder: Path) -> None:
    for name in ("GPU-\x1b[31mred.json", "GPU-1.json", f"{machine.uuid()}.json.json"):
        (folder / name).touch()
    os.mkdir(os.fsencode(folder) + b"/GPU-\xff.json")
    done = command("reset-clocks", f"--ciq-lease-dir={folder}")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("nothing to reset")


def test_reset_of_all_tells_of_a_closed_gpu_with_a_journal(machine: Machine, folder: Path) -> None:
    from tests.gpu.test_rows import write_journal

    write_journal(folder, machine)
    machine.asked, machine.gpus[0].access_ret = {1}, 4
    done = command("reset-clocks", "--all", f"--ciq-lease-dir={folder}")
    assert done.returncode == 1
    assert f"ok     {machine.uuid(1)}  reset: sm, memory" in done.stdout
    assert f"FAULT  {machine.uuid(0)}  not reset: " in done.stdout
    assert "Insufficient Permissions" in done.stdout


def test_reset_clocks_that_fails(machine: Machine, folder: Path) -> None:
    from tests.fake_nvml.machine import RESET
    from tests.gpu.test_rows import journals, write_journal

    write_journal(folder, machine)
    machine.rule(RESET, ret=15)
    failed = command("reset-clocks", f"--ciq-lease-dir={folder}")
    assert failed.returncode == 1
    assert "not reset: NVML answered {'sm': 15}" in failed.stdout
    assert len(journals(folder)) == 1
    bad = command("reset-clocks", f"--ciq-lease-dir={folder}", "--ciq-gpu=9")
    assert bad.returncode == 1
    assert "there is no GPU 9" in bad.stdout
