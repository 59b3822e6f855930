"""The benchmarks that need a GPU, as commands on a simulated one, and the rules of others in them."""

from __future__ import annotations

import gzip
import importlib
import json
import random
import re
import runpy
import shlex
import signal
import sys
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from pytest_compileiq import Build, Kernel, selfcheck
from pytest_compileiq.__main__ import main
from pytest_compileiq.checks import timing
from pytest_compileiq.measure import cuda
from pytest_compileiq.measure.timer import Pair, Timer
from pytest_compileiq.measure.units import Comparison, Side
from pytest_compileiq.subjects.kernel import BASELINE

from .simulated import Event, SimulatedGpu, kernel

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
PAGES = [
    *sorted((BENCHMARKS / "results").glob("*.md")),
    *sorted((BENCHMARKS.parent / "docs").rglob("*.md")),
    *(BENCHMARKS.parent / name for name in ("README.md", "CONTRIBUTING.md")),
]
PAGES = [page for page in PAGES if page.exists() and "python benchmarks/" in page.read_text()]
RULES = ("100 A, then 100 B", "do_bench", "min:5%", "mean:2%", "interleaved")


@pytest.fixture
def rules(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    module: ModuleType = pytest.importorskip("rules", reason="no benchmarks beside these tests")
    return module


class Clock:
    """Takes the place of ``rules.Bench``: launches are kernel times with 1 % of jitter."""

    def __init__(self, drift: float = 0.0, jitter: float = 0.01) -> None:
        self._random = random.Random(2)
        self._now, self._drift, self._jitter = 0, drift, jitter

    def events(self, launches: Sequence[Callable[[], float]]) -> list[float]:
        found = []
        for launch in launches:
            self._now += 1
            noise = self._random.gauss(1, self._jitter)
            found.append(launch() * (1 + self._drift * self._now) * noise)
        return found

    def rounds(self, launch: Callable[[], float]) -> list[float]:
        return self.events([launch] * 20)

    do_bench = rounds


def claims(rules: ModuleType, gain: float, **clock: float) -> dict[str, str | None]:
    """What each rule says of a kernel that is so much faster, by the word of its name."""
    bench = Clock(**clock)
    found = {
        name: rules.recorded(bench, name, lambda: 1.0, lambda: 1 / (1 + gain))["times"]
        for name in rules.RECORDINGS
    }
    return {
        next(word for word in RULES if word in name): rule.claim(*[found[rule.recording]] * 2)
        for name, rule in rules.PEERS.items()
    }


def test_each_rule_finds_a_large_effect_and_its_direction(rules: ModuleType) -> None:
    assert claims(rules, 0.2) == dict.fromkeys(RULES, "faster")
    assert claims(rules, -0.2) == dict.fromkeys(RULES, "slower")


def test_drift_deceives_what_runs_one_after_the_other(rules: ModuleType) -> None:
    found = claims(rules, 0.0, drift=1e-4)
    assert found["100 A, then 100 B"] == "slower"
    assert found["interleaved"] is None


@pytest.mark.parametrize(
    ("gain", "seeing"),
    [
        (0.004, {"100 A, then 100 B"}),
        (0.013, {"100 A, then 100 B", "do_bench", "interleaved"}),
        (0.03, {"100 A, then 100 B", "do_bench", "interleaved", "mean:2%"}),
        (0.06, set(RULES)),
    ],
)
def test_a_threshold_is_blind_below_itself(
    rules: ModuleType, gain: float, seeing: set[str]
) -> None:
    found = claims(rules, gain, jitter=0.002)
    assert {rule for rule, claim in found.items() if claim} == seeing
    assert set(found.values()) <= {"faster", None}


def test_a_stored_baseline_is_the_first_session_s(rules: ModuleType) -> None:
    first, now = ([1.0] * 5, [1.0] * 5), ([9.0] * 5, [1.1] * 6)
    for name, rule in rules.PEERS.items():
        if rule.stored:
            assert rule.claim(now, first) == "slower", name
            assert rule.launches(now) == 6
            assert rule.wall_seconds(now, 99.0) == pytest.approx(6.6)


def test_equal_times_are_no_division_by_zero(rules: ModuleType) -> None:
    assert claims(rules, 0.0, jitter=0.0) == dict.fromkeys(RULES)


class Torch(ModuleType):
    """As much of torch as ``rules.Bench`` takes, on a simulated GPU."""

    int8 = "int8"

    def __init__(self, gpu: SimulatedGpu) -> None:
        super().__init__("torch")
        self._gpu = gpu
        self.cuda = SimpleNamespace(Event=self._event, synchronize=gpu.open_gate, init=lambda: None)

    def empty(self, *size: int, **how: Any) -> Any:
        return SimpleNamespace(zero_=self._gpu.flush)

    def _event(self, *, enable_timing: bool) -> Any:
        event = Event()
        return SimpleNamespace(
            at=event,
            record=lambda: self._gpu.record(event),
            elapsed_time=lambda end: 1e3 * self._gpu.seconds(event, end.at),
        )


class Both(Kernel):
    """A kernel of the examples on a simulated GPU: 0.1 ms, 7 % faster with an ACF, O0 4x slower."""

    def __init__(self, gpu: SimulatedGpu) -> None:
        super().__init__(lambda acf: Build(), name="example", place=lambda random: random.random())
        self._gpu = gpu

    def build_all(self, arms: Any, assembler: Any, folder: Path) -> list[Build | Exception]:
        found: list[Build | Exception] = []
        for arm in arms:
            seconds = 1e-4 / (1.07 if arm.acf else 0.25 if arm.flags else 1)
            launch = self._gpu.kernel(arm.name, seconds)
            found.append(Build(b"", launch=launch, load=lambda _, launch=launch: launch))
        return found


@pytest.fixture
def simulated(rules: ModuleType, monkeypatch: pytest.MonkeyPatch) -> SimulatedGpu:
    """The scripts as they are, on a simulated GPU, on which the softmax does not build."""
    names = ("runner", "kernels", "verdict_time", "effects", "peers", "edges")
    runner, kernels, verdict_time, *_ = map(importlib.import_module, names)
    gpu = SimulatedGpu(jitter=0.005)
    held = SimpleNamespace(
        gpu="GPU", state="simulated", clocks=None, monitor=SimpleNamespace(reasons=lambda since: 0)
    )
    monkeypatch.setattr(selfcheck, "held", lambda *args: nullcontext(held))
    monkeypatch.setattr(cuda, "CudaDriver", lambda: gpu)
    monkeypatch.setattr(runner, "CudaDriver", lambda: gpu)
    for module in (runner, timing):
        monkeypatch.setattr(module, "Timer", lambda *a, **o: Timer(*a, **o, now=gpu.now))
    monkeypatch.setitem(sys.modules, "torch", Torch(gpu))
    testing = SimpleNamespace(do_bench=lambda launch, return_mode: [70e-3] * 30)
    monkeypatch.setitem(sys.modules, "triton", SimpleNamespace(testing=testing))

    def identical(name: str) -> Pair:
        if name == "softmax":
            raise RuntimeError("does not build")
        return pair(0, 0)

    def pair(base: int, candidate: int) -> Pair:
        times = [70e-6 + cycles / 1.98e9 for cycles in (base, candidate)]
        made, *builds = kernel(gpu, *times)
        return Pair(made, dict(zip(Side, builds, strict=True)))

    def idle(cubin: bytes, bytes_: int) -> Any:
        build = lambda cycles: SimpleNamespace(launch=gpu.kernel("A", 70e-6 + cycles / 1.98e9))  # noqa: E731
        return SimpleNamespace(pair=pair, build=build)

    monkeypatch.setattr(kernels, "triton_kernel", lambda name: name)
    monkeypatch.setattr(kernels, "identical", identical)
    monkeypatch.setattr(kernels, "Idle", idle)
    monkeypatch.setattr(kernels, "arch", lambda: "sm_90")
    monkeypatch.setattr(kernels, "idle_cubin", lambda arch: b"")
    example = lambda name: (Both(gpu), kernels.EXAMPLES / "matmul.acf")  # noqa: E731
    monkeypatch.setattr(verdict_time, "example", example)
    return gpu


def run(name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    """The script as a command."""
    monkeypatch.setattr("sys.argv", [f"benchmarks/{name}.py", "--out", str(folder), *more])
    status: int = sys.modules[name].main()
    return status


def document(folder: Path, pattern: str) -> dict[str, Any]:
    (path,) = folder.glob(pattern)
    assert main(["replay", "--quiet", str(path)]) == 0
    found: dict[str, Any] = json.loads(gzip.decompress(path.read_bytes()))
    return found


def rows(text: str, first: str) -> list[list[str]]:
    """The rows of the tables whose first cell begins so."""
    lines = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|")]
    return [cells for cells in lines if cells[0].startswith(first)]


def test_peers_from_end_to_end(
    simulated: SimulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--kernels", "matmul,idle2", "--sessions", "9")
    assert run("peers", tmp_path, monkeypatch, *asked) == 0
    found = document(tmp_path, "peers-matmul-idle2-*.json.gz")
    same, faster = found["records"]
    assert (same["check"], faster["check"]) == ("identical", "2.0% faster")
    assert len(same["samples"]) == len(same["wall_seconds"]) == 9
    assert [set(one) for one in same["others"]] == 3 * [set(sys.modules["rules"].RECORDINGS)]
    first, second = same["others"][0]["blocks"]["times"]
    assert (len(first), len(second)) == (100, 100)
    (text,) = (path.read_text() for path in tmp_path.glob("*.md"))
    overview, *ours = rows(text, sys.modules["peers"].OURS[2])
    assert [row[3] for row in ours] == ["9", "9"]
    assert ours[1][1:3] == ["100.0%", "0.0%"]
    assert overview[1:] == [f"{' / '.join(row[1:3])} of 9" for row in ours]
    assert "The rule, schema 2 of the samples: order effects taken off;" in text
    assert rows(text, "matmul")[1][1] == str(sum(len(one["units"]) for one in same["samples"]))
    assert [row[3] for row in rows(text, "do_bench")[1:]] == ["3", "3"]
    (name, sessions, wrong_one, wrong_other, allowed, *_, kept), _ = rows(text, "matmul")
    assert (name, sessions, allowed, kept) == ("matmul", "9", "2", "yes")
    assert int(wrong_one) + int(wrong_other) <= 3


def test_results_go_beside_the_script_if_no_folder_is_given(
    simulated: SimulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["page"], "RESULTS", tmp_path)
    monkeypatch.setattr("sys.argv", ["effects.py", "--kernels", "1MiB", "--sessions", "1"])
    assert sys.modules["effects"].main() == 0
    assert document(tmp_path, "effects-1MiB-*.json.gz")["records"]


def test_one_table_of_several_runs(
    simulated: SimulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two runs of one kernel count as one."""
    for name in ("matmul", "small"):
        assert run("peers", tmp_path, monkeypatch, "--kernels", name, "--sessions", "2") == 0
    again = ("--kernels", "small", "--sessions", "3", "--seed", "2")
    assert run("peers", tmp_path / "again", monkeypatch, *again) == 0
    files = sorted(map(str, tmp_path.rglob("*.json.gz")))
    assert run("peers", tmp_path / "all", monkeypatch, "--read", *files) == 0
    (path,) = (tmp_path / "all").glob("peers-*.md")
    text = path.read_text()
    assert text.count("benchmarks/peers.py") == 3
    (matmul, _), (small, _) = rows(text, "matmul"), rows(text, "small")
    assert (matmul[1], small[1]) == ("2", "5")
    assert {row[3] for row in rows(text, sys.modules["peers"].OURS[2])[1:]} == {"2", "5"}


def altered(path: Path, change: Callable[[dict[str, Any]], object]) -> Path:
    """A copy beside the file, each of whose records was changed."""
    found = json.loads(gzip.decompress(path.read_bytes()))
    for record in found["records"]:
        change(record)
    other = path.with_name(f"other-{path.name}")
    other.write_bytes(gzip.compress(json.dumps(found).encode()))
    return other


def test_two_rules_do_not_share_a_row(
    simulated: SimulatedGpu,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Of schema 1 and 2 of the samples: not of one kernel at all, and of two in rows by name."""
    assert run("peers", tmp_path, monkeypatch, "--kernels", "small", "--sessions", "2") == 0
    (path,) = tmp_path.glob("*.json.gz")

    def old(record: dict[str, Any]) -> None:
        for sample in record["samples"]:
            sample["schema"] = 1

    earlier = altered(path, old)
    with pytest.raises(SystemExit) as ended:
        run("peers", tmp_path / "all", monkeypatch, "--read", str(earlier), str(path))
    assert ended.value.code == 2
    told = capsys.readouterr().err
    assert f"small, identical, units: samples of schema 1 in {earlier}, of schema 2 in {path}" in (
        told
    )
    earlier = altered(path, lambda record: (old(record), record.update(kernel="matmul")))
    assert run("peers", tmp_path / "all", monkeypatch, "--read", str(earlier), str(path)) == 0
    (page,) = (tmp_path / "all").glob("*.md")
    for (overview, one), columns in (
        (rows(page.read_text(), sys.modules["peers"].OURS[1]), (1, 2)),
        (rows(page.read_text(), sys.modules["peers"].OURS[2]), (2, 1)),
    ):
        assert one[3] == "2"
        assert [overview[column] for column in columns] == [f"{' / '.join(one[1:3])} of 2", "-"]


def test_a_stored_baseline_is_its_own_run_s(
    simulated: SimulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another day, all ten times slower: that is no claim, whichever file is named first."""
    assert run("peers", tmp_path, monkeypatch, "--kernels", "small", "--sessions", "4") == 0
    (path,) = tmp_path.glob("*.json.gz")

    def slower(record: dict[str, Any]) -> None:
        for one in record["others"]:
            one["rounds"]["times"] = [[10 * t for t in side] for side in one["rounds"]["times"]]

    files = [str(path), str(altered(path, slower))]
    texts = []
    for folder, order in (("one", files), ("other", files[::-1])):
        assert run("peers", tmp_path / folder, monkeypatch, "--read", *order) == 0
        texts.append(next((tmp_path / folder).glob("*.md")).read_text())
    assert texts[0] == texts[1]
    alone = (next(tmp_path.glob("*.md"))).read_text()
    for rule in ("stored baseline, min:5%", "stored baseline, mean:2%"):
        (_, both), (_, one) = rows(texts[0], rule), rows(alone, rule)
        assert both[1:3] == one[1:3]
        assert both[3] == str(2 * int(one[3]))


def test_a_kernel_that_fails_does_not_cost_the_others(
    simulated: SimulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = ("--kernels", "softmax,small", "--sessions", "2")
    assert run("peers", tmp_path, monkeypatch, *asked) == 1
    found = document(tmp_path, "*.json.gz")
    assert found["faults"] == ["softmax: RuntimeError: does not build"]
    assert [one["kernel"] for one in found["records"]] == ["small"]
    (text,) = (path.read_text() for path in tmp_path.glob("*.md"))
    assert "Failed: softmax: RuntimeError: does not build" in text


def test_another_rule_that_fails_first_does_not_cost_the_page(
    simulated: SimulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rules = sys.modules["rules"]
    plain, broken = rules.recorded, iter([True])

    def recorded(*asked: Any) -> Any:
        if next(broken, False):
            raise RuntimeError("no do_bench")
        return plain(*asked)

    monkeypatch.setattr(rules, "recorded", recorded)
    asked = ("--kernels", "matmul,small", "--sessions", "2", "--seed", "4")
    assert run("peers", tmp_path, monkeypatch, *asked) == 1
    matmul, small = document(tmp_path, "*.json.gz")["records"]
    assert (matmul["samples"], matmul["wall_seconds"], len(small["samples"])) == ([], [], 2)
    (text,) = (path.read_text() for path in tmp_path.glob("*.md"))
    assert "Failed: matmul: RuntimeError: no do_bench" in text
    assert [row[3] for row in rows(text, sys.modules["peers"].OURS[2])[1:]] == ["2"]


@pytest.mark.parametrize(
    ("name", "asked", "records"),
    [
        ("peers", "matmul,idle0.5", 2),
        ("effects", "1MiB", 5),
        ("verdict_time", "matmul,softmax", 11),
    ],
)
def test_a_limit_leaves_one_session_of_each_at_least(
    name: str,
    asked: str,
    records: int,
    simulated: SimulatedGpu,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status = run(name, tmp_path, monkeypatch, "--kernels", asked, "--limit", "0", "--seed", "5")
    assert status == 0
    found = document(tmp_path, "*.json.gz")
    assert len(found["records"]) == records
    measured = [one for one in found["records"] if one["samples"]]
    assert all(len(one["samples"]) in (1, 2) for one in measured)
    command = f"python benchmarks/{name}.py --kernels {asked} --limit 0 --seed 5"
    assert found["command"] == command


def test_what_is_there_is_saved_on_the_way(
    simulated: SimulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the run is told to end: SIGTERM comes before a kill."""
    runner = sys.modules["runner"]
    monkeypatch.setattr(runner, "_SECONDS_BETWEEN_SAVES", 0.0)
    saved: list[int] = []
    save = runner.Run.save

    def saving(self: Any) -> None:
        save(self)
        saved.append(len(document(tmp_path, "*.json.gz")["records"][0]["samples"]))
        if saved[-1] == 3:
            signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(runner.Run, "save", saving)
    before = signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit) as ended:
            run("peers", tmp_path, monkeypatch, "--kernels", "matmul", "--sessions", "9")
    finally:
        signal.signal(signal.SIGTERM, before)
    assert ended.value.code == 143
    assert saved == [1, 2, 3, 3]
    assert [path.name[-8:] for path in tmp_path.iterdir()] == [".json.gz"]


def test_effects_from_end_to_end(
    simulated: SimulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("effects", tmp_path, monkeypatch, "--sessions", "3") == 0
    found = document(tmp_path, "effects-*.json.gz")["records"]
    assert len(found) == 15
    (text,) = (path.read_text() for path in tmp_path.glob("*.md"))
    for _, added, measured, seen, wrong, blocks, aim, _ in rows(text, "copy"):
        assert (seen, wrong) == ("3 / 3", "0")
        assert float(measured[:-1]) == pytest.approx(float(added[:-1]), rel=0.5)
        assert int(blocks) <= int(aim.removeprefix("<= "))


def test_edges_from_end_to_end(
    simulated: SimulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the last 36 launches take 4 % less: all of a block of 30, or 6 of one with one behind."""
    made, *builds = kernel(simulated, 6e-6, 6e-6)
    short = Pair(made, dict(zip(Side, builds, strict=True)))
    idle = lambda cubin, bytes_: SimpleNamespace(pair=lambda *cycles: short)  # noqa: E731
    monkeypatch.setattr(sys.modules["kernels"], "Idle", idle)
    simulated.jitter, simulated.end = 0.0, 0.04
    assert run("edges", tmp_path, monkeypatch, "--kernels", "1MiB", "--sessions", "9") == 0
    (path,) = tmp_path.glob("edges-*.json.gz")
    found = json.loads(gzip.decompress(path.read_bytes()))["records"]
    assert [len(record["units"]) for record in found] == [9] * 5
    (text,) = (path.read_text() for path in tmp_path.glob("*.md"))
    told = {row[1]: ([*row[6:8], row[9]], row[2]) for row in rows(text, "copy")}
    assert told["cold, edges: none"] == (["+0.4%", "-2.8%", "29 of 30"], "9")
    assert told["cold, edges: 1 + 1"][0][2] == "5 of 30"
    assert told["cold, edges: as shipped"] == (["+0.0%", "+0.0%", "0 of 30"], "9")
    assert [state for state in told if state.startswith("warm")] == [
        "warm, edges: none",
        "warm, edges: 1 + 1",
    ]


def test_edges_of_what_has_no_graph(
    simulated: SimulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("edges", tmp_path, monkeypatch, "--kernels", "16MiB") == 1
    (text,) = (path.read_text() for path in tmp_path.glob("*.md"))
    assert "a copy of 16MiB takes too long here for a CUDA graph" in text


def test_verdict_time_from_end_to_end(
    simulated: SimulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("verdict_time", tmp_path, monkeypatch, "--kernels", "matmul", "--sessions", "3") == 0
    document(tmp_path, "*.json.gz")
    (text,) = (path.read_text() for path in tmp_path.glob("*.md"))
    found = {row[1]: row for row in rows(text, "matmul")}
    assert found["matmul.acf, min_speedup 1.02"][2] == "3 pass"
    assert found["matmul.acf, min_speedup 1.2"][2] == "3 fail"
    assert int(found["matmul.acf, min_speedup 1.02"][6]) <= 48
    assert found["canary, O0 and O3"][2] == "3 pass + pass"
    assert int(found["canary, O0 and O3"][6]) <= 120
    (cv,) = (row for question, row in found.items() if question.startswith("CV at half of"))
    assert cv[2] == "3 pass"
    assert int(cv[-1]) <= 150
    assert "us a unit" in text


def test_what_statistics_cost_is_that_of_whole_units(
    simulated: SimulatedGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the order effect and the look at the clocks, by a comparison that stays open."""
    done: list[tuple[int, object]] = []
    plain = Comparison.look_at_clocks

    def look_at_clocks(one: Comparison) -> None:
        plain(one)
        done.append((one.judge.test.n, one.outcome))

    monkeypatch.setattr(Comparison, "look_at_clocks", look_at_clocks)
    assert min(sys.modules["verdict_time"].statistics().values()) > 0
    assert done == 20 * [(n, None) for n in range(1, 251)]


def test_the_size_of_sgemm_is_in_its_name(
    rules: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the medians of two sizes cannot be one."""
    verdict_time, kernels = map(importlib.import_module, ("verdict_time", "kernels"))
    (name,) = (one for one in verdict_time.QUESTIONS if one.startswith("sgemm"))
    monkeypatch.setitem(sys.modules, "torch", MagicMock())
    monkeypatch.setattr(kernels, "arch", lambda: "sm_90")
    asked = MagicMock()
    monkeypatch.setattr(verdict_time, "PtxKernel", asked)
    verdict_time.example(name)
    assert f"sgemm-{asked.call_args.kwargs['args'][-1]}" == name


PRINTED = re.compile(r"\bpython (benchmarks/(\w+)\.py[^`\n]*)")


class Parsed(Exception):
    """A script took its arguments."""


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.name)
def test_a_command_that_is_printed_is_one(
    page: Path, rules: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those in the heads of results, too: without the folder that they were written to."""

    def parse_args(parser: ArgumentParser, *args: Any, **options: Any) -> None:
        plain(parser, *args, **options)
        raise Parsed

    plain = ArgumentParser.parse_args
    monkeypatch.setattr(ArgumentParser, "parse_args", parse_args)
    for command, name in PRINTED.findall(page.read_text()):
        monkeypatch.setattr("sys.argv", shlex.split(re.sub(r"\[|\]| \.\.\.", "", command)))
        with pytest.raises(Parsed):
            runpy.run_path(str(BENCHMARKS / f"{name}.py"), run_name="__main__")


def test_the_page_on_measuring_has_what_the_recorded_times_say(rules: ModuleType) -> None:
    """0.4 % of an H200, made anew from its samples."""
    peers, runner = map(importlib.import_module, ("peers", "runner"))
    files = sorted((BENCHMARKS / "results").glob("peers-[ms]*.json.gz"))
    found = runner.merged([one for path in files for one in runner.read(path)["records"]])
    table = peers.places(found)
    kept = (BENCHMARKS / "results" / "peers-2026-12-01.md").read_text().splitlines()
    assert set(table) <= set(kept)
    ((_, _, first, *_),) = rows("\n".join(table), "softmax")
    assert first == "+0.4%"
    text = (BENCHMARKS.parent / "docs" / "explanation" / "measuring.md").read_text()
    told = "the first of four blocks of a softmax took 0.4 % more than the others"
    assert told in " ".join(text.split())


def test_no_kernel_of_that_name(
    simulated: SimulatedGpu, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(SystemExit):
        run("effects", tmp_path, monkeypatch, "--kernels", "1MiB,2MiB")


@pytest.mark.parametrize("name", ["matmul", "attention", "softmax", "small"])
def test_the_kernels_are_those_of_the_examples(
    name: str, rules: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton", reason="needs Triton: tox -e triton")
    kernels = importlib.import_module("kernels")
    monkeypatch.syspath_prepend(str(kernels.EXAMPLES))
    triton_inputs = importlib.import_module("triton_inputs")

    class Types(ModuleType):
        """Types in the place of tensors, for which Triton compiles without a GPU."""

        randn = empty_like = staticmethod(lambda *size, **how: "*fp32")

    if name != "small":
        made = getattr(triton_inputs, name)
        monkeypatch.setattr(triton_inputs, name, lambda on_gpu: made(on_gpu=False))
    monkeypatch.setitem(sys.modules, "torch", Types("torch"))
    plain = kernels.TritonKernel
    monkeypatch.setattr(kernels, "TritonKernel", lambda *a, **o: plain(*a, arch="sm_90a", **o))
    subject = kernels.triton_kernel(name)
    (build,) = subject.build_all([BASELINE], kernels.assembler(), kernels.EXAMPLES)
    assert isinstance(build, Build), build
    (resources,) = build.resources.values()
    assert resources.spill_bytes == 0
