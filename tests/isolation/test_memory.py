"""What makes a fork of a large process cheap changes nothing that a test can see."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_compileiq.isolation import memory

from .conftest import Suite

PROGRAM = """
import re
from pytest_compileiq.isolation import memory
def huge():
    text = open("/proc/self/smaps_rollup").read()
    return int(re.search(r"AnonHugePages: +(\\d+)", text)[1])
objects = [{n: str(n)} for n in range(400_000)]
before = huge()
memory.collapse()
assert [n[i] for i, n in enumerate(objects)] == [str(n) for n in range(400_000)]
print(before // 1024, huge() // 1024)
"""


def test_objects_end_up_in_huge_pages() -> None:
    if not memory._PAGE_SIZE.exists():
        pytest.skip("this kernel has no transparent huge pages")
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    before, after = map(int, done.stdout.split())
    if before == after == 0:
        pytest.skip("this kernel does not collapse pages")
    assert after - before > 50  # MB, of the 150 or so that the objects take


def test_a_kernel_without_huge_pages(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(memory, "_PAGE_SIZE", tmp_path / "none")
    memory.collapse()
    (tmp_path / "odd").write_text("unknown\n")
    monkeypatch.setattr(memory, "_PAGE_SIZE", tmp_path / "odd")
    memory.collapse()


@pytest.mark.parametrize(("items", "worth_it"), [(19, False), (20, True)])
def test_only_where_many_forks_pay_for_it(suite: Suite, items: int, worth_it: bool) -> None:
    suite.write(
        conftest="""
from pytest_compileiq.isolation import memory
before = memory.collapse
def collapse(): jot("collapse"); before()
memory.collapse = collapse
""",
        test_a=f"""
@pytest.mark.parametrize("n", range({items}))
def test_1(ciq, n): assert inside()
@pytest.mark.parametrize("n", range(20))
def test_2(n): assert not inside()
""",
    )
    assert suite.run("-q").counts == {"passed": items + 20}
    assert suite.jots == ["main collapse"] * worth_it
