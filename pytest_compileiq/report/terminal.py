"""The table at the end of a run: one line a check, aligned, coloured by pytest's writer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

_COLOURS = {"pass": "green", "fail": "red", "undecided": "yellow", "not-judged": "yellow"}
_HEADERS = ("kernel", "check", "verdict", "")


def write_table(terminal: Any, records: Sequence[dict[str, Any]]) -> None:
    """Print ``records`` through pytest's terminal reporter, in its width and colours."""
    full = terminal.config.get_terminal_writer().fullwidth
    terminal.section("compileiq")
    rows = [
        (
            str(record["kernel"]),
            str(record["check"]),
            str(record["status"]) + (f" ({record['reason']})" if record["reason"] else ""),
            " ".join(str(record["message"]).split()),
        )
        for record in records
    ]
    widths = [max(len(row[column]) for row in [_HEADERS, *rows]) for column in range(3)]
    # A long parametrised name must not push the verdict off the line.
    widths[0] = min(widths[0], max(20, full - sum(widths[1:]) - 24))
    terminal.write_line("  ".join(_cut(_HEADERS[c], widths[c]) for c in range(3)).rstrip())
    for record, row in zip(records, rows, strict=True):
        left = "  ".join(_cut(row[column], widths[column]) for column in range(2)) + "  "
        terminal.write(left)
        terminal.write(_cut(row[2], widths[2]), **{_COLOURS[record["status"]]: True})
        room = full - len(left) - widths[2] - 2
        terminal.write_line("  " + _shorten(row[3], room) if room > 12 else "")
    counts = {status: sum(r["status"] == status for r in records) for status in _COLOURS}
    terminal.write_line(", ".join(f"{count} {status}" for status, count in counts.items() if count))


def _cut(text: str, width: int) -> str:
    if len(text) > width:  # both ends of a parametrised name tell which it is
        half = (width - 1) // 2
        text = f"{text[: width - 1 - half]}…{text[len(text) - half :]}"
    return text.ljust(width)


def _shorten(text: str, width: int) -> str:
    return text if len(text) <= width else f"{text[: width - 1]}…"
