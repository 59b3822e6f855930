"""What the stopwatch does with its claims, timed by a site's own block: no GPU is needed."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pytest_compileiq.checks import canary
from pytest_compileiq.checks.canary import KnownAcfs
from pytest_compileiq.checks.timing import Stopwatch
from pytest_compileiq.marks import CanaryParams
from pytest_compileiq.subjects.kernel import Build, Kernel, Workbench
from pytest_compileiq.toolchain.acf import Acf, Staging
from pytest_compileiq.toolchain.sidecar import Committed


@pytest.fixture
def staging() -> Iterator[Staging]:
    made = Staging()
    yield made
    made.remove()


@pytest.mark.parametrize(("slow", "reason"), [("o0", None), ("o3", "no-effect"), ("", "no-effect")])
def test_two_acfs_of_one_file_name_are_two_arms(
    staging: Staging, slow: str, reason: str | None
) -> None:
    """o0/k.acf and o3/k.acf: each is timed as what it is, and both keep their name in the report."""
    acfs = {name: Acf(Path(name, "k.acf"), name.encode() * 30) for name in ("o0", "o3")}
    noise = random.Random(1)

    def build(path: Path | None) -> Build:
        if path and path.read_bytes() not in [acf.content for acf in acfs.values()]:
            raise RuntimeError("damaged")
        seconds = 2e-3 if path and slow and path == staging.path(acfs[slow]) else 1e-3
        return Build(launch=cast(Any, lambda: seconds * noise.gauss(1, 0.01)))

    held: Any = SimpleNamespace(
        monitor=SimpleNamespace(reasons=lambda since: 0),
        gpu=SimpleNamespace(name="none", driver="none"),
        clocks=SimpleNamespace(locked=False),
    )
    stopwatch = Stopwatch(
        lambda: nullcontext(held),
        budget_seconds=2.0,
        time_block=lambda kernel, arm, launch: cast(Any, launch)(),
    )
    bench = Workbench(Kernel(build), cast(Any, SimpleNamespace(staging=staging)), Path())
    known = KnownAcfs(Committed(acfs["o0"], None), Committed(acfs["o3"], None), None)
    verdict = canary.judge_kernel(bench, known, CanaryParams(), accept=False, stopwatch=stopwatch)
    assert verdict.reason == reason
    names = [cast(dict[str, Any], sample)["name"] for sample in verdict.samples]
    assert names == ["build/k.acf", "build/k.acf (2)"]
    timed = [cast(dict[str, Any], verdict.numbers[f"timed_{name}"]) for name in ("o0", "o3")]
    for name, numbers in zip(("o0", "o3"), timed, strict=True):
        assert numbers["speedup"] == pytest.approx(0.5 if slow == name else 1.0, rel=0.02)
