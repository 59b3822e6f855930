"""The table at the end of a run: one line a check, aligned, coloured by pytest's writer.

Columns of which no record has anything are left out. What is cut is never a number, a verdict or
a negative verdict's message: a long kernel name gets a line of its own, a long message the
lines below. All of it is ASCII, since a terminal that is not UTF-8 would show escapes.
"""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from pytest_compileiq.report import figures as _figures
from pytest_compileiq.report.figures import Record
from pytest_compileiq.verdict import one_line

_COLOURS = {"pass": "green", "fail": "red", "undecided": "yellow", "not-judged": "yellow"}
#: What stands between name and verdict.
_HEADERS = ("check", "speed-up", "launches", "seconds")
_RIGHT = ("launches", "seconds")
#: A message to the right of the verdict gets at least this many columns.
_MESSAGE = 20


def write_table(terminal: Any, records: Sequence[Record], *, verbosity: int = 0) -> None:
    """Print records through pytest's terminal reporter, in its width and colours.

    Below verbosity 0 only negative records and the counts; above, the message of a pass that has
    figures, too.
    """
    shown = [one for one in records if verbosity >= 0 or one["status"] in ("fail", "undecided")]
    terminal.ensure_newline()
    if shown or verbosity >= 0:
        terminal.section("compileiq")
    if shown:
        _write_rows(terminal, shown, verbose=verbosity > 0)
    counts = Counter(record["status"] for record in records)
    if verbosity >= 0:
        unjudged = Counter(
            one_line(one["message"]) for one in records if one["status"] == "not-judged"
        )
        for message, count in unjudged.items():
            text = f"{count} not judged: {message}"
            terminal.write_line(_wrapped(text, _width_of(terminal), indent=0))
    told = [(f"{counts[status]} {status}", colour) for status, colour in _COLOURS.items()]
    told = [(text, colour) for text, colour in told if not text.startswith("0 ")]
    for index, (text, colour) in enumerate(told):
        terminal.write(", " if index else "compileiq: ")
        terminal.write(text, **{colour: True})
    terminal.write_line("")


def write_gpus(terminal: Any, uses: Sequence[Mapping[str, Any]]) -> None:
    """Each GPU with its clocks and how its tests' windows were judged; distinct notes below.

    ``uses`` has what each test that held a GPU saw of it.
    """
    conditions: dict[tuple[str, str], Counter[str]] = {}
    notes: dict[str, None] = {}
    for use in uses:
        condition = use["evidence"]["condition"]
        conditions.setdefault((use["gpu"], use["clocks"]), Counter())[condition] += 1
        notes |= dict.fromkeys(use["notes"])
        if condition not in ("clean", "unverified"):
            notes[f"{use['nodeid']}: {use['summary']}"] = None
    for (gpu, clocks), counts in conditions.items():
        told = ", ".join(f"{count} {name}" for name, count in counts.items())
        terminal.write_line(f"{gpu}: clocks {clocks}; {counts.total()} tests: {told}")
    for note in notes:
        terminal.write_line(f"  {note}", yellow=True)


def _write_rows(terminal: Any, records: Sequence[Record], *, verbose: bool) -> None:
    full = _width_of(terminal)
    names = _figures.labels(records)
    cells = [_cells(record) for record in records]
    used = [column for column in range(len(_HEADERS)) if any(row[column] for row in cells)]
    header, *rows = [[row[column] for column in used] for row in [_HEADERS, *cells]]
    verdicts = [_figures.verdict(record) for record in records]
    widths = [max(map(_width, column)) for column in zip(header, *rows, strict=True)]
    verdict_width = max(map(_width, ["verdict", *verdicts]))
    gap, name_width = _name_column(full, sum(widths) + verdict_width, len(widths), names)
    beside = full - name_width - sum(widths) - verdict_width - gap * (len(widths) + 1) - 2

    def left(name: str, row: Sequence[str]) -> str:
        """Everything to the left of the verdict."""
        padded = [_pad(name, name_width)]
        for head, cell, width in zip(header, row, widths, strict=True):
            padded.append(_pad(cell, width, right=head in _RIGHT))
        return "".join(cell + " " * gap for cell in padded)

    terminal.write_line(left("kernel", header) + "verdict")
    above = None
    for record, name, row, verdict in zip(records, names, rows, verdicts, strict=True):
        fits = _width(name) <= name_width
        if not fits and name != above:
            terminal.write_line(_wrapped(name, full, indent=0))
        above = name
        terminal.write(left(name if fits else "", row))
        terminal.write(verdict, **{_COLOURS[record["status"]]: True})
        message = "" if record["status"] == "not-judged" else one_line(record["message"])
        if beside >= _MESSAGE and _width(message) <= beside:
            space = " " * (verdict_width - _width(verdict) + 2)
            terminal.write_line(space + message if message else "")
        else:
            terminal.write_line("")
            # A pass with figures has said all that matters; any other says it in words.
            if message and (verbose or record["status"] != "pass" or not any(row[1:])):
                terminal.write_line(_wrapped(message, full, indent=4))


def _name_column(full: int, taken: int, columns: int, names: Sequence[str]) -> tuple[int, int]:
    """The gap between columns, and the width of the names, in what is not ``taken``.

    Names that do not fit get lines of their own: they must not push a verdict off its line.
    """
    widths = [*map(_width, ["kernel", *names])]

    def fitting(gap: int) -> list[int]:
        # A few very long names would keep all messages from their place beside the verdicts.
        most = min(full - taken - gap * (columns + 1), max(44, full // 4))
        return [width for width in widths if width <= most]

    gap = max((2, 1), key=lambda gap: len(fitting(gap)))
    return gap, max(fitting(gap), default=len("kernel"))


def _cells(record: Record) -> tuple[str, ...]:
    found = _figures.figures(record)
    seconds = found.gpu_seconds
    return (
        str(record["check"]),
        found.measured,
        "" if found.launches is None else str(found.launches),
        "" if seconds is None else f"{seconds:.2g}" if seconds < 1 else f"{seconds:.1f}",
    )


def _pad(text: str, width: int, *, right: bool = False) -> str:
    space = " " * (width - _width(text))
    return space + text if right else text + space


def _wrapped(text: str, width: int, *, indent: int) -> str:
    """All of the text on lines of ``width`` columns; a longer word is broken, not lost."""
    width, lines = max(20, width), [" " * indent]
    for word in text.split():
        gap = " " if lines[-1].strip() else ""
        if gap and _width(lines[-1] + gap + word) > width:
            lines.append(" " * (indent or 2))
            gap = ""
        while _width(lines[-1] + gap + word) > width:
            part = cut(word, width - _width(lines[-1]))
            lines[-1] += part
            lines.append(" " * (indent or 2))
            word = word[len(part) :]
        lines[-1] += gap + word
    return "\n".join(lines)


def cut(text: str, columns: int) -> str:
    """As much of the text as fits on so many columns."""
    end = len(text)
    while _width(text[:end]) > columns:
        end -= 1
    return text[:end]


def _width_of(terminal: Any) -> int:
    return int(terminal.config.get_terminal_writer().fullwidth)


def _width(text: str) -> int:
    """Columns of a text on a terminal, where some East Asian characters take two."""
    return sum(
        0 if unicodedata.combining(one) else 2 if unicodedata.east_asian_width(one) in "WF" else 1
        for one in text
    )
