"""Canary, resources and win on kernels; each with a subject for which the answer is no."""

from __future__ import annotations

import json
import shutil
import zipfile
from typing import Any

import pytest

from pytest_compileiq.checks import canary

from ..conftest import EXAMPLE, TINY, RunJson

HEAD = "import pytest\nfrom pytest_compileiq import PtxKernel, Kernel, Build\n"


def one(records: list[dict[str, Any]], check: str) -> dict[str, Any]:
    (record,) = [record for record in records if record["check"] == check]
    return record


def check(pytester: pytest.Pytester, *marks: str, kernel: str = "sgemm.ptx") -> None:
    lines = "".join(f"@pytest.mark.{mark}\n" for mark in marks)
    pytester.makepyfile(
        HEAD + f"{lines}def test(ciq): ciq.check(PtxKernel({kernel!r}, arch='sm_90'))"
    )


@pytest.mark.parametrize(
    ("mark", "reason", "message"),
    [
        ("ciq_canary", None, "raw -O0"),
        ("ciq_canary(o0='worst.acf')", None, "worst.acf: spill bytes 940 -> "),
        ("ciq_canary(o0='worst.acf', o3='best.acf')", None, ""),
        ("ciq_canary(o0='best.acf', margin=3)", "no-effect", "best.acf makes nothing worse by 3x"),
        ("ciq_canary(o0='worst.acf', o3='worst.acf')", "slower", "worst.acf makes the code worse"),
        ("ciq_canary(margin=1e6)", "no-effect", "raw -O0 makes nothing worse"),
        ("ciq_canary(o3='worst.acf')", "slower", "worst.acf makes the code worse"),
        ("ciq_canary(o3='best.acf')", None, "raw -O0"),
        ("ciq_canary(o0='none.acf')", "rejected", "does not exist"),
    ],
)
def test_canary(
    sgemm: pytest.Pytester, run_json: RunJson, mark: str, reason: str | None, message: str
) -> None:
    check(sgemm, mark)
    result, records = run_json()
    record = one(records, "canary")
    assert record["reason"] == reason
    assert record["status"] == ("pass" if reason is None else "fail")
    result.assert_outcomes(**({"passed": 1} if reason is None else {"failed": 1}))
    assert message in record["message"]
    if reason is None:
        assert record["numbers"]["refused"].startswith(("damaged-", "nonsense"))


@pytest.mark.parametrize(
    ("mark", "told", "left_out", "source"),
    [
        ("o0='none.acf'", "leave o0= out: raw -O0 is tried", "", "raw -O0 and raw -O3"),
        ("o3='none.acf'", "leave o3= out: raw -O3 is tried", "", "raw -O0 and raw -O3"),
        ("o0='worst.acf', o3='none.acf'", "no O3 is tried", "o0='worst.acf'", "worst.acf"),
        ("o0='empty.acf'", "or leave o0= out: raw -O0 is tried", "", "raw -O0 and raw -O3"),
    ],
)
def test_without_the_file_the_canary_does_what_it_offers(
    sgemm: pytest.Pytester, run_json: RunJson, mark: str, told: str, left_out: str, source: str
) -> None:
    """--ciq-retune searches for no canary's file."""
    (sgemm.path / "empty.acf").touch()
    check(sgemm, f"ciq_canary({mark})")
    remedy = one(run_json()[1], "canary")["remedy"]
    assert told in remedy
    assert "restore the file" in remedy
    assert "retune" not in remedy
    check(sgemm, f"ciq_canary({left_out})")
    record = one(run_json()[1], "canary")
    assert (record["status"], record["numbers"]["source"]) == ("pass", source)


@pytest.mark.parametrize("name", ["o0", "o3"])
def test_without_the_file_the_debug_pack_has_one(
    sgemm: pytest.Pytester, run_json: RunJson, name: str
) -> None:
    pack = sgemm.path / "pack"
    pack.mkdir()
    shutil.copy(EXAMPLE / "worst.acf", pack / "O0.acf")
    shutil.copy(EXAMPLE / "best.acf", pack / "O3.acf")
    check(sgemm, f"ciq_canary({name}='none.acf')")
    remedy = one(run_json(f"--ciq-debug-pack={pack}")[1], "canary")["remedy"]
    assert f"leave {name}= out: {name.upper()}.acf of --ciq-debug-pack is tried" in remedy


def test_an_o0_file_is_not_to_leave_out_where_no_flags_are_taken(
    sgemm: pytest.Pytester, run_json: RunJson
) -> None:
    sgemm.makepyfile(
        HEAD + "@pytest.mark.ciq_canary(o0='none.acf')\n"
        "def test(ciq): ciq.check(Kernel(lambda acf: Build()))"
    )
    remedy = one(run_json()[1], "canary")["remedy"]
    assert "raw" not in remedy
    assert "leave o0= out and run with --ciq-debug-pack" in remedy


def test_an_o3_file_alone_is_tried_and_accepted(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    (sgemm.path / "best.acf.json").unlink()
    check(sgemm, "ciq_canary(o3='best.acf')")
    _, records = run_json("--ciq-accept")
    assert one(records, "canary")["numbers"]["o3"]["spill_bytes"] == 536
    assert (sgemm.path / "best.acf.json").exists()


def test_constant_memory_is_not_known_without_a_cubin(
    pytester: pytest.Pytester, run_json: RunJson
) -> None:
    log = "ptxas info : Compiling entry function 'k' for 'sm_90'\nptxas info : Used 8 registers\n"
    pytester.makepyfile(
        HEAD + "@pytest.mark.ciq_resources(max_constant_bytes=10)\n"
        f"def test(ciq): ciq.check(Kernel(lambda acf: Build(ptxas_log={log!r})))"
    )
    _, records = run_json()
    assert one(records, "resources")["reason"] == "unfit"
    assert "constant memory is read from nothing else" in one(records, "resources")["message"]


def test_canary_takes_the_debug_pack_first(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    pack = sgemm.path / "pack.zip"
    with zipfile.ZipFile(pack, "w") as archive:
        archive.write(EXAMPLE / "worst.acf", "deep/inside/O0.acf")
        archive.write(EXAMPLE / "best.acf", "deep/inside/O3.acf")
    check(sgemm, "ciq_canary(o0='best.acf', margin=3)")  # would fail without the pack
    result, records = run_json(f"--ciq-debug-pack={pack}", "--ciq-accept")
    result.assert_outcomes(passed=1)
    assert one(records, "canary")["message"].startswith("damage refused; O0.acf: spill bytes 940")
    assert not list(sgemm.path.glob("pack*/*.json"))


def test_a_failed_canary_stops_the_rest(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    check(sgemm, "ciq_canary(margin=1e6)", "ciq_beats_baseline", "ciq_resources(no_worse=True)")
    result, records = run_json()
    result.assert_outcomes(failed=1)
    assert {r["check"]: r["status"] for r in records} == {
        "canary": "fail",
        "resources": "not-judged",
        "win": "not-judged",
    }
    assert "the canary failed" in one(records, "win")["message"]


def test_a_missing_acf_is_told_by_the_checks_of_it(
    sgemm: pytest.Pytester, run_json: RunJson
) -> None:
    """Not by the canary, which needs any file to damage: its failure would stop --ciq-retune."""
    (sgemm.path / "best.acf").unlink()
    check(sgemm, "ciq_canary", "ciq_resources(no_worse=True)", "ciq_beats_baseline")
    _, records = run_json()
    assert one(records, "canary")["numbers"]["refused"] == "nonsense.acf"
    for name in ("resources", "win"):
        assert one(records, name)["reason"] == "rejected"
        assert "--ciq-retune searches for one" in one(records, name)["remedy"]


@pytest.mark.parametrize(
    ("mark", "told"),
    [("ciq_canary(margin=1e6)", False), ("ciq_canary(o0='best.acf', margin=3)", True)],
)
def test_only_a_file_may_be_no_o0_acf(
    sgemm: pytest.Pytester, run_json: RunJson, mark: str, told: bool
) -> None:
    check(sgemm, mark)
    remedy = one(run_json()[1], "canary")["remedy"]
    assert ("an O0 ACF of this ptxas" in remedy) == told
    assert "a lower margin=" in remedy


def test_canary_of_a_kernel_that_takes_no_flags(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    sgemm.makepyfile(
        HEAD + "@pytest.mark.ciq_canary\ndef test(ciq): ciq.check(Kernel(lambda acf: Build()))"
    )
    _, records = run_json()
    assert one(records, "canary")["reason"] == "unfit"
    assert "--ciq-debug-pack" in one(records, "canary")["remedy"]


@pytest.mark.parametrize(
    ("limits", "excess"),
    [
        ("max_registers=80, max_spill_bytes=560, no_worse=True", None),
        ("max_spill_bytes=500", "536 spill bytes where at most 500 are allowed"),
        ("max_registers=79", "80 registers where at most 79"),
        ("max_shared_bytes=16383", "16384 shared bytes where at most 16383"),
        ("max_barriers=0", "1 barriers where at most 0"),
        (
            "max_stack_bytes=0, max_registers=1",
            "80 registers where at most 1 are allowed (the baseline 80) and ",
        ),
        ("no_worse=True, acf='worst.acf'", "spill bytes where the baseline has 940"),
    ],
)
def test_resources(
    sgemm: pytest.Pytester, run_json: RunJson, limits: str, excess: str | None
) -> None:
    check(sgemm, f"ciq_resources({limits})", "ciq_beats_baseline")
    result, records = run_json()
    record = one(records, "resources")
    assert record["reason"] == (None if excess is None else "slower")
    assert record["status"] == ("pass" if excess is None else "fail")
    result.assert_outcomes(**({"passed": 1} if excess is None else {"failed": 1}))
    assert excess is None or excess in record["message"]
    assert record["numbers"]["registers"] == 80


@pytest.mark.parametrize(
    ("limits", "told"),
    [
        ("max_registers=8", "the baseline does not keep max_registers=8 either, so the limit or "),
        ("max_spill_bytes=9, max_registers=8", "the baseline does not keep max_registers=8 and "),
        ("max_spill_bytes=999, acf='worst.acf'", "search for another ACF, or allow more"),
    ],
)
def test_a_limit_that_the_baseline_breaks_too(
    sgemm: pytest.Pytester, run_json: RunJson, limits: str, told: str
) -> None:
    check(sgemm, f"ciq_resources({limits})", "ciq_beats_baseline")
    assert one(run_json()[1], "resources")["remedy"].startswith(told)


def test_resources_of_the_baseline(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    check(sgemm, "ciq_resources(max_spill_bytes=600)")
    _, records = run_json()
    record = one(records, "resources")
    assert record["message"] == "the baseline needs 940 spill bytes where at most 600 are allowed"
    assert record["remedy"].startswith("allow more in ciq_resources, change the kernel, or ")
    check(sgemm, "ciq_resources(no_worse=True)")
    _, records = run_json()
    assert one(records, "resources")["reason"] == "unfit"


def test_no_report_is_not_no_spills(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    sgemm.makepyfile(
        HEAD + "@pytest.mark.ciq_resources(max_spill_bytes=0)\n"
        "def test(ciq): ciq.check(Kernel(lambda acf: Build(ptxas_log='')))"
    )
    result, records = run_json()
    result.assert_outcomes(failed=1)
    assert one(records, "resources")["reason"] == "unfit"
    assert "no report of ptxas -v" in one(records, "resources")["message"]


def test_mark_and_verb_and_compare_agree(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    sgemm.makepyfile(
        HEAD
        + """
        KERNEL = PtxKernel("sgemm.ptx", arch="sm_90", name="sgemm kernel")

        @pytest.mark.ciq_beats_baseline("best.acf")
        @pytest.mark.ciq_resources(max_spill_bytes=560)
        def test_mark(ciq):
            ciq.check(KERNEL)

        def test_verb(ciq):
            ciq.assert_resources(KERNEL, acf="best.acf", max_spill_bytes=560)
            ciq.assert_beats_baseline(KERNEL, "best.acf")

        def test_compare(ciq):
            found = ciq.compare(KERNEL, "best.acf")
            assert (found.kernel, found.acf, found.same_code) == ("sgemm kernel", "best.acf", False)
            assert found.baseline.spill_bytes == 940
            assert found.tuned.spill_bytes == 536
        """.replace("\n        ", "\n")
    )
    result, records = run_json()
    result.assert_outcomes(passed=3)
    by_test: dict[str, list[object]] = {}
    for record in records:
        by_test.setdefault(record["nodeid"].split("::")[1], []).append(
            (record["check"], record["status"], record["numbers"])
        )
    assert by_test["test_mark"] == by_test["test_verb"]


def test_marks_on_a_class_and_parametrised(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    (sgemm.path / "tiny.ptx").write_text(TINY)
    sgemm.makepyfile(
        HEAD
        + """
        @pytest.mark.ciq_canary
        @pytest.mark.ciq_resources(max_registers=80, max_spill_bytes=1000)
        class TestKernels:
            @pytest.mark.parametrize("name", ["tiny.ptx", "sgemm.ptx"])
            def test_one(self, ciq, name):
                ciq.check(PtxKernel(name, arch="sm_90"))

            def test_two(self, ciq):
                for name in ("tiny.ptx", "sgemm.ptx"):
                    ciq.check(PtxKernel(name, arch="sm_90"))
        """.replace("\n        ", "\n")
    )
    result, records = run_json("--strict-markers", "-W", "error")
    result.assert_outcomes(passed=3)
    assert len(records) == 8


def test_accept_writes_a_sidecar_for_tests_that_pass(
    sgemm: pytest.Pytester, run_json: RunJson
) -> None:
    sidecar = sgemm.path / "best.acf.json"
    sidecar.unlink()
    body = HEAD + (
        "@pytest.mark.ciq_beats_baseline\ndef test(ciq):\n"
        "    ciq.check(PtxKernel('sgemm.ptx', arch='sm_90'))\n"
    )
    sgemm.makepyfile(body + "    assert False")
    run_json("--ciq-accept")[0].assert_outcomes(failed=1)
    assert not sidecar.exists()
    sgemm.makepyfile(body)
    run_json()[0].assert_outcomes(passed=1)
    assert not sidecar.exists()
    result, _ = run_json("--ciq-accept")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(["*::test: --ciq-accept wrote best.acf.json"])
    written = json.loads(sidecar.read_text())
    assert written["arch"] == "sm_90"
    assert written["ptxas"].startswith("13.3.")
    assert written["size_bytes"] == (sgemm.path / "best.acf").stat().st_size
    assert written["notice"] == "(c) NVIDIA Corporation, 2026."
    before = sidecar.read_bytes()
    run_json("--ciq-accept")[0].assert_outcomes(passed=1)
    assert sidecar.read_bytes() == before


def test_accept_where_nothing_can_be_written(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    """The sidecar's place is taken by a folder, which not even root can replace by a file."""
    sidecar = sgemm.path / "best.acf.json"
    sgemm.makepyfile(
        HEAD + "@pytest.mark.ciq_beats_baseline\n"
        "def test(ciq):\n"
        "    ciq.check(PtxKernel('sgemm.ptx', arch='sm_90'))\n"
        "    import os; os.unlink('best.acf.json'); os.mkdir('best.acf.json')\n"
        "    open('best.acf.json/x', 'w').close()\n"
    )
    result, records = run_json("--ciq-accept")
    result.assert_outcomes(passed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["ERROR --ciq-accept: the sidecar *best.acf.json cannot be read*"])
    assert records[-1]["status"] == "pass"
    assert sidecar.is_dir()
    assert not list(sgemm.path.glob(".best*"))


def test_recorded_without_a_record(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    (sgemm.path / "best.acf.json").unlink()
    sgemm.makepyfile(
        HEAD + "def test(ciq):\n"
        "    ciq.assert_beats_baseline(lambda c: 2 if c else 3, min_speedup='recorded')"
    )
    _, records = run_json()
    assert one(records, "win")["reason"] == "unfit"
    assert "records no score_ratio" in one(records, "win")["message"]


def test_text_instead_of_a_file(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    shutil.copy(EXAMPLE / "sgemm.ptx", sgemm.path / "text.ptx")
    sgemm.makepyfile(
        HEAD + "@pytest.mark.ciq_beats_baseline('best.acf')\n"
        "def test(ciq): ciq.check(PtxKernel(open('text.ptx').read(), arch='sm_90', entry='sgemm'))\n"
        "@pytest.mark.ciq_canary\n"
        "def test_missing(ciq): ciq.check(PtxKernel('none.ptx', arch='sm_90'))\n"
        "@pytest.mark.ciq_canary\n"
        "def test_entry(ciq): ciq.check(PtxKernel('text.ptx', arch='sm_90', entry='dgemm'))\n"
    )
    result, records = run_json()
    result.assert_outcomes(passed=1, failed=2)
    assert [r["reason"] for r in records] == [None, "unfit", "unfit"]
    assert "none.ptx does not exist" in records[1]["message"]
    assert records[1]["numbers"]["looked_at"] == [f"{sgemm.path}: sgemm.ptx, text.ptx"]
    assert "has no entry function dgemm; it has sgemm" in records[2]["message"]


def test_resources_of_an_acf_that_cannot_be_shown_to_arrive(
    sgemm: pytest.Pytester, run_json: RunJson
) -> None:
    """A build that ignores the ACF and gives no cubin must not pass for one that is no worse."""
    sgemm.makepyfile(
        HEAD + "LOG = (\"ptxas info : Compiling entry function 'k' for 'sm_90'\\n\"\n"
        "    '0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads\\n'\n"
        "    'ptxas info : Used 8 registers')\n"
        "@pytest.mark.ciq_resources(no_worse=True, acf='best.acf')\n"
        "def test(ciq): ciq.check(Kernel(lambda acf: Build(ptxas_log=LOG)))"
    )
    result, records = run_json()
    result.assert_outcomes(failed=1)
    assert one(records, "resources")["reason"] == "unfit"
    assert "not known whether best.acf arrived" in one(records, "resources")["message"]


def test_constant_memory_is_read_from_the_cubin(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    """ptxas 13.3 prints none; a table of 4096 bytes has to count all the same."""
    table = ".const .align 4 .b8 table[4096];\n.visible .entry tiny"
    use = "ld.const.f32 %f, [table];\n    st.global"
    text = TINY.replace(".visible .entry tiny", table).replace("st.global", use)
    (sgemm.path / "table.ptx").write_text(text)
    check(sgemm, "ciq_resources(max_constant_bytes=4095)", kernel="table.ptx")
    result, records = run_json()
    result.assert_outcomes(failed=1)
    assert one(records, "resources")["numbers"]["constant_bytes"] >= 4096
    (sgemm.path / "table.ptx").write_text(TINY)
    run_json()[0].assert_outcomes(passed=1)


@pytest.mark.parametrize(
    "call",
    [
        "ciq.assert_resources(K, acf='best.acf', max_registers=80)",
        "ciq.assert_beats_baseline(K)",
        "ciq.assert_beats_baseline(lambda c: 1 if c else 2)",
        "ciq.assert_canary(K, o0='best.acf')",
        "ciq.assert_canary(lambda c: SCORES.get(c or '', '*'), o0='best.acf')",
    ],
)
def test_every_check_compares_the_sidecar(
    sgemm: pytest.Pytester, run_json: RunJson, call: str
) -> None:
    shutil.copy(sgemm.path / "worst.acf", sgemm.path / "best.acf")
    sgemm.makepyfile(
        HEAD + "SCORES = {'': 1, open('best.acf', 'rb').read().hex(): 9}\n"
        f"K = PtxKernel('sgemm.ptx', arch='sm_90')\ndef test(ciq): {call}"
    )
    result, (record,) = run_json()
    result.assert_outcomes(failed=1)
    assert record["reason"] == "rejected"
    assert "nobody has accepted it" in record["message"]


def test_compare_reads_the_sidecar_too(sgemm: pytest.Pytester) -> None:
    shutil.copy(sgemm.path / "worst.acf", sgemm.path / "best.acf")
    sgemm.makepyfile(
        HEAD + "def test(ciq): ciq.compare(PtxKernel('sgemm.ptx', arch='sm_90'), 'best.acf')"
    )
    result = sgemm.runpytest_subprocess()
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*nobody has accepted it*"])


@pytest.mark.parametrize(
    ("before", "build", "reason"),
    [
        ("ACF.write_bytes(ACF.read_bytes()[:1208])", "KERNEL", "rejected"),
        ("pass", "Kernel(lambda acf: Build(cubin=made(None)))", "not-applied"),
        ("pass", "Kernel(lambda acf: Build(cubin=made(acf, '-arch=sm_89')))", "crashed"),
    ],
)
def test_compare_raises_what_it_cannot_show(
    sgemm: pytest.Pytester, run_json: RunJson, before: str, build: str, reason: str
) -> None:
    _comparing(
        sgemm,
        f"{before}\n    with pytest.raises(CiqError) as found: ciq.compare({build})\n"
        f"    assert found.value.reason == {reason!r}",
    )
    result, records = run_json()
    result.assert_outcomes(passed=1)
    assert records == []


def test_compare_refuses_what_the_mark_refuses(sgemm: pytest.Pytester) -> None:
    sgemm.makepyfile(
        HEAD + "from pytest_compileiq import CiqError\ndef test(ciq):\n"
        "    with pytest.raises(CiqError, match='min_speedup'):\n"
        "        ciq.compare(PtxKernel('sgemm.ptx', arch='sm_90'), min_speedup=0.98)\n"
    )
    sgemm.runpytest_subprocess().assert_outcomes(passed=1)


def test_compare_returns_a_negative_verdict(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    _comparing(
        sgemm,
        "PTX.write_text(PTX.read_text().replace('mov.u32', 'mov.b32', 1))\n"
        "    assert ciq.compare(KERNEL).verdict.reason == 'kernel-changed'",
    )
    result, records = run_json()
    result.assert_outcomes(passed=1)
    assert records == []


def _comparing(sgemm: pytest.Pytester, body: str) -> None:
    sgemm.makepyfile(
        f"""
import subprocess
from pathlib import Path

import pytest
from pytest_compileiq import Build, CiqError, Kernel, PtxKernel

ACF, PTX = Path("best.acf").resolve(), Path("sgemm.ptx").resolve()
KERNEL = PtxKernel(PTX, arch="sm_90")

def test(ciq, ciq_ptxas, tmp_path):
    def made(acf, *more):
        out = tmp_path / "x.cubin"
        command = [ciq_ptxas, "-arch=sm_90", PTX, "-o", out]
        if acf is not None:
            command += [f"--apply-controls={{acf}}", *more]
        subprocess.run(command, check=True, capture_output=True)
        return out.rename(tmp_path / f"{{acf and acf.name}}.cubin")

    {body}
"""
    )


def test_a_speedup_that_is_not_measured_is_named(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    """The static part passes, and says which promise of the mark it did not look at."""
    check(sgemm, "ciq_beats_baseline(min_speedup=1000)")
    _, (record,) = run_json()
    assert "min_speedup=1000 was not measured" in record["message"]
    assert record["numbers"]["min_speedup"] == 1000
    assert record["numbers"]["timed"] is False


def test_another_architecture_is_named(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    sgemm.makepyfile(
        HEAD + "def test(ciq): ciq.assert_beats_baseline(PtxKernel('sgemm.ptx', arch='sm_90a'))"
    )
    _, (record,) = run_json()
    assert record["reason"] == "kernel-changed"
    assert "was made for sm_90, and this kernel is built for sm_90a" in record["message"]


@pytest.mark.parametrize(
    ("spills", "code", "worse"),
    [
        ((0, 4), (4000, 4000), 1.001),  # and not infinitely, which met any margin
        ((0, 940), (4000, 2000), 1.235),  # an ACF that spills may make shorter code
        ((0, 0), (4000, 8000), 2.0),
        ((940, 1880), (4000, 2000), 2.0),
        ((940, 0), (4000, 2000), 0.5),
    ],
)
def test_spills_of_a_kernel_that_had_none_are_set_against_its_code(
    spills: tuple[int, int], code: tuple[int, int], worse: float
) -> None:
    before, after = ({"spill_bytes": s, "code_bytes": c} for s, c in zip(spills, code, strict=True))
    assert canary._regression(before, after) == worse
    del before["spill_bytes"]  # not reported
    assert canary._regression(before, after) == code[1] / code[0]
