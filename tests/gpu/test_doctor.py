"""The doctor: one line a point, a cure behind each fault, and nothing is touched."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_compileiq import doctor
from pytest_compileiq.doctor import Line
from tests.fake_nvml.machine import Machine
from tests.gpu.test_rows import write_journal

Lines = Callable[..., list[Line]]


@pytest.fixture
def lines(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Lines:
    """What the doctor says of one point."""
    monkeypatch.setattr(doctor, "_triton", lambda: iter(()))  # its own tests below

    def lines(point: str, **env: str) -> list[Line]:
        env = {"PYTEST_CIQ_LEASE_DIR": str(folder), **env}
        return [line for line in doctor.examine(env, deadline_s=2) if line.point == point]

    return lines


def test_versions(machine: Machine, lines: Lines, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lines("python")[0].level == "ok"
    assert lines("pytest")[0] == Line("ok", "pytest", pytest.__version__)
    monkeypatch.setattr(doctor.metadata, "version", lambda name: "0.9")
    (line,) = lines("compileiq")
    assert (line.level, line.cure) == ("FAULT", "pip install 'compileiq>=1.0.3'")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("pytest.ini", "[pytest]\nciq_ptxas = x/ptxas\nciq_budget = 3\nciq_lease_dir=leases\n"),
        ("pyproject.toml", "[tool.pytest.ini_options]\nciq_lease_dir = 'l'\nciq_ptxas = 'p'\n"),
    ],
)
def test_keys_that_only_pytest_reads_are_named(
    lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, text: str
) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    monkeypatch.chdir(inner)
    assert not lines("ini file")
    (tmp_path / name).write_text(text)
    (line,) = lines("ini file")  # that of the lease folder has its variable
    told = f"{tmp_path / name} sets ciq_ptxas, which only pytest reads: not looked at here"
    assert (line.level, line.text) == ("note", told)
    assert "PYTEST_CIQ_PTXAS" in line.cure
    (inner / "setup.cfg").write_text("[metadata]\nciq_ptxas = 1\n")  # not for pytest
    assert lines("ini file") == [line]
    (inner / "tox.ini").write_text("[pytest]\nciq_ptxas =\n")
    assert not lines("ini file")  # pytest reads this one, and no value


def test_gpus(machine: Machine, lines: Lines) -> None:
    machine.gpus[1].mig, machine.gpus[1].mig_count = 1, 1
    assert [str(line) for line in lines("gpu")] == [
        f"ok    gpu           0: NVIDIA Fake H100 {machine.uuid(0)}",
        f"ok    gpu           1: NVIDIA Fake H100 {machine.uuid(1)}, MIG: {machine.mig_uuid(1)}",
    ]
    assert lines("driver") == [Line("ok", "driver", "615.71.00, CUDA 13.0")]
    machine.gpus[0].access_ret = 4
    assert lines("gpu")[0].level == "FAULT"
    assert not machine.changes()


def test_a_driver_that_is_too_old_for_kernels_of_ptxas_13(machine: Machine, lines: Lines) -> None:
    """A note and no fault: the static tier runs on that machine all the same."""
    machine.state.driver, machine.state.cuda_version = b"575.57.08", 12090
    (line,) = lines("driver")
    assert (line.level, line.text) == ("note", "575.57.08, CUDA 12.9")
    assert "driver 580 or newer" in line.cure


@pytest.mark.parametrize(
    ("code", "level", "text"),
    [(9, "note", "only the static tier"), (12, "note", "only the static tier"),
     (18, "FAULT", "version mismatch"), (999, "FAULT", "Unknown Error")],
)  # fmt: skip
def test_no_gpu_or_a_broken_one(
    machine: Machine, lines: Lines, code: int, level: str, text: str
) -> None:
    machine.rule("nvmlInitWithFlags", ret=code)
    (line,) = lines("gpu")
    assert line.level == level
    assert text in line.text
    assert bool(line.cure) == (level == "FAULT")


def test_a_driver_that_hangs(machine: Machine, lines: Lines) -> None:
    machine.rule("nvmlInitWithFlags", delay_ms=60_000)
    (line,) = lines("gpu")
    assert line.level == "FAULT"
    assert "NVML has not answered for 2 s" in line.text


@pytest.mark.parametrize("missing", ["", "the capability CAP_SYS_ADMIN is missing"])
def test_permission_is_looked_up_and_not_tried(
    machine: Machine, lines: Lines, missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "missing_permission", lambda: missing)
    (line,) = lines("clock lock")
    assert line.level == ("note" if missing else "ok")
    assert missing in line.text
    assert not machine.changes()


def test_lease_folder_and_journals(machine: Machine, lines: Lines, folder: Path) -> None:
    assert lines("lease folder")[0].level in ("ok", "note")
    assert not lines("clocks")
    write_journal(folder, machine)
    (line,) = lines("clocks")
    cure = f"python -m pytest_compileiq reset-clocks --ciq-lease-dir={folder}"
    assert (line.level, line.cure) == ("FAULT", cure)
    folder.chmod(0o777)
    assert lines("lease folder")[0].level == "FAULT"


def test_it_makes_no_lease_folder(machine: Machine, lines: Lines, tmp_path: Path) -> None:
    for place, level, text in (
        (tmp_path / "new", "ok", "which the first run with a GPU makes"),
        (tmp_path / "no" / "folder", "FAULT", "is not there and cannot be made"),
    ):
        (line,) = lines("lease folder", PYTEST_CIQ_LEASE_DIR=str(place))
        assert (line.level, bool(line.cure)) == (level, level == "FAULT")
        assert str(place) in line.text
        assert text in line.text
        assert not place.exists()


def ptxas_script(script: Callable[[str, str], Path], folder: str, version: str) -> Path:
    major, minor, _ = version.split(".")
    body = f'echo "Cuda compilation tools, release {major}.{minor}, V{version}"'
    path = script("ptxas", body)
    target = path.parent / folder
    target.mkdir()
    return path.rename(target / "ptxas")


def test_every_ptxas_and_the_one_in_use(
    machine: Machine, lines: Lines, script: Callable[[str, str], Path]
) -> None:
    old = ptxas_script(script, "old", "12.9.86")
    new = ptxas_script(script, "new", "13.3.73")
    newer = ptxas_script(script, "newer", "13.5.37")
    path = f"{old.parent}:{new.parent}:{newer.parent}"
    found = [line for line in lines("ptxas", PATH=path) if "wheel" not in line.text]
    assert [(line.level, line.text.partition(":")[0]) for line in found] == [
        ("note", "12.9.86 from PATH, too old for ACFs"),
        ("ok", "13.3.73 from PATH, used"),
        ("ok", "13.5.37 from PATH, not used"),
    ]
    only_old = lines("ptxas", PYTEST_CIQ_PTXAS=str(old))
    assert only_old[-1].level == "FAULT"
    assert "nvidia-cuda-nvcc" in only_old[-1].cure
    (named,) = lines("ptxas", PYTEST_CIQ_PTXAS=str(new), PATH=path)
    assert named.text == f"13.3.73 from PYTEST_CIQ_PTXAS, used: {new}"


TRITON = """
from collections import namedtuple
Tool = namedtuple("Tool", "path version")
def get_ptxas(arch):
    return Tool({paths}["new" if arch >= 100 else "old"], "")
"""


def write_triton(site: Path, compiler: str) -> None:
    package = site / "triton" / "backends" / "nvidia"
    package.mkdir(parents=True)
    for folder in (site / "triton", site / "triton" / "backends", package):
        (folder / "__init__.py").write_text("__version__ = '3.8.0'\n")
    (package / "compiler.py").write_text(compiler)


def triton_lines(site: Path, before: str = "") -> list[str]:
    code = (
        f"from pytest_compileiq import doctor\n{before}\nfor line in doctor._triton(): print(line)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code], env={"PYTHONPATH": str(site)}, capture_output=True, text=True
    )
    assert not run.returncode, run.stderr
    return run.stdout.splitlines()


def test_triton_is_asked_what_it_will_run(
    tmp_path: Path, script: Callable[[str, str], Path]
) -> None:
    old = ptxas_script(script, "old", "12.9.86")
    new = ptxas_script(script, "new", "13.3.73")
    site = tmp_path / "site"
    write_triton(site, TRITON.format(paths={"old": str(old), "new": str(new)}))
    hopper, blackwell = triton_lines(site)
    assert hopper.startswith(f"note  triton        3.8.0 runs ptxas 12.9.86 for sm_90: {old}  ->")
    assert "TRITON_PTXAS_BLACKWELL_PATH" in hopper
    assert blackwell == f"ok    triton        3.8.0 runs ptxas 13.3.73 for sm_100: {new}"


def test_a_triton_that_does_not_import(tmp_path: Path) -> None:
    write_triton(tmp_path / "site", "raise ImportError('libcuda is too old')")
    (line,) = triton_lines(tmp_path / "site")
    assert line.startswith("FAULT triton")
    assert "libcuda is too old" in line


def test_a_triton_that_hangs(tmp_path: Path) -> None:
    write_triton(tmp_path / "site", "import sys, time\nprint('x', file=sys.stderr)\ntime.sleep(60)")
    (line,) = triton_lines(tmp_path / "site", "doctor._TRITON_S = 1.5")
    assert line == (
        "FAULT triton        has not said for 1.5 s which ptxas it runs"
        "  ->  see where `python -c 'import triton'` hangs"
    )


def test_a_broken_part_hides_no_other(machine: Machine, lines: Lines, tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    broken = {"CIQ_SEARCH_SPACES_DIR": "x" * 300, "PYTEST_CIQ_PTXAS": str(loop)}
    for point in ("search spaces", "ptxas"):
        assert lines(point, **broken)[-1].level == "FAULT"
    assert lines("lease folder", **broken)


def test_paths_are_read_as_pytest_reads_them(
    machine: Machine, lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "O0.acf").write_bytes(b"o0")
    assert lines("debug pack", PYTEST_CIQ_DEBUG_PACK="~")[0].level == "ok"
    assert str(tmp_path / "none") in lines("lease folder", PYTEST_CIQ_LEASE_DIR="~/none")[0].text


def test_prebuilt_flashinfer(
    machine: Machine, lines: Lines, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not lines("flashinfer")
    monkeypatch.syspath_prepend(tmp_path / "site")
    for name, level in (("flashinfer", "ok"), ("flashinfer_cubin", "FAULT")):
        (tmp_path / "site" / name).mkdir(parents=True)
        (tmp_path / "site" / name / "__init__.py").touch()
        (line,) = lines("flashinfer")
        assert line.level == level
    assert line.cure == "pip uninstall flashinfer-cubin"


def test_debug_pack_and_search_spaces(machine: Machine, lines: Lines, tmp_path: Path) -> None:
    assert lines("debug pack")[0].level == "note"
    assert lines("debug pack", PYTEST_CIQ_DEBUG_PACK=str(tmp_path))[0].level == "FAULT"
    (tmp_path / "O0.acf").write_bytes(b"o0")
    (line,) = lines("debug pack", PYTEST_CIQ_DEBUG_PACK=str(tmp_path))
    assert (line.level, line.text) == ("ok", f"{tmp_path} with O0.acf")
    assert lines("search spaces")[0].level == "note"
    spaces = {"CIQ_SEARCH_SPACES_DIR": str(tmp_path)}
    assert "no manifest.json" in lines("search spaces", **spaces)[0].text
    (tmp_path / "manifest.json").write_text("{}")
    assert "no .bin file" in lines("search spaces", **spaces)[0].text
    (tmp_path / "ptxas13.3_search_space.bin").touch()
    assert lines("search spaces", **spaces)[0].level == "ok"


def test_the_exit_status_counts_faults(
    machine: Machine,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    two = [Line("FAULT", "a", "x", "y"), Line("note", "b", "z"), Line("FAULT", "c", "x", "y")]
    monkeypatch.setattr(doctor, "examine", lambda env: iter(two))
    assert doctor.main([]) == 2
    assert capsys.readouterr().out.splitlines() == [
        "FAULT a             x  ->  y", "note  b             z", "FAULT c             x  ->  y",
        "2 faults",
    ]  # fmt: skip
