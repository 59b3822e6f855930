"""Options from three doors, the table, and the JSON file."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pytest_compileiq import settings as _settings
from pytest_compileiq.verdict import Check, Reason, Status, Verdict

from .conftest import RunJson

GOOD = "def good(config):\n    if config: raise RuntimeError('refused')\n    return 1.5\n"
MARKED = GOOD + "import pytest\n@pytest.mark.ciq_objective\ndef test_it(ciq): ciq.check(good)\n"


def load(pytester: pytest.Pytester, *args: str, **env: str) -> _settings.Settings:
    return _settings.load(pytester.parseconfigure(*args), env)


def test_precedence_of_an_option(pytester: pytest.Pytester) -> None:
    assert load(pytester).timeout == 600
    pytester.makeini("[pytest]\nciq_timeout = 3\nciq_strict = yes\nciq_ptxas = bin/ptxas")
    found = load(pytester)
    assert (found.timeout, found.strict) == (3, True)
    assert found.ptxas == pytester.path / "bin" / "ptxas"
    assert found.sources["timeout"] == "ciq_timeout"
    found = load(pytester, PYTEST_CIQ_TIMEOUT="2", PYTEST_CIQ_STRICT="0")
    assert (found.timeout, found.strict) == (2, False)
    assert found.sources["timeout"] == "PYTEST_CIQ_TIMEOUT"
    found = load(pytester, "--ciq-timeout=1", "--ciq-strict", PYTEST_CIQ_TIMEOUT="2")
    assert (found.timeout, found.strict) == (1, True)
    assert found.sources["timeout"] == "--ciq-timeout"


@pytest.mark.parametrize("nothing", ["", " "])
def test_an_empty_variable_is_none(pytester: pytest.Pytester, nothing: str) -> None:
    """CI sets a variable that it has no value for to nothing; the ini file counts then."""
    empty = {option.variable: nothing for option in _settings.OPTIONS}
    found = load(pytester, **empty)
    assert [found.sources[option.name] for option in _settings.OPTIONS] == ["default"] * len(empty)
    assert [getattr(found, option.name) for option in _settings.OPTIONS] == [
        option.default for option in _settings.OPTIONS
    ]
    config = pytester.parseconfig()
    assert _settings.gpu_spec(config, empty) is None
    assert not _settings.isolation_is_asked(config, empty)
    pytester.makeini("[pytest]\nciq_strict = 1")
    assert load(pytester, **empty).strict is True


def test_empty_variables_in_a_run(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    for option in _settings.OPTIONS:
        monkeypatch.setenv(option.variable, "")
    pytester.makepyfile(MARKED)
    result = pytester.runpytest_subprocess()
    result.assert_outcomes(passed=1)
    assert "compileiq: gpu=" not in result.stdout.str()


def test_the_settings_of_a_run_are_fixed(pytester: pytest.Pytester) -> None:
    with pytest.raises(AttributeError, match="timeout"):
        load(pytester).timeout = 1


def test_every_option_has_three_doors_and_is_a_setting(pytester: pytest.Pytester) -> None:
    help_text = pytester.runpytest("--help").stdout.str()
    fields = set(_settings.Settings.__slots__)
    for option in _settings.OPTIONS:
        assert option.flag in help_text
        assert option.ini in help_text
        assert option.name in fields
    assert len(fields) == len(_settings.OPTIONS) + 1


@pytest.mark.parametrize(
    ("args", "env", "source", "message"),
    [
        (["--ciq-timeout=soon"], {}, "--ciq-timeout", "number of seconds above 0"),
        (["--ciq-timeout=0"], {}, "--ciq-timeout", "above 0"),
        (["--ciq-timeout=inf"], {}, "--ciq-timeout", "above 0"),
        ([], {"PYTEST_CIQ_STRICT": "maybe"}, "PYTEST_CIQ_STRICT", "1 or 0"),
        (["--ciq-json="], {}, "--ciq-json", "give a path"),
    ],
)
def test_a_bad_value_names_its_source(
    pytester: pytest.Pytester, args: list[str], env: dict[str, str], source: str, message: str
) -> None:
    good = pytester.parseconfig(*args)
    with pytest.raises(ValueError, match=f"from {source}: .*{message}"):
        _settings.load(good, env)


def test_a_bad_value_is_a_usage_error(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nciq_timeout = -1")
    result = pytester.runpytest_subprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*bad value '-1' from ciq_timeout*"])
    assert "INTERNALERROR" not in result.stderr.str()


def test_a_verdict_needs_a_reason_unless_it_passes() -> None:
    for status, reason in (
        (Status.PASS, Reason.HUNG),
        (Status.FAIL, None),
        (Status.UNDECIDED, None),
    ):
        with pytest.raises(ValueError, match="verdict with reason"):
            Verdict(check=Check.WIN, kernel="k", status=status, reason=reason)


def test_the_json_file(pytester: pytest.Pytester, run_json: RunJson) -> None:
    pytester.makepyfile(MARKED)
    _, records = run_json("-q")
    document = json.loads((pytester.path / "report.json").read_text())
    assert document["schema"] == 1
    assert document["environment"]["packages"]["pytest"] == pytest.__version__
    assert records == [
        {
            "nodeid": "test_the_json_file.py::test_it",
            "kernel": "good",
            "check": "objective",
            "status": "pass",
            "reason": None,
            "message": "baseline 1.5, damaged ACF raises (RuntimeError: refused); no good one was "
            "tried, which acf= would name",
            "remedy": "",
            "numbers": {"objectives": 1, "baseline_scores": [1.5], "damaged": "raised"},
            "samples": [],
        }
    ]


def test_ctrl_c_leaves_a_whole_file(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        MARKED + "def test_zz():\n    import pathlib, time\n"
        "    pathlib.Path('here').touch()\n    time.sleep(60)"
    )
    process = subprocess.Popen(
        [sys.executable, "-m", "pytest", "--ciq-json=r.json"],
        cwd=pytester.path,
        stdout=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": ""},
    )
    deadline = time.monotonic() + 60
    while not (pytester.path / "here").exists() and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    assert process.wait(20) == pytest.ExitCode.INTERRUPTED
    records = json.loads((pytester.path / "r.json").read_text())["records"]
    assert [record["status"] for record in records] == ["pass"]


def test_no_file_on_collect_only_and_no_table_without_records(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(MARKED)
    result = pytester.runpytest_subprocess("--collect-only", "--ciq-json=r.json")
    assert not (pytester.path / "r.json").exists()
    assert "= compileiq =" not in result.stdout.str()
    pytester.makepyfile("def test(): pass")
    assert "= compileiq =" not in pytester.runpytest_subprocess().stdout.str()


@pytest.mark.parametrize("workers", [[], ["-n2"]], ids=["alone", "xdist"])
def test_the_table_fits(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, workers: list[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    name = "a_very_long_name_of_a_parametrised_kernel_" * 3
    pytester.makepyfile(
        f"import pytest\nfrom pytest_compileiq import Objective\n@pytest.mark.ciq_objective\n"
        f"@pytest.mark.parametrize('n', [1, None])\ndef test(ciq, n):\n"
        f"    ciq.check(Objective(lambda c: '*' if c else n, name=f'{name}[{{n}}]'))"
    )
    result = pytester.runpytest_subprocess("--color=no", "--tb=no", *workers)
    lines = result.outlines
    start = next(i for i, line in enumerate(lines) if "= compileiq =" in line)
    end = next(i for i, line in enumerate(lines) if line.startswith("compileiq: "))
    table = lines[start : end + 1]
    assert max(map(len, table)) <= 80
    joined = "".join(line.strip() for line in table)
    assert f"{name}[1]" in joined
    assert f"{name}[None]" in joined
    assert "returned None" in joined
    assert [line for line in table if line.split()[:2] == ["objective", "pass"]]
    assert [line for line in table if line.split()[:3] == ["objective", "fail:", "bad-shape"]]
    assert table[-1] == "compileiq: 1 pass, 1 fail"


def test_kept_files_are_named(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        from pytest_compileiq import PtxKernel
        PTX = '''
        .version 8.0
        .target sm_90
        .address_size 64
        .visible .entry tiny(.param .u64 p)
        {
            ret;
        }
        '''
        def test(ciq): ciq.assert_canary(PtxKernel(PTX, arch="sm_90"), margin=1)
        """
    )
    result = pytester.runpytest_subprocess("--ciq-keep")
    line = next(line for line in result.outlines if "--ciq-keep: " in line)
    folder = Path(line.rpartition(" ")[2])
    assert list(folder.rglob("*.cubin"))
    assert list(folder.rglob("*.acf"))


def test_devices_are_written_and_links_followed(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(MARKED)
    (pytester.path / "link.json").symlink_to(pytester.path / "target.json")
    pytester.runpytest_subprocess("--ciq-json=link.json").assert_outcomes(passed=1)
    assert (pytester.path / "link.json").is_symlink()
    assert json.loads((pytester.path / "target.json").read_text())["records"]
    pytester.runpytest_subprocess("--ciq-json=/dev/null").assert_outcomes(passed=1)
    assert Path("/dev/null").is_char_device()
