"""Which tests get a process of their own, and what the death of that process answers."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Literal

import pytest

from pytest_compileiq import marks, records
from pytest_compileiq.isolation import child, crash, parent
from pytest_compileiq.isolation.attempt import EnvironmentFor
from pytest_compileiq.isolation.crash import Crash, Properties
from pytest_compileiq.settings import Settings
from pytest_compileiq.verdict import Check, Reason

_NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"


def install(
    config: pytest.Config,
    chosen: Settings,
    *,
    before_fork: Callable[[], object],
    environment_for: EnvironmentFor,
    warm_up: Callable[[], object],
) -> str | None:
    """Register the isolation of tests that use a ``ciq`` fixture; returns why it can not be.

    Raises UsageError when it can not be and has to. See ``parent.Isolation`` for the callables.
    """
    why_not = parent.obstacle(config)
    if why_not is not None:
        if chosen.isolate == "require":
            raise pytest.UsageError(
                f"pytest-compileiq: {chosen.sources['isolate']} asks for isolation, and "
                f"{why_not}\n  to do: run with --ciq-isolate=off"
            )
        return why_not
    mode: Literal["auto", "require"] = "require" if chosen.isolate == "require" else "auto"
    plugin = parent.Isolation(
        config,
        wants_isolation=wants_isolation,
        mode=mode,
        environment_for=environment_for,
        timeout_for=lambda item: chosen.test_timeout,
        crash_properties=crash_properties,
        before_fork=before_fork,
        warm_up=warm_up,
    )
    config.pluginmanager.register(plugin, parent.NAME)
    config.pluginmanager.register(LateRequests(plugin), "compileiq-late-requests")
    return None


def keep_torch_from_cuda(config: pytest.Config) -> None:
    """Have ``torch.cuda.is_available()`` ask NVML: at import, CUDA itself would spoil every fork."""
    if _NVML_CHECK not in os.environ:
        os.environ[_NVML_CHECK] = "1"
        config.add_cleanup(_forget_nvml_check)


def _forget_nvml_check() -> None:
    os.environ.pop(_NVML_CHECK, None)


def wants_isolation(item: pytest.Item) -> bool:
    """Does the test, or a fixture of it, use a fixture of this plugin that runs kernels?"""
    return any(map(_runs_kernels, getattr(item, "fixturenames", ())))


def _runs_kernels(fixture: str) -> bool:
    return fixture == "ciq" or (fixture.startswith("ciq_") and fixture != "ciq_ptxas")


class LateRequests:
    """Fails a test that asks for a ``ciq`` fixture in a way that was not to be seen beforehand."""

    def __init__(self, isolation: parent.Isolation) -> None:
        self._isolation = isolation

    @pytest.hookimpl(tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[object]) -> None:
        late = self._isolation.active and not child.inside()
        if late and _runs_kernels(fixturedef.argname):
            pytest.fail(
                f"getfixturevalue asks for {fixturedef.argname} too late to isolate the test\n"
                "  to do: make it an argument of the test, or name it in usefixtures",
                pytrace=False,
            )


def crash_properties(item: pytest.Item, died: Crash) -> Properties:
    """A record for every check that the test asked for: answered, crashed, or not judged."""
    kept, answers = [], []
    for name, value in died.kept:
        if name == records.VERDICT:
            answer = json.loads(str(value))
            if marks.was_left_open(answer):  # this death is more than that
                continue
            answers.append(answer)
        kept.append((name, value))
    unfit, kernel = died.reason is Reason.UNFIT, item.name
    why = "the test did not run" if unfit else f"the test's process {died.reason} before"
    answered = {answer["check"] for answer in answers}
    left = marks.left_open(item, answered, died.progress.kernel or kernel, why)
    running = died.progress.check or next((one.check for one in left), "")
    if not running:
        if unfit:
            return kept
        # No answer is lost, and that the test died has to be on record.
        last = answers[-1] if answers else {"check": Check.WIN, "kernel": kernel}
        running, kernel = last["check"], last["kernel"]
    verdicts = [crash.verdict(died, Check(running), kernel)]
    verdicts += [one for one in left if one.check != running]
    return [*kept, *(crash.carried(item, verdict) for verdict in verdicts)]
