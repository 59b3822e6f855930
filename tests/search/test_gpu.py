"""On a real GPU: a context that one call has ruined, and a search over a Triton kernel's ACFs."""

from __future__ import annotations

import os
from typing import Any

import pytest
from compileiq.search_spaces import base as ss

from pytest_compileiq.search.door import CiqSearch

pytestmark = pytest.mark.gpu


@pytest.fixture(autouse=True)
def _gpu(pytestconfig: pytest.Config) -> None:
    if not pytestconfig.getoption("ciq_gpu"):
        pytest.skip("needs a GPU: run with --ciq-gpu=SPEC")


def test_a_ruined_context_is_that_of_one_call(ciq_search: CiqSearch) -> None:
    torch = pytest.importorskip("torch")

    def objective(config: dict[str, int]) -> Any:
        x = torch.ones(4, device="cuda")
        if config["x"] % 2:
            index = torch.tensor([1 << 30], device="cuda")
            x = x[index]  # a device-side assert, after which every call of CUDA fails
            torch.cuda.synchronize()
        return float(x.sum()) + len(os.environ["CUDA_VISIBLE_DEVICES"].split(","))

    search = ciq_search(
        objective, {"x": ss.range(0, 99, 1)}, generations=1, pool_size=6, task_timeout=120
    )
    table = search.start().get_results()
    odd = table["params"].map(lambda params: params["x"] % 2 == 1)
    assert set(table["score_1"][~odd]) == {5.0}
    assert set(search.causes) <= {"raised", "crashed"}


@pytest.mark.skipif(
    not os.environ.get("CIQ_SEARCH_SPACES_DIR"), reason="needs CIQ_SEARCH_SPACES_DIR"
)
def test_a_triton_kernel(ciq_search: CiqSearch) -> None:
    pytest.importorskip("triton")
    from compileiq.search_spaces.compilers import PtxasSearchSpace

    objective = pytest.importorskip("benchmarks.triton_objective").objective
    search = ciq_search(
        objective, PtxasSearchSpace(version="13.3"), generations=1, pool_size=8, task_timeout=60
    )
    best = search.start().get_best_result()
    assert 0 < best["score_1"] < 10
    assert search.noise is not None
