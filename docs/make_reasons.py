"""Writes docs/reasons.md: each reason word with a test that fails for it, and what it says.

``python docs/make_reasons.py`` runs the tests below, as a user would write them, with the real
ptxas 13.3 and compileiq; with ``--ciq-gpu=SPEC`` it runs those that need a GPU, and locks no
clock. The other part of the file stays as it is. ``tests/test_reasons.py`` keeps the file current.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent

HERE = Path(__file__).parent
ROOT = HERE.parent
EXAMPLE = ROOT / "examples" / "ptx"
PAGE = HERE / "reasons.md"
NOT_RUN = "not yet run on a GPU"

_IMPORTS = "import pytest\nfrom pytest_compileiq import Kernel, Build, PtxKernel\n"
_SGEMM = 'PtxKernel("sgemm.ptx", arch="sm_90")'
_WIN = '@pytest.mark.ciq_beats_baseline("best.acf")\n'


@dataclass(frozen=True)
class Case:
    """A test that fails with the word. ``spoil`` is a shell command in its folder before."""

    word: str
    means: str
    test: str
    spoil: str = ""
    arguments: tuple[str, ...] = ()
    gpu: bool = False


CASES = (
    Case(
        "not-applied",
        "The flag never reached ptxas, or a cache answered with an older build.",
        """
        class Forgetful(PtxKernel):
            def build_all(self, arms, assembler, folder):  # a cache that ignores the ACF
                (first, *_) = super().build_all(arms[:1], assembler, folder)
                return [first for _ in arms]

        @pytest.mark.ciq_beats_baseline("best.acf")
        def test_kernel(ciq):
            ciq.check(Forgetful("sgemm.ptx", arch="sm_90"))
        """,
    ),
    Case(
        "no-effect",
        "ptxas took the ACF and made the same code.",
        f"""
        {_WIN.strip()}
        def test_kernel(ciq):
            ciq.check({_SGEMM})
        """,
        spoil=f"rm best.acf.json && cp {ROOT}/tests/data/nvcc.acf best.acf",
    ),
    Case(
        "rejected",
        "The ACF is missing, damaged, altered, or made for another ptxas.",
        f"""
        {_WIN.strip()}
        def test_kernel(ciq):
            ciq.check({_SGEMM})
        """,
        spoil="truncate -s 1208 best.acf",
    ),
    Case(
        "kernel-changed",
        "The PTX is not the one that the ACF was made for.",
        f"""
        {_WIN.strip()}
        def test_kernel(ciq):
            ciq.check({_SGEMM})
        """,
        spoil="sed -i '0,/mov.u32/s//mov.b32/' sgemm.ptx",
    ),
    Case(
        "wrong-result",
        "The kernel's `check` says that the result with the ACF is wrong.",
        """
        import torch

        @pytest.mark.ciq_beats_baseline("best.acf")
        def test_kernel(ciq):
            n = 512
            a, b = (torch.rand(n, n, device="cuda") for _ in "ab")
            c = torch.empty_like(a)
            wrong = iter([0, 17])  # stands for c != a @ b, without the ACF and with it

            def check():
                places = next(wrong)
                if places:
                    raise AssertionError(f"c differs from the reference at {places} places")

            ciq.check(PtxKernel("sgemm.ptx", arch="sm_90", grid=(n // 128, n // 128), block=256,
                                args=(c, a, b, n), outputs=[c], check=check))
        """,
        gpu=True,
    ),
    Case(
        "crashed",
        "A process died, or code of the test raised.",
        """
        import os

        @pytest.mark.ciq_objective
        def test_objective(ciq):
            def objective(config):
                if config:
                    os._exit(7)  # as a launch with a bad ACF may do
                return 1.0

            ciq.check(objective)
        """,
    ),
    Case(
        "hung",
        "There was no end within `--ciq-timeout`.",
        """
        import time

        @pytest.mark.ciq_objective
        def test_objective(ciq):
            def objective(config):
                if config:
                    time.sleep(60)
                return 1.0

            ciq.check(objective)
        """,
        arguments=("--ciq-timeout=1",),
    ),
    Case(
        "slower",
        "It is measurably worse than it has to be: in time, in score, or in what `ciq_resources` limits.",
        """
        @pytest.mark.ciq_beats_baseline("best.acf", min_speedup=1.5)
        def test_objective(ciq):
            def spill_bytes(config):
                return 800 if config else 1160

            ciq.check(spill_bytes)
        """,
    ),
    Case(
        "no-win",
        "There is no measurable difference from the baseline.",
        """
        @pytest.mark.ciq_beats_baseline("best.acf")
        def test_objective(ciq):
            def spill_bytes(config):
                return 1160

            ciq.check(spill_bytes)
        """,
    ),
    Case(
        "noisy",
        "The timings scatter by more than `ciq_max_cv` allows.",
        """
        import torch

        @pytest.mark.ciq_max_cv(0.01)
        def test_kernel(ciq):
            n = 512
            a, b = (torch.rand(n, n, device="cuda") for _ in "ab")
            c = torch.empty_like(a)
            ciq.check(PtxKernel("sgemm.ptx", arch="sm_90", grid=(n // 128, n // 128), block=256,
                                args=(c, a, b, n), outputs=[c]))
        """,
        gpu=True,
    ),
    Case(
        "bad-shape",
        "The objective returned what CompileIQ cannot read.",
        """
        @pytest.mark.ciq_objective
        def test_objective(ciq):
            def objective(config):
                return [1.25, 0.5]

            ciq.check(objective)
        """,
    ),
    Case(
        "invalid-score",
        'The objective answered `"*"`, NaN or infinity where it has to give a number.',
        """
        @pytest.mark.ciq_objective
        def test_objective(ciq):
            def objective(config):
                return float("nan")

            ciq.check(objective)
        """,
    ),
    Case(
        "undecided",
        "The evidence does not suffice. The test is skipped, and fails under `--ciq-strict`.",
        """
        import itertools

        CALLS = itertools.count()

        @pytest.mark.ciq_beats_baseline("best.acf")
        def test_objective(ciq):
            from pytest_compileiq import Objective

            def milliseconds(config):
                return 38 if config else 40 + next(CALLS)  # stands for a time

            ciq.check(Objective(milliseconds, contained=False))
        """,
        arguments=("--ciq-strict",),
    ),
    Case(
        "unfit",
        "The environment or the test cannot answer: a part is missing.",
        """
        @pytest.mark.ciq_beats_baseline("best.acf")
        def test_kernel(ciq):
            kernel = PtxKernel("sgemm.ptx", arch="sm_90")
        """,
    ),
)


def text_of(case: Case, gpu: str | None = None) -> tuple[str, str]:
    """Run a case. Returns the reason word on record and what pytest prints of the failure."""
    with tempfile.TemporaryDirectory(prefix="ciq-reasons-") as name:
        folder = Path(name)
        for file in ("sgemm.ptx", "best.acf", "best.acf.json"):
            shutil.copy(EXAMPLE / file, folder)
        (folder / "test_it.py").write_text(_IMPORTS + dedent(case.test))
        if case.spoil:
            subprocess.run(case.spoil, shell=True, check=True, cwd=folder)
        command = [sys.executable, "-m", "pytest", "-q", "--tb=short", "--color=no"]
        command += ["-p", "no:cacheprovider", f"--rootdir={folder}", "--ciq-json=r.json"]
        command += ["-c", "/dev/null"]  # no ini file of a folder above
        command += case.arguments
        if gpu is not None:
            command += [f"--ciq-gpu={gpu}", "--ciq-clocks=observe"]
        done = subprocess.run([*command, "test_it.py"], cwd=folder, capture_output=True, text=True)
        report = folder / "r.json"
        records = json.loads(report.read_text())["records"] if report.exists() else []
        if len(records) != 1:
            sys.exit(f"{case.word}: {len(records)} verdicts:\n{done.stdout}{done.stderr}")
        (record,) = records
        lines = [line[4:] for line in done.stdout.splitlines() if line.startswith("E   ")]
        if not lines:  # a complaint of the plugin itself has no traceback
            printed = done.stdout.partition("FAILURES")[2].splitlines()[2:]
            lines = printed[: next(i for i, line in enumerate(printed) if line[:2] == "==")]
    text = "\n".join(lines).removeprefix("pytest_compileiq.CiqFailure: ").strip()
    return str(record["reason"]), _plain(text, folder)


def _plain(text: str, folder: Path) -> str:
    """Without what differs from run to run and from machine to machine."""
    text = text.replace(f"{folder}/", "")
    text = re.sub(r"/\S*/([0-9a-f]{8})[0-9a-f]{56}\.acf", r"/tmp/.../\1....acf", text)
    text = re.sub(r"/\S*/(\w+)\.(ptx|cubin)\b", r"/tmp/.../\1.\2", text)
    return re.sub(r"\b(13\.3)\.\d+\b", r"\1", text)


def page(texts: dict[str, str]) -> str:
    """The whole file from the text of each word."""
    head = (
        "# What each reason word says\n\n"
        "Every negative verdict carries one of these words, because each asks something else of "
        "you. Below each stands a test that fails for it, and what pytest prints; the last line "
        "says what to do. Written by `python docs/make_reasons.py`.\n"
    )
    parts = [head]
    for case in CASES:
        how = "".join(f" `{one}`" for one in case.arguments)
        with_gpu = " Run with `--ciq-gpu=0`." if case.gpu else ""
        ran = f" Run with{how}." if how else with_gpu
        spoilt = f"Before: `{case.spoil.replace(str(ROOT) + '/', '')}`.\n\n" if case.spoil else ""
        parts.append(
            f"\n## {case.word}\n\n{case.means}{ran}\n\n{spoilt}"
            f"```python\n{dedent(case.test).strip()}\n```\n\n"
            f"```text\n{texts.get(case.word, NOT_RUN)}\n```\n"
        )
    return "".join(parts)


def stored() -> dict[str, str]:
    """What the file says now, word by word."""
    if not PAGE.exists():
        return {}
    found = re.findall(
        r"\n## (\S+)\n.*?```text\n(.*?)\n```", PAGE.read_text(encoding="utf-8"), re.DOTALL
    )
    return dict(found)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ciq-gpu", metavar="SPEC", help="run what needs a GPU, on that one")
    gpu = parser.parse_args().ciq_gpu
    texts = stored()
    for case in CASES:
        if case.gpu == (gpu is not None):
            reason, texts[case.word] = text_of(case, gpu)
            if reason != case.word:
                sys.exit(f"{case.word}: the test failed for {reason}:\n{texts[case.word]}")
            PAGE.write_text(page(texts), encoding="utf-8")


if __name__ == "__main__":
    main()
