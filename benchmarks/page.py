"""What all benchmarks share: how they were called, tables of markdown, pages that are kept."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results"


def command() -> str:
    """As it was called, without the folder of the results, which is one machine's."""
    script, *options = sys.argv
    words = iter([f"benchmarks/{Path(script).name}", *options])
    return shlex.join(
        [
            "python",
            *(
                word
                for word in words
                if not (word == "--out" and next(words)) and not word.startswith("--out=")
            ),
        ]
    )


def table(columns: str, rows: Iterable[Sequence[object]]) -> list[str]:
    """A table of markdown, an empty line before it. ``columns`` are separated by "|"."""
    names = [name.strip() for name in columns.split("|")]
    return ["", row(names), "|" + "---|" * len(names), *map(row, rows)]


def row(cells: Sequence[object]) -> str:
    return "|" + "".join(f" {cell} |" if cell != "" else " |" for cell in cells)


def show(parts: Iterable[str], output: Path | None = None) -> None:
    """Print each part as soon as it is known, and write it to ``output``, if there is one."""
    if output is not None:
        output.write_text("")
    for part in parts:
        print(part, end="", flush=True)
        if output is not None:
            with output.open("a") as file:
                file.write(part)
