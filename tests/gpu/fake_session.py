"""``pytest -p tests.gpu.fake_session``: a session whose cuda-core and torch are our stand-ins.

Its GPU takes 50 to 60 us for each launch of ``sgemm``.
"""

from __future__ import annotations

import random
import sys
from typing import Any

import pytest

from . import fake_core, fake_torch

with fake_core.install(pytest.MonkeyPatch()) as machine:  # for good: the process is ours
    pass
machine.sizes["sgemm"] = [8, 8, 8, 4]
_run = machine.kernel


def _jittering(name: str, args: tuple[Any, ...]) -> None:
    _run(name, args)
    if name == "sgemm":
        machine.now += random.randrange(10_000)


machine.kernel = _jittering  # type: ignore[method-assign]
sys.modules["torch"] = fake_torch
