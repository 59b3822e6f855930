"""Drawings: one of each kernel's measurements, one of all kernels' speed-ups.

matplotlib's object interface only: pyplot would keep figures alive and ask for a display. The
colours are Okabe and Ito's, told apart by the colour-blind, and each has a marker of its own.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pytest_compileiq.measure.samples import comparison_of
from pytest_compileiq.measure.units import Side
from pytest_compileiq.report import figures as _figures
from pytest_compileiq.report.figures import Record

_BLUE, _ORANGE, _GREEN, _RED, _GREY = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#777777"
#: Colour and marker of each status.
STATUS = {
    "pass": (_GREEN, "o"),
    "fail": (_RED, "X"),
    "undecided": (_ORANGE, "s"),
    "not-judged": (_GREY, "D"),
}
#: 8 inches of 100 dots: a picture is readable where it is shown 800 pixels wide.
_WIDE, DPI = 8.0, 100


@dataclass(frozen=True, slots=True)
class Track:
    """What a record of kind "units" holds, unit by unit.

    ``ratios`` are speed-ups of one unit each; ``rejected`` are the indices of units that were
    thrown away; ``launches`` counts launches up to and with each unit; ``above`` and ``below``
    are base-10 logarithms of the e-values then; ``seconds`` and ``mhz`` are the GPU time spent
    and the SM clock, one entry for each block whose clock was read.
    """

    ratios: list[float]
    rejected: list[int]
    launches: list[int]
    above: list[float]
    below: list[float]
    seconds: list[float]
    mhz: list[float]


def track(sample: Mapping[str, Any]) -> Track:
    """Replay a sample. Raises RecordError for one that contradicts itself."""
    whole = comparison_of(sample)
    comparison = replace(whole)  # with its arguments, and no unit yet
    found = Track([], [], [], [], [], [], [])
    launches = len(comparison.pilot)
    spent = math.fsum(comparison.pilot)
    for index, unit in enumerate(whole.units):
        comparison.add(unit)
        launches += unit.timed.launches * len(unit.timed.seconds)
        clocks = unit.timed.health.mhz
        for block, clock in enumerate(clocks):
            found.seconds.append(spent + unit.timed.gpu_seconds * (block + 0.5) / len(clocks))
            found.mhz.append(clock)
        spent += unit.timed.gpu_seconds
        judged = unit.rejected is None and math.isfinite(unit.log_ratio)
        log = comparison.judge.test.taken[-1] if judged else unit.log_ratio
        found.ratios.append(math.exp(log) if math.isfinite(log) else math.nan)
        if unit.rejected is not None:
            found.rejected.append(index)
        found.launches.append(launches)
        found.above.append(comparison.judge.test.log_above / math.log(10))
        found.below.append(comparison.judge.test.log_below / math.log(10))
    return found


def picture(kernel: str, records: Sequence[Record]) -> Figure:
    """All that was timed of one kernel: a row of panels a sample, and the clock below."""
    samples = [(record, sample) for record in records for sample in record["samples"]]
    tracks = [track(one) if one["kind"] == "units" else None for _, one in samples]
    clocked = [one for one in tracks if one is not None and one.mhz]
    rows = len(samples) + bool(clocked)
    figure = Figure(figsize=(_WIDE, 0.5 + 2.6 * rows), layout="constrained")
    figure.suptitle(shown(kernel, 90), fontsize=12)
    grid = figure.add_gridspec(rows, 2)
    for row, ((record, sample), one) in enumerate(zip(samples, tracks, strict=True)):
        if one is not None:
            _strip(figure.add_subplot(grid[row, 0]), record, sample, one)
            _evidence(figure.add_subplot(grid[row, 1]), sample, one)
        elif sample["kind"] == "spread":
            _times(figure.add_subplot(grid[row, :]), record, sample)
        else:
            _scores(figure.add_subplot(grid[row, :]), record, sample)
    if clocked:
        _clock(figure.add_subplot(grid[rows - 1, :]), clocked)
    return figure


def _title(record: Record, name: str = "") -> str:
    verdict = record["status"] if record["reason"] is None else record["reason"]
    name = name.removeprefix(f"{record['kernel']}/")
    arm = f" {name}" if name and name != record["kernel"] else ""
    return f"{record['check']}{shown(arm, 24)}: {verdict}"


def dress(axes: Axes, title: str, x: str, y: str) -> None:
    """What all panels have: a title, both axes with their units, a grid."""
    axes.set_title(title, fontsize=10)
    axes.set_xlabel(x, fontsize=9)
    axes.set_ylabel(y, fontsize=9)
    axes.grid(alpha=0.3)
    axes.tick_params(labelsize=9)


def _strip(axes: Axes, record: Record, sample: Mapping[str, Any], one: Track) -> None:
    """Each unit's speed-up, the interval of all of them, and what was asked for."""
    kept = [index for index in range(len(one.ratios)) if index not in set(one.rejected)]
    colour, marker = STATUS[record["status"]]
    for units, dot, shade, alpha, label in (
        (kept, ".", _BLUE, 0.6, "one unit"),
        (one.rejected, "x", _GREY, 1.0, "rejected"),
    ):
        if units:
            x, y = [index + 1 for index in units], [one.ratios[index] for index in units]
            axes.plot(x, y, linestyle="", marker=dot, color=shade, alpha=alpha, label=label)
    outcome = sample["outcome"]
    low, high = outcome["speedup_interval"]
    right = len(one.ratios) + max(1.0, 0.08 * len(one.ratios))
    if outcome["speedup"] is not None:
        middle = outcome["speedup"]
        if low is not None and high is not None:
            axes.axhspan(low, high, color=colour, alpha=0.18, linewidth=0)
            around = [[middle - low], [high - middle]]
            axes.errorbar([right], [middle], around, color=colour, capsize=4, linewidth=1.5)
        axes.plot([right], [middle], marker=marker, color=colour, linestyle="", label="interval")
    axes.axhline(sample["rule"]["ratio"], color="black", linestyle="--", label="threshold")
    axes.set_yscale("log")
    _plain_ratios(axes)
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top * (top / bottom) ** 0.3)
    _legend_on_top(axes)
    dress(axes, _title(record, str(sample["name"])), "unit", "speed-up, ×")


def _legend_on_top(axes: Axes) -> None:
    """In the room that was left for it, since anywhere else it may hide a line."""
    axes.legend(fontsize=8, loc="upper center", ncols=2, columnspacing=1.2)


def _plain_ratios(axes: Axes) -> None:
    """1.02 and not 1.02 × 10⁰ on a logarithmic axis; a handful of ticks whatever its range."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator

    axes.yaxis.set_major_locator(MaxNLocator(6))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_minor_formatter(NullFormatter())


def _evidence(axes: Axes, sample: Mapping[str, Any], one: Track) -> None:
    """The two e-values against launches, with the level at which each decides."""
    rule = sample["rule"]
    slower_passes = rule["slower_passes"]
    sides = (
        ("above", one.above, _BLUE, "-", rule["alpha_fail" if slower_passes else "alpha_pass"]),
        ("below", one.below, _ORANGE, "-.", rule["alpha_pass" if slower_passes else "alpha_fail"]),
    )
    start = len(sample["pilot"])
    for name, evidence, colour, line, alpha in sides:
        axes.plot(
            [start, *one.launches],
            [0.0, *evidence],
            color=colour,
            linestyle=line,
            label=f"{name} {rule['ratio']:.4g}×",
        )
        axes.axhline(-math.log10(alpha), color=colour, linestyle=":", linewidth=1)
        axes.annotate(
            f"decides at {1 / alpha:.0f}",
            (0.55, -math.log10(alpha)),  # left of where a line that decides comes up
            xycoords=("axes fraction", "data"),
            ha="center",
            va="bottom",
            fontsize=8,
            color=colour,
        )
    decides = max(-math.log10(alpha) for *_, alpha in sides)
    lowest = min(0.0, *one.above, *one.below) if one.above else 0.0
    axes.set_ylim(max(lowest, -decides) - 0.2, max(decides, *one.above, *one.below, 0.0) + 0.9)
    _legend_on_top(axes)
    dress(axes, "evidence", "launches", "evidence, log₁₀ e-value")


def _clock(axes: Axes, tracks: Sequence[Track]) -> None:
    start = 0.0
    for one in tracks:
        axes.plot(
            [start + second for second in one.seconds],
            one.mhz,
            linestyle="",
            marker=".",
            markersize=3,
            color=_BLUE,
        )
        start += one.seconds[-1]
    clocks = [mhz for one in tracks for mhz in one.mhz]
    middle = sorted(clocks)[len(clocks) // 2]
    # Ten percent at least: the steps of a steady clock are not to look like a landscape.
    axes.set_ylim(min(0.95 * middle, min(clocks) - 15), max(1.05 * middle, max(clocks) + 15))
    dress(axes, "clock while it was measured", "GPU time, s", "SM clock, MHz")


def _times(axes: Axes, record: Record, sample: Mapping[str, Any]) -> None:
    """Launch times of the spread check, with a band of the allowed deviation."""
    times = [math.nan if one is None else 1e6 * one for one in sample["seconds"]]
    usable = sorted(one for one in times if one > 0)
    axes.plot(range(1, len(times) + 1), times, linestyle="", marker=".", color=_BLUE)
    if usable:
        middle = usable[len(usable) // 2]
        limit = sample["limit"]
        axes.axhspan(
            middle * (1 - limit),
            middle * (1 + limit),
            color=STATUS[record["status"]][0],
            alpha=0.18,
            linewidth=0,
            label=f"± the CV limit, {100 * limit:g} %",
        )
        axes.legend(fontsize=8, loc="best")
    dress(axes, _title(record), "launch", "time, µs")


def _scores(axes: Axes, record: Record, sample: Mapping[str, Any]) -> None:
    """What an objective answered, call by call; the first score of several."""
    for side, colour, marker, label in (
        (Side.BASE, _ORANGE, "s", "baseline"),
        (Side.CANDIDATE, _BLUE, "o", "ACF"),
    ):
        told = [
            (call, scores[0])
            for call, (who, scores) in enumerate(sample["calls"], 1)
            if who == side and scores
        ]
        x, y = [call for call, _ in told], [score for _, score in told]
        axes.plot(x, y, linestyle="", marker=marker, color=colour, label=label)
    axes.legend(fontsize=8, loc="best")
    dress(axes, _title(record), "call", "score")


def overview(records: Sequence[Record]) -> Figure | None:
    """Speed-ups of all ``win`` records with interval and threshold, the first record on top."""
    named = [
        (name, record, found)
        for name, record in zip(_figures.labels(records), records, strict=True)
        if record["check"] == "win" and (found := _figures.figures(record)).speedup is not None
    ]
    if not named:
        return None
    figure = Figure(figsize=(_WIDE, 1.4 + 0.28 * len(named)))
    axes = figure.add_subplot()
    for row, (_, record, found) in enumerate(named):
        speedup = found.speedup
        assert speedup is not None
        colour, marker = STATUS[record["status"]]
        low, high = (speedup if end is None else end for end in found.interval)
        axes.plot([low, high], [row, row], color=colour, linewidth=2)
        axes.plot([speedup], [row], marker=marker, color=colour, linestyle="", markersize=7)
        if found.wanted is not None:
            axes.plot([found.wanted], [row], marker="|", color="black", markersize=13)
    for status, (colour, marker) in STATUS.items():
        if any(record["status"] == status for _, record, _ in named):
            axes.plot([], [], marker=marker, color=colour, label=status)
    axes.plot([], [], marker="|", color="black", linestyle="", markersize=11, label="threshold")
    axes.axvline(1.0, color=_GREY, linewidth=1)
    axes.set_yticks(range(len(named)), [shown(name, 44) for name, _, _ in named], fontsize=9)
    axes.set_ylim(len(named) - 0.4, -0.6)
    axes.set_xlabel("speed-up over the baseline, ×", fontsize=10)
    axes.grid(alpha=0.3, axis="x")
    figure.legend(fontsize=9, loc="outside upper center", ncols=5)
    figure.set_layout_engine("constrained", w_pad=0.1)  # inches: names would touch the edge
    return figure


def save(figure: Figure, path: Path) -> None:
    """Write a picture, and make its folder. Raises OSError, and ValueError for too many pixels."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a letter that the font lacks; a box stands for it
        figure.savefig(path, dpi=DPI)


def shown(name: str, most: int) -> str:
    """A name as a picture's text: no formula, and in the middle cut down to ``most`` letters.

    Both ends of a parametrised name tell which it is; the record holds all of it.
    """
    if len(name) > most:
        half = (most - 1) // 2
        name = f"{name[: most - 1 - half]}…{name[len(name) - half :]}"
    return name.replace("$", r"\$")
