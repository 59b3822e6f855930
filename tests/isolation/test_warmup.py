"""What is done once for all isolated tests, and that a failure of it harms none of them."""

from __future__ import annotations

from pathlib import Path

from .conftest import Suite

TRITON_CACHE = """
import functools
@functools.lru_cache
def triton_key(): jot("key"); return "3.6"
"""
PTXAS = """#!/bin/sh
echo "main ptxas $1" >> "$JOT"
echo "Cuda compilation tools, release 13.3, V13.3.73"
"""


def program(path: Path, text: str) -> Path:
    path.write_text(text)
    path.chmod(0o755)
    return path


def test_versions_are_asked_for_once(suite: Suite) -> None:
    runtime = suite.path / "triton" / "runtime"
    runtime.mkdir(parents=True)
    (runtime.parent / "__init__.py").touch()
    (runtime / "__init__.py").touch()
    (runtime / "cache.py").write_text("from suite_support import jot\n" + TRITON_CACHE)
    ptxas = program(suite.path / "ptxas", PTXAS)
    suite.write(
        test_a="""
import triton.runtime.cache as cache
MODULES = ("elftools.elf.elffile", "pytest_compileiq.complaints", "pytest_compileiq.fixture")
@pytest.mark.parametrize("n", range(3))
def test_1(ciq, ciq_ptxas, n):
    assert all(name in sys.modules for name in MODULES)
    assert (cache.triton_key(), ciq_ptxas.name) == ("3.6", "ptxas")
def test_2(): assert not any(name in sys.modules for name in MODULES[:2])
"""
    )
    assert suite.run(f"--ciq-ptxas={ptxas}").counts == {"passed": 4}
    assert sorted(suite.jots) == ["child key", "main ptxas --version"]


def test_a_test_that_names_another_ptxas_gets_it(suite: Suite) -> None:
    """Only the answer of each program is remembered, not the choice."""
    other = program(suite.path / "ptxas", PTXAS)
    suite.write(
        test_a=f"""
def test_1(ciq, monkeypatch, request):
    monkeypatch.setenv("TRITON_PTXAS_PATH", {str(other)!r})
    assert str(request.getfixturevalue("ciq_ptxas")) == {str(other)!r}
"""
    )
    result = suite.run()
    assert result.counts == {"passed": 1}, result.out


def test_what_can_not_be_warmed_up_is_left_to_the_test(suite: Suite) -> None:
    runtime = suite.path / "triton" / "runtime"
    runtime.mkdir(parents=True)
    (runtime.parent / "__init__.py").touch()
    (runtime / "__init__.py").touch()
    (runtime / "cache.py").write_text("def triton_key(): raise OSError('unreadable')\n")
    (runtime.parent / "experimental").mkdir()
    gluon = "from suite_support import jot\njot('gluon')\nraise RuntimeError('no such driver')\n"
    (runtime.parent / "experimental" / "gluon.py").write_text(gluon)
    suite.write(
        test_a="""
import triton.runtime.cache
def test_1(ciq): pass
def test_2(ciq, ciq_ptxas): pass
"""
    )
    result = suite.run("--ciq-ptxas=/nowhere/ptxas")
    assert result.counts == {"passed": 1, "error": 1}
    assert suite.jots == ["child gluon"]  # once, in the process that both are forked from
    assert "--ciq-ptxas=/nowhere/ptxas cannot be used" in result.out
