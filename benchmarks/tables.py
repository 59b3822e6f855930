"""The tables of ``errors.py`` as markdown, beside the figures that the study aimed at."""

from __future__ import annotations

from typing import Any

#: Launches at 0.5 / 1 / 2 / 5 / 10 %, alpha = 0.05, of the study that this design comes from
#: (2000 runs a cell, so about 2 % of standard error at 0.5 %), and power where below 99.5 %.
REFERENCE = {
    "iid": (152, 63, 43, 40, 40),
    "quiet": (72, 47, 43, 43, 43),
    "ci": (177, 71, 47, 42, 43),
    "noisy": (799, 367, 112, 50, 43),
    "stress": (231, 85, 51, 45, 45),
    "placed": (258, 87, 50, 43, 43),
}
REFERENCE_POWER = {"noisy": (40, 97, 100, 100, 100)}
REFERENCE_01 = {"ci": (253, 97, 59, 51, 51)}

_TITLES = {
    "pairs": 'Models of noise: launches of a 100 us kernel until "faster", at most 1000',
    "traces": "Recorded: one kernel against itself on an H200, clocks not locked",
    "gate": "Gate at min_speedup = 1.02, alpha_pass = 0.05, alpha_fail = 0.01",
    "canary O0": "O0 canary: passes if shown slower by more than 5 %",
    "canary O3": "O3 canary: passes if shown not slower by more than 2 %",
    "opaque": "Opaque objective: calls until decided (two throw-away calls not counted)",
    "cv": "CV check, limit 2 %: true CV as a share of the limit",
}


_NOTE = (
    "False claims are on identical kernels, which put the truth on the boundary: the worst case, "
    "in which a test should run to its budget. A cell of n runs has a standard error of "
    "sqrt(p (1 - p) / n)."
)
_AS_RECORDED = (
    "With the coins that they were recorded with, one session a process, alpha = 0.05: "
    '{faster} false "faster" and {slower} false "slower" in {sessions} sessions.'
)


def line(cell: dict[str, Any]) -> str:
    """One cell while the benchmark runs."""
    return (
        f"{cell['table']:12s} {cell['scene']:18s} {cell['case']:12s} "
        f"faster {_percent(cell, 'faster'):>6} slower {_percent(cell, 'slower'):>6} "
        f"cost {cell['cost']:6.1f} +- {cell['cost_se']:.1f}  ({cell['seconds']:.0f} s)"
    )


def markdown(report: dict[str, Any]) -> str:
    out = [
        "# Error rates and power of the shipped verdicts",
        "",
        f"`{report['command']}`, {report['date']}, {report['seconds']} s, numpy {report['numpy']}.",
        "",
        _NOTE,
    ]
    groups: dict[str, list[dict[str, Any]]] = {}
    for cell in report["cells"]:
        groups.setdefault(cell["table"], []).append(cell)
    for table, group in groups.items():
        kind = next(title for title in _TITLES if table.startswith(title))
        alpha = table.removeprefix(kind).strip()
        out += ["", f"## {_TITLES[kind]}" + (f", alpha = {alpha}" if "0.0" in alpha else ""), ""]
        out += _effects(group, table) if kind in ("pairs", "traces", "opaque") else _rates(group)
    if "as_recorded" in report:
        out += ["", _AS_RECORDED.format(**report["as_recorded"])]
    return "\n".join(out) + "\n"


def _effects(group: list[dict[str, Any]], table: str) -> list[str]:
    cases = [c for c in dict.fromkeys(cell["case"] for cell in group) if c != "0 %"]
    shown = " / ".join(case.removesuffix(" %") for case in cases)
    rows = [
        f"| | runs | false faster / slower, % | power at {shown} %, % | cost at 0 / {shown} % |",
        "|---|---|---|---|---|",
    ]
    for scene in dict.fromkeys(cell["scene"] for cell in group):
        found = {cell["case"]: cell for cell in group if cell["scene"] == scene}
        null, effects = found["0 %"], [found[case] for case in cases if case in found]
        power = " / ".join(_percent(cell, "faster") for cell in effects) or "-"
        cost = " / ".join(f"{cell['cost']:.0f}" for cell in [null, *effects])
        rows.append(
            f"| {scene} | {null['runs']} | {_percent(null, 'faster')} / "
            f"{_percent(null, 'slower')} | {power} | {cost} |"
        )
        reference = {"pairs 0.05": REFERENCE, "pairs 0.01": REFERENCE_01}.get(table, {})
        if scene in reference:
            aim = " / ".join(map(str, REFERENCE_POWER.get(scene, (100,) * 5)))
            if table == "pairs 0.01":
                aim = "100 / 100 / 100 / 100 / 100"
            rows.append(f"| *aim* | | | *{aim}* | *- / {' / '.join(map(str, reference[scene]))}* |")
    return rows


def _rates(group: list[dict[str, Any]]) -> list[str]:
    spread = "classic" in group[0]
    names = (
        ("below, %", "above, %", "classic n = 100 says below, %")
        if spread
        else ("shown faster, %", "shown slower, %", "at the threshold, %")
    )
    rows = [f"| | truth | runs | {' | '.join(names)} | launches |", "|---|---|---|---|---|---|---|"]
    for cell in group:
        third = _percent(cell, "classic" if spread else "no_win")
        rows.append(
            f"| {cell['scene']} | {cell['case']} | {cell['runs']} | {_percent(cell, 'faster')} | "
            f"{_percent(cell, 'slower')} | {third} | {cell['cost']:.0f} |"
        )
    return rows


def _percent(cell: dict[str, Any], name: str) -> str:
    value = 100 * cell[name]
    return f"{value:.1f}" if 0 < value < 99.95 else f"{value:.0f}"
