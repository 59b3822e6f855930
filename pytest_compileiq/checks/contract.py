"""``ciq_objective``: CompileIQ can read what the objective answers, before a search is spent.

A wrong shape ends a whole search, not one candidate, so the objective is called with what a
search will hand it: the baseline ``{}``, an ACF, and an ACF that no ptxas takes.
"""

from __future__ import annotations

from pytest_compileiq.checks.repetition import listed, readable
from pytest_compileiq.errors import CiqError
from pytest_compileiq.subjects.objective import ObjectiveBench
from pytest_compileiq.toolchain.acf import nonsense
from pytest_compileiq.toolchain.sidecar import Committed
from pytest_compileiq.verdict import Check, Reason, Status, Verdict


def judge_objective(bench: ObjectiveBench, committed: Committed | None) -> Verdict:
    """``committed`` is None when the test names no ACF: then only two calls are made."""
    acf = committed.acf if committed else None
    name = bench.objective.name
    numbers: dict[str, object] = {"objectives": bench.objectives}
    baseline = readable(bench.evaluate(None), bench, None, numbers)
    numbers["baseline_scores"] = list(baseline)
    text = f"baseline {listed(baseline)}"
    if acf is not None:
        scores = readable(bench.evaluate(acf), bench, committed, numbers)
        numbers["acf_scores"] = list(scores)
        text += f", {acf.name} {listed(scores)}"
    damaged = acf.damaged() if acf is not None else nonsense()
    answer = bench.evaluate(damaged)
    if answer.scores:
        raise CiqError(
            f"the objective gave {damaged.name}, which no ptxas takes, the score "
            f"{listed(answer.scores)}",
            remedy='the ACF is not read, or a failed build is hidden: return "*" when it fails',
            reason=Reason.NOT_APPLIED,
            numbers=numbers,
        )
    if not answer.refused:  # crashed, hung or a bad shape: any of these harms a search
        readable(answer, bench, None, numbers)
    if (fault := answer.fault) is not None and fault.reason is Reason.CRASHED:
        numbers["damaged"] = "raised"
        # An objective that fails on any ACF raises, too: what it said is there to be read.
        said = fault.message.partition(f" on {damaged.name}")[0]
        text += f", damaged ACF raises ({said.removeprefix('the objective raised ')})"
    else:
        numbers["damaged"] = "*"
        text += ", damaged ACF is invalid"
    if acf is None:
        text += "; no good one was tried, which acf= would name"
    return Verdict(
        check=Check.OBJECTIVE,
        kernel=name,
        status=Status.PASS,
        message=text,
        numbers=numbers,
    )
