"""A negative verdict for people: what, what was measured, what was looked at, what to do."""

from __future__ import annotations

from pytest_compileiq.report.figures import Figures, figures
from pytest_compileiq.verdict import Verdict

#: A failure that fills the screen is not read: eight lines, of which these may be places.
_PLACES = 5


def explain(verdict: Verdict) -> str:
    """At most eight lines, the remedy last."""
    told = " ".join(verdict.message.split())
    lines = [f"{verdict.check} of {verdict.kernel}: {verdict.reason}: {told}"]
    if measured := _measured(figures(verdict.to_record(""))):
        lines.append(f"  measured: {measured}")
    looked_at = verdict.numbers.get("looked_at")
    if isinstance(looked_at, list) and looked_at:
        shown = looked_at if len(looked_at) <= _PLACES else looked_at[: _PLACES - 1]
        lines += [f"  looked at: {' '.join(str(entry).split())}" for entry in shown]
        if len(shown) < len(looked_at):
            lines.append(f"  looked at: {len(looked_at) - len(shown)} more, see --ciq-json")
    if verdict.remedy:
        lines.append(f"  to do: {' '.join(verdict.remedy.split())}")
    return "\n".join(lines)


def _measured(found: Figures) -> str:
    """The figures in a sentence; nothing for a check that timed nothing."""
    if found.launches is None:
        return ""
    measured = found.measured
    if found.speedup is not None and found.wanted is not None:
        measured += f", needs > {found.wanted:g}x"
    elif found.cv_percent is not None and found.cv_limit_percent is not None:
        measured += f", allowed {found.cv_limit_percent:g} %"
    spent = f"{found.launches} launches"
    if found.gpu_seconds is not None:
        spent += f" in {found.gpu_seconds:.2g} s"
    return f"{measured}; {spent}" if measured else spent
