"""On a real GPU: a context that one call has ruined, a search over a Triton kernel's ACFs, and
``--ciq-retune`` of a kernel that is timed."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import pandas
import pytest

from pytest_compileiq import device
from pytest_compileiq.searching import CiqSearch

from ..conftest import EXAMPLE, RunJson
from .test_hostile import SPACE, bad_calls, half, is_bad

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _gpu(pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("ciq_gpu"):
        pytest.skip("needs a GPU: run with --ciq-gpu=SPEC")


needs_spaces = pytest.mark.skipif(
    not os.environ.get("CIQ_SEARCH_SPACES_DIR"), reason="needs CIQ_SEARCH_SPACES_DIR"
)


def test_a_ruined_context_is_that_of_one_call(ciq_search: CiqSearch, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def ruin() -> None:
        index = torch.tensor([1 << 30], device="cuda")
        torch.ones(4, device="cuda")[index]  # a device-side assert: every later call fails
        torch.cuda.synchronize()

    ruining = half(ruin, tmp_path)

    def objective(config: dict[str, int]) -> Any:
        x = torch.ones(4, device="cuda")
        score = ruining(config)
        one_gpu = len(os.environ["CUDA_VISIBLE_DEVICES"].split(",")) == 1
        return score + float(x.sum()) if one_gpu else None

    search = ciq_search(objective, SPACE, generations=1, pool_size=6, task_timeout=120)
    table = search.start().get_results()
    bad = table["params"].map(lambda params: is_bad(params, tmp_path))
    assert 0 < bad.sum() < len(table)
    assert (table["score_1"][~bad] == table["params"][~bad].map(lambda p: p["x"] + 4)).all()
    assert pandas.to_numeric(table["score_1"][bad], errors="coerce").isna().all()
    assert set(search.causes) <= {"raised", "crashed"}
    assert sum(search.causes.values()) == bad_calls(tmp_path)


@needs_spaces
def test_a_triton_kernel(ciq_search: CiqSearch, tmp_path: Path) -> None:
    pytest.importorskip("triton")
    from compileiq.search_spaces.compilers import PtxasSearchSpace

    objective = pytest.importorskip("benchmarks.triton_objective").objective
    search = ciq_search(
        objective, PtxasSearchSpace(version="13.3"), generations=1, pool_size=8, task_timeout=60,
        environment={"TRITON_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    best = search.start().get_best_result()
    assert 0 < best["score_1"] < 10
    assert search.noise is not None


SGEMM = """
import pytest, torch
from pytest_compileiq import PtxKernel
from pytest_compileiq.retune import hunt
hunt._POOL_SIZE = 6  # for a quick test: most ACFs win here
N = 1024

@pytest.fixture
def sgemm():
    a, b = (torch.rand(N, N, device="cuda") for _ in "ab")
    c = torch.empty_like(a)
    right = (a.double() @ b.double()).float()
    return PtxKernel(
        "sgemm.ptx", arch="sm_90", grid=(N // 128, N // 128), block=256, args=(c, a, b, N),
        outputs=[c], check=lambda: torch.testing.assert_close(c, right, rtol=1e-4, atol=1e-3),
    )

@pytest.mark.ciq_beats_baseline("best.acf")
def test_sgemm(ciq, sgemm):
    ciq.check(sgemm)
"""


@needs_spaces
def test_a_timed_kernel_is_retuned(
    sgemm: pytest.Pytester, run_json: RunJson, pytestconfig: pytest.Config
) -> None:
    """CUDA runs in the test's process when its ACF fails, and in each candidate's own."""
    pytest.importorskip("torch")
    gpu = pytestconfig.stash[device.GPUS][0]
    shutil.copy(EXAMPLE / "worst.acf", sgemm.path / "best.acf")  # several times slower
    (sgemm.path / "best.acf.json").unlink()
    sgemm.makepyfile(SGEMM)
    options = [f"--ciq-gpu={gpu.uuid}", "--ciq-clocks=observe"]
    result, (record,) = run_json("--ciq-retune=1", "--ciq-timeout=60", *options)
    assert (record["status"], record["reason"]) == ("fail", "slower"), result.stdout.str()
    told = record["numbers"]["retuned"]
    assert told["won"] is True, record["remedy"]
    report = Path(told["folder"])
    scores = pandas.to_numeric(pandas.read_csv(report / "results.csv")["score_1"], errors="coerce")
    assert len(scores) == told["candidates"] >= 6
    assert scores.notna().sum() >= 3
    assert scores.dropna().between(0.01, 10).all()
    sidecar = json.loads((report / "best.acf.json").read_text())
    assert sidecar["gpu"] == gpu.name
    # Measured twice, in two processes: the search's figure is no fancy.
    assert sidecar["speedup"] == pytest.approx(scores.max(), rel=0.1)
    assert sidecar["speedup_interval"][0] > 1
    for name in ("best.acf", "best.acf.json"):
        shutil.copy(report / name, sgemm.path)
    _, (record,) = run_json(*options)
    assert record["status"] == "pass"
