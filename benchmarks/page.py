"""What all benchmarks share: how they were called, tables of markdown, pages that are kept."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import MappingProxyType
from typing import Any

RESULTS = Path(__file__).parent / "results"


def command() -> str:
    """As it was called, without the folder of the results, which is one machine's."""
    words = iter(["python", *sys.argv])
    return shlex.join(
        word
        for word in words
        if not (word == "--out" and next(words)) and not word.startswith("--out=")
    )


def table(columns: str, rows: Iterable[Sequence[object]]) -> list[str]:
    """A table of markdown, an empty line before it. ``columns`` are separated by "|"."""
    names = [name.strip() for name in columns.split("|")]
    return ["", row(names), "|" + "---|" * len(names), *map(row, rows)]


def row(cells: Sequence[object]) -> str:
    return "|" + "".join(f" {cell} |" if cell != "" else " |" for cell in cells)


def main(
    doc: str | None,
    parts: Callable[[argparse.Namespace], Iterable[str]],
    options: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> None:
    """Run a benchmark as a command: print its parts, each as soon as it is known, and keep them."""
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write what is printed there, too"
    )
    for option, how in options.items():
        parser.add_argument(option, **how)
    args = parser.parse_args()
    with args.output.open("w") if args.output else nullcontext() as file:
        for part in parts(args):
            for output in filter(None, (sys.stdout, file)):
                output.write(part)
                output.flush()
