"""A suite for pictures: the plugin's own reports of simulated launches, no GPU needed."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from pytest_compileiq import state
from pytest_compileiq.fixture import CiqFailure
from pytest_compileiq.report.failure import explain
from pytest_compileiq.verdict import Verdict


@pytest.fixture
def simulated(request: pytest.FixtureRequest) -> Callable[..., None]:
    """Takes the place of ``ciq.check``: these are the test's verdicts."""

    def check(*verdicts: Verdict) -> None:
        __tracebackhide__ = True
        request.node.stash[state.VERDICTS].extend(verdicts)
        negative = [verdict for verdict in verdicts if verdict.negative]
        text = "\n".join(map(explain, negative))
        if any(verdict.status == "fail" for verdict in negative):
            raise CiqFailure(text, verdicts)
        if negative:
            pytest.skip(text)

    return check
