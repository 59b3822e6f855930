"""What a check answers: plain data, no I/O, nothing imported but the standard library.

A verdict is made by a module under ``checks/``, raised by ``fixture.py`` when it is
negative, carried on the test report by ``plugin.py`` and printed by ``report/``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType

#: The arm without an ACF, by its name in progress, records and hooks.
BASELINE_ARM = "baseline"


def in_words(arm: str) -> str:
    """An arm as the object of a sentence: the baseline, best.acf."""
    return f"the {arm}" if arm == BASELINE_ARM else arm


class Reason(StrEnum):
    """Why an answer is not a pass. Each word asks another action of the reader."""

    NOT_APPLIED = "not-applied"  # the flag never reached ptxas, or a stale cache answered
    NO_EFFECT = "no-effect"  # ptxas read the ACF and made the same code
    REJECTED = "rejected"  # ACF missing, damaged, or made for another ptxas
    KERNEL_CHANGED = "kernel-changed"  # the PTX is not the one that the ACF was made for
    WRONG_RESULT = "wrong-result"
    CRASHED = "crashed"
    HUNG = "hung"
    SLOWER = "slower"  # measurably worse than it has to be
    NO_WIN = "no-win"  # no measurable difference
    NOISY = "noisy"
    BAD_SHAPE = "bad-shape"  # the objective returned what CompileIQ cannot read
    INVALID_SCORE = "invalid-score"  # the objective answered "*", NaN or infinity
    UNDECIDED = "undecided"  # budget spent before the evidence sufficed
    UNFIT = "unfit"  # the environment cannot answer: throttled, disturbed, part missing


class Status(StrEnum):
    PASS = "pass"
    FAIL = "fail"
    UNDECIDED = "undecided"  # skips its test; fails it under --ciq-strict
    NOT_JUDGED = "not-judged"  # this part was not run, and the message says why


class Check(StrEnum):
    OBJECTIVE = "objective"
    CANARY = "canary"
    RESOURCES = "resources"
    CV = "cv"
    WIN = "win"


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """One check's answer about one subject.

    ``numbers`` holds only str, int, float, bool, None and lists or dicts of them, with the
    unit in the key (``spill_bytes``, ``seconds``), since it travels through execnet and JSON.
    ``remedy`` says what to do next; it is empty on a pass, and on a question that is not judged
    because this run does not ask it: a CV without a GPU, anything under ``--ciq-disable``.
    """

    check: Check
    kernel: str
    status: Status
    reason: Reason | None = None
    message: str = ""
    remedy: str = ""
    numbers: Mapping[str, object] = field(default_factory=lambda: MappingProxyType({}))
    samples: Sequence[object] = ()

    def __post_init__(self) -> None:
        if (self.status is Status.PASS) != (self.reason is None) and self.status is not (
            Status.NOT_JUDGED
        ):
            raise ValueError(f"a {self.status} verdict with reason {self.reason!r}")

    @property
    def negative(self) -> bool:
        return self.status in (Status.FAIL, Status.UNDECIDED)

    def to_record(self, nodeid: str) -> dict[str, object]:
        """The JSON form, as documented for ``--ciq-json``."""
        return {
            "nodeid": nodeid,
            "kernel": self.kernel,
            "check": self.check.value,
            "status": self.status.value,
            "reason": None if self.reason is None else self.reason.value,
            "message": self.message,
            "remedy": self.remedy,
            "numbers": plain(dict(self.numbers)),
            "samples": plain(list(self.samples)),
        }


def one_line(text: object) -> str:
    """A text on one line; what moves a cursor, or what XML does not allow, as its escape."""
    words = " ".join(str(text).split())
    return "".join(
        one if one.isprintable() else one.encode("unicode_escape").decode() for one in words
    )


def plain(value: object) -> object:
    """``value`` with keys that are strings, and infinity and NaN, which JSON lacks, as None."""
    if isinstance(value, dict):
        return {str(key): plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [plain(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
