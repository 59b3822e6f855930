"""Which tests get a process of their own, and what the death of that process answers."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Literal

import pytest

from pytest_compileiq import marks as _marks
from pytest_compileiq.errors import SettingsError
from pytest_compileiq.isolation import child, crash, parent
from pytest_compileiq.isolation.attempt import EnvironmentFor
from pytest_compileiq.isolation.crash import Crash, Properties
from pytest_compileiq.settings import Settings
from pytest_compileiq.verdict import Check, Status, Verdict

#: Imported by the zygote, so that no child has to.
_PRELOAD = ("pytest_compileiq.fixture", "resource")


def install(
    config: pytest.Config,
    chosen: Settings,
    *,
    before_fork: Callable[[], object],
    environment_for: EnvironmentFor = parent.no_environment,
) -> None:
    """Register the isolation of tests that use a ``ciq`` fixture. Raises UsageError.

    See ``parent.Isolation`` for the two callables.
    """
    why_not = parent.obstacle(config)
    if why_not is not None:
        if chosen.isolate == "require":
            raise pytest.UsageError(
                f"pytest-compileiq: {chosen.sources['isolate']} asks for isolation, and "
                f"{why_not}\n  to do: run with --ciq-isolate=off"
            )
        return
    mode: Literal["auto", "require"] = "require" if chosen.isolate == "require" else "auto"
    plugin = parent.Isolation(
        config,
        wants_isolation=wants_isolation,
        mode=mode,
        environment_for=environment_for,
        timeout_for=lambda item: chosen.timeout,
        crash_properties=crash_properties,
        before_fork=before_fork,
        preload=_PRELOAD,
    )
    config.pluginmanager.register(plugin, parent.NAME)


def wants_isolation(item: pytest.Item) -> bool:
    """Does the test, or a fixture of it, use a fixture of this plugin?"""
    names = getattr(item, "fixturenames", ())
    return any(name == "ciq" or name.startswith("ciq_") for name in names)


def refuse_late_request(config: pytest.Config) -> None:
    """Fail a test that got a ``ciq`` fixture in a way that was not to be seen beforehand."""
    plugin = config.pluginmanager.getplugin(parent.NAME)
    if plugin is not None and plugin.active and not child.inside():
        pytest.fail(
            "getfixturevalue asks for a ciq fixture too late to isolate the test\n"
            "  to do: make it an argument of the test, or name it in usefixtures",
            pytrace=False,
        )


def crash_properties(item: pytest.Item, died: Crash) -> Properties:
    """A record for every check that the test asked for: answered, crashed, or not judged."""
    records = [json.loads(str(value)) for name, value in died.kept if name == "ciq"]
    answered = {record["check"] for record in records}
    try:
        marks = list(_marks.marks_of(item))
    except SettingsError:
        marks = []
    open_checks = [
        check for check in (_marks.MARKS[name][0] for name in marks) if check not in answered
    ]
    running = died.progress.check or next(iter(open_checks), "")
    if not running:
        return crash.one_record(item, died)
    verdicts = [crash.verdict(died, Check(running), item.name)]
    verdicts += [
        Verdict(
            check=check,
            kernel=died.progress.kernel or item.name,
            status=Status.NOT_JUDGED,
            message=f"the test's process {died.reason} before",
        )
        for check in open_checks
        if check != running
    ]
    made = [("ciq", json.dumps(verdict.to_record(item.nodeid))) for verdict in verdicts]
    return [*died.kept, *made]
