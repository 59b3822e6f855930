"""The real compileiq: a sample of its ptxas search space goes through the real ptxas."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_compileiq.toolchain import cubin
from pytest_compileiq.toolchain.acf import Acf
from pytest_compileiq.toolchain.assembler import Assembler, Job
from pytest_compileiq.toolchain.ptxas import Assembled, Ptxas

from .conftest import EXAMPLE

needs_spaces = pytest.mark.skipif(
    not os.environ.get("CIQ_SEARCH_SPACES_DIR"),
    reason="needs CIQ_SEARCH_SPACES_DIR, a folder with CompileIQ's ptxas search space",
)

# In a process of its own: a Search changes the multiprocessing start method of its process.
SAMPLE = """
import sys, tempfile, pathlib
from compileiq.ciq import Search
from compileiq.search_spaces.compilers import PtxasSearchSpace
search = Search(
    objective_function=print,
    search_space=PtxasSearchSpace(version="13.3"),
    search_config={"problem_type": "min", "generations": 1, "pool_size": 8},
    cache_folder=pathlib.Path(tempfile.mkdtemp(dir=sys.argv[1])),
    disable_progress_bar=True,
    worker_type="manual",
)
print(*search.sample(3), sep="\\n")
"""


@needs_spaces
def test_samples_of_a_search_are_taken_arrive_and_have_an_effect(
    tmp_path: Path, assembler: Assembler, sgemm_ptx: str
) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SAMPLE, tmp_path], capture_output=True, text=True, check=True
    )
    acfs = [
        Acf(Path(f"{n}.acf"), bytes.fromhex(line)) for n, line in enumerate(done.stdout.split())
    ]
    assert len(acfs) == 3
    jobs = [Job(sgemm_ptx, "sm_90"), *(Job(sgemm_ptx, "sm_90", acf) for acf in acfs)]
    answers = assembler.run_all(jobs)
    codes = [cubin.read(a.cubin) for a in answers if isinstance(a, Assembled)]
    assert len(codes) == 4
    assert len({code.fingerprint() for code in codes}) == 4
    for acf, code in zip(acfs, codes[1:], strict=True):
        assert code.controls() == [str(assembler.staging.path(acf))]


@needs_spaces
def test_the_examples_search_finds_an_acf(tmp_path: Path, ptxas: Ptxas) -> None:
    """search.py as the README of the example gives it, cut to two small generations."""
    out = tmp_path / "found.acf"
    command = [
        sys.executable, EXAMPLE / "search.py", "--goal", "best", "--generations", "2",
        "--pool-size", "8", "--ptxas", ptxas.path, "-o", out,
    ]  # fmt: skip
    done = subprocess.run(
        [str(word) for word in command], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("baseline: 940 spill bytes\n")
    assert "Traceback" not in done.stderr
    assert out.stat().st_size > 1000
    found = int(done.stdout.splitlines()[-1].split(": ")[1].split()[0])
    assert found < 940
