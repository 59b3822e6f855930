"""One GPU for one test: lease, then clocks, then a watch, undone in reverse."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

from pytest_compileiq.errors import GpuError
from pytest_compileiq.gpu.card import relation
from pytest_compileiq.gpu.clocks import ClockState, LockRefused, Mode, guarded
from pytest_compileiq.gpu.evidence import Condition, Evidence
from pytest_compileiq.gpu.guardian_client import GuardianClient
from pytest_compileiq.gpu.identity import Gpu, cuda_environment, on_started_cuda
from pytest_compileiq.gpu.lease import Lease, first_free
from pytest_compileiq.gpu.monitor import Monitor, Window

#: Tells a process started by a test which GPU its ancestor holds, so that it takes no second one.
VARIABLE = "PYTEST_CIQ_HELD_GPU"


class Policy(NamedTuple):
    """What the user wants of the clocks: ``--ciq-clocks`` and ``--ciq-sm-mhz``."""

    mode: Mode
    sm_mhz: str | int


#: A site's own way to lock clocks; None means that this plugin shall do it.
LockClocks = Callable[[Gpu, Policy], AbstractContextManager[ClockState] | None]


@dataclass(frozen=True, slots=True)
class Held:
    """A GPU held by this test: ``gpu``, the state of its ``clocks``, and ``window()`` to watch it.

    ``environment`` is what a process of the test needs to see this GPU and no other.
    """

    gpu: Gpu
    clocks: ClockState
    monitor: Monitor
    waited_s: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def uuid(self) -> str:
        return self.gpu.uuid

    @property
    def state(self) -> str:
        """``locked (1500 MHz)`` or ``observed (...)`` with the reason."""
        return str(self.clocks)

    @property
    def environment(self) -> dict[str, str]:
        token = {
            "pid": os.getpid(), "gpu": asdict(self.gpu), "clocks": asdict(self.clocks),
            "waited_s": self.waited_s, "notes": self.notes,
        }  # fmt: skip
        return {**cuda_environment(self.gpu), VARIABLE: json.dumps(token)}

    def window(self) -> AbstractContextManager[Window]:
        """Watch the GPU inside a ``with``: ``with gpu.window() as w: ...``, then w.evidence."""
        return self.monitor.window()


@contextmanager
def acquire(
    gpus: Sequence[Gpu],
    *,
    mode: Mode = "auto",
    sm_mhz: str | int = "base",
    timeout_s: float = 600.0,
    folder: Path | None = None,
    label: str = "",
    lock: LockClocks | None = None,
) -> Iterator[Held]:
    """Hold whichever of ``gpus`` is free first, with its clocks locked by the policy.

    A process that has already started CUDA gets the GPU that CUDA was started on. Raises
    LeaseTimeout, LockRefused, RestoreError and other GpuErrors.
    """
    usable = on_started_cuda(gpus)
    if not usable:
        from pytest_compileiq.gpu.identity import check_cuda

        check_cuda(gpus[0])
    with ExitStack() as stack:
        leases = {gpu: Lease(gpu, timeout_s, folder, label=label) for gpu in usable}
        for lease in leases.values():
            stack.callback(lease.release)
        taken = first_free(list(leases.values()), timeout_s)
        gpu = next(gpu for gpu, lease in leases.items() if lease is taken)
        # A site's hook sets clocks in its own way, and to observe is to set nothing.
        own = None if lock is None or mode == "observe" else lock(gpu, Policy(mode, sm_mhz))
        link: GuardianClient | None = None
        if own is not None:
            clocks = stack.enter_context(own)
            if mode == "require" and not clocks.locked:
                raise LockRefused(
                    f"--ciq-clocks=require, and pytest_ciq_lock_clocks has not locked {gpu}: "
                    f"{clocks.why or 'it gives no reason'}",
                    remedy="see to the site's own way of locking, or use --ciq-clocks=auto",
                )
        else:
            kept = stack.enter_context(guarded(gpu, mode, sm_mhz, lease=taken))
            clocks, link = kept.state, kept.link
        monitor = stack.enter_context(Monitor(gpu, clocks, link=link))
        notes = (*clocks.notes, *monitor.notes, *([taken.note] if taken.note else []))
        yield Held(gpu, clocks, monitor, taken.waited_s, notes)


@contextmanager
def adopted(gpus: Sequence[Gpu], env: Mapping[str, str] | None = None) -> Iterator[Held | None]:
    """The one of ``gpus`` that an ancestor of this process holds for it, watched from here.

    None when there is no such ancestor, or it holds a GPU that was not asked for here.
    """
    text = (os.environ if env is None else env).get(VARIABLE, "")
    try:
        token = json.loads(text)
        ancestor, gpu = int(token["pid"]), Gpu(**token["gpu"])
        clocks = ClockState(**{**token["clocks"], "notes": tuple(token["clocks"]["notes"])})
        waited_s, notes = float(token["waited_s"]), tuple(token["notes"])
    except (ValueError, TypeError, KeyError):  # none, or of another version of this plugin
        yield None
        return
    if gpu.uuid not in [known.uuid for known in gpus] or relation(os.getpid(), ancestor) != "ours":
        yield None
        return
    with Monitor(gpu, clocks) as monitor:
        yield Held(gpu, clocks, monitor, waited_s, (*notes, *monitor.notes))


def require_fit(evidence: Evidence, policy: Policy) -> None:
    """Under ``require``, raise GpuError for a window in which the clocks did not hold."""
    fine = (Condition.CLEAN, Condition.UNVERIFIED)
    if policy.mode == "require" and evidence.condition not in fine:
        raise GpuError(
            f"--ciq-clocks=require, and the GPU was {evidence}",
            remedy="lower --ciq-sm-mhz, end other jobs on this GPU, or use --ciq-clocks=auto",
        )
