"""What is wrong with the results of a search: ``results.csv`` -> named findings with cures.

    python -m pytest_compileiq diagnose results.csv

``stalled``, ``rising-invalid`` and the like are statements about many evaluations: a short run
gets none of them, and neither does a score that cannot be improved any more.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_compileiq.errors import CiqError
from pytest_compileiq.score_table import Table, frame_of, score_columns

HEALTHY = "healthy"

#: A run of fewer generations cannot have stalled, and fewer rows cannot all be alike by fault.
LEAST_GENERATIONS = 6
LEAST_ROWS = 6
#: Part of the generations at the end that brought nothing, from which a search counts as stalled.
STALLED_PART = 0.75
#: Fisher's exact test and the least rise of the invalid share, first third against last third.
RISING_P, RISING_SHARE = 0.01, 0.15
#: Repeated calls from which a table tells its noise; and the gain, as a multiple of what luck
#: brings, up to which a win is not to be told from it.
LEAST_REPEATS, LUCK = 3, 2.0


@dataclass(frozen=True, slots=True)
class Finding:
    """One pathology: its ``name``, what was seen, and the ``cure``."""

    name: str
    message: str
    cure: str
    numbers: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """All findings about one table; none means healthy. ``summary`` has the run's figures."""

    findings: tuple[Finding, ...]
    summary: str

    @property
    def healthy(self) -> bool:
        return not self.findings

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the findings, ``("healthy",)`` without any."""
        return tuple(finding.name for finding in self.findings) or (HEALTHY,)

    def __str__(self) -> str:
        if self.healthy:
            return f"{HEALTHY}: {self.summary}"
        lines = []
        for finding in self.findings:
            lines += [f"{finding.name}: {finding.message}", f"  to do: {finding.cure}"]
        return "\n".join([*lines, f"({self.summary})"])


def diagnose(
    source: Any,
    *,
    problem_type: str = "min",
    optimum: float | None = None,
    generations: int | None = None,
    noise: float | None = None,
) -> Diagnosis:
    """Name what is wrong with a ``SearchResult``, a DataFrame, or the CSV file of one.

    ``optimum`` is a score that cannot be beaten; 0 is one for whole-numbered scores that are
    minimised. ``generations`` is how many were asked for, and ``noise`` the relative standard
    deviation of calls on one configuration, where they are known. Raises CiqError for a file that
    is no table.
    """
    frame = frame_of(source)
    problem_type = str(getattr(source, "problem_type", problem_type))
    columns = score_columns(frame)
    if not columns:
        shown = ", ".join(map(str, frame.columns[:8]))
        finding = Finding(
            "no-score-column",
            f"there is no column score_1, score_2, ...; the columns are {shown or 'none'}",
            "give the file that Search(dump_results=...) or SearchResult.save() wrote",
            {"columns": [str(name) for name in frame.columns]},
        )
        return Diagnosis((finding,), f"{len(frame)} rows")
    return _Patient(frame, columns, problem_type, optimum, generations, noise).diagnosis()


class _Patient(Table):
    """A table under examination, with what the caller knows about the run."""

    def __init__(
        self,
        frame: Any,
        columns: list[str],
        problem_type: str,
        optimum: float | None,
        asked: int | None,
        noise: float | None,
    ) -> None:
        super().__init__(frame, columns, problem_type)
        self.optimum, self.asked, self.noise = optimum, asked, noise

    def diagnosis(self) -> Diagnosis:
        found = [self._no_generations()]
        if not self.valid.any():
            found.append(self._all_invalid())
        else:
            found.append(self._rising_invalid())
            if not self._optimal():
                alike = self._all_equal()
                found += [alike, self._noisy()] + ([] if alike else [self._stalled()])
            found.append(self._exhausted())
        return Diagnosis(tuple(one for one in found if one is not None), self._summary())

    def _summary(self) -> str:
        parts = [f"{len(self.valid)} candidates", f"{int((~self.valid).sum())} invalid"]
        if self.generation is not None:
            parts.insert(1, f"{self.generations} generations")
        if self.valid.any():
            best = [f"{self.sign * value:g}" for value in self.oriented.min(axis=0)]
            parts.append(f"best {', '.join(best)}")
        return ", ".join(parts)

    def _optimal(self) -> bool:
        """Has the only score reached what cannot be beaten?"""
        if len(self.columns) > 1:
            return False
        best = float(self.oriented.min())
        if self.optimum is not None:
            return best <= self.sign * self.optimum
        whole = bool((self.scores[self.valid] % 1 == 0).all())
        return self.sign > 0 and whole and best == 0 and bool((self.oriented >= 0).all())

    def _no_generations(self) -> Finding | None:
        if self.generation is not None:
            return None
        return Finding(
            "no-generation-column",
            "there is no column 'generation', so nothing can be said about the course of the run",
            "give the file that Search(dump_results=...) wrote, whole",
        )

    def _all_invalid(self) -> Finding | None:
        if not len(self.valid):
            return Finding(
                "all-invalid",
                "the table has no candidate, only its header: the search ended before its first batch",
                "look at the error that ended the search",
                {"candidates": 0},
            )
        return Finding(
            "all-invalid",
            f"none of {len(self.valid)} candidates has a score",
            "call the objective by hand on search.sample(1)[0] and on {}; the causes that "
            "ForkWorker counted are in the column metadata, and in search.causes",
            {"candidates": len(self.valid), "valid": 0},
        )

    def _all_equal(self) -> Finding | None:
        scores = self.oriented
        distinct = {one for one, good in zip(self.params, self.valid, strict=True) if good}
        if len(scores) < LEAST_ROWS or len(distinct) < LEAST_ROWS:
            return None
        constant = [
            f"{name}={self.sign * float(scores[0, index]):g}"
            for index, name in enumerate(self.columns)
            if float(scores[:, index].max()) == float(scores[:, index].min())
        ]
        if not constant:
            return None
        return Finding(
            "all-equal",
            f"all {len(scores)} scored candidates have {', '.join(constant)}",
            "see whether the configuration arrives: ciq.check with ciq_canary, and ciq.compare "
            "on two samples; if this score cannot be better, say so (optimum=...)",
            {"candidates": len(scores), "constant": constant},
        )

    def _rising_invalid(self) -> Finding | None:
        if self.generation is None or self.generations < LEAST_GENERATIONS:
            return None
        third = self.generations / 3
        first, last = self.generation < third, self.generation >= 2 * third
        failed = [int((~self.valid[part]).sum()) for part in (first, last)]
        total = [int(part.sum()) for part in (first, last)]
        if not all(total):
            return None
        shares = [bad / all_ for bad, all_ in zip(failed, total, strict=True)]
        p = fisher(failed[1], total[1], failed[0], total[0])
        if p > RISING_P or shares[1] - shares[0] < RISING_SHARE:
            return None
        return Finding(
            "rising-invalid",
            f"{failed[0]} of {total[0]} candidates were invalid in the first third of the "
            f"generations, {failed[1]} of {total[1]} in the last (p = {p:.1g})",
            "the machine gets worse, or the search runs to where compiles fail: look at "
            "temperature, memory and left-over processes, then at the newest failures by hand",
            {"first_share": shares[0], "last_share": shares[1], "p": p},
        )

    def _stalled(self) -> Finding | None:
        if self.generation is None or self.generations < LEAST_GENERATIONS:
            return None
        newest = self.newest_of_front()
        idle = self.generations - 1 - newest
        if idle < STALLED_PART * self.generations:
            return None
        return Finding(
            "stalled",
            f"the last {idle} of {self.generations} generations brought nothing better: the "
            f"best is from generation {newest}",
            "take the best if it wins; else a larger pool_size, another seed, or a space that "
            "this kernel reacts to. If this score cannot be better, say so (optimum=...)",
            {"idle_generations": idle, "generations": self.generations, "best_from": newest},
        )

    def _noisy(self) -> Finding | None:
        """The gain that the search shows, against what one configuration differs by itself."""
        import numpy as np
        import pandas as pd

        scores = self.oriented[:, 0]
        scale = abs(float(np.median(scores)))
        if scale == 0 or len(scores) < LEAST_ROWS:
            return None
        names = [one for one, good in zip(self.params, self.valid, strict=True) if good]
        calls = pd.Series(scores).groupby(names)
        freedom = len(scores) - calls.ngroups
        spread, source = self.noise or 0.0, "the calls before the search"
        if freedom >= LEAST_REPEATS:
            squares = float(((scores - calls.transform("mean")) ** 2).sum())
            spread = math.sqrt(squares / freedom) / scale
            source = f"{int((calls.size() > 1).sum())} of them were called again"
        gain = float(np.median(scores) - scores.min()) / scale
        # The best of n draws from noise alone is about sqrt(2 ln n) deviations ahead.
        luck = math.sqrt(2 * math.log(len(scores))) * spread
        if spread == 0 or gain > LUCK * luck:
            return None
        return Finding(
            "noisy",
            f"the best of {len(scores)} candidates is {gain:.2%} better than the median one, and "
            f"calls on one configuration have a standard deviation of {spread:.2%} ({source}): "
            f"luck alone brings {luck:.2%}",
            "make a call measure longer, lock clocks, use one GPU a worker; then test the winner "
            "on fresh measurements (ciq_beats_baseline)",
            {"noise": spread, "gain": gain, "luck": luck},
        )

    def _exhausted(self) -> Finding | None:
        """Fewer generations than were asked for, or new candidates in the first ones only.

        CompileIQ 1.1 stops when there is no untried candidate; 1.0 tries the old ones again.
        """
        if self.generation is None:
            return None
        ran, asked, distinct = self.generations, self.asked, len(set(self.params))
        numbers = {"distinct": distinct, "generations": ran, "asked": asked}
        cure = "a space this small can be tried out in full; else widen it, or lower pool_size"
        if asked is not None and ran < asked:
            return Finding(
                "exhausted",
                f"{ran} of {asked} generations ran, with {distinct} different candidates",
                f"if max_calls or max_seconds ended it, raise that; {cure}",
                numbers,
            )
        rows = list(zip(self.params, self.generation.tolist(), strict=True))
        early = {params for params, generation in rows if generation < ran / 2}
        late = [params for params, generation in rows if generation >= ran / 2]
        if ran < LEAST_GENERATIONS or not early.issuperset(late):
            return None
        return Finding(
            "exhausted",
            f"none of {len(late)} candidates of the second half of {ran} generations was new; "
            f"there are {distinct}",
            cure,
            numbers,
        )


def fisher(bad: int, all_: int, other_bad: int, other_all: int) -> float:
    """Fisher's exact test, one-sided: P of at least ``bad`` of ``all_`` by chance."""
    failed, total = bad + other_bad, all_ + other_all
    ways = sum(
        math.comb(all_, k) * math.comb(other_all, failed - k)
        for k in range(bad, min(all_, failed) + 1)
    )
    return ways / math.comb(total, failed)


def main(arguments: Sequence[str]) -> int:
    """``diagnose FILE``: exit status 0 when healthy, 1 with findings, 2 for no table."""
    parser = argparse.ArgumentParser(prog="python -m pytest_compileiq diagnose")
    parser.add_argument("file", help="results.csv of a search")
    parser.add_argument("--max", action="store_true", help="higher scores are better")
    parser.add_argument("--optimum", type=float, help="a score that cannot be beaten")
    parser.add_argument("--generations", type=int, help="generations that were asked for")
    options = parser.parse_args(arguments)
    try:
        found = diagnose(
            options.file,
            problem_type="max" if options.max else "min",
            optimum=options.optimum,
            generations=options.generations,
        )
    except CiqError as error:
        print(error, file=sys.stderr)
        return 2
    print(found)
    return 0 if found.healthy else 1
