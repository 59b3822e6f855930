"""Shared fixtures. Tests run the real ptxas and the real compileiq; neither is ever faked."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_compileiq.errors import ToolchainError
from pytest_compileiq.toolchain import ptxas as _ptxas
from pytest_compileiq.toolchain.assembler import Assembler
from pytest_compileiq.toolchain.ptxas import Ptxas

pytest_plugins = ["pytester"]

ROOT = Path(__file__).parent.parent
DATA = ROOT / "tests" / "data"
EXAMPLE = ROOT / "examples" / "ptx"


def pytest_configure(config: pytest.Config) -> None:
    # A job in the background, as CI may be one, ignores SIGINT, and so would all its children.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    # A run inside a test must not lock the clocks of a GPU on which this one may only look.
    if config.getoption("ciq_gpu") is not None:
        os.environ["PYTEST_CIQ_CLOCKS"] = config.getoption("ciq_clocks") or "observe"


@pytest.fixture(autouse=True)
def no_step_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs inside tests must not write into the summary of the job that runs the tests."""
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)


@pytest.fixture(scope="session")
def ptxas() -> Ptxas:
    """A real ptxas of the release that the example's ACFs were made for."""
    try:
        found = _ptxas.find()
    except ToolchainError as error:
        pytest.skip(f"needs ptxas 13.3: {error.what}")
    if found.release != "13.3":
        pytest.skip(f"the example's ACFs need ptxas 13.3, and this is {found}")
    return found


@pytest.fixture
def assembler(ptxas: Ptxas) -> Any:
    made = Assembler(explicit=ptxas.path)
    yield made
    made.close()


@pytest.fixture(scope="session")
def sgemm_ptx() -> str:
    return (EXAMPLE / "sgemm.ptx").read_text()


#: Two tiny kernels, which assemble in milliseconds.
TINY = """
.version 8.0
.target sm_90
.address_size 64
.visible .entry tiny(.param .u64 p)
{
    .reg .b64 %a; .reg .f32 %f;
    ld.param.u64 %a, [p];
    ld.global.f32 %f, [%a];
    add.f32 %f, %f, 0f3F800000;
    st.global.f32 [%a], %f;
    ret;
}
"""
TWO = TINY + TINY.split("64\n", 1)[1].replace("tiny", "other")


@pytest.fixture
def sgemm(pytester: pytest.Pytester, ptxas: Ptxas) -> pytest.Pytester:
    """A folder with the example's kernel and ACFs, for test files of the test's own."""
    for name in ("sgemm.ptx", "best.acf", "best.acf.json", "worst.acf", "worst.acf.json"):
        shutil.copy(EXAMPLE / name, pytester.path / name)
    return pytester


RunJson = Callable[..., tuple[pytest.RunResult, list[dict[str, Any]]]]


@pytest.fixture
def run_json(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> RunJson:
    """Run pytest in a process of its own; returns its result and the records of --ciq-json."""
    # Tests write one file again and again. Bytecode is cached by seconds and size, so a file
    # that changed from 90 to 91 within a second would be run as it was before.
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")

    def run(*args: str) -> tuple[pytest.RunResult, list[dict[str, Any]]]:
        report = pytester.path / "report.json"
        result = pytester.runpytest_subprocess(f"--ciq-json={report}", *args, timeout=120)
        return result, json.loads(report.read_text())["records"]

    return run


@pytest.fixture
def other_ptxas() -> Callable[[str], Path]:
    """The real ptxas of another release, from CIQ_TEST_PTXAS/<release>, which tox fills."""

    def get(release: str) -> Path:
        base = os.environ.get("CIQ_TEST_PTXAS")
        if not base:
            pytest.skip("needs other ptxas releases under CIQ_TEST_PTXAS; `tox -e py` brings them")
        (found,) = Path(base, release).rglob("bin/ptxas")
        found.chmod(0o755)
        return found

    return get


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str, str], Path]:
    """Write an executable shell script: a tool that misbehaves on purpose."""

    def write(name: str, body: str) -> Path:
        path = tmp_path / name
        # PATH of its own: the tests also run where PATH holds little but python.
        path.write_text(f"#!/bin/sh\nPATH=/usr/bin:/bin\n{body}\n")
        path.chmod(0o755)
        return path

    return write
