"""Finding a ptxas, running it, reading its report; with real ones wherever one can run."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_compileiq.errors import AcfError, AssemblyError, ToolchainError
from pytest_compileiq.toolchain import ptxas as _ptxas
from pytest_compileiq.toolchain.acf import load, nonsense
from pytest_compileiq.toolchain.assembler import Assembler, Job
from pytest_compileiq.toolchain.ptxas import Ptxas
from pytest_compileiq.verdict import Reason

from ..conftest import EXAMPLE, TINY, TWO

Script = Callable[[str, str], Path]


def says(version: str) -> str:
    major, minor, _ = version.split(".")
    return f'echo "Cuda compilation tools, release {major}.{minor}, V{version}"'


def test_order_of_candidates(tmp_path: Path) -> None:
    for name in ("path1", "path2"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "ptxas").write_text("")
        (tmp_path / name / "ptxas").chmod(0o755)
    env = {
        "TRITON_PTXAS_PATH": "/triton/ptxas",
        "PATH": f"{tmp_path}/path1{os.pathsep}{os.pathsep}{tmp_path}/none{os.pathsep}{tmp_path}/path2",
    }
    found = list(_ptxas.candidates(None, env))
    assert found[:3] == [
        ("TRITON_PTXAS_PATH", Path("/triton/ptxas")),
        ("PATH", tmp_path / "path1" / "ptxas"),
        ("PATH", tmp_path / "path2" / "ptxas"),
    ]
    assert [where for where, _ in found[3:]] in ([], ["the nvidia-cuda-nvcc wheel"])
    assert list(_ptxas.candidates(Path("/mine"), env)) == [("--ciq-ptxas", Path("/mine"))]


def test_versions_are_numbers_and_the_first_new_enough_wins(script: Script) -> None:
    """13.10 is newer than 13.3, which it is not as text; 9.9 is older, which it is not as text."""
    old = script("old", says("9.9.1"))
    new = script("new", says("13.10.2"))
    folder = new.parent / "bin"
    folder.mkdir()
    (folder / "ptxas").symlink_to(new)
    found = _ptxas.find(None, {"TRITON_PTXAS_PATH": str(old), "PATH": str(folder)})
    assert (found.path, found.version, found.release) == (folder / "ptxas", (13, 10, 2), "13.10")


def test_an_explicit_ptxas_is_never_replaced_by_another(script: Script, ptxas: Ptxas) -> None:
    env = {"TRITON_PTXAS_PATH": str(ptxas.path)}
    with pytest.raises(ToolchainError, match="too old"):
        _ptxas.find(script("old", says("13.2.78")), env)
    with pytest.raises(ToolchainError, match="cannot be read"):
        _ptxas.find(Path("/no/such/ptxas"), env)
    plain = script("plain", "")
    plain.chmod(0o644)
    with pytest.raises(ToolchainError, match="cannot be started"):
        _ptxas.find(plain, env)


def test_a_failed_search_lists_all_that_was_looked_at(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_ptxas, "_from_wheel", lambda: None)
    with pytest.raises(ToolchainError) as caught:
        _ptxas.find(None, {"TRITON_PTXAS_PATH": str(script("old", says("13.2.78")))})
    text = str(caught.value)
    assert "TRITON_PTXAS_PATH" in text
    assert "13.2.78" in text
    assert "pip install" in text
    assert caught.value.reason is Reason.UNFIT


def test_a_replaced_program_is_asked_again(script: Script) -> None:
    path = script("ptxas", says("13.3.1"))
    assert _ptxas.identify(path).version == (13, 3, 1)
    os.utime(script("ptxas", says("13.4.22")), ns=(1, 1))
    assert _ptxas.identify(path).version == (13, 4, 22)


def test_that_a_program_hung_is_kept_and_said(
    script: Script, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_ptxas, "_VERSION_TIMEOUT", 0.2)
    path = script("ptxas", f"echo asked >> {tmp_path}/log; sleep 60")
    for _ in range(3):
        with pytest.raises(
            ToolchainError, match=r"hung and .* after 0.2 s, and is not asked again"
        ):
            _ptxas.identify(path)
    assert (tmp_path / "log").read_text() == "asked\n"
    script("ptxas", says("13.3.1"))  # another file is another program
    assert _ptxas.identify(path).version == (13, 3, 1)


def test_resources_of_a_real_kernel(assembler: Assembler, sgemm_ptx: str) -> None:
    best = load(EXAMPLE / "best.acf")
    base, tuned = assembler.run_all([Job(sgemm_ptx, "sm_90"), Job(sgemm_ptx, "sm_90", best)])
    assert isinstance(base, _ptxas.Assembled)
    assert isinstance(tuned, _ptxas.Assembled)
    found = _ptxas.parse_resources(base.log)["sgemm"]
    assert (found.registers, found.barriers, found.shared_bytes) == (80, 1, 16384)
    assert found.spill_store_bytes > 400
    assert found.spill_load_bytes > 400
    assert found.spill_bytes == found.spill_store_bytes + found.spill_load_bytes
    spilled = _ptxas.parse_resources(tuned.log)["sgemm"].spill_bytes
    assert spilled < 0.7 * found.spill_bytes


def test_resources_of_two_entry_functions(assembler: Assembler) -> None:
    (answer,) = assembler.run_all([Job(TWO, "sm_90")])
    assert isinstance(answer, _ptxas.Assembled)
    assert sorted(_ptxas.parse_resources(answer.log)) == ["other", "tiny"]


def test_each_number_of_the_report_lands_in_its_field() -> None:
    log = """
ptxas info    : 0 bytes gmem, 64 bytes cmem[4]
ptxas info    : Compiling entry function '_Z3fooPf' for 'sm_90'
ptxas info    : Function properties for _Z3fooPf
    11 bytes stack frame, 22 bytes spill stores, 33 bytes spill loads
ptxas info    : Used 44 registers, used 5 barriers, 66 bytes smem, 77 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Compile time = 9.99 ms
"""
    assert _ptxas.parse_resources(log) == {"_Z3fooPf": _ptxas.Resources(44, 11, 22, 33, 5, 66, 85)}
    assert _ptxas.parse_resources("") == {}


@given(st.text())
def test_any_text_can_be_read(text: str) -> None:
    _ptxas.parse_resources(text)
    _ptxas.acf_refusal(text)


def test_refusals_and_their_kinds(assembler: Assembler) -> None:
    acf, ptx, arch = assembler.run_all(
        [Job(TINY, "sm_90", nonsense()), Job("nonsense", "sm_90"), Job(TINY, "sm_80")]
    )
    assert isinstance(acf, AcfError)
    assert "Invalid compiler controls file" in acf.what
    assert isinstance(ptx, AssemblyError)
    assert isinstance(arch, AssemblyError)
    assert "sm_80" in arch.what


def test_an_error_is_told_before_any_number_of_warnings() -> None:
    warned = [
        f"ptxas k.ptx, line {n}; warning : Instruction 'shfl' without '.sync'" for n in range(9)
    ]
    wrong = "ptxas k.ptx, line 13; error   : Unknown symbol '%nonesuch'"
    said = _ptxas._first_errors("\n".join([*warned, wrong]))
    assert "Unknown symbol" in said
    assert "warning" not in said
    assert "warning" in _ptxas._first_errors("\n".join(warned))


def test_a_hang_is_killed_with_all_its_children(script: Script, tmp_path: Path) -> None:
    slow = script("ptxas", f"sleep 300 & echo $! > {tmp_path}/child; wait")
    started = time.monotonic()
    with pytest.raises(ToolchainError, match=r"hung without an ACF and was killed after 0\.5 s"):
        _ptxas.assemble(Ptxas(slow, (13, 3, 0)), TINY, arch="sm_90", timeout=0.5)
    assert time.monotonic() - started < 5
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 5
    while Path(f"/proc/{child}").exists() and time.monotonic() < deadline:
        if "\nState:\tZ" in Path(f"/proc/{child}/status").read_text():
            break
        time.sleep(0.02)
    else:
        assert not Path(f"/proc/{child}").exists()


def counting(script: Script, ptxas: Ptxas) -> tuple[Path, Path]:
    """A real ptxas behind a script that writes a line for each assembly."""
    log = script("unused", "").with_name("runs")
    body = f'[ "$1" = --version ] || echo run >> {log}\nexec {ptxas.path} "$@"'
    return script("ptxas", body), log


def test_nothing_is_assembled_twice_in_a_session(script: Script, ptxas: Ptxas) -> None:
    runner, log = counting(script, ptxas)
    assembler = Assembler(explicit=runner)
    acf = load(EXAMPLE / "best.acf")
    jobs = [Job(TINY, "sm_90"), Job(TINY, "sm_90", acf), Job(TINY, "sm_90", nonsense())]
    first = assembler.run_all(jobs)
    assert len(log.read_text().splitlines()) == 3
    assert assembler.run_all([*jobs, *jobs]) == [*first, *first]  # refusals are kept, too
    assert len(log.read_text().splitlines()) == 3
    for other in (
        Job(TINY + " ", "sm_90"),
        Job(TINY, "sm_90a"),
        Job(TINY, "sm_90", flags=("-O0",)),
        Job(TINY, "sm_90", acf.damaged()),
    ):
        assembler.run_all([other])
    assert len(log.read_text().splitlines()) == 7
    assembler.close()


def test_runs_side_by_side(script: Script, ptxas: Ptxas) -> None:
    """As many at once as there are cores: four sleeps of half a second are not two seconds."""
    runner, _ = counting(script, ptxas)
    runner.write_text(runner.read_text().replace("exec", "sleep 0.5; exec"))
    assembler = Assembler(explicit=runner)
    assembler.ptxas()
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        pytest.skip("one core")
    started = time.monotonic()
    assembler.run_all([Job(TINY + " " * n, "sm_90") for n in range(4)])
    assert time.monotonic() - started < 1.9
    assembler.close()


def test_close_removes_and_keep_keeps(ptxas: Ptxas) -> None:
    gone, kept = Assembler(explicit=ptxas.path), Assembler(explicit=ptxas.path, keep=True)
    for assembler in (gone, kept):
        assembler.run_all([Job(TINY, "sm_90", load(EXAMPLE / "best.acf"))])
    folder = gone.staging.folder
    gone.close()
    assert not folder.exists()
    where = kept.kept
    kept.close()
    assert where is not None
    assert gone.kept is None
    assert sorted(path.suffix for path in where.rglob("*.*") if path.is_file()) == [
        ".acf", ".cubin", ".ptx",
    ]  # fmt: skip
    shutil.rmtree(where)


def test_spills_of_called_functions_count_for_their_entry() -> None:
    """ptxas reports a device function that was not inlined after the entry, without `Used`."""
    log = """
ptxas info    : Compiling entry function 'k' for 'sm_90'
ptxas info    : Function properties for k
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 64 registers, used 1 barriers
ptxas info    : Function properties for _Z5sgemmPf
    1488 bytes stack frame, 1488 bytes spill stores, 1476 bytes spill loads
"""
    assert _ptxas.parse_resources(log)["k"].spill_bytes == 2964
