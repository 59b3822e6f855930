"""Each pathology, and beside it the look-alike that is none, on written and on real tables."""

from __future__ import annotations

import math
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from compileiq.results import SearchResult

from pytest_compileiq.diagnose import diagnose, fisher
from pytest_compileiq.errors import CiqError

from ..conftest import DATA

#: The score of candidate ``n`` of generation ``g``.
Scores = Callable[[int, int], Any]


def table(scores: Scores, *, generations: int = 12, pool: int = 10, **columns: Any) -> pd.DataFrame:
    """A table as CompileIQ writes it; several scores make several columns."""
    rows = []
    for generation in range(generations):
        for n in range(pool):
            found = scores(generation, n)
            values = found if isinstance(found, tuple) else (found,)
            named = {f"score_{index}": value for index, value in enumerate(values, 1)}
            rows.append(
                {"metadata": "", "generation": generation, **named}
                | {"params": f'{{"x": {generation * pool + n}}}'}
                | {name: make(generation, n) for name, make in columns.items()}
            )
    return pd.DataFrame(rows)


def falling(g: int, n: int) -> float:
    """A search that works: better with each generation, spread inside it."""
    return 100 - 3 * g + (n * 7) % 10


def flat(g: int, n: int) -> float:
    """The best is from the first generation."""
    return 90.0 if (g, n) == (0, 3) else 100 + (n * 7 + g) % 11


def failing_later(g: int, n: int) -> Any:
    return "*" if n < (g * 10) // 14 else falling(g, n)


def failing_throughout(g: int, n: int) -> Any:
    return "*" if n % 2 else falling(g, n)


def of_noise(g: int, n: int) -> float:
    return 100 + random.Random(g * 1000 + n).gauss(0, 1)


def repeats(noise: float, gain: float) -> pd.DataFrame:
    """Candidates that differ by up to ``gain`` percent, each called three times."""
    frame = table(
        lambda g, n: 100 - gain * (n // 3) / 4 + random.Random(g * 99 + n).gauss(0, noise),
        pool=12, generations=3,
    )  # fmt: skip
    frame["params"] = [f'{{"x": {row // 3}}}' for row in range(len(frame))]
    return frame


CASES: dict[str, tuple[Callable[[], pd.DataFrame], dict[str, Any], set[str]]] = {
    "works": (lambda: table(falling), {}, {"healthy"}),
    "works, max": (
        lambda: table(lambda g, n: -falling(g, n)), {"problem_type": "max"}, {"healthy"}
    ),
    "worse with each generation": (
        lambda: table(lambda g, n: -falling(11 - g, n)), {"problem_type": "max"}, {"stalled"}
    ),
    # all-invalid
    "all stars": (lambda: table(lambda g, n: "*"), {}, {"all-invalid"}),
    "all NaN": (lambda: table(lambda g, n: math.nan), {}, {"all-invalid"}),
    "all 1e10": (lambda: table(lambda g, n: 1e10), {}, {"all-invalid"}),
    "all infinite": (lambda: table(lambda g, n: math.inf), {}, {"all-invalid"}),
    "one valid": (
        lambda: table(lambda g, n: 5.0 if (g, n) == (3, 3) else "*", generations=4), {}, {"healthy"}
    ),
    "only a header": (lambda: table(falling).head(0), {}, {"all-invalid"}),
    "only the baseline is valid": (
        lambda: pd.concat([
            pd.DataFrame([{"generation": 0, "score_1": 7.0, "params": "{}"}]),
            table(lambda g, n: "*"),
        ]),
        {}, {"all-invalid"},
    ),
    # all-equal
    "all equal": (lambda: table(lambda g, n: 536), {}, {"all-equal"}),
    "all equal, and known to be the best": (
        lambda: table(lambda g, n: 536), {"optimum": 536}, {"healthy"}
    ),
    "no spills at all": (lambda: table(lambda g, n: 0), {}, {"healthy"}),
    "zero is no best for a max problem": (
        lambda: table(lambda g, n: 0), {"problem_type": "max"}, {"all-equal"}
    ),
    "all zero, as seconds": (lambda: table(lambda g, n: 0.0 - 1), {}, {"all-equal"}),
    "all equal, short": (
        lambda: table(lambda g, n: 536, generations=1, pool=5), {}, {"healthy"}
    ),
    "all equal or invalid": (
        lambda: table(lambda g, n: 536 if n % 2 else "*"), {}, {"all-equal"}
    ),
    "equal beside sentinels": (
        lambda: table(lambda g, n: 536 if n % 2 else 1e10), {}, {"all-equal"}
    ),
    "one of two objectives is constant": (
        lambda: table(lambda g, n: (falling(g, n), 7)), {}, {"all-equal"}
    ),
    # rising-invalid
    "fails more and more": (lambda: table(failing_later, pool=14), {}, {"rising-invalid"}),
    "fails throughout": (lambda: table(failing_throughout), {}, {"healthy"}),
    "fails less and less": (
        lambda: table(lambda g, n: "*" if n < 8 - g else falling(g, n)), {}, {"healthy"}
    ),
    "fails more, within chance": (
        lambda: table(lambda g, n: "*" if (n == 0 and g > 8) else falling(g, n)), {}, {"healthy"}
    ),
    "fails more, in three generations": (
        lambda: table(lambda g, n: "*" if n < 4 * g else falling(g, n), generations=3),
        {}, {"healthy"},
    ),
    "1e10 more and more": (
        lambda: table(
            lambda g, n: 1e10 if failing_later(g, n) == "*" else falling(g, n), pool=14
        ),
        {}, {"rising-invalid"},
    ),
    # stalled
    "stalls at once": (lambda: table(flat), {}, {"stalled"}),
    "short run": (lambda: table(flat, generations=5), {}, {"healthy"}),
    "single generation": (lambda: table(flat, generations=1, pool=60), {}, {"healthy"}),
    "converged late": (
        lambda: table(lambda g, n: falling(min(g, 6), n)), {}, {"healthy"}
    ),
    "no spills from the first generation on": (
        lambda: table(lambda g, n: 0 if n == 3 else 40 + n), {}, {"healthy"}
    ),
    "the known best at once": (lambda: table(flat), {"optimum": 90}, {"healthy"}),
    "two objectives, the front grows late": (
        lambda: table(lambda g, n: (10 + g + n / 10, 100 - g + n / 10)), {}, {"healthy"}
    ),
    "two objectives, the front is the first generation's": (
        lambda: table(lambda g, n: (10 + g + n % 3, 100 + g - n % 3)), {}, {"stalled"}
    ),
    # noisy
    "noise, called again": (lambda: repeats(noise=2, gain=0), {}, {"noisy"}),
    "a gain far above the noise": (lambda: repeats(noise=0.05, gain=40), {}, {"healthy"}),
    "exact, called again": (lambda: repeats(noise=0, gain=40), {}, {"healthy"}),
    "noise known from before": (
        lambda: table(of_noise, generations=4), {"noise": 0.01}, {"noisy"}
    ),
    "the same table, said to be exact": (
        lambda: table(of_noise, generations=4), {"noise": 0.0}, {"healthy"}
    ),
    # exhausted
    "ended early": (lambda: table(falling, generations=3), {"generations": 9}, {"exhausted"}),
    "ran to the end": (lambda: table(falling), {"generations": 12}, {"healthy"}),
    "old candidates again": (
        lambda: table(lambda g, n: 9 - n).assign(params=[f'{{"x": {r % 10}}}' for r in range(120)]),
        {"optimum": 0}, {"exhausted"},
    ),
    # columns
    "no generation column": (
        lambda: table(falling).drop(columns="generation"), {}, {"no-generation-column"}
    ),
    "no score column": (
        lambda: table(falling).rename(columns={"score_1": "time"}), {}, {"no-score-column"}
    ),
    "a column that only looks like one": (
        lambda: table(falling).rename(columns={"score_1": "old_score_1"}), {}, {"no-score-column"}
    ),
    "normalised scores count": (
        lambda: table(lambda g, n: 5, norm_score_1=lambda g, n: falling(g, n) / 100),
        {}, {"healthy"},
    ),
    "normalised and constant": (
        lambda: table(falling, norm_score_1=lambda g, n: 1.0), {}, {"all-equal"}
    ),
    "twelve objectives": (
        lambda: table(lambda g, n: tuple(falling(g, n) + i for i in range(12))), {}, {"healthy"}
    ),
}  # fmt: skip


@pytest.mark.parametrize("through", ["frame", "csv"])
@pytest.mark.parametrize(("make", "known", "names"), CASES.values(), ids=CASES)
def test_cases(
    tmp_path: Path,
    make: Callable[[], pd.DataFrame],
    known: dict[str, Any],
    names: set[str],
    through: str,
) -> None:
    frame = make()
    if through == "csv":
        frame.to_csv(tmp_path / "results.csv", index=False)
    found = diagnose(frame if through == "frame" else tmp_path / "results.csv", **known)
    assert set(found.names) == names, str(found)
    assert found.healthy == (names == {"healthy"})
    assert all(one.cure and one.message for one in found.findings)


REAL = {
    "compileiq-103-healthy": {"healthy"},
    "compileiq-103-half-invalid": {"healthy"},
    "compileiq-103-exhausted": {"exhausted"},
    "compileiq-103-invalid": {"all-invalid"},
    "compileiq-103-normalised": {"stalled"},
    "compileiq-103-not-applied": {"all-equal"},
    "compileiq-103-two-objectives": {"healthy"},
    "compileiq-110-healthy": {"healthy"},
    "compileiq-110-half-invalid": {"healthy"},
    "compileiq-110-exhausted": {"exhausted"},
    "compileiq-110-invalid": {"all-invalid"},
    "compileiq-110-normalised": {"healthy"},
    "compileiq-110-not-applied": {"all-equal"},
    "compileiq-110-two-objectives": {"healthy"},
}


#: What was asked for, where the table cannot tell.
GENERATIONS = {"compileiq-110-exhausted": 8}


@pytest.mark.parametrize("name", REAL)
def test_real_tables(name: str) -> None:
    """Written by real searches of both releases."""
    path = DATA / "results" / f"{name}.csv"
    assert set(diagnose(path, generations=GENERATIONS.get(name)).names) == REAL[name]


def test_a_search_result_brings_its_problem_type() -> None:
    frame = table(lambda g, n: -falling(g, n))
    result = SearchResult.from_dataframe(frame.copy(), problem_type="max")
    assert diagnose(result).healthy


def test_columns_past_nine_are_in_order_and_all_are_looked_at() -> None:
    """score_10 sorts before score_2 as text, and score_1 is a part of it."""
    frame = table(lambda g, n: tuple(falling(g, n) if i != 9 else 4 for i in range(12)))
    (finding,) = diagnose(frame).findings
    assert finding.numbers["constant"] == ["score_10=4"]
    best = diagnose(table(lambda g, n: tuple(falling(g, n) + i for i in range(12)))).summary
    assert best.endswith("best 67, 68, 69, 70, 71, 72, 73, 74, 75, 76, 77, 78")


def test_numbers_that_are_told() -> None:
    found = diagnose(table(failing_later, pool=14))
    numbers = found.findings[0].numbers
    assert 0 < numbers["first_share"] < 0.15 < 0.4 < numbers["last_share"] < 0.9
    assert numbers["p"] < 1e-4
    assert diagnose(table(flat)).findings[0].numbers["idle_generations"] == 11
    assert "the best is from generation 0" in str(diagnose(table(flat)))


def test_a_large_time_is_no_sentinel() -> None:
    """Nanoseconds: 1.2e9 is a measurement, 1e10 among them is not."""
    found = diagnose(table(lambda g, n: 1e10 if n == 0 else 1.2e9 - g * 1e6 + n))
    assert found.healthy
    assert "12 invalid" in found.summary


@pytest.mark.parametrize(
    ("bad", "all_", "other_bad", "other_all", "p"),
    [(3, 4, 1, 4, 0.242857), (4, 4, 0, 4, 0.0142857), (0, 5, 3, 5, 1.0), (5, 5, 5, 5, 1.0)],
)
def test_fisher(bad: int, all_: int, other_bad: int, other_all: int, p: float) -> None:
    """Against the tables of the tea-tasting lady and hand-made ones."""
    assert math.isclose(fisher(bad, all_, other_bad, other_all), p, rel_tol=1e-4)


def test_files_that_are_no_table(tmp_path: Path) -> None:
    path = tmp_path / "results.csv"
    path.touch()
    assert diagnose(path).names == ("no-score-column",)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(CiqError, match="cannot be read as a table"):
        diagnose(path)
    with pytest.raises(CiqError, match="cannot be read as a table"):
        diagnose(tmp_path)


def test_the_command(tmp_path: Path) -> None:
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "pytest_compileiq", "diagnose", *words]
        return subprocess.run(command, capture_output=True, text=True)

    path = tmp_path / "results.csv"
    table(falling).to_csv(path)
    done = run(str(path))
    assert (done.returncode, done.stdout.split(":")[0]) == (0, "healthy")
    table(flat).to_csv(path)
    done = run(str(path))
    assert done.returncode == 1
    assert done.stdout.startswith("stalled: the last 11 of 12 generations")
    assert "\n  to do: take the best if it wins" in done.stdout
    assert run(str(path), "--optimum", "90").returncode == 0
    assert run(str(tmp_path / "none.csv")).returncode == 2
