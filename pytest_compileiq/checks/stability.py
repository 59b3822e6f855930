"""``ciq_max_cv``: the timings are steady. Spread is a property of timings: it needs a GPU."""

from __future__ import annotations

from pytest_compileiq.marks import StabilityParams
from pytest_compileiq.verdict import Check, Status, Verdict


def not_timed(kernel: str, params: StabilityParams) -> Verdict:
    """The answer of a run that times nothing."""
    return Verdict(
        check=Check.CV,
        kernel=kernel,
        status=Status.NOT_JUDGED,
        message=f"a CV limit of {params.percent:g} % is a question about timings, and this run times nothing",
        numbers={"limit_percent": params.percent},
    )
