"""Every way in which a committed ACF goes bad has its own message and its own reason word."""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_compileiq.toolchain import acf
from pytest_compileiq.toolchain.acf import Acf, nonsense

from ..conftest import EXAMPLE, TINY, TWO, RunJson

TEST = """
import pytest
from pytest_compileiq import PtxKernel

@pytest.mark.ciq_beats_baseline("best.acf")
def test_kernel(ciq):
    ciq.check(PtxKernel("sgemm.ptx", arch="sm_90"))
"""


def win(records: list[dict[str, Any]]) -> dict[str, Any]:
    (record,) = [record for record in records if record["check"] == "win"]
    return record


def random_bytes(content: bytes) -> bytes:
    return random.Random(1).randbytes(len(content))


def truncated(content: bytes) -> bytes:
    return content[: len(content) // 2]


def one_bit(content: bytes) -> bytes:
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]


def lfs_pointer(content: bytes) -> bytes:
    return (
        b"version https://git-lfs.github.com/spec/v1\n"
        b"oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 2416\n"
    )


def test_the_good_acf_passes(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    sgemm.makepyfile(TEST)
    result, records = run_json()
    result.assert_outcomes(passed=1)
    assert win(records)["status"] == "pass"
    assert win(records)["numbers"]["ptxas"].startswith("13.3.")


@pytest.mark.parametrize("with_sidecar", [True, False], ids=["sidecar", "no-sidecar"])
@pytest.mark.parametrize(
    ("spoil", "message", "to_do"),
    [
        (None, "does not exist", "relative to the test file"),
        (lambda content: b"", "is empty (0 bytes)", "restore the file"),
        (lfs_pointer, "is a git-lfs pointer of ", "git lfs pull"),
        (random_bytes, {True: "same size", False: "is damaged, or was made for"}, "restore"),
        (truncated, {True: "has 1208 bytes, not 2416", False: "is damaged"}, "restore"),
        (one_bit, {True: "SHA-256 begins", False: "is damaged"}, "restore"),
    ],
    ids=["missing", "empty", "lfs", "random", "truncated", "one-bit"],
)
def test_a_bad_acf_is_rejected(
    sgemm: pytest.Pytester,
    run_json: RunJson,
    spoil: Callable[[bytes], bytes] | None,
    message: str | dict[bool, str],
    to_do: str,
    with_sidecar: bool,
) -> None:
    sgemm.makepyfile(TEST)
    acf = sgemm.path / "best.acf"
    content = acf.read_bytes()
    acf.unlink() if spoil is None else acf.write_bytes(spoil(content))
    if not with_sidecar:
        (sgemm.path / "best.acf.json").unlink()
    result, records = run_json()
    result.assert_outcomes(failed=1)
    record = win(records)
    assert record["reason"] == "rejected"
    assert (message if isinstance(message, str) else message[with_sidecar]) in record["message"]
    assert to_do in record["remedy"]


def test_every_flipped_bit_is_refused_by_ptxas(assembler: Any, sgemm_ptx: str) -> None:
    """`Acf.damaged` rests on it: ptxas authenticates the whole file, ends included."""
    from pytest_compileiq.errors import AcfError
    from pytest_compileiq.toolchain.acf import Acf
    from pytest_compileiq.toolchain.assembler import Job

    content = (EXAMPLE / "best.acf").read_bytes()
    chance = random.Random(7)
    bits = [0, len(content) * 8 - 1, *(chance.randrange(len(content) * 8) for _ in range(30))]
    jobs = []
    for bit in bits:
        flipped = bytearray(content)
        flipped[bit // 8] ^= 1 << bit % 8
        jobs.append(Job(sgemm_ptx, "sm_90", Acf(Path(f"{bit}.acf"), bytes(flipped))))
    answers = assembler.run_all(jobs)
    assert [type(answer) for answer in answers] == [AcfError] * len(bits)


def test_an_acf_that_ptxas_takes_and_nobody_accepted(
    sgemm: pytest.Pytester, run_json: RunJson
) -> None:
    """A real ACF of another search in place of best.acf: ptxas takes it, the sidecar does not."""
    sgemm.makepyfile(TEST)
    shutil.copy(sgemm.path / "worst.acf", sgemm.path / "best.acf")
    result, records = run_json()
    result.assert_outcomes(failed=1)
    assert win(records)["reason"] == "rejected"
    assert "nobody has accepted it" in win(records)["message"]
    assert "--ciq-accept" in win(records)["remedy"]
    # Accepted, it is judged by what it does, and its sidecar follows.
    run_json("--ciq-accept")[0].assert_outcomes(passed=1)
    run_json()[0].assert_outcomes(passed=1)


@pytest.mark.parametrize("release", ["13.4", "13.5"])
def test_an_acf_for_another_ptxas_names_both(
    sgemm: pytest.Pytester, run_json: RunJson, other_ptxas: Callable[[str], Path], release: str
) -> None:
    sgemm.makepyfile(TEST)
    result, records = run_json(f"--ciq-ptxas={other_ptxas(release)}")
    result.assert_outcomes(failed=1)
    assert win(records)["reason"] == "rejected"
    assert "was made for ptxas 13.3, and ptxas " + release in win(records)["message"]


def test_a_ptxas_that_is_too_old_is_unfit(
    sgemm: pytest.Pytester, run_json: RunJson, other_ptxas: Callable[[str], Path]
) -> None:
    sgemm.makepyfile(TEST)
    old = other_ptxas("13.2")
    result, records = run_json(f"--ciq-ptxas={old}")
    result.assert_outcomes(failed=1)
    assert win(records)["reason"] == "unfit"
    assert "too old: --apply-controls needs 13.3 or newer" in win(records)["message"]
    assert any("is ptxas 13.2." in entry for entry in win(records)["numbers"]["looked_at"])


def test_a_changed_kernel_is_named(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    sgemm.makepyfile(TEST)
    ptx = sgemm.path / "sgemm.ptx"
    text = ptx.read_text()
    ptx.write_text("// another comment\n" + text.replace("\n", "  \n"))
    run_json()[0].assert_outcomes(passed=1)  # white space and comments are not the kernel
    ptx.write_text(text.replace("add.s32", "sub.s32", 1))
    assert ptx.read_text() != text
    result, records = run_json()
    result.assert_outcomes(failed=1)
    assert win(records)["reason"] == "kernel-changed"
    assert "--ciq-gpu to see that it still wins" in win(records)["remedy"]
    run_json("--ciq-accept")[0].assert_outcomes(passed=1)
    run_json()[0].assert_outcomes(passed=1)


def test_two_entry_functions_need_a_name(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    sgemm.makepyfile(TEST)
    (sgemm.path / "sgemm.ptx").write_text(TWO)
    result, records = run_json()
    result.assert_outcomes(failed=1)
    assert win(records)["reason"] == "unfit"
    assert "has 2 entry functions" in win(records)["message"]
    assert 'entry="tiny"' in win(records)["remedy"]


def test_ptx_for_another_arch(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    sgemm.makepyfile(TEST.replace("sm_90", "sm_80"))
    result, records = run_json()
    result.assert_outcomes(failed=1)
    assert win(records)["reason"] == "unfit"
    assert "could not assemble the PTX for sm_80" in win(records)["message"]
    assert "the PTX says .target sm_90" in win(records)["remedy"]


def test_ptx_that_is_no_ptx(sgemm: pytest.Pytester, run_json: RunJson) -> None:
    """The first errors, with their lines, and no advice about an arch that is right."""
    sgemm.makepyfile(TEST)
    ptx = sgemm.path / "sgemm.ptx"
    text = ptx.read_text().replace("ld.global", "ld.globl")
    ptx.write_text(text)
    first = next(n for n, line in enumerate(text.splitlines(), 1) if "ld.globl" in line)
    _, records = run_json()
    record = win(records)
    assert record["reason"] == "unfit"
    told = record["message"].partition("(exit status 255): ")[2].split(" / ")
    assert told[0] == f"line {first}: error : Unknown modifier '.globl'"
    assert len(told) == 4
    assert re.fullmatch(r"and \d+ more lines", told[3])
    assert record["remedy"] == "correct the PTX, or make it anew with `nvcc -ptx`"


def test_an_acf_with_which_ptxas_fails_for_another_reason(
    sgemm: pytest.Pytester, run_json: RunJson, script: Callable[[str, str], Path], ptxas: Any
) -> None:
    sgemm.makepyfile(TEST)
    body = f"""case "$*" in
    *--apply-controls*) echo "ptxas info    : hello"; echo "ptxas fatal   : out of luck"; exit 255
    esac
    exec {ptxas.path} "$@" """
    _, records = run_json(f"--ciq-ptxas={script('ptxas', body)}")
    record = win(records)
    assert record["message"].endswith(
        "with the ACF (exit status 255): ptxas fatal : out of luck"  # and no information
    )
    assert record["remedy"] == "drop this ACF if ptxas takes the PTX without it"


def test_an_acf_without_a_sidecar_says_what_is_not_known(
    sgemm: pytest.Pytester, run_json: RunJson
) -> None:
    """Any ACF that ptxas takes passes then; the reader has to be told."""
    sgemm.makepyfile(TEST)
    unknown = "no sidecar says for which kernel: --ciq-accept writes one"
    assert unknown not in win(run_json()[1])["message"]
    (sgemm.path / "best.acf.json").unlink()
    result, records = run_json()
    result.assert_outcomes(passed=1)
    assert unknown in win(records)["message"]
    assert unknown not in win(run_json("--ciq-accept")[1])["message"]
    assert unknown not in win(run_json()[1])["message"]


@pytest.mark.parametrize("folder", ["with space", "br[ack]ets (1)", "ünïcödé-核"])
def test_odd_paths_work(sgemm: pytest.Pytester, run_json: RunJson, folder: str) -> None:
    odd = sgemm.path / folder
    odd.mkdir()
    for path in sgemm.path.iterdir():
        if path.is_file():
            shutil.copy(path, odd)
    (odd / "test_odd.py").write_text(TEST)
    result, records = run_json("--import-mode=importlib")
    result.assert_outcomes(passed=1)
    assert win(records)["status"] == "pass"


@pytest.mark.parametrize(
    ("body", "reason", "message"),
    [
        ('[ "$1" = --version ] && exec {real} "$@"; kill -SEGV $$', "crashed", "SIGSEGV"),
        ('[ "$1" = --version ] && exec {real} "$@"; sleep 60 & wait', "hung", "killed after 1 s"),
        ("exit 3", "unfit", "does not answer --version like a ptxas (exit status 3"),
    ],
    ids=["crash", "hang", "nonsense"],
)
def test_a_broken_ptxas(
    sgemm: pytest.Pytester,
    run_json: RunJson,
    script: Callable[[str, str], Path],
    ptxas: Any,
    body: str,
    reason: str,
    message: str,
) -> None:
    sgemm.makepyfile(TEST)
    fake = script("ptxas", body.format(real=ptxas.path))
    result, records = run_json(f"--ciq-ptxas={fake}", "--ciq-ptxas-timeout=1")
    result.assert_outcomes(failed=1)
    assert win(records)["reason"] == reason
    assert message in win(records)["message"]


@pytest.mark.parametrize(
    ("check", "at", "deed", "reason"),
    [
        ("ciq_canary", nonsense(), "kill -SEGV $$", "crashed"),
        ("ciq_canary", nonsense(), "sleep 60", "hung"),
        ("ciq_beats_baseline", acf.load(EXAMPLE / "best.acf"), "kill -SEGV $$", "crashed"),
        ("ciq_beats_baseline", acf.load(EXAMPLE / "best.acf"), "sleep 60", "hung"),
    ],
    ids=["canary-crash", "canary-hang", "win-crash", "win-hang"],
)
def test_a_ptxas_that_fails_at_one_acf(
    sgemm: pytest.Pytester,
    run_json: RunJson,
    script: Callable[[str, str], Path],
    ptxas: Any,
    check: str,
    at: Acf,
    deed: str,
    reason: str,
) -> None:
    """A crash is no refusal of a damaged ACF, and a hang is not told as a crash."""
    (sgemm.path / "sgemm.ptx").write_text(TINY)
    sgemm.makepyfile(TEST.replace('ciq_beats_baseline("best.acf")', check))
    body = f'case "$*" in *{at.sha256}*) {deed};; esac; exec {ptxas.path} "$@"'
    result, (record,) = run_json(f"--ciq-ptxas={script('ptxas', body)}", "--ciq-ptxas-timeout=5")
    result.assert_outcomes(failed=1)
    assert record["reason"] == reason, record["message"]


def test_no_ptxas_at_all(
    sgemm: pytest.Pytester, run_json: RunJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    sgemm.makepyfile(TEST)
    sgemm.makeconftest(
        "import importlib.metadata as m\nreal = m.distribution\n"
        "def hide(name):\n"
        "    if name == 'nvidia-cuda-nvcc': raise m.PackageNotFoundError(name)\n"
        "    return real(name)\n"
        "m.distribution = hide\n"
    )
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("TRITON_PTXAS_PATH", raising=False)
    result, records = run_json()
    result.assert_outcomes(failed=1)
    assert win(records)["reason"] == "unfit"
    assert "no ptxas of 13.3 or newer was found" in win(records)["message"]
    assert "pip install" in win(records)["remedy"]
