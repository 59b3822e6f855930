"""Hooks that a site or another plugin may implement in a conftest.

Loaded at every start of pytest, as hooks have to be known before conftests are: keep it cheap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager

    from pytest_compileiq.gpu.clocks import ClockState
    from pytest_compileiq.gpu.identity import Gpu
    from pytest_compileiq.gpu.session import Policy


@pytest.hookspec(firstresult=True)
def pytest_ciq_lock_clocks(
    config: pytest.Config, gpu: Gpu, policy: Policy
) -> AbstractContextManager[ClockState] | None:
    """Lock the clocks of a leased GPU in the site's own way, or say that they are locked.

    Return a context manager that yields a ClockState and undoes on exit what it did; None
    leaves the clocks to pytest-compileiq. On a cluster that locks H100s to 1500 MHz::

        from contextlib import nullcontext
        from pytest_compileiq.gpu.clocks import ClockState

        def pytest_ciq_lock_clocks(config, gpu, policy):
            return nullcontext(ClockState(locked=True, requested="site", sm_mhz=1500, step_mhz=15))

    Readings are compared with ``sm_mhz`` all the same.
    """


@pytest.hookspec(firstresult=True)
def pytest_ciq_time_block(
    config: pytest.Config, kernel: str, arm: str, launch: Callable[[], None]
) -> float | None:
    """Time one block of a kernel in the site's own way; returns seconds a launch.

    ``launch()`` enqueues one launch of the ``arm``, "baseline" or the name of an ACF, on the
    current stream, on buffers and code that were placed anew for this unit. Whoever implements this
    times every block of the tests below its conftest; order, coins and the verdict stay ours.
    With one warm launch before three timed ones::

        def pytest_ciq_time_block(config, kernel, arm, launch):
            launch()
            return my_clock(lambda: [launch() for _ in range(3)]) / 3
    """


@pytest.hookspec
def pytest_ciq_machine_info(config: pytest.Config) -> Mapping[str, Any] | None:
    """Add what this site knows of the machine to ``environment.site`` of ``--ciq-json``.

    Called once at the end of the run, in the process that the user started::

        def pytest_ciq_machine_info(config):
            return {"rack": os.environ["RACK"], "image": Path("/etc/image").read_text().strip()}

    The answers of all implementations are merged. One that raises is told at the end of the run.
    """


@pytest.hookspec
def pytest_ciq_record(config: pytest.Config, record: dict[str, Any]) -> Mapping[str, Any] | None:
    """See each record before it is written, and add to it.

    ``record`` is a copy of what ``--ciq-json`` writes for one check of one test: ``nodeid``,
    ``kernel``, ``check``, ``status``, ``reason``, ``message``, ``remedy``, ``numbers``,
    ``samples``. What is returned becomes its ``extra``; a verdict cannot be changed::

        def pytest_ciq_record(config, record):
            database.insert(record)
            return {"owner": owners.get(record["kernel"])}

    Called at the end of the run, in the process that the user started, with or without
    ``--ciq-json``; of reruns the last attempt counts.
    """


@pytest.hookspec
def pytest_ciq_progress(
    config: pytest.Config, nodeid: str, kernel: str, check: str, arm: str, seconds: float
) -> None:
    """Hear about once a second what an isolated test is at, ``seconds`` after its start.

    ``kernel``, ``check`` and ``arm`` (``baseline``, ``best.acf``) are empty where none runs.
    Called in the process that holds the test's child: with xdist, in the worker.
    When one raises, a warning says so, and nobody is told more there.
    """
