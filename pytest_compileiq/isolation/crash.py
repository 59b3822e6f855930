"""How an isolated test's process died, and the report of that."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import pytest
from _pytest._code.code import (
    ExceptionChainRepr,
    ReprEntryNative,
    ReprFileLocation,
    ReprTraceback,
)

from pytest_compileiq.isolation.messages import Progress
from pytest_compileiq.verdict import Check, Reason, Status, Verdict

#: Frames of pytest's own machinery, left out of the stacks that are shown.
_MACHINERY = ("/_pytest/", "/pluggy/", "/pytest/__main__", "<frozen runpy>", "/pytest_compileiq/")

Properties = list[tuple[str, object]]


class ProcessDiedError(Exception):
    """Stands for a crash where an exception is asked for."""


def own_frames(stacks: str) -> str:
    """What faulthandler wrote, without the frames of pytest's machinery."""
    lines = stacks.splitlines()
    return "\n".join(line for line in lines if not any(part in line for part in _MACHINERY))


@dataclass(frozen=True, slots=True)
class Crash:
    """A test that got no answer of its own, because its process could not give one.

    ``kept`` are the user properties that the process had sent before.
    """

    reason: Reason
    text: str
    progress: Progress = field(default_factory=Progress)
    remedy: str = ""
    kept: Sequence[tuple[str, object]] = ()
    details: str = ""  # stacks or a traceback

    @property
    def message(self) -> str:
        """One line: what happened, and at which arm."""
        where = f" at {self.progress}" if str(self.progress) else ""
        return f"{self.reason}{where}: {self.text}"

    @property
    def text_for_people(self) -> str:
        """The message, what to do, and the details."""
        lines = [f"isolated test {self.message}"]
        if self.remedy:
            lines.append(f"  to do: {self.remedy}")
        return "\n".join([*lines, *self.details.splitlines()])


#: The user properties of a crash's report.
CrashProperties = Callable[[pytest.Item, Crash], Properties]


def verdict(crash: Crash, check: Check, kernel: str) -> Verdict:
    """The crash as the answer of one check."""
    numbers = {"arm": crash.progress.arm} if crash.progress.arm else {}
    return Verdict(
        check=check,
        kernel=crash.progress.kernel or kernel,
        status=Status.FAIL,
        reason=crash.reason,
        message=crash.message,
        remedy=crash.remedy,
        numbers=numbers,
    )


def one_record(item: pytest.Item, crash: Crash) -> Properties:
    """What was kept, and one verdict for the check that was running (``win`` when not known)."""
    check = Check(crash.progress.check) if crash.progress.check else Check.WIN
    record = verdict(crash, check, item.name).to_record(item.nodeid)
    return [*crash.kept, ("ciq", json.dumps(record))]


def remedy_at(progress: Progress) -> str:
    """What to do about a crash or a hang there."""
    if progress.arm == "baseline":
        return "the kernel itself is at fault, since no ACF was applied"
    if progress.arm:
        return f"do not ship {progress.arm}: search again, or remove it"
    return "no arm had been announced, so look at the test's own code and fixtures"


def longrepr(item: pytest.Item, crash: Crash) -> ExceptionChainRepr:
    """The crash as a report shows it; only with a place has pytest 8 a line in its summary."""
    place = ReprFileLocation(str(item.path), (item.location[1] or 0) + 1, crash.message)
    lines = [line + "\n" for line in crash.text_for_people.splitlines()]
    trace = ReprTraceback([ReprEntryNative(lines)], None, "native")
    return ExceptionChainRepr([(trace, place, None)])


def report(
    item: pytest.Item,
    crash: Crash,
    *,
    when: str,
    seconds: float = 0.0,
    sections: Sequence[tuple[str, str]] = (),
    properties: Properties = [],  # noqa: B006 (read only)
) -> pytest.TestReport:
    """A failing report. A crash never passes, and is never an expected failure."""
    now = time.time()
    return pytest.TestReport(
        nodeid=item.nodeid,
        location=item.location,
        keywords=dict.fromkeys(item.keywords, 1),
        outcome="failed",
        longrepr=longrepr(item, crash),
        when=when,  # type: ignore[arg-type]
        sections=sections,
        duration=seconds,
        start=now - seconds,
        stop=now,
        user_properties=properties,
    )
