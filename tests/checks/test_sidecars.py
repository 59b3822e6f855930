"""Sidecars are read by every check, name what does not fit, and keep what is still true."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from pytest_compileiq.toolchain import sidecar as _sidecar

from ..conftest import DATA, EXAMPLE, RunJson

HEAD = "import pytest\nfrom pytest_compileiq import Build, Kernel, PtxKernel\n"
K = "PtxKernel('sgemm.ptx', arch='sm_90')"
#: A verb on the kernel for each check that takes an ACF.
CALLS = {
    "win": f"ciq.assert_beats_baseline({K}, 'best.acf')",
    "resources": f"ciq.assert_resources({K}, acf='best.acf', max_registers=255)",
    "canary o0": f"ciq.assert_canary({K}, o0='best.acf', margin=1)",
    "canary o3": f"ciq.assert_canary({K}, o3='best.acf')",
}


def change(folder: Path, **fields: object) -> None:
    path = folder / "best.acf.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def judged(sgemm: pytest.Pytester, run_json: RunJson, call: str, *args: str) -> dict[str, Any]:
    sgemm.makepyfile(f"{HEAD}def test(ciq): {call}")
    (record,) = run_json(*args)[1]
    return record


def judged_by_all(sgemm: pytest.Pytester, run_json: RunJson) -> list[dict[str, Any]]:
    """One record of each of the calls, each in a test of its own."""
    tests = (f"def test_{number}(ciq): {call}\n" for number, call in enumerate(CALLS.values()))
    sgemm.makepyfile(HEAD + "".join(tests))
    records = run_json()[1]
    assert len(records) == len(CALLS)
    return records


@pytest.mark.parametrize(
    ("field", "other", "told"),
    [("ptx_sha256", "0" * 64, "PTX hashes"), ("arch", "sm_100", "sm_100")],
)
def test_each_check_names_another_kernel(
    sgemm: pytest.Pytester, run_json: RunJson, field: str, other: str, told: str
) -> None:
    change(sgemm.path, **{field: other})
    for record in judged_by_all(sgemm, run_json):
        assert record["reason"] == "kernel-changed"
        assert told in record["message"]


def test_another_ptxas_is_named_and_no_fault(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    for record in judged_by_all(sgemm, run_json):
        assert "is of ptxas" not in record["message"]
    change(sgemm.path, ptxas="13.4.20")
    here = json.loads((EXAMPLE / "best.acf.json").read_text())["ptxas"]
    for record in judged_by_all(sgemm, run_json):
        assert record["status"] == "pass"
        assert record["message"].endswith(f"; best.acf is of ptxas 13.4.20, and this is {here}")


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (f"ciq.assert_resources({K}, acf='best.acf', max_registers=9)", "slower"),
        ("ciq.assert_beats_baseline(lambda config: 1.0)", "no-win"),
    ],
)
def test_another_ptxas_is_the_likely_cause_of_another_fault(
    sgemm: pytest.Pytester, run_json: RunJson, call: str, reason: str
) -> None:
    change(sgemm.path, ptxas="13.4.20")
    record = judged(sgemm, run_json, call)
    assert record["reason"] == reason
    assert "best.acf is of ptxas 13.4.20, and this is 13.3" in record["message"]
    assert record["message"].endswith(", which may be why")


def test_another_ptxas_is_no_cause_of_a_build_that_never_met_it(
    sgemm: pytest.Pytester, run_json: RunJson
) -> None:
    change(sgemm.path, ptxas="13.4.20")
    record = judged(
        sgemm, run_json, "ciq.assert_beats_baseline(Kernel(lambda acf: 1 / 0), 'best.acf')"
    )
    assert record["status"] == "fail"
    assert "13.4.20" not in record["message"]


def test_another_ptxas_is_named_once_a_test(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    change(sgemm.path, ptxas="13.4.20")
    sgemm.makepyfile(
        f"{HEAD}@pytest.mark.ciq_beats_baseline\n@pytest.mark.ciq_resources(max_registers=255)\n"
        f"def test(ciq): ciq.check({K})"
    )
    _, records = run_json()
    assert [record["status"] for record in records] == ["pass", "pass"]
    assert ["13.4.20" in record["message"] for record in records] == [True, False]


def test_accept_records_the_ptxas_of_an_objective(
    sgemm: pytest.Pytester, run_json: RunJson
) -> None:
    """It kept the former one, and the next run named it again."""
    change(sgemm.path, ptxas="13.4.20")
    call = "ciq.assert_beats_baseline(lambda config: 1.0 if config else 2.0)"
    assert "13.4.20" in judged(sgemm, run_json, call)["message"]
    judged(sgemm, run_json, call, "--ciq-accept")
    assert "13.4.20" not in judged(sgemm, run_json, call)["message"]


def test_a_recorded_win_below_1_is_refused_without_a_gpu(
    sgemm: pytest.Pytester, run_json: RunJson
) -> None:
    """Half of it would ask for 0.949, and an ACF that is 5 % slower would be a win."""
    call = f"ciq.assert_beats_baseline({K}, 'best.acf', min_speedup='recorded')"
    assert judged(sgemm, run_json, call)["status"] == "pass"  # 1.12x, not measured here
    change(sgemm.path, speedup=0.9)
    record = judged(sgemm, run_json, call)
    assert record["reason"] == "unfit"
    assert "best.acf records a speedup of 0.9, which is no win" in record["message"]


def test_an_acf_of_which_only_a_damaged_copy_is_tried_is_no_cause(
    sgemm: pytest.Pytester, run_json: RunJson
) -> None:
    change(sgemm.path, ptxas="13.4.20")
    sgemm.makepyfile(
        f"{HEAD}@pytest.mark.ciq_canary(margin=1e6)\n@pytest.mark.ciq_beats_baseline\n"
        f"def test(ciq): ciq.check({K})"
    )
    _, (canary, _win) = run_json()
    assert canary["reason"] == "no-effect"
    assert "13.4" not in canary["message"]


def test_a_refusal_names_the_other_ptxas_once(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    change(sgemm.path, ptxas="13.4.20", size_bytes=4, sha256=_sha256(b"none"))
    (sgemm.path / "best.acf").write_bytes(b"none")
    record = judged(sgemm, run_json, CALLS["win"])
    assert record["reason"] == "rejected"
    assert record["message"].count("13.4") == 1


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


WIN = {"speedup": 1.2, "speedup_interval": [1.1, 1.3], "gpu": "H200", "driver": "580", "sm_mhz": 9}


@pytest.mark.parametrize("name", ["resources", "win", "canary o3"])
def test_accept_keeps_what_is_still_true(
    sgemm: pytest.Pytester, run_json: RunJson, name: str
) -> None:
    """Speed is not measured here: an older measurement of the same file and kernel stays."""
    kernel = json.loads((sgemm.path / "best.acf.json").read_text())["ptx_sha256"]
    assert kernel
    change(sgemm.path, **WIN)
    judged(sgemm, run_json, CALLS[name], "--ciq-accept")
    kept = json.loads((sgemm.path / "best.acf.json").read_text())
    assert kept["ptx_sha256"] == kernel
    assert {key: kept[key] for key in WIN} == WIN


@pytest.mark.parametrize("name", ["resources", "win", "canary o3"])
@pytest.mark.parametrize(
    "other",
    [{"ptx_sha256": "0" * 64}, {"arch": "sm_100"}, {"ptxas": "13.4.20"}, {"sha256": "0" * 64}],
    ids=lambda other: next(iter(other)),
)
def test_accept_drops_what_is_of_something_else(
    sgemm: pytest.Pytester, run_json: RunJson, name: str, other: dict[str, str]
) -> None:
    """A win of another kernel is none of this one; but the kernel's own hash is known."""
    before = json.loads((sgemm.path / "best.acf.json").read_text())
    change(sgemm.path, **WIN, **other)
    judged(sgemm, run_json, CALLS[name], "--ciq-accept")
    kept = json.loads((sgemm.path / "best.acf.json").read_text())
    assert dict.fromkeys(WIN) == {key: kept[key] for key in WIN}
    for key in ("sha256", "ptx_sha256", "arch", "ptxas"):
        assert kept[key] == before[key]


@pytest.mark.parametrize(
    ("other", "kept"),
    [({}, True), ({"ptx_sha256": "0" * 64}, True), ({"sha256": "0" * 64}, False)],
    ids=["the same", "another kernel", "another ACF"],
)
def test_the_search_space_is_that_of_the_search(
    sgemm: pytest.Pytester,
    run_json: RunJson,
    monkeypatch: pytest.MonkeyPatch,
    other: dict[str, str],
    kept: bool,
) -> None:
    """It was that of the mirror at hand, though nobody had searched there."""
    mirror = sgemm.mkdir("mirror")
    entry = {"compiler": "ptxas", "compiler_version": "13.3", "sha256": "9" * 64}
    (mirror / "manifest.json").write_text(json.dumps({"tag": "here", "entries": [entry]}))
    monkeypatch.setenv("CIQ_SEARCH_SPACES_DIR", str(mirror))
    names = ("search_space_tag", "search_space_sha256")
    change(sgemm.path, **dict(zip(names, ("there", "8" * 64), strict=True)), **other)
    judged(sgemm, run_json, CALLS["win"], "--ciq-accept")
    written = json.loads((sgemm.path / "best.acf.json").read_text())
    assert [written[name] for name in names] == (["there", "8" * 64] if kept else [None, None])


def test_a_measurement_is_kept_or_replaced_whole() -> None:
    """The locked clock of an older win is not that of a new one with clocks that move."""
    old = _sidecar.Sidecar(
        sha256="1", size_bytes=1, gpu="A", driver="1", sm_mhz=1000, speedup=1.5, score_ratio=2.0
    )
    new = _sidecar.Sidecar(sha256="1", size_bytes=1, gpu="B", driver="2", speedup=1.1)
    merged = _sidecar.refreshed(old, new)
    assert (merged.gpu, merged.sm_mhz, merged.speedup, merged.score_ratio) == ("B", None, 1.1, 2.0)


#: What may be wrong with an ACF, and the word for it. Each is a body of ``build(acf)``.
FAULTS = {
    "pass": ("return assemble(acf)", None),
    "rejected": ("return assemble(acf)", "rejected"),
    "altered": ("return assemble(acf)", "rejected"),
    "not-applied": ("return assemble(None)", "not-applied"),
    "no-effect": ("return assemble(acf)", "no-effect"),
    "kernel-changed": ("return assemble(acf)", "kernel-changed"),
    "crashed": ("if acf: raise OSError('disk full')\n    return assemble(acf)", "crashed"),
}
BODY = """
import pathlib, subprocess
from pytest_compileiq.errors import CiqError
from pytest_compileiq.toolchain.ptxas import find

def assemble(acf):
    command = [find().path, "-v", "-arch=sm_90", "sgemm.ptx", "-o", "k.cubin"]
    command += [f"--apply-controls={{acf}}"] if acf else []
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr)
    return Build(cubin=pathlib.Path("k.cubin").read_bytes(), ptxas_log=done.stderr)

def build(acf):
    {body}

class K(Kernel):
    def arch(self):
        return "sm_90"

@pytest.mark.ciq_beats_baseline("best.acf")
def test_mark(ciq):
    ciq.check(K(build))

def test_verb(ciq):
    ciq.assert_beats_baseline(K(build), "best.acf")

def test_compare(ciq):
    try:
        reason = ciq.compare(K(build), "best.acf").verdict.reason
    except CiqError as error:
        reason = error.reason
    pathlib.Path("compared").write_text(str(reason))
"""


@pytest.mark.parametrize("fault", FAULTS)
def test_mark_verb_and_compare_give_one_verdict(
    sgemm: pytest.Pytester, run_json: RunJson, fault: str
) -> None:
    body, reason = FAULTS[fault]
    acf = sgemm.path / "best.acf"
    if fault == "rejected":
        acf.write_bytes(b"no ACF at all")
    elif fault == "altered":
        shutil.copy(sgemm.path / "worst.acf", acf)
    elif fault == "no-effect":
        shutil.copy(DATA / "nvcc.acf", acf)
        change(sgemm.path, sha256=_sha256(acf.read_bytes()), size_bytes=acf.stat().st_size)
    elif fault == "kernel-changed":
        change(sgemm.path, arch="sm_100")
    sgemm.makepyfile(HEAD + BODY.format(body=body))
    _, records = run_json()
    found = {
        record["nodeid"].rpartition("::")[2]: record["reason"]
        for record in records
        if record["check"] == "win"
    }
    assert (found["test_mark"], found["test_verb"]) == (reason, reason)
    assert (sgemm.path / "compared").read_text() == str(reason)
