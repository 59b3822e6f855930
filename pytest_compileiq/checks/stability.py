"""``ciq_max_cv``: the timings are steady. Spread is a property of timings: it needs a GPU."""

from __future__ import annotations

from pytest_compileiq.settings import Stability
from pytest_compileiq.verdict import Check, Status, Verdict


def not_timed(kernel: str, params: Stability) -> Verdict:
    """The answer of a run that times nothing."""
    return Verdict(
        check=Check.CV,
        kernel=kernel,
        status=Status.NOT_JUDGED,
        message=f"a CV limit of {params.percent:g} % is a question about timings: needs a GPU",
        numbers={"limit_percent": params.percent},
    )
