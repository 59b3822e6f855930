"""``selfcheck`` and ``replay`` as commands, and the count of false verdicts behind them."""

from __future__ import annotations

import gzip
import json
import sys
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_compileiq import selfcheck
from pytest_compileiq.__main__ import main
from pytest_compileiq.measure import audit, cuda
from pytest_compileiq.measure.samples import record_units
from pytest_compileiq.measure.timer import Pair, Timer
from pytest_compileiq.measure.units import Plan, Side, Timed
from pytest_compileiq.verdict import Reason

from ..gpu import fake_core
from .simulated import SimulatedGpu, kernel

A, B = Side.BASE, Side.CANDIDATE
RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def sessions(
    count: int, *, candidate: float = 300e-6, units: int = 20, jitter: float = 0.01
) -> list[Any]:
    gpu = SimulatedGpu(jitter=jitter)
    made, first, second = kernel(gpu, 300e-6, candidate)
    timer = Timer(gpu, seed=3, now=gpu.now)
    pair = Pair(made, {A: first, B: second})
    return list(audit.on_device("k", pair, timer, seed=3, alpha=0.05, sessions=count, units=units))


@pytest.fixture(scope="module")
def recorded() -> list[Any]:
    return sessions(40)


@pytest.fixture
def file(recorded: list[Any], tmp_path: Path) -> Path:
    path = tmp_path / "aa.json.gz"
    samples = list(map(record_units, recorded))
    selfcheck.write(path, {"records": [{"kernel": "k", "samples": samples}]})
    return path


def test_identical_kernels_stay_within_alpha(recorded: list[Any]) -> None:
    found = audit.summary("k", 0.05, recorded)
    assert found.kept
    assert found.sessions == 40
    assert found.faster + found.slower <= 2 * found.allowed
    # A unit's log-ratio: half the sum of four launches of 1 % each, so 1 %.
    assert found.unit_sd == pytest.approx(0.01, rel=0.15)
    assert 0.002 < found.half_width < 0.02
    assert all(16 + 4 * len(one.units) <= 16 + 80 for one in recorded)


def test_a_bias_is_seen() -> None:
    found = audit.summary("k", 0.05, sessions(20, candidate=290e-6))
    assert not found.kept
    assert found.faster > 15


def test_to_find_no_win_is_no_false_claim() -> None:
    """A narrow interval about the truth: a failure of a test of a win, and right."""
    quiet = sessions(5, jitter=1e-4)
    assert {one.outcome.reason for one in quiet} == {Reason.NO_WIN}
    found = audit.summary("k", 0.05, quiet)
    assert (found.faster, found.slower) == (0, 0)


def test_units_that_were_rejected_are_no_spread() -> None:
    ones = sessions(1)
    unit = ones[0].units[0]
    wild = replace(unit.timed, seconds=(1.0, 1e-3, 1e-3, 1.0))
    before = audit.summary("k", 0.05, ones).unit_sd
    ones[0].add(replace(unit, timed=wild, rejected="hardware slowdown"))
    assert audit.summary("k", 0.05, ones).unit_sd == before


def test_what_chance_allows() -> None:
    assert audit.most(200, 0.05) == 18
    assert audit.most(200, 0.01) == 6
    assert audit.most(200, 0.05, 0.999) == 21
    assert audit.most(1, 0.0) == 0


def test_a_trace_gives_new_sessions_with_the_error_rate_kept(recorded: list[Any]) -> None:
    again = list(audit.on_trace("k", recorded, seed=9, alpha=0.05, sessions=100, units=20))
    assert audit.summary("k", 0.05, again).kept
    first = {one.units[0].timed.seconds for one in again}
    assert first <= {unit.timed.seconds for one in recorded for unit in one.units}
    assert len(first) > len(recorded)  # a session may begin anywhere


def test_a_first_block_that_is_always_slow_falls_on_both_sides() -> None:
    """As coins order the labels: in a fixed order it would make one kernel "slower"."""

    def biased(_: str, plan: Plan) -> Timed:
        return Timed((1.01e-3, 1e-3, 1e-3, 1e-3))

    one = audit.one_session("k", biased, [1e-3] * 16, seed=1, alpha=0.05, units=40)
    assert one.outcome is not None
    assert len({round(unit.log_ratio, 4) for unit in one.units}) == 2  # both signs


def test_selfcheck_on_a_trace(
    file: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out = tmp_path / "again.json"
    command = ["selfcheck", "--trace", str(file), "--sessions", "30", "--units", "20"]
    assert main([*command, "--seed", "4", "--out", str(out)]) == 0
    told = capsys.readouterr().out
    assert "alpha 0.05 a direction, seed 4" in told
    assert "resolves" in told
    assert main(["replay", "--quiet", str(out), str(file)]) == 0
    told = capsys.readouterr().out
    assert "1 of 1 records came out again" in told


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> SimulatedGpu:
    """The GPU of ``selfcheck``: "same" is a kernel against itself, "other" against a faster one."""
    gpu = SimulatedGpu(jitter=0.01)
    held = SimpleNamespace(
        gpu="GPU", state="simulated", monitor=SimpleNamespace(reasons=lambda since: 0)
    )

    def pairs() -> dict[str, Pair]:
        made = {"same": kernel(gpu, 3e-4, 3e-4), "other": kernel(gpu, 3e-4, 2.8e-4)}
        return {name: Pair(one, {A: a, B: b}) for name, (one, a, b) in made.items()}

    monkeypatch.setattr(selfcheck, "held", lambda *args: nullcontext(held))
    monkeypatch.setattr(cuda, "CudaDriver", lambda: gpu)
    monkeypatch.setattr(selfcheck, "Timer", lambda *a, **o: Timer(*a, **o, now=gpu.now))
    monkeypatch.setattr(selfcheck, "own_pairs", pairs)
    return gpu


def test_selfcheck_says_which_kernel_breaks_its_word(
    device: SimulatedGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "aa.json.gz"
    command = ["selfcheck", "--sessions", "20", "--seed", "3", "--out", str(out)]
    assert main(command) == 1
    told = capsys.readouterr().out
    assert "GPU, clocks simulated; alpha 0.05 a direction, seed 3" in told
    assert "more false verdicts than alpha 0.05 allows: other\n" in told
    assert main(["replay", "--quiet", str(out)]) == 0
    same, other = json.loads(gzip.decompress(out.read_bytes()))["audits"]
    assert (same["name"], same["sessions"], same["alpha"]) == ("same", 20, 0.05)
    assert (other["faster"], other["slower"]) == (20, 0)


def test_its_own_kernel_on_a_stand_in_for_cuda_core(
    ptxas: object, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launches as cuda-core gets them: both builds in each seat, on buffers of that seat."""
    with fake_core.install(monkeypatch) as machine:
        machine.sizes["copy"] = [8, 8, 4, 8]
        pairs = selfcheck.own_pairs([1])
        assert list(pairs) == ["copy 1 MiB"]
        timer = Timer(cuda.CudaDriver(), seed=1)
        (one,) = audit.on_device(
            "k", pairs["copy 1 MiB"], timer, seed=1, alpha=0.05, sessions=1, units=6
        )
    assert one.outcome is not None
    assert [unit.rejected for unit in one.units] == [None] * 6
    launched = [(config, args) for name, config, args, _ in machine.launched if name == "copy"]
    assert {config for config, _ in launched} == {((4,), (1024,), 0)}
    assert {tuple(args[2:]) for _, args in launched} == {(1 << 18, 0)}
    assert len({args[0] for _, args in launched}) >= 3  # seats have buffers of their own


def test_selfcheck_within_a_limit(
    device: SimulatedGpu, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One session of each kernel there always is, and the table says how many there were."""
    out = tmp_path / "aa.json"
    assert main(["selfcheck", "--limit", "0", "--seed", "1", "--out", str(out)]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [row[:2] for row in rows if row[0] in ("same", "other")] == [
        ["same", "1"],
        ["other", "1"],
    ]
    assert [len(one["samples"]) for one in json.loads(out.read_bytes())["records"]] == [1, 1]


def test_what_a_kernel_leaves_of_the_time_goes_to_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(audit.time, "monotonic", lambda: now)
    shares = {}
    for name, due in audit.Deadline(60.0).shared(["a", "b", "c"]):
        shares[name] = due.left
        now += 5.0 if name == "a" else due.left
    assert shares == {"a": 20.0, "b": 27.5, "c": 27.5}


def test_a_file_that_is_written_is_whole_at_any_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "aa.json.gz"
    selfcheck.write(path, {"records": [1]})
    before = path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: pytest.fail("killed"))
    with pytest.raises(pytest.fail.Exception):
        selfcheck.write(path, {"records": [1, 2]})
    assert path.read_bytes() == before


def test_every_committed_result_comes_out_again(capsys: pytest.CaptureFixture[str]) -> None:
    if not RESULTS.exists():
        pytest.skip("no benchmarks beside these tests")
    files = [path for path in RESULTS.glob("*.json*") if has_samples(path)]
    assert files
    assert main(["replay", "--quiet", *map(str, files)]) == 0, capsys.readouterr().out


def has_samples(path: Path) -> bool:
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if path.suffix == ".gz" else data)
    return any(record.get("samples") for record in document.get("records", []))


def test_replay_sees_one_changed_sample(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    document = json.loads(gzip.decompress(file.read_bytes()))
    document["records"][0]["samples"][7]["units"][3]["seconds"][1] *= 1.01
    file.write_bytes(json.dumps(document).encode())
    assert main(["replay", str(file)]) == 1
    told = capsys.readouterr().out
    assert "sample 7: " in told
    assert "0 of 1 records came out again" in told


def test_replay_sees_a_status_that_the_samples_do_not_bear_out(
    recorded: list[Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "r.json"
    sample = record_units(recorded[0])
    record = {"nodeid": "t.py::t", "kernel": "k", "check": "win", "samples": [sample]}
    for status, expected in ((recorded[0].outcome.status.value, 0), ("bogus", 1)):
        path.write_text(json.dumps({"records": [{**record, "status": status}]}))
        assert main(["replay", str(path)]) == expected
    assert "the record says bogus" in capsys.readouterr().out


def test_replay_of_a_verdict_on_several_samples_is_the_worst_of_them(tmp_path: Path) -> None:
    path = tmp_path / "r.json"
    found = [*sessions(1, candidate=250e-6), *sessions(1, candidate=350e-6)]
    samples = list(map(record_units, found))
    assert [one["outcome"]["status"] for one in samples] == ["pass", "fail"]  # type: ignore[index]
    for status, expected in (("fail", 0), ("pass", 1), ("undecided", 1)):
        path.write_text(json.dumps({"records": [{"samples": samples, "status": status}]}))
        assert main(["replay", "--quiet", str(path)]) == expected


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (None, "No such file"),
        (b'{"records": [', "truncated, or no JSON"),
        (b"\x1f\x8b\x08\x00", "truncated, or no JSON"),
        (b"[1, 2]", "holds no list of records"),
        (b'{"records": 3}', "holds no list of records"),
        (b"\xff\xfe", "truncated, or no JSON"),
        (b'{"records": []}', "nothing was measured in it"),
        (b'{"records": [{"status": "pass", "samples": []}]}', "nothing was measured in it"),
    ],
)
def test_replay_of_what_is_no_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes | None, told: str
) -> None:
    path = tmp_path / "r.json"
    if content is not None:
        path.write_bytes(content)
    assert main(["replay", str(path)]) == 2
    assert told in capsys.readouterr().err


def test_replay_of_a_truncated_gzip(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file.write_bytes(file.read_bytes()[:-200])
    assert main(["replay", str(file)]) == 2
    assert "truncated" in capsys.readouterr().err


def test_pairs_of_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pytest_compileiq.errors import SettingsError

    with pytest.raises(SettingsError, match="there is no file"):
        selfcheck.pairs_of("nowhere.py:pairs")
    (tmp_path / "neighbour_of_mine.py").write_text("A = 1")
    (tmp_path / "mine.py").write_text(
        "from neighbour_of_mine import A\ndef other(): return {'a': A}"
    )
    monkeypatch.setattr("sys.path", [*sys.path])
    with pytest.raises(SettingsError, match="has no function pairs"):
        selfcheck.pairs_of(f"{tmp_path / 'mine.py'}:pairs")
    assert selfcheck.pairs_of(f"{tmp_path / 'mine.py'}:other") == {"a": 1}
