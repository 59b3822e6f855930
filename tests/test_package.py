"""What is shipped: wheel and sdist hold what they should, and work in an empty environment."""

from __future__ import annotations

import configparser
import re
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OWN_ACFS = {
    *(str(path.relative_to(ROOT)) for path in (ROOT / "examples").rglob("*.acf")),
    "tests/data/nvcc.acf",
}


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the wheel and the sdist, built by the declared backend."""
    for need in ("build", "hatchling", "twine"):
        pytest.importorskip(need, reason=f"needs {need}; tox brings it")
    folder = tmp_path_factory.mktemp("dist")
    # The wheel is made from the sdist, so both are as complete as they have to be.
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, ROOT]
    subprocess.run(command, check=True, capture_output=True)
    return folder


def files_of_wheel(built: Path) -> set[str]:
    (wheel,) = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def files_of_sdist(built: Path) -> set[str]:
    (sdist,) = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        return {name.partition("/")[2] for name in archive.getnames() if "/" in name}


def test_the_wheel_is_the_package_and_nothing_else(built: Path) -> None:
    names = files_of_wheel(built)
    package = ROOT / "pytest_compileiq"
    expected = {
        str(path.relative_to(ROOT))
        for path in package.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert {"pytest_compileiq/py.typed", "pytest_compileiq/report/schema.json"} <= expected
    assert {name for name in names if ".dist-info/" not in name} == expected
    info = {name.partition(".dist-info/")[2] for name in names if ".dist-info/" in name}
    assert {"licenses/LICENSE", "licenses/NOTICE", "entry_points.txt"} <= info


def test_the_sdist_has_the_examples_acfs_and_no_search_space(built: Path) -> None:
    names = files_of_sdist(built)
    assert {name for name in names if name.endswith(".acf")} == OWN_ACFS
    assert [
        name for name in names if re.search(r"search[_-]space.*\.bin|\.(bin|cubin|zip)$", name)
    ] == []
    beside = {str(Path(name).parent / "NOTICE") for name in OWN_ACFS}
    assert beside <= names, "an ACF lies beside the notice of whose it is"
    needed = {"README.md", "LICENSE", "NOTICE", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md"}
    assert needed | {"tox.ini", "pyproject.toml", "docs/conf.py"} <= names


def test_what_an_index_would_show(built: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "twine", "check", "--strict", *built.iterdir()],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert done.stdout.count("PASSED") == 2


@pytest.mark.slow
def test_the_demo_runs_from_wheel_and_sdist_in_an_empty_environment(
    built: Path, tmp_path: Path
) -> None:
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    (wheel,), (sdist,) = built.glob("*.whl"), built.glob("*.tar.gz")
    subprocess.run([python, "-m", "pip", "install", "-q", f"{wheel}[ptxas]"], check=True)
    with tarfile.open(sdist) as archive:
        archive.extractall(tmp_path, filter="data")
    (source,) = tmp_path.glob("pytest_compileiq-*")
    done = subprocess.run(
        # Away from the source's own package: the wheel's is to be tested.
        [python, "-P", "-m", "pytest", "--ciq-strict", source / "examples" / "ptx"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout
    assert "5 passed" in done.stdout


def test_tox_tries_the_oldest_releases_that_are_allowed() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    allowed = {
        re.split(r"[<>=,]+", line)[0]: re.split(r"[<>=,]+", line)[1]
        for line in project["dependencies"]
    }
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    pins = [line for line in tox["testenv:lowest"]["deps"].split() if "==" in line]
    pinned = dict(re.fullmatch(r"(.+)==([\d.]+?)(?:\.\*)?", line).groups() for line in pins)  # type: ignore[union-attr]
    assert {name: pinned.get(name) for name in allowed} == allowed


def test_the_gpu_workflow_installs_what_the_tests_import() -> None:
    """Its list is that of ``tox -e py``, in which every CI run shows that nothing is missing."""
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    gpu = tox["testenv:gpu"]
    assert gpu["deps"].split()[0] == "{[testenv]deps}"
    assert not {"extras", "dependency_groups", "skip_install"} & set(gpu), "those of [testenv]"
    pinned = [line for line in gpu["deps"].split()[1:] if "==" in line]
    assert sorted(line.partition("==")[0] for line in pinned) == ["helion", "torch", "triton"]
    workflow = (ROOT / ".github" / "workflows" / "gpu.yml").read_text()
    assert re.findall(r"pip install (.*)", workflow) == ["'tox>=4.20'"]
    assert re.findall(r"tox (-.*)", workflow) == ["-e gpu --notest", "-e gpu"]
