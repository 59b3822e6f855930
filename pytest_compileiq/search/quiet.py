"""CompileIQ's side effects on its process, undone: the start method, warnings."""

from __future__ import annotations

import multiprocessing
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def start_method_kept(*, theirs: bool) -> Iterator[None]:
    """Put multiprocessing's start method back to what it was.

    Importing compileiq.worker sets it to forkserver, for the whole process. With ``theirs`` it
    is that inside the ``with``, each time and not only at the first import: CompileIQ's own
    workers rely on it.
    """
    before = multiprocessing.get_start_method(allow_none=True)
    try:
        if theirs and "compileiq.worker" in sys.modules:
            mode = os.environ.get("CIQ_PROCESS_MODE", "forkserver")
            multiprocessing.set_start_method(mode, force=True)
        yield
    finally:
        if multiprocessing.get_start_method(allow_none=True) != before:
            multiprocessing.set_start_method(before, force=True)


@contextmanager
def warnings_as_notes(notes: list[str], *, all_of_them: bool) -> Iterator[None]:
    """What CompileIQ warns of becomes a note: ``-W error`` would make it the search's end.

    All warnings are CompileIQ's where no code of the user runs in this process. Else those of
    its categories and files are, and others are given as they were.
    """
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    for one in seen:
        if all_of_them or _of_compileiq(one):
            note = f"compileiq: {one.message}"
            # ResourceWarnings tell of handles that `engine` closes a moment later, and failed
            # evaluations are counted by their cause.
            dull = issubclass(one.category, ResourceWarning) or "failed evaluation(s)" in note
            if note not in notes and not dull:
                notes.append(note)
        else:
            warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def _of_compileiq(one: warnings.WarningMessage) -> bool:
    if one.category.__module__.startswith("compileiq"):
        return True
    # `stacklevel` lays some of them at the door of CompileIQ's caller, which is this package.
    here = Path(__file__).parent
    theirs = Path(sys.modules["compileiq"].__path__[0])
    return any(Path(one.filename).is_relative_to(folder) for folder in (here, theirs))
