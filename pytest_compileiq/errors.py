"""One family of errors: what happened, what was looked at, what to do.

Every error carries the reason word that a check reports when the error ends it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from pytest_compileiq.verdict import Reason


class CiqError(Exception):
    """Base of all errors that this plugin raises on purpose.

    ``what`` states the fact with its numbers, ``looked_at`` the files, variables or
    calls that were consulted, in order, ``remedy`` the next step for the reader, and
    ``numbers`` what was measured until then, as in ``Verdict.numbers``.
    """

    default_reason: ClassVar[Reason] = Reason.UNFIT

    def __init__(
        self,
        what: str,
        *,
        looked_at: Sequence[str] = (),
        remedy: str = "",
        reason: Reason | None = None,
        numbers: Mapping[str, object] | None = None,
    ) -> None:
        super().__init__(what)
        self.what = what
        self.looked_at = tuple(looked_at)
        self.remedy = remedy
        self.reason = reason or self.default_reason
        self.numbers = dict(numbers or {})

    def __str__(self) -> str:
        lines = [self.what]
        if self.looked_at:
            lines.append("  looked at: " + "; ".join(self.looked_at))
        if self.remedy:
            lines.append("  to do: " + self.remedy)
        return "\n".join(lines)


class SettingsError(CiqError):
    """A bad mark or a bad call: a mistake in the text of the test."""


class ToolchainError(CiqError):
    """ptxas is absent, too old, crashed or hung."""


class AssemblyError(ToolchainError):
    """ptxas ran and refused its input for a reason that is not the ACF."""


class AcfError(CiqError):
    """The ACF is missing, damaged, or was made for another ptxas."""

    default_reason = Reason.REJECTED


class ProofError(CiqError):
    """What was built is not what was asked for; always raised with a reason of its own."""


class GpuError(CiqError):
    """No such GPU, no permission, lost, hung, or held by somebody else."""
