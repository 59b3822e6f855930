"""The rules of others in ``benchmarks/rules.py`` decide as they are described."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_compileiq.__main__ import main
from pytest_compileiq.measure.timer import Pair, Timer
from pytest_compileiq.measure.units import Side

from .simulated import SimulatedGpu, kernel

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module: ModuleType = pytest.importorskip("rules", reason="no benchmarks beside these tests")
    return module


class Clock:
    """Takes the place of ``rules.Bench``: launches are kernel times with 1 % of jitter."""

    def __init__(self, drift: float = 0.0) -> None:
        self._random = random.Random(2)
        self._now, self._drift = 0, drift

    def events(self, launches: Sequence[Callable[[], float]]) -> list[float]:
        return list(self._times(launches))

    def rounds(self, launch: Callable[[], float]) -> list[float]:
        return list(self._times([launch] * 20))

    def _times(self, launches: Sequence[Callable[[], float]]) -> Iterator[float]:
        for launch in launches:
            self._now += 1
            yield launch() * (1 + self._drift * self._now) * self._random.gauss(1, 0.01)


def claim(rule: Any, gain: float, drift: float = 0.0) -> str | None:
    found: str | None = rule(Clock(drift), lambda: 1.0, lambda: 1 / (1 + gain)).claim
    return found


def test_each_rule_finds_a_large_effect(rules: ModuleType) -> None:
    for name, rule in rules.peers().items():
        if "do_bench" in name:  # needs Triton
            continue
        fresh = rules.peers()[name]
        assert claim(rule, 0.2) == "faster", name
        assert claim(fresh, -0.2) == "slower", name


def test_drift_deceives_what_runs_one_after_the_other(rules: ModuleType) -> None:
    assert claim(rules.welch, 0.0, drift=1e-4) == "slower"
    assert claim(rules.interleaved, 0.0, drift=1e-4) is None


def test_a_threshold_is_blind_below_itself(rules: ModuleType) -> None:
    assert claim(rules.interleaved, 0.004) is None
    assert claim(rules.Stored(min, 0.05), 0.03) is None


def test_equal_times_are_no_division_by_zero(rules: ModuleType) -> None:
    class Same(Clock):
        def events(self, launches: Sequence[Callable[[], float]]) -> list[float]:
            return [launch() for launch in launches]

    assert rules.welch(Same(), lambda: 1.0, lambda: 1.0).claim is None


class Simulated:
    """``kernels`` on the simulated GPU: two subjects, and one that can idle."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        self.gpu = gpu

    def subjects(self, names: Iterable[str]) -> list[Any]:
        return [SimpleNamespace(name=name, pair=lambda: self._pair(0, 0)) for name in names]

    def Idle(self, cubin: bytes, bytes_: int) -> Any:
        name = f"idle {bytes_}"

        def build(cycles: int) -> Any:
            return SimpleNamespace(launch=self.gpu.kernel("A", 70e-6 + cycles / 1.98e9))

        return SimpleNamespace(kernel=SimpleNamespace(name=name), pair=self._pair, build=build)

    def _pair(self, base: int, candidate: int) -> Pair:
        times = [70e-6 + cycles / 1.98e9 for cycles in (base, candidate)]
        made, *builds = kernel(self.gpu, *times)
        return Pair(made, dict(zip(Side, builds, strict=True)))

    def idle_cubin(self, arch: str) -> bytes:
        return b""

    def arch(self) -> str:
        return "sm_90"


@pytest.fixture
def simulated(rules: ModuleType, monkeypatch: pytest.MonkeyPatch) -> SimulatedGpu:
    """The benchmarks on a simulated GPU, with a rule of others that tosses a coin."""
    from pytest_compileiq import selfcheck

    gpu = SimulatedGpu(jitter=0.005)
    held = SimpleNamespace(
        gpu="GPU", state="simulated", monitor=SimpleNamespace(reasons=lambda since: 0)
    )
    monkeypatch.setattr(selfcheck, "held", lambda *args: nullcontext(held))
    coin = random.Random(5)
    monkeypatch.setattr(rules, "Bench", Clock)
    toss = lambda *args: rules.Answer(coin.choice(["faster", "slower", None]), 10, 0.1)  # noqa: E731
    monkeypatch.setattr(rules, "peers", lambda: {"a coin": toss})
    for name in ("effects", "peers"):
        module = pytest.importorskip(name)
        monkeypatch.setattr(module, "CudaDriver", lambda: gpu)
        monkeypatch.setattr(module, "kernels", Simulated(gpu))
        monkeypatch.setattr(module, "Timer", lambda *a, **o: Timer(*a, **o, now=gpu.now))
    return gpu


def test_peers_from_end_to_end(
    simulated: SimulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    peers = pytest.importorskip("peers")
    command = ["peers.py", "--out", str(tmp_path), "--kernels", "matmul,idle", "--sessions", "9"]
    monkeypatch.setattr("sys.argv", command)
    assert peers.main() == 0
    (report,) = tmp_path.glob("peers-matmul-idle-*[0-9].json")
    rows = {(r["case"], r["rule"]): r for r in json.loads(report.read_text())["rows"]}
    assert rows["identical", "a coin"]["sessions"] == 3
    assert rows["identical", peers.OURS]["sessions"] == 9
    assert rows["identical", peers.OURS]["faster"] + rows["identical", peers.OURS]["slower"] <= 3
    assert rows["2.0% faster", peers.OURS]["faster"] == 9
    (samples,) = tmp_path.glob("*.samples.json.gz")
    assert main(["replay", "--quiet", str(samples)]) == 0


def test_effects_from_end_to_end(
    simulated: SimulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    effects = pytest.importorskip("effects")
    monkeypatch.setattr("sys.argv", ["effects.py", "--out", str(tmp_path), "--sessions", "3"])
    assert effects.main() == 0
    (report,) = tmp_path.glob("effects-*[0-9].json")
    rows = json.loads(report.read_text())["rows"]
    assert len(rows) == 15
    assert all(row["found"] == row["sessions"] == 3 and not row["wrong"] for row in rows)
    assert all(row["measured"] == pytest.approx(row["effect"], rel=0.5) for row in rows)
    assert all(row["blocks"] <= row["aim"] for row in rows)
    (samples,) = tmp_path.glob("*.samples.json.gz")
    assert main(["replay", "--quiet", str(samples)]) == 0


@pytest.mark.parametrize("name", ["peers", "effects", "verdict_time"])
def test_a_report_becomes_a_table(
    name: str, rules: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = pytest.importorskip(name)
    one = {
        "kernel": "k", "case": "identical", "rule": "r", "sessions": 4, "faster": 1, "slower": 0,
        "launches": 50.0, "blocks": 50.0, "wall_seconds": 0.1, "most_wall_seconds": 0.2,
        "effect": 0.01, "measured": 0.011, "found": 4, "wrong": 0, "aim": 100, "question": "q",
        "answers": {"pass": 4},
    }  # fmt: skip
    report = {
        "command": "c", "date": "d", "device": "g", "rows": [one],
        "statistics": {"us_a_unit": 30.0, "ms_an_interval": 2.0},
    }  # fmt: skip
    text = module.markdown(report)
    assert text.count("|") >= 18
    assert "0.100 s" in text
