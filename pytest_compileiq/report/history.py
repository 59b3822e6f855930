"""``python -m pytest_compileiq history DIR|FILES``: how speed-ups went from run to run."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_compileiq.files import write_whole
from pytest_compileiq.report import figures as _figures
from pytest_compileiq.report.figures import Figures
from pytest_compileiq.report.json import SCHEMA

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True, slots=True)
class Entry:
    """One measured speed-up of one run."""

    date: datetime
    commit: str
    nodeid: str
    kernel: str
    verdict: str
    status: str
    figures: Figures
    gpu: str


class NotAReportError(Exception):
    """A file that --ciq-json did not write, or not in this schema."""


class OtherJsonError(NotAReportError):
    """JSON without records: of a folder's files, those of other programs."""


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit status: 1 when a file could not be used, 2 for none."""
    parser = argparse.ArgumentParser(
        prog="python -m pytest_compileiq history",
        description="Speed-up with interval by date and kernel, from files of --ciq-json.",
    )
    parser.add_argument("paths", nargs="+", type=Path, metavar="DIR|FILE")
    parser.add_argument("--plot", type=Path, metavar="PNG", help="draw the history into this file")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the last run for github-action-benchmark (tool customBiggerIsBetter)",
    )
    given = parser.parse_args(arguments)
    entries: list[Entry] = []
    bad = 0
    for path, named in _files(given.paths):
        try:
            entries += read(path)
        except OtherJsonError as error:
            if named:
                print(f"history: {path}: {error}", file=sys.stderr)
                bad = 1
        except (OSError, NotAReportError) as error:
            print(f"history: {path}: {error}", file=sys.stderr)
            bad = 1
    if not entries:
        print(
            "history: no file has a measured speed-up\n"
            "  to do: give files, or a folder of files, that pytest --ciq-json wrote on a GPU",
            file=sys.stderr,
        )
        return 2
    entries.sort(key=lambda entry: entry.date)
    print(table(entries), end="")
    try:
        if given.plot is not None:
            from pytest_compileiq.report import plots

            plots.save(figure(entries), given.plot)
        if given.json is not None:
            write_whole(given.json, json.dumps(benchmark(entries), indent=1) + "\n")
    except ModuleNotFoundError as error:
        print(f"history: {error}\n  to do: pip install 'pytest-compileiq[plots]'", file=sys.stderr)
        return 1
    except (OSError, ValueError) as error:  # such as a picture of more pixels than there can be
        print(f"history: {error}", file=sys.stderr)
        return 1
    return bad


def _files(paths: Sequence[Path]) -> Iterator[tuple[Path, bool]]:
    """Each file, and whether it was named: a folder may hold other JSON files."""
    for path in paths:
        if path.is_dir():
            yield from ((one, False) for one in sorted(path.rglob("*.json")))
        else:
            yield path, True


def read(path: Path) -> list[Entry]:
    """The speed-ups of one report. Raises OSError and NotAReportError."""
    try:
        report = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(report, dict) or "records" not in report:
            raise OtherJsonError("it is no report of --ciq-json: it has no records")
        if report["schema"] != SCHEMA:
            raise NotAReportError(f"schema {report['schema']}, and this version reads {SCHEMA}")
        return list(_entries(report))
    except (
        LookupError,
        ValueError,
        TypeError,
        AttributeError,
        ArithmeticError,
        RecursionError,
    ) as error:
        raise NotAReportError(
            f"it is no report of --ciq-json ({type(error).__name__}: {error})"
        ) from None


def _entries(report: dict[str, Any]) -> Iterator[Entry]:
    surroundings = report["environment"]
    date = datetime.fromisoformat(surroundings["date"])
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    gpus = {use["nodeid"]: str(use["gpu"]) for use in report["gpus"]}
    for record in report["records"]:
        found = _figures.figures(record)
        if record["check"] != "win" or found.speedup is None:
            continue
        yield Entry(
            date=date,
            commit=str(surroundings.get("commit") or "")[:8],
            nodeid=str(record["nodeid"]),
            kernel=str(record["kernel"]),
            verdict=_figures.verdict(record),
            status=record["status"],
            figures=found,
            gpu=gpus.get(record["nodeid"], ""),
        )


def table(entries: Sequence[Entry]) -> str:
    """Kernel by kernel, a line a run, the oldest first."""
    headers = ("date, UTC", "commit", "speed-up", "verdict", "GPU")
    lines = []
    for kernel, own in _trends(entries):
        cells = [
            (
                entry.date.astimezone(UTC).strftime("%Y-%m-%d %H:%M"),
                entry.commit,
                entry.figures.measured,
                entry.verdict,
                entry.gpu,
            )
            for entry in own
        ]
        widths = [max(map(len, column)) for column in zip(headers, *cells, strict=True)]
        lines.append(kernel)
        for row in (headers, *cells):
            padded = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
            lines.append(f"  {'  '.join(padded)}".rstrip())
    return "\n".join(lines) + "\n"


def benchmark(entries: Sequence[Entry]) -> list[dict[str, object]]:
    """The newest run in the form of github-action-benchmark's ``customBiggerIsBetter``."""
    newest = max(entry.date for entry in entries)
    found = []
    for entry in entries:
        if entry.date != newest:
            continue
        low, high = entry.figures.interval
        line: dict[str, object] = {
            # The action's key from run to run: no other test may change it.
            "name": f"{entry.kernel} in {entry.nodeid}",
            "unit": "x",
            "value": entry.figures.speedup,
            "extra": "\n".join(filter(None, [entry.verdict, entry.gpu])),
        }
        if low is not None and high is not None:
            line["range"] = f"{low:.4g} to {high:.4g}"
        found.append(line)
    return found


def figure(entries: Sequence[Entry]) -> Figure:
    """A panel a kernel: speed-up and interval against the date, and the threshold."""
    import matplotlib
    from matplotlib.figure import Figure

    kernels = _trends(entries)
    drawn = Figure(figsize=(8, 0.6 + 1.7 * len(kernels)), layout="constrained")
    panels = drawn.subplots(len(kernels), 1, sharex=True, squeeze=False)[:, 0]
    with matplotlib.rc_context({"date.converter": "concise"}):
        for axes, (kernel, own) in zip(panels, kernels, strict=True):
            _panel(axes, kernel, own)
    handles, names = panels[0].get_legend_handles_labels()
    drawn.legend(handles, names, fontsize=9, loc="outside upper center", ncols=5)
    return drawn


def _panel(axes: Any, kernel: str, own: Sequence[Entry]) -> None:
    from pytest_compileiq.report.plots import STATUS, dress, shown

    dates = [entry.date for entry in own]
    middles = [entry.figures.speedup for entry in own]
    axes.plot(dates, middles, color="#777777", linewidth=1)
    wanted = [entry.figures.wanted for entry in own]
    axes.plot(dates, wanted, color="black", linestyle="--", linewidth=1, label="threshold")
    for status, (colour, marker) in STATUS.items():
        some = [(entry.date, entry.figures) for entry in own if entry.status == status]
        for date, found in some:
            ends = [found.speedup if end is None else end for end in found.interval]
            axes.plot([date, date], ends, color=colour, linewidth=2)
        x, y = [date for date, _ in some], [found.speedup for _, found in some]
        axes.plot(x, y, linestyle="", marker=marker, color=colour, label=status)
    dress(axes, shown(kernel, 90), "", "speed-up, ×")


def _trends(entries: Sequence[Entry]) -> list[tuple[str, list[Entry]]]:
    """What one test measured of one kernel, with a name for people."""
    found: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        found.setdefault((entry.nodeid, entry.kernel), []).append(entry)
    names = _figures.labels([{"nodeid": nodeid, "kernel": kernel} for nodeid, kernel in found])
    return list(zip(names, found.values(), strict=True))
