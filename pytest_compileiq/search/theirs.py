"""CompileIQ's own workers, by name, and what is known against each."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

from compileiq.types import Worker, WorkerTypes

from pytest_compileiq.errors import SettingsError

_TRAPS = {
    "native": (
        "NATIVE runs the objective in this process, too: a crash or os._exit ends pytest",
        "NATIVE cannot end a call: task_timeout abandons its thread, which still holds the GPU",
        "NATIVE's forkserver keeps the environment that it was started with",
    ),
    "isolated": (
        "ISOLATED ends the whole search when one call crashes, exits or returns a wrong shape",
        "ISOLATED forks this process unless CIQ_PROCESS_MODE=spawn: no CUDA before the search",
    ),
    "ray": ("RAY knows no task_timeout: a call that hangs, hangs the search",),
    "async": ("ASYNC runs the objective in this process: a crash or os._exit ends pytest",),
    "manual": ("MANUAL runs nothing: ask() and tell(); ask() never ends the search by itself",),
}


def worker_class(worker: Any, objective: Callable[[Any], Any]) -> tuple[type[Worker], list[str]]:
    """A worker class of CompileIQ's, or the user's own, and what is known against it."""
    if isinstance(worker, type) and issubclass(worker, Worker):
        return worker, []
    try:
        kind = WorkerTypes(worker)
    except ValueError:
        raise SettingsError(
            f"there is no worker {worker!r}",
            remedy=f"leave it out for a ForkWorker, or give one of {', '.join(WorkerTypes)}, or "
            "a subclass of compileiq.types.Worker",
        ) from None
    ray = sys.modules.get("ray")
    has_cluster = os.environ.get("RAY_ADDRESS") or (ray is not None and ray.is_initialized())
    if kind is WorkerTypes.RAY and not has_cluster:
        raise SettingsError(
            "RAY is for a cluster, and none is given: it would start one on this machine",
            looked_at=["ray.is_initialized()", "RAY_ADDRESS"],
            remedy="set RAY_ADDRESS or call ray.init(address=...); on one machine leave worker= "
            "out",
        )
    traps = list(_TRAPS.get(kind.value, ()))
    qualified = getattr(objective, "__qualname__", "<locals>")
    if kind is WorkerTypes.NATIVE and "<locals>" in qualified + getattr(objective, "__name__", ""):
        traps.append("NATIVE with two workers or more pickles the objective: make it a global")
    return kind.worker_type(), traps
