"""Pictures and history: what is drawn where, from what; how it looks is judged by eye."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_compileiq.report import history
from pytest_compileiq.report import json as _json

from . import simulated as sim

pytest.importorskip("matplotlib")

from matplotlib.backends.backend_agg import FigureCanvasAgg

from pytest_compileiq.report import plots
from pytest_compileiq.report.album import Album
from tests.report.test_machines import suite  # noqa: F401 (a fixture)

WIN = sim.record(sim.win("softmax", speedup=1.06, disturbed=0.2), "t.py::a")
PNG = b"\x89PNG\r\n\x1a\n"


def test_a_track_ends_at_the_outcome() -> None:
    (sample,) = WIN["samples"]
    one = plots.track(sample)
    outcome = sample["outcome"]
    assert one.above[-1] == pytest.approx(outcome["log_e_above"] / math.log(10))
    assert one.below[-1] == pytest.approx(outcome["log_e_below"] / math.log(10))
    assert len(one.ratios) - len(one.rejected) == outcome["units"]
    assert one.rejected
    assert one.launches[-1] == 16 + 4 * len(one.ratios)
    assert len(one.mhz) == len(one.seconds) == 4 * len(one.ratios)
    assert one.seconds == sorted(one.seconds)


def test_a_picture_shows_interval_threshold_evidence_and_clock() -> None:
    figure = plots.picture("softmax", [WIN])
    strip, evidence, clock = figure.axes
    outcome = WIN["samples"][0]["outcome"]
    labels = strip.get_legend_handles_labels()[1]
    assert labels == ["one unit", "rejected", "interval", "threshold"]
    threshold = strip.get_lines()[-1]
    assert list(threshold.get_ydata()) == [1.02, 1.02]
    (band,) = strip.patches
    assert [band.get_y(), band.get_y() + band.get_height()] == pytest.approx(
        outcome["speedup_interval"]
    )
    assert (strip.get_xlabel(), strip.get_ylabel()) == ("unit", "speed-up, ×")
    assert (evidence.get_xlabel(), evidence.get_ylabel()) == (
        "launches",
        "evidence, log₁₀ e-value",
    )
    assert {text.get_text() for text in evidence.texts} == {"decides at 20", "decides at 100"}
    assert (clock.get_xlabel(), clock.get_ylabel()) == ("GPU time, s", "SM clock, MHz")
    assert figure.get_size_inches()[0] * plots.DPI == 800


@pytest.mark.parametrize(
    "found",
    [
        WIN,
        sim.record(sim.canary("softmax")),
        sim.record(sim.win("noisy", speedup=1.021, noise=0.05, disturbed=0.05)),
        sim.record(sim.win("slower", speedup=0.9)),
    ],
    ids=["win", "canary", "undecided", "slower"],
)
def test_a_legend_hides_nothing(found: dict[str, Any]) -> None:
    figure = plots.picture("softmax", [found])
    FigureCanvasAgg(figure).draw()
    panels = [axes for axes in figure.axes if axes.get_legend() is not None]
    assert len(panels) >= 2
    for axes in panels:
        legend = axes.get_legend()
        assert legend is not None
        bottom = legend.get_window_extent().y0
        highest = max(float(y) for line in axes.get_lines() for y in line.get_ydata())
        assert axes.transData.transform((1.0, highest))[1] < bottom


def test_all_kinds_of_samples_are_drawn(tmp_path: Path) -> None:
    records = [sim.record(one) for one in (sim.cv("k"), sim.canary("k"), sim.objective("k"))]
    (path,) = Album(tmp_path / "new" / "folder").draw(records)
    assert path.read_bytes().startswith(PNG)
    assert len(plots.picture("k", records).axes) == 1 + 2 * 2 + 1 + 1


def test_names_of_files(tmp_path: Path) -> None:
    album = Album(tmp_path)
    ugly = {**WIN, "kernel": "../a/b c[x=1]"}
    (first,) = album.draw([ugly])
    assert first == tmp_path / "a_b_c_x=1.png"
    (again,) = album.draw([ugly])  # a rerun of the test
    assert again == first
    (other,) = album.draw([{**ugly, "nodeid": "t.py::other"}])
    assert other != first
    (long,) = album.draw([{**WIN, "kernel": "k" * 300}])
    assert len(long.name) < 100
    assert album.draw([sim.record(sim.static("k"))]) == []
    assert album.told == f"3 kernels and overview.png in {tmp_path}"


def test_the_overview_has_a_row_a_kernel() -> None:
    slower = sim.record(sim.win("matmul", speedup=0.98, noise=0.01), "t.py::b")
    figure = plots.overview([WIN, slower, sim.record(sim.cv("k"))])
    assert figure is not None
    (axes,) = figure.axes
    assert [label.get_text() for label in axes.get_yticklabels()] == ["softmax", "matmul"]
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["pass", "fail", "threshold"]
    assert plots.overview([sim.record(sim.cv("k"))]) is None


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "xdist"])
def test_one_file_a_kernel_and_an_overview(suite: pytest.Pytester, workers: list[str]) -> None:  # noqa: F811
    result = suite.runpytest_subprocess(
        "--ciq-plots=p", "--html=r.html", "--self-contained-html", *workers
    )
    names = {path.name for path in (suite.path / "p").iterdir()}
    assert names == {"softmax.png", "matmul.png", "norm.png", "f.png", "g.png", "overview.png"}
    result.stdout.fnmatch_lines(["--ciq-plots: 5 kernels and overview.png in *"])
    pytest.importorskip("pytest_html")
    assert (suite.path / "r.html").read_text().count("data:image/png;base64") == 5


def test_a_run_that_times_nothing_says_that_nothing_is_drawn(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "import pytest\nfrom pathlib import Path\n"
        "Path('best.acf').write_bytes(b'best')\n"
        "@pytest.mark.ciq_objective\n@pytest.mark.ciq_beats_baseline\n"
        "def test(ciq): ciq.check(lambda config: 1.0 if config else 2.0)"
    )
    result = pytester.runpytest_subprocess("--ciq-plots=p")
    result.stdout.fnmatch_lines(["--ciq-plots: nothing was timed, so nothing is drawn"])
    assert not (pytester.path / "p").exists()


def test_without_matplotlib_the_run_does_not_start(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    result = pytester.runpytest_inprocess("--ciq-plots=p")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--ciq-plots needs matplotlib*", "*pip install*plots*"])


# History


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    folder = tmp_path / "reports"
    folder.mkdir()
    for day, speedup in ((2, 0.98), (1, 1.06)):
        win = sim.record(sim.win("softmax", speedup=speedup, seed=day), "t.py::a")
        exact = replace(sim.win("spills", speedup=1.06), samples=(), numbers={"score_ratio": 1.5})
        found = [win, sim.record(exact, "t.py::b"), sim.record(sim.cv("softmax"), "t.py::a")]
        gpus = [{"nodeid": "t.py::a", "gpu": "H200 (GPU-1)"}]
        environment = {**_json.environment(found), "date": f"2026-11-0{day}T08:30:00+00:00"}
        environment["commit"] = f"{day}" * 40
        (folder / f"{9 - day}.json").write_text(_json.as_text(found, gpus, environment))
    (folder / "package.json").write_text('{"name": "something else"}')
    return folder


def test_history_by_kernel_and_date(reports: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert history.main([str(reports)]) == 0
    out, err = capsys.readouterr()
    lines = [line.rstrip() for line in out.splitlines()]
    assert lines[:4] == [
        "softmax",
        "  date, UTC         commit    speed-up              verdict       GPU",
        "  2026-11-01 08:30  11111111  1.060 [1.053, 1.068]  pass          H200 (GPU-1)",
        "  2026-11-02 08:30  22222222  0.980 [0.975, 0.986]  fail: slower  H200 (GPU-1)",
    ]
    assert lines[4:6] == ["spills", "  date, UTC         commit    speed-up  verdict  GPU"]
    assert "fail: slower" in out
    assert "H200 (GPU-1)" in out
    assert err == ""


def test_history_for_github_action_benchmark(reports: Path, tmp_path: Path) -> None:
    target, picture = tmp_path / "b.json", tmp_path / "h.png"
    assert history.main([str(reports), f"--json={target}", f"--plot={picture}"]) == 0
    softmax, spills = json.loads(target.read_text())
    assert softmax["name"] == "softmax in t.py::a"
    assert softmax["unit"] == "x"
    assert 0.97 < softmax["value"] < 0.99  # the newest run, not the file that comes last
    assert softmax["extra"] == "fail: slower\nH200 (GPU-1)"
    low, _, high = softmax["range"].partition(" to ")
    assert float(low) < softmax["value"] < float(high)
    assert spills == {"name": "spills in t.py::b", "unit": "x", "value": 1.5, "extra": "pass"}
    assert picture.read_bytes().startswith(PNG)


def test_history_of_kernels_of_one_name(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two tests are two trends, and one that comes later cuts none in two."""
    for day, tests in ((1, "a"), (2, "ab"), (3, "ab")):
        found = [sim.record(sim.win("softmax", speedup=1.06), f"{one}/t.py::t") for one in tests]
        environment = {**_json.environment(found), "date": f"2026-11-0{day}T08:30:00+00:00"}
        (tmp_path / f"{day}.json").write_text(_json.as_text(found, [], environment))
    assert history.main([str(tmp_path), f"--json={tmp_path / 'b.txt'}"]) == 0
    shape = [
        line[:12] if line.startswith("  2") else line[:30]
        for line in capsys.readouterr().out.splitlines()
    ]
    assert [line for line in shape if "date" not in line] == [
        "softmax in a/t.py::t", "  2026-11-01", "  2026-11-02", "  2026-11-03",
        "softmax in b/t.py::t", "  2026-11-02", "  2026-11-03",
    ]  # fmt: skip
    names = [entry["name"] for entry in json.loads((tmp_path / "b.txt").read_text())]
    assert names == ["softmax in a/t.py::t", "softmax in b/t.py::t"]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "no report of --ciq-json"),
        ("[]", "no report of --ciq-json"),
        ('{"schema": 2, "records": []}', "schema 2, and this version reads 1"),
        ("[" * 100_000, "no report of --ciq-json"),
        ("\x00", "no report of --ciq-json"),
        ('{"schema": 1}', "no report of --ciq-json"),
        ('{"schema": 1, "environment": {"date": "2026"}, "records": [], "gpus": []}', "no report"),
        (
            '{"schema": 1, "environment": {"date": "2026-01-01"}, "records": {"a": 1}, "gpus": []}',
            "no report of --ciq-json",
        ),
    ],
    ids=range(8),
)
def test_a_named_file_that_is_no_report_is_told(
    reports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, says: str
) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text(text)
    assert history.main([str(bad)]) == 2
    assert says in capsys.readouterr().err
    assert history.main([str(bad), str(reports)]) == 1  # the others are shown all the same
    assert "softmax" in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["", "[" * 9, '{"schema": 1, "recor', '{"schema": 2, "records": []}']
)
def test_a_broken_report_in_a_folder_is_told(
    reports: Path, capsys: pytest.CaptureFixture[str], text: str
) -> None:
    """A run that left half a file must not be one that was never there."""
    (reports / "broken.json").write_text(text)
    assert history.main([str(reports)]) == 1
    out, err = capsys.readouterr()
    assert err.startswith(f"history: {reports / 'broken.json'}: ")
    assert len(err.splitlines()) == 1  # package.json beside it is no report, and is not told
    assert "softmax" in out


def test_history_without_reports(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert history.main([str(tmp_path)]) == 2
    assert "to do: give files" in capsys.readouterr().err
    assert history.main([str(tmp_path / "absent.json")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_history_that_cannot_be_written(
    reports: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert history.main([str(reports), f"--json={tmp_path}/no/folder.json"]) == 1
    assert "No such file" in capsys.readouterr().err
