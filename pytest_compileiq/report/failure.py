"""A verdict that is no pass, for people: what, with its numbers, what was looked at, what to do."""

from __future__ import annotations

from pytest_compileiq.verdict import Verdict, one_line

#: A failure that fills the screen is not read: eight lines, of which these may be places.
_PLACES = 6


def explain(verdict: Verdict) -> str:
    """At most eight lines, the remedy last."""
    told = one_line(verdict.message)
    lines = [f"{verdict.check} of {verdict.kernel}: {verdict.reason or verdict.status}: {told}"]
    looked_at = verdict.numbers.get("looked_at")
    if isinstance(looked_at, list) and looked_at:
        shown = looked_at if len(looked_at) <= _PLACES else looked_at[: _PLACES - 1]
        lines += [f"  looked at: {one_line(entry)}" for entry in shown]
        if len(shown) < len(looked_at):
            lines.append(f"  looked at: {len(looked_at) - len(shown)} more, see --ciq-json")
    if verdict.remedy:
        lines.append(f"  to do: {one_line(verdict.remedy)}")
    return "\n".join(lines)
