"""``ciq_search`` in a pytest session: its folder, its GPUs, and what it leaves for the report."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from pytest_compileiq import device, records
from pytest_compileiq.isolation import child
from pytest_compileiq.search.door import CiqSearch
from pytest_compileiq.settings import Settings

#: Of --ciq-timeout, which ends the whole of an isolated test: what one call may take there, and
#: what a search leaves of it.
_PART_OF_A_CALL, _RESERVE = 0.25, 0.2


@contextmanager
def searches(
    request: pytest.FixtureRequest, settings: Settings, left: list[tuple[str, object]]
) -> Iterator[CiqSearch]:
    """The searches of one test; notes and kept folders are added to ``left``."""
    keep = settings.keep or _keep_cache()
    folder = (
        Path(tempfile.mkdtemp(prefix="ciq-search-"))
        if keep
        else request.getfixturevalue("tmp_path") / "ciq-search"
    )
    folder.mkdir(exist_ok=True)
    with ExitStack() as stack:
        held: list[str] = []

        def gpus(workers: int) -> Sequence[str]:
            if settings.gpu is not None and not held:
                pool = device.pool(request.config, request.node, settings, workers)
                held.extend(stack.enter_context(pool))
            return held

        made = CiqSearch(
            base=request.path.parent,
            folder=folder,
            task_timeout=settings.timeout * (_PART_OF_A_CALL if child.inside() else 1),
            seconds_left=lambda: child.seconds_left() - _RESERVE * settings.timeout,
            keep=keep,
            gpus=gpus,
        )
        stack.callback(made.close)
        try:
            yield made
        finally:
            left += [(records.NOTE, note) for note in made.notes]
            if keep and made.searches:
                left.append((records.KEPT, str(folder)))


def _keep_cache() -> bool:
    """Compileiq's own switch, which it reads at its import only."""
    return os.environ.get("CIQ_KEEP_CACHE", "").upper() in ("1", "YES", "TRUE")
