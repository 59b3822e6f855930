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

from pytest_compileiq import records
from pytest_compileiq.isolation.messages import AGAINST, Progress
from pytest_compileiq.verdict import BASELINE_ARM, Check, Reason, Status, Verdict

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


def is_told(known: Properties, arm: str) -> bool:
    """Has a check seen the launch that ruined the CUDA context, and said so of this arm?

    Of any, once the check has ended: then no arm is announced any more.
    """
    verdicts = [json.loads(str(value)) for name, value in known if name == records.VERDICT]
    return any(one["reason"] == Reason.CRASHED and arm in one["message"] for one in verdicts)


def carried(item: pytest.Item, answer: Verdict) -> tuple[str, object]:
    """A verdict as the user property of a report."""
    return records.VERDICT, json.dumps(answer.to_record(item.nodeid))


def remedy_at(progress: Progress) -> str:
    """What to do about a crash or a hang there."""
    if not progress.arm:
        return "no arm had been announced, so look at the test's own code and fixtures"
    if progress.arm == BASELINE_ARM:
        return "the kernel itself is at fault, since no ACF was applied"
    if progress.check == Check.CANARY:
        return (
            "a canary's ACFs are no one's to ship: give it another o0= or o3=, or mend the kernel"
        )
    both, _, tuned = progress.arm.rpartition(AGAINST)
    if both:
        return f"both ran in turns: if the kernel dies without {tuned}, too, mend it; else search again"
    if tuned.endswith(".acf"):
        return f"do not ship {tuned}: search again, or remove it"
    return f"look at what {tuned} does: it is no ACF that you ship"


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
    properties: Properties,
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
