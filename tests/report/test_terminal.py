"""The table and the failure text: what is on the line, and that nothing of worth is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_compileiq.report.failure import explain
from pytest_compileiq.report.figures import Figures, figures, labels
from pytest_compileiq.report.terminal import _width, write_table
from pytest_compileiq.verdict import Check, Reason, Status, Verdict

from . import simulated as sim


class Terminal:
    """What pytest's reporter offers to a plugin, with the colour of each piece of text."""

    def __init__(self, columns: int) -> None:
        writer = SimpleNamespace(fullwidth=columns)
        self.config = SimpleNamespace(get_terminal_writer=lambda: writer)
        self.text = ""
        self.coloured: list[tuple[str, str]] = []

    def write(self, text: str, **markup: bool) -> None:
        self.coloured += [(text, colour) for colour in markup]
        self.text += text

    def write_line(self, text: str, **markup: bool) -> None:
        self.write(text + "\n", **markup)

    def section(self, title: str) -> None:
        self.write_line(f"== {title} ==")

    def ensure_newline(self) -> None:
        pass


def table(records: Sequence[Any], columns: int = 80, verbosity: int = 0) -> list[str]:
    terminal = Terminal(columns)
    write_table(terminal, records, verbosity=verbosity)
    return [line.rstrip() for line in terminal.text.splitlines()]


SLOWER = sim.win("matmul", speedup=0.98, noise=0.01)
PASSED = sim.win("softmax", speedup=1.06)
MESSAGE = "    best.acf: 1.06x [1.053, 1.068] in 40 launches, min_speedup=1.02"


def test_figures_come_from_numbers_or_from_the_samples() -> None:
    record = sim.record(PASSED)
    whole = figures(record)
    outcome = record["samples"][0]["outcome"]
    assert whole.speedup == outcome["speedup"]
    assert whole.interval == tuple(outcome["speedup_interval"])
    assert whole.launches == 16 + 4 * outcome["units"]
    assert whole.gpu_seconds == pytest.approx(16 * 45e-6 + 0.0015 * outcome["units"], rel=0.01)
    assert whole.wanted == 1.02
    only_samples = figures({**record, "numbers": {}})
    assert only_samples == replace(whole, wanted=None)
    assert figures({**record, "numbers": {"speedup": 2.0, "launches": 7}}).launches == 7


def test_figures_of_other_kinds() -> None:
    spread = figures(sim.record(sim.cv("k", noise=0.09)))
    assert spread.measured.startswith("CV 6.")
    assert figures(sim.record(sim.objective("o"))).measured.startswith("1.2")
    exact = replace(PASSED, samples=(), numbers={"score_ratio": 1.5})
    assert figures(sim.record(exact)) == Figures(speedup=1.5)
    odd = replace(PASSED, samples=(), numbers={"speedup": "fast", "launches": True})
    assert figures(sim.record(odd)) == Figures()


def test_an_open_interval_is_no_number() -> None:
    assert Figures(speedup=1.5, interval=(1.2, None)).measured == "1.500 [1.200, ?]"
    assert Figures(speedup=1234.5).measured == "1234"


def test_one_line_a_check() -> None:
    assert table([sim.record(PASSED), sim.record(SLOWER)])[1:] == [
        "kernel   check  speed-up              launches  seconds  verdict",
        "softmax  win    1.060 [1.053, 1.068]        40   0.0097  pass",
        "matmul   win    0.982 [0.972, 0.990]        48    0.013  fail: slower",
        "    best.acf wins less than min_speedup=1.02: 0.9816x [0.9718, 0.9901] in 48",
        "    launches",
        "compileiq: 1 pass, 1 fail",
    ]


def test_columns_without_a_figure_are_left_out() -> None:
    assert table([sim.record(sim.static("k"))], 60)[1:4] == [
        "kernel  check      verdict",
        "k       resources  pass",
        "    80 registers, 536 spill bytes (baseline 80 and 1160)",
    ]


def test_verdicts_are_coloured_and_nothing_else_is() -> None:
    terminal = Terminal(80)
    records = [PASSED, SLOWER, sim.not_judged("k")]
    write_table(terminal, [sim.record(one) for one in records])
    assert terminal.coloured == [
        ("pass", "green"),
        ("fail: slower", "red"),
        ("not-judged", "yellow"),
        ("1 pass", "green"),
        ("1 fail", "red"),
        ("1 not-judged", "yellow"),
    ]


@pytest.mark.parametrize("columns", [40, 80, 160])
def test_names_and_messages_are_never_cut(columns: int) -> None:
    name = "attention[" + "-".join(f"dim{k}=4096" for k in range(16)) + "]"
    message = "a message of " + "many words " * 20 + "to its end"
    record = sim.record(replace(SLOWER, kernel=name, message=message))
    lines = table([record, sim.record(PASSED)], columns)
    if columns >= 80:
        assert max(map(len, lines)) <= columns
    joined = "".join(line.strip() for line in lines)
    assert name in joined
    assert message in " ".join(line.strip() for line in lines)
    (row,) = [line for line in lines if "fail: slower" in line]
    assert row.split()[0] == "win"


def test_a_long_name_stands_once_above_its_rows() -> None:
    records = [sim.record(replace(one, kernel="k" * 70)) for one in (PASSED, SLOWER)]
    assert [line for line in table(records) if "kkk" in line] == ["k" * 70]


def test_forty_kernels_with_names_of_twenty_columns_take_forty_lines() -> None:
    names = [f"gemm_{n:02}_m4096n4096k64" for n in range(40)]
    lines = table([sim.record(replace(PASSED, kernel=name)) for name in names])
    assert len(lines) == 1 + 1 + 40 + 1


def test_wide_characters_keep_the_columns() -> None:
    lines = table([sim.record(replace(PASSED, kernel=name)) for name in ("行列", "abcd")])
    assert lines[2].index("win") + 2 == lines[3].index("win")  # two characters on four columns


def test_lines_are_as_wide_as_the_terminal_in_columns() -> None:
    message = "x " + "行列" * 50 + " 行列 end"
    lines = table([sim.record(replace(SLOWER, kernel="行" * 60, message=message))])
    assert max(map(_width, lines)) <= 80
    assert "".join(line.strip() for line in lines).count("行") == 60 + 51


def test_quiet_shows_what_is_negative_and_verbose_all_messages() -> None:
    records = [sim.record(one) for one in (PASSED, SLOWER, sim.not_judged("k"))]
    quiet = table(records, verbosity=-1)
    assert not any("softmax" in line or "not judged:" in line for line in quiet)
    assert quiet[-1] == "compileiq: 1 pass, 1 fail, 1 not-judged"
    assert table(records[:1], verbosity=-1) == ["compileiq: 1 pass"]
    assert MESSAGE in table(records, verbosity=1)
    assert MESSAGE not in table(records)


def test_equal_reasons_for_not_judging_are_told_once() -> None:
    lines = table([sim.record(sim.not_judged(f"k{n}")) for n in range(7)], 160)
    assert [line for line in lines if "question about timings" in line] == [
        "7 not judged: a CV limit of 5 % is a question about timings, and this run times nothing"
    ]


@pytest.mark.parametrize(
    ("nodeids", "expected"),
    [
        (["t.py::test[512]", "t.py::test[8192]"], ["k[512]", "k[8192]"]),
        (["t.py::test_a", "t.py::test_b"], ["k in test_a", "k in test_b"]),
        (["t.py::test_a[1]", "t.py::test_b[1]"], ["k in test_a[1]", "k in test_b[1]"]),
        (["t.py::test[a::b]", "t.py::test"], ["k in test[a::b]", "k in test"]),
        (["t.py::test", "t.py::test"], ["k", "k"]),
        (["t.py::A::test", "t.py::B::test"], ["k in A::test", "k in B::test"]),
        (["t.py::test", "t.py::B::test"], ["k in t.py::test", "k in B::test"]),
        (["a/t.py::test[1]", "a/u.py::test[1]"], ["k in t.py::test[1]", "k in u.py::test[1]"]),
        (["a/t.py::test", "b/t.py::test"], ["k in a/t.py::test", "k in b/t.py::test"]),
        (["t.py::test", "b/t.py::test"], ["k in t.py::test", "k in b/t.py::test"]),
        (
            ["t.py::test[/]", "t.py::test[::]", "u.py::test[/]"],
            ["k in t.py::test[/]", "k in t.py::test[::]", "k in u.py::test[/]"],
        ),
    ],
)
def test_kernels_of_one_name_are_told_apart(nodeids: list[str], expected: list[str]) -> None:
    assert labels([{"kernel": "k", "nodeid": one} for one in nodeids]) == expected


def test_the_examples_kernels_of_one_name_are_two() -> None:
    places = [
        "examples/helion/test_softmax.py::test_softmax",
        "examples/triton/test_softmax.py::test_softmax",
    ]
    told = labels([{"kernel": "softmax", "nodeid": one} for one in places])
    assert told == [f"softmax in {one.removeprefix('examples/')}" for one in places]


def test_a_failure_explains_itself() -> None:
    assert (
        explain(SLOWER)
        == f"""\
win of matmul: slower: {SLOWER.message}
  to do: search again for this kernel and this GPU, or lower min_speedup to what you rely on"""
    )
    assert "0.9816x [0.9718, 0.9901] in 48 launches" in SLOWER.message


def test_checks_that_fail_for_one_cause_tell_it_once() -> None:
    """The last remedy is told: that of a win knows what --ciq-retune found."""
    win = Verdict(
        check=Check.WIN,
        kernel="k",
        status=Status.FAIL,
        reason=Reason.REJECTED,
        message="no best.acf",
        remedy="take the winner",
        numbers={"looked_at": ["here"]},
    )
    resources = replace(win, check=Check.RESOURCES, remedy="commit the file")
    assert explain(resources, win).splitlines() == [
        "resources and win of k: rejected: no best.acf",
        "  looked at: here",
        "  to do: take the winner",
    ]
    for other in (
        replace(resources, kernel="l"),
        replace(resources, message="another"),
        replace(resources, reason=Reason.UNFIT),
        replace(resources, numbers={"looked_at": ["there"]}),
    ):
        assert explain(other, win) == f"{explain(other)}\n{explain(win)}"


def test_a_failure_takes_eight_lines_at_most() -> None:
    verdict = Verdict(
        check=Check.WIN,
        kernel="k",
        status=Status.FAIL,
        reason=Reason.REJECTED,
        message="one\ntwo\nthree",
        remedy="first\nthen",
        numbers={"looked_at": [f"place\n{n}" for n in range(30)], "launches": 3, "speedup": 1.0},
    )
    lines = explain(verdict).splitlines()
    assert len(lines) == 8
    assert lines[0] == "win of k: rejected: one two three"
    assert lines[-2] == "  looked at: 25 more, see --ciq-json"
    assert lines[-1] == "  to do: first then"
