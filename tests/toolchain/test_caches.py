"""Each test has compile caches of its own, and afterwards the environment is as it was."""

from __future__ import annotations

import contextlib
import os
import sys
import types
from pathlib import Path

import pytest

from pytest_compileiq.toolchain import caches
from pytest_compileiq.toolchain.assembler import Assembler
from pytest_compileiq.verdict import Reason

NAMES = {
    "TRITON_CACHE_DIR",
    "TRITON_ALWAYS_COMPILE",
    "HELION_CACHE_DIR",
    "HELION_SKIP_CACHE",
    "TORCHINDUCTOR_CACHE_DIR",
    "FLASHINFER_WORKSPACE_BASE",
    "CUDA_CACHE_PATH",
    "TRITON_PTXAS_PATH",
    "TRITON_PTXAS_BLACKWELL_PATH",
}


def test_every_variable_is_set_and_both_ptxas_are_ours(assembler: Assembler) -> None:
    with caches.folder_of_one_test(assembler) as environment:
        assert set(environment) == NAMES
        ours = str(assembler.ptxas().path)
        assert [environment[name] for name in caches.PTXAS_VARIABLES] == [ours, ours]
        folders = [value for name, value in environment.items() if name.endswith(("DIR", "BASE"))]
        assert len(set(folders)) == 4
        assert all(str(assembler.staging.folder) in str(folder) for folder in folders)
        Path(str(environment["TRITON_CACHE_DIR"])).mkdir()
    assert list(assembler.staging.folder.iterdir()) == []


def test_two_tests_share_no_folder(assembler: Assembler) -> None:
    with caches.folder_of_one_test(assembler) as one, caches.folder_of_one_test(assembler) as two:
        assert one["TRITON_CACHE_DIR"] != two["TRITON_CACHE_DIR"]


def test_without_a_ptxas_triton_keeps_its_own(tmp_path: Path) -> None:
    without = Assembler(explicit=tmp_path / "no-ptxas")
    with caches.folder_of_one_test(without) as environment:
        assert set(environment) == NAMES - set(caches.PTXAS_VARIABLES)
    without.close()


def test_the_environment_is_put_back_exactly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", "theirs")
    monkeypatch.setenv("CUDA_CACHE_PATH", "kept out")
    monkeypatch.delenv("HELION_CACHE_DIR", raising=False)
    before = dict(os.environ)
    wanted = {"TRITON_CACHE_DIR": "ours", "HELION_CACHE_DIR": "ours", "CUDA_CACHE_PATH": None}
    with contextlib.suppress(ZeroDivisionError), caches.applied(wanted):
        assert os.environ["TRITON_CACHE_DIR"] == os.environ["HELION_CACHE_DIR"] == "ours"
        assert "CUDA_CACHE_PATH" not in os.environ
        os.environ["TRITON_CACHE_DIR"] = "set by a library"
        1 / 0  # noqa: B018
    assert dict(os.environ) == before


def fake_module(monkeypatch: pytest.MonkeyPatch, name: str, **content: object) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__dict__.update(content)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def test_a_knob_that_wins_over_its_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    knobs = types.SimpleNamespace
    group = knobs(dir="/theirs")
    fake_module(monkeypatch, "triton.knobs", cache=group, compilation=knobs(always_compile=True))
    environment = caches.fresh(Path("/ours"), None)
    (line,) = caches.without_effect(environment)
    assert line == "TRITON_CACHE_DIR: triton.knobs.cache.dir was set to '/theirs', which wins"
    group.dir = "/ours/triton"
    assert caches.without_effect(environment) == []
    fake_module(monkeypatch, "triton.knobs", compilation=knobs(always_compile=False))
    with pytest.warns(caches.CacheWarning, match="no cache of its own: TRITON_ALWAYS_COMPILE"):
        contextlib.ExitStack().enter_context(caches.in_use(environment))


def test_flashinfer_imported_too_early_is_unfit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert caches.unfit() is None  # nobody uses it
    fake_module(monkeypatch, "flashinfer")
    env = fake_module(monkeypatch, "flashinfer.jit.env", FLASHINFER_BASE_DIR=Path("/home/me"))
    environment = caches.fresh(Path("/ours"), None)
    (line,) = caches.without_effect(environment)
    assert line == "FLASHINFER_WORKSPACE_BASE: flashinfer was imported before, with /home/me"
    with caches.applied(environment):
        error = caches.unfit()
        assert error is not None
        assert "builds in /home/me" in error.what
        assert error.reason is Reason.UNFIT
    env.__dict__["FLASHINFER_BASE_DIR"] = Path("/ours/flashinfer")
    with caches.applied(environment):
        assert caches.unfit() is None


@pytest.mark.parametrize("name", ["flashinfer_cubin", "flashinfer_jit_cache"])
def test_prebuilt_flashinfer_is_unfit_only_where_it_is_used(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / f"{name}.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    assert caches.unfit() is None
    fake_module(monkeypatch, "flashinfer")
    error = caches.unfit()
    assert error is not None
    assert f"{name} is installed" in error.what
    assert f"pip uninstall {name.replace('_', '-')}" in error.remedy


TEST = """
import os
from pathlib import Path
import pytest
from pytest_compileiq import PtxKernel

def environment(): return {name: os.environ.get(name) for name in NAMES}
BEFORE = environment()

@pytest.fixture
def early():  # set up before ciq, as its place among the arguments says
    assert os.environ["TRITON_ALWAYS_COMPILE"] == "1"

def test_of_a_check(early, ciq):
    now = environment()
    assert Path(now["TRITON_CACHE_DIR"]).parent.exists()
    assert now["TRITON_PTXAS_PATH"] == now["TRITON_PTXAS_BLACKWELL_PATH"]

def test_of_nothing():
    assert environment() == BEFORE
"""


@pytest.mark.parametrize("args", [["--ciq-isolate=require"], ["-n1", "--ciq-isolate=require"]])
def test_isolated_tests_have_it_without_asking(pytester: pytest.Pytester, args: list[str]) -> None:
    pytester.makepyfile(f"NAMES = {sorted(NAMES)}" + TEST)
    result = pytester.runpytest_subprocess(*args)
    result.assert_outcomes(passed=2)


def test_others_have_it_by_asking_and_may_override_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINE", "outer")
    pytester.makepyfile("""
        import os, pytest

        @pytest.fixture
        def ciq_cache_env(ciq_cache_env):
            return {**ciq_cache_env, "TRITON_CACHE_DIR": "chosen", "MINE": None}

        def test_1(ciq_fresh_caches):
            assert os.environ["TRITON_CACHE_DIR"] == "chosen"
            assert "MINE" not in os.environ

        def test_2(ciq):  # in pytest's own process and without a GPU: as it was
            assert "TRITON_ALWAYS_COMPILE" not in os.environ
            assert os.environ["MINE"] == "outer"
    """)
    result = pytester.runpytest_subprocess("--ciq-isolate=off")
    result.assert_outcomes(passed=2)


def test_a_check_of_what_flashinfer_answers_is_unfit(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(flashinfer="", flashinfer_cubin="")
    pytester.makepyfile("""
        import pytest

        @pytest.mark.ciq_objective
        def test_it(ciq):
            def objective(config):
                return 1.0
            import flashinfer
            ciq.check(objective)
    """)
    result = pytester.runpytest_subprocess("--ciq-isolate=off")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*unfit: flashinfer is in use and flashinfer_cubin is installed*"])
