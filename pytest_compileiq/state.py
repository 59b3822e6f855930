"""What a pytest session and its tests carry with them, kept in pytest's own stashes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_compileiq.fixture import CIQ
    from pytest_compileiq.marks import Params
    from pytest_compileiq.retune.again import Again
    from pytest_compileiq.settings import Settings
    from pytest_compileiq.toolchain.assembler import Assembler
    from pytest_compileiq.verdict import Verdict

SETTINGS: pytest.StashKey[Settings] = pytest.StashKey()
ASSEMBLER: pytest.StashKey[Assembler] = pytest.StashKey()
MARKS: pytest.StashKey[dict[str, Params]] = pytest.StashKey()
VERDICTS: pytest.StashKey[list[Verdict]] = pytest.StashKey()
HELPER: pytest.StashKey[CIQ] = pytest.StashKey()
#: Has the test's function ended? Has it passed? Has any part of the test, or a subtest, failed?
CALLED: pytest.StashKey[bool] = pytest.StashKey()
PASSED: pytest.StashKey[bool] = pytest.StashKey()
FAILED: pytest.StashKey[bool] = pytest.StashKey()
#: What can run the test again for --ciq-retune, from before its setup to its end.
AGAIN: pytest.StashKey[Again | None] = pytest.StashKey()
#: What a test leaves for the report beside its verdicts: names of ``records`` and values.
LEFT: pytest.StashKey[list[tuple[str, object]]] = pytest.StashKey()
#: Why --ciq-gpu could not be had, from the hook that may not stop the session to the one that may.
NO_GPU: pytest.StashKey[str] = pytest.StashKey()
NOT_ISOLATED: pytest.StashKey[str] = pytest.StashKey()


def assembler(config: pytest.Config) -> Assembler:
    """The session's assembler, made when it is first asked for."""
    from pytest_compileiq.toolchain.assembler import Assembler

    if ASSEMBLER not in config.stash:
        chosen = config.stash[SETTINGS]
        config.stash[ASSEMBLER] = Assembler(
            explicit=chosen.ptxas, timeout=chosen.ptxas_timeout, keep=chosen.keep
        )
    return config.stash[ASSEMBLER]
