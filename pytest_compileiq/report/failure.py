"""A verdict that is no pass, for people: what, with its numbers, what was looked at, what to do."""

from __future__ import annotations

from pytest_compileiq.verdict import Verdict, one_line

#: A failure that fills the screen is not read: eight lines, of which these may be places.
_PLACES = 6


def explain(*verdicts: Verdict) -> str:
    """At most eight lines for each cause, the remedy last.

    Checks that failed for one cause, such as an ACF that is missing, tell it once. The remedy is
    that of the last, which knows what a search has found meanwhile.
    """
    causes: dict[tuple[object, ...], list[Verdict]] = {}
    for one in verdicts:
        cause = (one.kernel, one.status, one.reason, one.message, str(one.numbers.get("looked_at")))
        causes.setdefault(cause, []).append(one)
    return "\n".join(map(_told, causes.values()))


def _told(alike: list[Verdict]) -> str:
    verdict = alike[-1]
    checks = " and ".join(one.check for one in alike)
    told = one_line(verdict.message)
    lines = [f"{checks} of {verdict.kernel}: {verdict.reason or verdict.status}: {told}"]
    looked_at = verdict.numbers.get("looked_at")
    if isinstance(looked_at, list) and looked_at:
        shown = looked_at if len(looked_at) <= _PLACES else looked_at[: _PLACES - 1]
        lines += [f"  looked at: {one_line(entry)}" for entry in shown]
        if len(shown) < len(looked_at):
            lines.append(f"  looked at: {len(looked_at) - len(shown)} more, see --ciq-json")
    if verdict.remedy:
        lines.append(f"  to do: {one_line(verdict.remedy)}")
    return "\n".join(lines)
