"""The table of a search's results, as numbers: from a SearchResult, a DataFrame or a CSV file."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_compileiq.errors import CiqError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

#: From this size on, a power of ten stands for "failed" and is no measurement.
SENTINEL = 1e9


def frame_of(source: Any) -> pd.DataFrame:
    """The DataFrame of a result, or of the CSV file at a path. Raises CiqError."""
    import pandas as pd

    if isinstance(source, pd.DataFrame):
        return source
    if hasattr(source, "get_results"):
        found: pd.DataFrame = source.get_results()
        return found
    path = Path(source)
    try:
        return pd.read_csv(path)
    except pd.errors.EmptyDataError:
        return pd.DataFrame()
    except (OSError, ValueError) as error:  # pandas' ParserError and UnicodeError are ValueErrors
        raise CiqError(
            f"{path} cannot be read as a table ({str(error).strip()})",
            remedy="give the file that Search(dump_results=...) or SearchResult.save() wrote",
        ) from error


def score_columns(frame: pd.DataFrame) -> list[str]:
    """``score_1`` to ``score_12`` in the order of their numbers; normalised ones when there."""
    for pattern in (r"norm_score_(\d+)", r"score_(\d+)"):
        found = [
            (int(match[1]), str(name))
            for name in frame.columns
            if (match := re.fullmatch(pattern, str(name)))
        ]
        if found:
            return [name for _, name in sorted(found)]
    return []


class Table:
    """Candidates and their scores; the rows of the baseline are left out.

    ``scores`` has a row a candidate and a column an objective, as measured, and NaN where
    nothing was: ``"*"``, NaN, infinity and sentinels such as 1e10. ``valid`` tells which rows
    have all scores, ``params`` is the configurations' text, and ``generation`` their
    generation, or None for a table that does not say. ``sign`` turns scores so that lower is
    better.
    """

    def __init__(self, frame: pd.DataFrame, columns: list[str], problem_type: str) -> None:
        import numpy as np
        import pandas as pd

        params = frame["params"] if "params" in frame.columns else range(len(frame))
        texts = [one if isinstance(one, str) else json.dumps(one, sort_keys=True) for one in params]
        candidates = np.array([one not in ("{}", '"{}"') for one in texts], dtype=bool)
        self.columns = columns
        self.sign = -1.0 if problem_type == "max" else 1.0
        values = frame[columns].apply(pd.to_numeric, errors="coerce").to_numpy(dtype=float).copy()
        if values.size:
            values[np.vectorize(_is_sentinel)(values)] = np.nan
        self.scores: np.ndarray[Any, Any] = values[candidates]
        self.valid: np.ndarray[Any, Any] = ~np.isnan(self.scores).any(axis=1)
        self.params = [one for one, keep in zip(texts, candidates, strict=True) if keep]
        self.generation: np.ndarray[Any, Any] | None = None
        if "generation" in frame.columns:
            numbers = pd.to_numeric(frame["generation"], errors="coerce").fillna(0)
            self.generation = numbers.to_numpy(dtype=int)[candidates]

    @property
    def oriented(self) -> np.ndarray[Any, Any]:
        """The valid rows of ``scores``, lower is better."""
        found: np.ndarray[Any, Any] = self.sign * self.scores[self.valid]
        return found

    @property
    def generations(self) -> int:
        """Generations that the table shows."""
        if self.generation is None or not len(self.generation):
            return 0
        return int(self.generation.max()) + 1

    def newest_of_front(self) -> int:
        """The generation that the best score, or the Pareto front, got its last point from."""
        assert self.generation is not None
        import numpy as np

        scores, generation = self.oriented, self.generation[self.valid]
        newest = 0
        front: list[np.ndarray[Any, Any]] = []
        for index in np.argsort(generation, kind="stable"):
            row = scores[index]
            if any((other <= row).all() for other in front):  # dominated, or not new
                continue
            newest = int(generation[index])
            front = [other for other in front if not (row <= other).all()] + [row]
        return newest


def _is_sentinel(value: float) -> bool:
    if math.isnan(value) or abs(value) < SENTINEL:
        return False
    return math.isinf(value) or abs(value) > 1e300 or math.log10(abs(value)) % 1 == 0
