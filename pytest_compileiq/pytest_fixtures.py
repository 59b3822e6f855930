"""The fixtures that tests ask for. What is behind them is imported when they are used."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pytest_compileiq import settings as _settings
from pytest_compileiq import state

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_compileiq.checks.timing import Stopwatch
    from pytest_compileiq.fixture import CIQ
    from pytest_compileiq.gpu.session import Held
    from pytest_compileiq.report.ncu import Ncu
    from pytest_compileiq.retune.scores import Candidate
    from pytest_compileiq.searching import CiqSearch
    from pytest_compileiq.toolchain.caches import Environment
    from pytest_compileiq.verdict import Verdict


@pytest.fixture
def ciq(request: pytest.FixtureRequest) -> Iterator[CIQ]:
    """All checks of pytest-compileiq, for one test.

    ``ciq.check(subject)`` runs what the test's ``ciq_*`` marks ask for; ``ciq.assert_canary``,
    ``assert_objective``, ``assert_resources``, ``assert_stable`` and ``assert_beats_baseline``
    take the marks' keywords directly.
    """
    from pytest_compileiq import records
    from pytest_compileiq.fixture import CIQ
    from pytest_compileiq.isolation import child
    from pytest_compileiq.judge import Judge

    item = request.node

    def record(verdict: Verdict, *, instead: bool = False) -> None:
        """Note a verdict; ``instead`` in the place of the last one."""
        if instead:
            item.stash[state.VERDICTS].pop()
        item.stash[state.VERDICTS].append(verdict)
        told = json.dumps(verdict.to_record(item.nodeid))
        child.keep(records.VERDICT, told, instead=instead)

    settings = request.config.stash[state.SETTINGS]
    candidate: Candidate | None = None
    if settings.retune is not None:
        from pytest_compileiq.retune import again, scores

        candidate = item.stash.get(again.CANDIDATE, None)
        if candidate is not None:
            # Its own test and the candidate before are on the GPU too; the winner is tested again.
            settings = settings.but(budget=min(settings.budget, scores.TIMED), clocks="observe")
    stopwatch: Stopwatch | None = None
    if settings.gpu is not None:
        from pytest_compileiq import device

        stopwatch = device.stopwatch(request.config, item, settings)
    helper = CIQ(
        Judge(
            folder=request.path.parent,
            marks=item.stash.get(state.MARKS, {}),
            settings=settings,
            assembler=state.assembler(request.config),
            stopwatch=stopwatch,
        ),
        record=record,
        ncu=_ncu(item),
        report=_settings.report_folder(request.config, item.nodeid),
        again=item.stash.get(state.AGAIN, None),
        candidate=candidate,
    )
    item.stash[state.HELPER] = helper
    yield helper
    from pytest_compileiq.errors import GpuError

    try:
        helper.close()
    except GpuError as error:  # clocks that did not hold, or were not given back
        raise pytest.fail.Exception(str(error), pytrace=False) from None


@pytest.fixture
def ciq_gpu(request: pytest.FixtureRequest) -> Iterator[Held]:
    """A GPU of one's own, with its clocks locked as ``--ciq-clocks`` and ``--ciq-sm-mhz`` say.

    ``ciq_gpu.uuid``, ``ciq_gpu.state`` ("locked (1500 MHz)" or why not), and ``window()``:
    ``with ciq_gpu.window() as w: ...`` leaves in ``w.evidence`` what the clocks did meanwhile.
    """
    from pytest_compileiq import device

    settings = request.config.stash[state.SETTINGS]
    with device.held(request.config, request.node, settings) as held:
        yield held


@pytest.fixture
def ciq_ptxas(request: pytest.FixtureRequest) -> Path:
    """The path of the ptxas that the checks use: 13.3 or newer, see ``--ciq-ptxas``."""
    return state.assembler(request.config).ptxas().path


@pytest.fixture
def ciq_cache_env(request: pytest.FixtureRequest) -> Iterator[Environment]:
    """The variables that ``ciq_fresh_caches`` sets: new folders, and the plugin's ptxas.

    Override it to add the cache of a library of your own, or to keep one:
    ``def ciq_cache_env(ciq_cache_env): return {**ciq_cache_env, "MY_CACHE_DIR": None}`` (None:
    not set at all).
    """
    from pytest_compileiq.toolchain import caches

    with caches.folder_of_one_test(state.assembler(request.config)) as environment:
        yield environment


@pytest.fixture
def ciq_fresh_caches(ciq_cache_env: Environment) -> Iterator[Environment]:
    """Empty compile caches for this test; afterwards the environment is as it was.

    Each test that uses ``ciq`` and is isolated or on a GPU has it, before any other fixture.
    """
    from pytest_compileiq.toolchain import caches

    with caches.in_use(ciq_cache_env):
        yield ciq_cache_env


def _ncu(item: pytest.Item) -> Ncu | None:
    settings = item.config.stash[state.SETTINGS]
    if not settings.ncu:
        return None
    from pytest_compileiq.isolation.attempt import place_of
    from pytest_compileiq.report.ncu import Ncu

    return Ncu.of(item.config, place_of(item), settings)


@pytest.fixture
def ciq_search(request: pytest.FixtureRequest) -> Iterator[CiqSearch]:
    """Searches with CompileIQ that cannot hang, crash pytest, or leave anything running.

    ``ciq_search(objective, space, generations=3)`` is a ``compileiq.ciq.Search``; ``start()``
    runs it. ``ciq_search.diagnose(result)`` names what is wrong with its result.
    """
    from pytest_compileiq.errors import GpuError
    from pytest_compileiq.searching import CiqSearch

    made = CiqSearch(request, request.config.stash[state.SETTINGS])
    yield made
    request.node.stash[state.LEFT] += made.left
    try:
        made.close()
    except GpuError as error:  # the last user of the GPU: clocks that were not given back
        raise pytest.fail.Exception(str(error), pytrace=False) from None
