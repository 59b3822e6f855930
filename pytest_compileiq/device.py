"""``--ciq-gpu`` in a pytest session: chosen once, held by each test that asks for a GPU."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import pytest

from pytest_compileiq import records
from pytest_compileiq.checks.timing import Stopwatch
from pytest_compileiq.errors import GpuError, SettingsError
from pytest_compileiq.gpu import identity
from pytest_compileiq.gpu.identity import Gpu
from pytest_compileiq.gpu.session import Held, Policy, acquire, adopted, require_fit
from pytest_compileiq.isolation import child
from pytest_compileiq.settings import Settings
from pytest_compileiq.subjects.kernel import Launch
from pytest_compileiq.toolchain import caches

GPUS: pytest.StashKey[tuple[Gpu, ...]] = pytest.StashKey()
_CHOSEN = "PYTEST_CIQ_CHOSEN_GPU"
_TESTS: pytest.StashKey[int] = pytest.StashKey()
_TESTS_VARIABLE = "PYTEST_CIQ_TESTS"
_LEASE: pytest.StashKey[_Lease] = pytest.StashKey()


def choose(config: pytest.Config, spec: str) -> None:
    """Resolve a SPEC and show CUDA its GPUs, before any conftest can start CUDA.

    Raises GpuError, also when CUDA was started in this process on another GPU.
    """
    gpus = tuple(identity.resolve(_handed_on(spec)))
    if not identity.on_started_cuda(gpus):
        identity.check_cuda(gpus[0])
    config.stash[GPUS] = gpus
    uuids = ",".join(gpu.uuid for gpu in gpus)
    stack = ExitStack()
    stack.enter_context(
        caches.applied(
            {
                "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
                "CUDA_VISIBLE_DEVICES": uuids,
                _CHOSEN: json.dumps({"spec": spec, "uuids": uuids}),
            }
        )
    )
    # For whoever runs pytest inside a process of their own; also after a usage error.
    config.add_cleanup(stack.close)


def _handed_on(spec: str) -> str:
    """The UUIDs that a parent process, such as xdist's controller, found for the same SPEC.

    Its workers get the words of its command line and its environment; there a bare number would
    count in the CUDA_VISIBLE_DEVICES that the controller has already narrowed.
    """
    try:
        chosen = json.loads(os.environ.get(_CHOSEN, ""))
        same, uuids = chosen["spec"] == spec, chosen["uuids"].split(",")
    except (ValueError, TypeError, KeyError, AttributeError):  # none, or not ours
        return spec
    # A test that holds one of several GPUs shows that one to the pytest which it starts.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    return visible if same and set(visible.split(",")) <= set(uuids) else spec


def header(config: pytest.Config, settings: Settings) -> list[str]:
    """Which GPUs and what is wanted of their clocks; their state is known only under load."""
    gpus = config.stash.get(GPUS, ())
    if not gpus:
        return []
    wanted = "" if settings.clocks == "observe" else f" at {settings.sm_mhz}"
    return [f"compileiq: {gpu}, clocks: {settings.clocks}{wanted}" for gpu in gpus]


def count_tests(session: pytest.Session) -> None:
    """Note how many tests of this run judge kernels: they share the chance of a wrong failure."""
    found = sum("ciq" in getattr(item, "fixturenames", ()) for item in session.items)
    session.config.stash[_TESTS] = found


def stopwatch(config: pytest.Config, item: pytest.Item, settings: Settings) -> Stopwatch:
    """What times the kernels of one test; it holds the GPU only once it is used."""
    hook = item.ihook.pytest_ciq_time_block

    def time_block(kernel: str, arm: str, launch: Launch) -> float:
        seconds = hook(config=config, kernel=kernel, arm=arm, launch=launch)
        if not isinstance(seconds, int | float):
            raise SettingsError(
                f"pytest_ciq_time_block returned {seconds!r} for {kernel}",
                remedy="return the seconds of one launch, for every block",
            )
        return float(seconds)

    # Only a child that collected nothing but its own test has to be told the number.
    told = os.environ.get(_TESTS_VARIABLE) if child.inside() else None
    return Stopwatch(
        lambda: measuring(config, item, settings),
        budget_seconds=settings.budget,
        cold=settings.l2 == "cold",
        tests=int(told) if told else config.stash.get(_TESTS, 1),
        time_block=time_block if hook.get_hookimpls() else None,
    )


@contextmanager
def held(config: pytest.Config, item: pytest.Item, settings: Settings) -> Iterator[Held]:
    """The GPU of one test, watched from here to the end; what it did rides on the report.

    Skips without ``--ciq-gpu``. A failure to get it, or to give its clocks back, fails the test.
    """
    if GPUS not in config.stash:
        pytest.skip("needs a GPU: run with --ciq-gpu=SPEC")
    try:
        with measuring(config, item, settings) as mine:
            yield mine
    except GpuError as error:  # the text says it all
        raise pytest.fail.Exception(str(error), pytrace=False) from None


@contextmanager
def measuring(config: pytest.Config, item: pytest.Item, settings: Settings) -> Iterator[Held]:
    """The GPU of one test, watched; what it did rides on the report. Raises GpuError."""
    with _shared(config, item, settings) as mine:
        with mine.window() as window:
            yield mine
        # A rerun of the same item must not carry the former attempt's.
        item.user_properties[:] = [p for p in item.user_properties if p[0] != records.GPU]
        item.user_properties.append((records.GPU, json.dumps(_record(item, mine, window.evidence))))
        require_fit(window.evidence, Policy(settings.clocks, settings.sm_mhz))


@contextmanager
def environment_for(
    config: pytest.Config, item: pytest.Item, settings: Settings
) -> Iterator[dict[str, str]]:
    """Hold the GPU around a process that runs the test; yields what that process needs.

    Inside, ``ciq_gpu`` finds from the environment that the GPU is already held for it. Empty
    without ``--ciq-gpu``. Raises GpuError.
    """
    if GPUS not in config.stash:
        yield {}
        return
    with _acquired(config, item, settings) as mine:
        yield {**mine.environment, _TESTS_VARIABLE: str(config.stash.get(_TESTS, 1))}


@contextmanager
def pool(
    config: pytest.Config, item: pytest.Item, settings: Settings, wanted: int
) -> Iterator[list[str]]:
    """The UUIDs of up to ``wanted`` GPUs of ``--ciq-gpu``: one, and those that are free now.

    Nobody waits for a second GPU: two tests that each hold one would wait for each other.
    """
    with ExitStack() as stack:
        uuids = [stack.enter_context(_shared(config, item, settings)).uuid]
        for gpu in config.stash[GPUS]:
            if len(uuids) == wanted:
                break
            if gpu.uuid not in uuids:
                with suppress(GpuError):
                    mine = _acquired(config, item, settings, gpus=(gpu,), timeout_s=0.0)
                    uuids.append(stack.enter_context(mine).uuid)
        yield uuids


class _Lease:
    """The GPU of one test in this process, and how many of its fixtures use it."""

    def __init__(self) -> None:
        self.users = 0
        self.stack = ExitStack()


@contextmanager
def _shared(config: pytest.Config, item: pytest.Item, settings: Settings) -> Iterator[Held]:
    """The GPU of one test, taken by its first user and given back by its last.

    Fixtures end in an order that is not the one in which they came to the GPU: ``ciq`` may have
    been the first to time something, and be torn down before ``ciq_search``. So neither the
    lease nor the environment may end with the one that brought them.
    """
    lease = item.stash.setdefault(_LEASE, _Lease())
    with ExitStack() as own:
        if lease.users == 0:
            mine = lease.stack.enter_context(_acquired(config, item, settings))
            lease.stack.enter_context(caches.applied(mine.environment))
        else:  # the environment says that it is held, so that nobody waits for himself
            mine = own.enter_context(_acquired(config, item, settings))
        lease.users += 1
        try:
            yield mine
        finally:
            lease.users -= 1
            if lease.users == 0:
                lease.stack.close()


@contextmanager
def _acquired(
    config: pytest.Config,
    item: pytest.Item,
    settings: Settings,
    *,
    gpus: Sequence[Gpu] = (),
    timeout_s: float | None = None,
) -> Iterator[Held]:
    """A GPU for one test: what an ancestor holds for it, else whichever is free."""
    chosen = tuple(gpus) or config.stash[GPUS]
    with adopted(chosen) as mine:
        if mine is not None:
            yield mine
            return
    with acquire(
        chosen,
        mode=settings.clocks,
        sm_mhz=settings.sm_mhz,
        timeout_s=settings.gpu_timeout if timeout_s is None else timeout_s,
        folder=settings.lease_dir,
        label=item.nodeid,
        lock=lambda gpu, policy: config.hook.pytest_ciq_lock_clocks(
            config=config, gpu=gpu, policy=policy
        ),
    ) as mine:
        yield mine


def _record(item: pytest.Item, mine: Held, evidence: Any) -> dict[str, Any]:
    return {
        "nodeid": item.nodeid,
        "gpu": str(mine.gpu),
        "uuid": mine.uuid,
        "clocks": mine.state,
        "waited_seconds": round(mine.waited_s, 3),
        "notes": list(dict.fromkeys((*mine.notes, *evidence.notes))),
        "evidence": evidence.to_numbers(),
        "summary": str(evidence),
    }
