"""``$GITHUB_STEP_SUMMARY``: the table as GitHub's markdown, negative verdicts with their cure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pytest_compileiq.report import figures as _figures
from pytest_compileiq.report.figures import Record
from pytest_compileiq.verdict import one_line

VARIABLE = "GITHUB_STEP_SUMMARY"
#: GitHub drops a step's summary that is larger than 1 MiB, whole.
_MOST = 1 << 20
_SIGNS = {"pass": "✅", "fail": "❌", "undecided": "⚠️", "not-judged": "➖"}
#: Characters with a meaning in GitHub's markdown or HTML.
_SPECIAL = str.maketrans({one: f"\\{one}" for one in "\\`*_{}[]#|~!@:"})
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;"})


def append(path: Path, records: Sequence[Record], *, exit_status: int) -> None:
    """Add the summary to the file that GitHub gave. Raises OSError."""
    # GitHub collects what several programs of one step write, so this file is not replaced.
    size = path.stat().st_size if path.exists() else 0
    with path.open("a", encoding="utf-8") as file:
        file.write(markdown(records, exit_status=exit_status, room=_MOST - size))


def markdown(records: Sequence[Record], *, exit_status: int = 0, room: int = _MOST) -> str:
    """A heading with the counts, the table, and a paragraph for each verdict with a remedy.

    What goes beyond ``room`` bytes is left out, and said so: first passes, then the rest, and
    all of it where there is no room for that.
    """
    named = list(zip(records, _figures.labels(records), strict=True))
    counts = Counter(record["status"] for record in records)
    told = ", ".join(f"{counts[status]} {status}" for status in _SIGNS if counts[status])
    # Records alone do not show a test that failed beside its checks, or never ran.
    ended = {0: "", 2: " (run interrupted)"}.get(exit_status, f" (exit {exit_status})")
    head = f"### compileiq: {told}{ended}\n\n"
    head += "| kernel | check | speed-up | launches | seconds | verdict |\n"
    head += "|:--|:--|--:|--:|--:|:--|\n"
    # Negative ones first: they are what the reader came for, and what must not be left out.
    named.sort(key=lambda pair: pair[0]["status"] not in ("fail", "undecided"))
    parts, size = [head], len(head.encode())
    if size >= room - 200:
        return ""
    left_out = 0
    reasons = [_reason(record, name) for record, name in named if record["remedy"]]
    for part in [*(_row(record, name) for record, name in named), "\n", *reasons]:
        size += len(part.encode())
        if size < room - 200:
            parts.append(part)
        else:
            left_out += 1
    if left_out:
        parts.append(f"\n{left_out} more entries are left out: GitHub shows 1 MiB.\n")
    return "".join(parts) + "\n"


def _row(record: Record, name: str) -> str:
    found = _figures.figures(record)
    verdict = record["status"] if record["reason"] is None else record["reason"]
    cells = (
        escaped(name),
        record["check"],
        found.measured,
        "" if found.launches is None else str(found.launches),
        "" if found.gpu_seconds is None else f"{found.gpu_seconds:.2g}",
        f"{_SIGNS[record['status']]} {verdict}",
    )
    return f"| {' | '.join(cells)} |\n"


def _reason(record: Record, name: str) -> str:
    told = f"{record['check']} of {name}: {record['reason'] or record['status']}"
    return (
        f"- **{escaped(told)}**: {escaped(record['message'])}<br>\n"
        f"  To do: {escaped(record['remedy'])}\n"
    )


def escaped(text: object) -> str:
    """Text as it is, on one line: no markup, no HTML, no mention and no end of the cell."""
    return one_line(text).translate(_SPECIAL).translate(_HTML)
