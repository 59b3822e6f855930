"""Objectives that misbehave for even numbers, importable, as CompileIQ's workers need them."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any


def _half(config: dict[str, int], deed: Callable[[], Any]) -> Any:
    return deed() if config.get("x", 1) % 2 == 0 else config["x"]


def raises(config: dict[str, int]) -> Any:
    return _half(config, lambda: 1 / 0)


def hangs(config: dict[str, int]) -> Any:
    return _half(config, lambda: time.sleep(300))


def segfaults(config: dict[str, int]) -> Any:
    return _half(config, lambda: ctypes.string_at(0))


def os_exit_0(config: dict[str, int]) -> Any:
    return _half(config, lambda: os._exit(0))


def sys_exit(config: dict[str, int]) -> Any:
    return _half(config, lambda: sys.exit(1))


def one_tuple(config: dict[str, int]) -> Any:
    return _half(config, lambda: (1.0,))


def none(config: dict[str, int]) -> Any:
    return _half(config, lambda: None)


def nan(config: dict[str, int]) -> Any:
    return _half(config, lambda: float("nan"))


def alternates(config: dict[str, int]) -> Any:
    return _half(config, lambda: "*" if config["x"] % 4 else None)


def always_fails(config: dict[str, int]) -> Any:
    return "*"


def starts_a_grandchild(config: dict[str, int]) -> Any:
    def deed() -> int:
        command = [sys.executable, "-c", "import time; time.sleep(300)"]
        subprocess.Popen(command, start_new_session=True)
        return 1

    return _half(config, deed)


def ten_ms(config: dict[str, int]) -> Any:
    end = time.perf_counter() + 0.01
    while time.perf_counter() < end:
        pass
    return config["x"]


OBJECTIVES = (
    raises, hangs, segfaults, os_exit_0, sys_exit, one_tuple, none, nan, alternates, always_fails,
    starts_a_grandchild,
)  # fmt: skip
