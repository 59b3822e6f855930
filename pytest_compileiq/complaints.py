"""Why a test that passed must not pass: what no check can find."""

from __future__ import annotations

import pytest

from pytest_compileiq import marks, state
from pytest_compileiq.verdict import Check, Reason, Status, Verdict


def complaint(item: pytest.Item) -> str | None:
    """Why a test that passed must not: a mark that nothing answered."""
    helper = item.stash.get(state.HELPER, None)
    asked = item.stash.get(state.MARKS, {})
    late = {mark.name for mark in item.iter_markers() if mark.name.startswith("ciq_")} - set(asked)
    if late:
        message = f"{', '.join(sorted(late))} was added to a test that had begun, and asked nothing"
        remedy = "put the mark on the test, or add it in pytest_collection_modifyitems"
        checks = [marks.MARKS[name][0] for name in sorted(late) if name in marks.MARKS]
        return _unfit(item, checks, item.name, message, remedy)
    if helper is not None and helper.failed and not item.stash[state.FAILED]:
        message = (
            f"{', '.join(sorted(helper.failed))} did not pass, and the test went on and passed"
        )
        remedy = "let CiqFailure, or the skip, end the test; who expects one calls a verb, without the mark"
        return f"{message}\n  to do: {remedy}"
    if asked:
        answered = set() if helper is None else helper.answered
        missing = [name for name in asked if name not in answered]
        if missing:
            message = f"{', '.join(missing)} asked for a check, and the test handed over no subject"
            remedy = "call ciq.check(kernel_or_objective); a verb counts with the mark's own limits"
            checks = [marks.MARKS[name][0] for name in missing]
            return _unfit(item, checks, item.name, message, remedy)
    return None


def _unfit(item: pytest.Item, checks: list[Check], kernel: str, message: str, remedy: str) -> str:
    """Record a failure that no check found, in place of these checks' own verdicts."""
    verdicts = item.stash[state.VERDICTS]
    verdicts[:] = [v for v in verdicts if v.kernel != kernel or v.check not in checks]
    verdicts += [
        Verdict(
            check=check,
            kernel=kernel,
            status=Status.FAIL,
            reason=Reason.UNFIT,
            message=message,
            remedy=remedy,
        )
        for check in checks
    ]
    return f"{message}\n  to do: {remedy}"
