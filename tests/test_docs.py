"""README and docs: every code block runs, the reference is the code's, and links lead somewhere.

A block's fence says what it is. Its words after the language:

* ``python test_x.py``: written to a folder and run by pytest, where it has to pass
* ``LANGUAGE name``: written to that file
* ``console``: each ``$`` line is run, and has to succeed; ``console fails``: it must not
* ``text output``: these lines stand, in this order, in what the last command printed; a line may
  end anywhere, runs of blanks count as one, and ``...`` leaves lines out. ``text`` is only shown
* ``python compile`` and ``python hook``: an excerpt that has only to be Python, and an
  implementation of hooks with the arguments that these have
* ``needs=gpu`` and so on: left out where that is missing, run where it is there. ``docker``,
  ``hour``, ``network`` and ``tox`` count as missing everywhere: run such a block by hand

Blocks of a page share one folder, with the kernel and the ACFs of examples/ptx, and reports/.
"""

from __future__ import annotations

import ast
import configparser
import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml
from markdown_it import MarkdownIt

from docs import make_reference
from pytest_compileiq import hookspecs, settings
from pytest_compileiq.toolchain.ptxas import Ptxas

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    page
    for pages in (
        ROOT.glob("*.md"),
        (ROOT / "docs").rglob("*.md"),
        (ROOT / "examples").rglob("*.md"),
    )
    for page in pages
    if page.name != "reasons.md"
)
BY_HAND = {"docker", "hour", "network", "tox"}  # tox is what CI itself runs
NEEDS = BY_HAND | {
    *("flashinfer", "gpu", "helion", "matplotlib", "nvcc", "search-space", "triton"),
}


@dataclass(frozen=True)
class Block:
    line: int
    language: str
    words: frozenset[str]
    name: str | None
    needs: str | None
    text: str


def blocks_of(page: Path) -> list[Block]:
    found = []
    for token in MarkdownIt("commonmark").parse(page.read_text(encoding="utf-8")):
        if token.type != "fence" or token.info.startswith("{"):
            continue
        language, *words = token.info.split() or ["nothing"]
        needs = [word.removeprefix("needs=") for word in words if word.startswith("needs=")]
        names = [word for word in words if "." in word]
        assert token.map is not None
        found.append(
            Block(
                token.map[0] + 1,
                language,
                frozenset(words),
                names[0] if names else None,
                needs[0] if needs else None,
                token.content,
            )
        )
    return found


def missing(need: str, config: pytest.Config) -> bool:
    """Is a thing that a block needs not here?"""
    if need == "gpu":
        return config.getoption("ciq_gpu") is None
    if need == "nvcc":
        return shutil.which("nvcc") is None
    if need == "search-space":
        return not os.environ.get("CIQ_SEARCH_SPACES_DIR")
    if need in BY_HAND:
        return True
    return importlib.util.find_spec(need) is None


class Reader:
    """Does what a page says, in a folder of its own."""

    def __init__(self, folder: Path, config: pytest.Config, ptxas: Ptxas) -> None:
        self.folder = folder / "kernels"
        self.folder.mkdir()
        (folder / "pytest-compileiq").symlink_to(ROOT)
        self.config = config
        #: What the last console block printed; None when it was left out.
        self.output: str | None = ""
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")},
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTEST_ADDOPTS": "-p no:randomly --color=no",
            "PYTEST_CIQ_PTXAS": str(ptxas.path),
            "PYTHONDONTWRITEBYTECODE": "1",
            "GIT_CONFIG_GLOBAL": os.devnull,
            **dict.fromkeys(("GIT_AUTHOR_NAME", "GIT_COMMITTER_NAME"), "A Reader"),
            **dict.fromkeys(("GIT_AUTHOR_EMAIL", "GIT_COMMITTER_EMAIL"), "reader@example.org"),
        }
        if config.getoption("ciq_gpu") is not None:
            self.environment["PYTEST_CIQ_CLOCKS"] = "observe"
        (self.folder / "pytest.ini").write_text("[pytest]\n")  # no ini file of a folder above
        subprocess.run(["git", "init", "-q"], cwd=self.folder, env=self.environment, check=True)

    def read(self, block: Block) -> None:
        if block.needs is not None:
            assert block.needs in NEEDS, f"needs={block.needs} is unknown"
            if missing(block.needs, self.config):
                self.output = None
                if block.language == "python":
                    ast.parse(block.text)
                return
        if block.name is not None:
            path = self.folder / block.name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(block.text)
        getattr(self, f"_{block.language.replace('+', 'p')}", self._other)(block)

    def _python(self, block: Block) -> None:
        if block.words & {"compile", "hook"}:
            tree = ast.parse(block.text)
            if "hook" in block.words:
                _implements_hooks(tree)
            return
        assert block.name is not None, "give a file's name, or `compile`"
        if block.name.startswith("test_"):
            gpu = self.config.getoption("ciq_gpu") if block.needs == "gpu" else None
            at = [] if gpu is None else [f"--ciq-gpu={gpu}"]
            self.run(["pytest", "-q", *at, block.name])
            assert self.output is not None
            assert " passed" in self.output, self.output

    def _console(self, block: Block) -> None:
        self.output = ""
        for line in block.text.splitlines():
            if line.startswith("$ "):
                self.run(line[2:], fails="fails" in block.words)

    def _text(self, block: Block) -> None:
        if "output" in block.words and self.output is not None:
            at = 0
            printed = " ".join(self.output.split())
            for line in block.text.splitlines():
                wanted = " ".join(line.split())
                if wanted == "...":
                    continue
                found = printed.find(wanted, at)
                assert found >= 0, f"{wanted!r} is not in, or not in this order:\n{self.output}"
                at = found + len(wanted)

    def _yaml(self, block: Block) -> None:
        assert yaml.safe_load(block.text)

    def _other(self, block: Block) -> None:
        assert block.name is not None, f"what is to be done with {block.language}?"

    def run(self, command: str | list[str], *, fails: bool = False) -> None:
        done = subprocess.run(
            command,
            shell=isinstance(command, str),
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=300,
        )
        self.output = (self.output or "") + done.stdout
        assert (done.returncode != 0) == fails, f"{command}: {done.returncode}\n{done.stdout}"


def _implements_hooks(tree: ast.Module) -> None:
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    assert functions
    for node in functions:
        hook = getattr(hookspecs, node.name)
        known = hook.__code__.co_varnames[: hook.__code__.co_argcount]
        assert {argument.arg for argument in node.args.args} <= set(known)
    imports = [node for node in tree.body if isinstance(node, ast.Import | ast.ImportFrom)]
    exec(compile(ast.Module(imports, []), "hook", "exec"), {})


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_block_does_what_the_page_says(
    page: Path, tmp_path: Path, pytestconfig: pytest.Config, ptxas: Ptxas
) -> None:
    reader = Reader(tmp_path, pytestconfig, ptxas)
    if page.name != "tutorial.md":  # which copies them by a command of its own
        for name in ("sgemm.ptx", "best.acf", "best.acf.json", "worst.acf", "worst.acf.json"):
            shutil.copy(ROOT / "examples" / "ptx" / name, reader.folder)
        dateless = shutil.ignore_patterns("gpu-h200-*.json")  # of a run before reports had dates
        shutil.copytree(ROOT / "benchmarks" / "results", reader.folder / "reports", ignore=dateless)
    for block in blocks_of(page):
        try:
            reader.read(block)
        except Exception as error:
            error.add_note(f"{page.relative_to(ROOT)}:{block.line}")
            raise


def test_a_block_that_lies_is_found(
    tmp_path: Path, pytestconfig: pytest.Config, ptxas: Ptxas
) -> None:
    reader = Reader(tmp_path, pytestconfig, ptxas)

    def read(language: str, text: str, *words: str, name: str | None = None) -> None:
        reader.read(Block(1, language, frozenset(words), name, None, text))

    unnamed = tmp_path / "unnamed.md"
    unnamed.write_text("```\nfence\n```\n")
    read("console", "$ echo one two\n$ echo three\n")
    read("text", "one\nthree\n", "output")
    read("text", "one\n...\nthree\n", "output")
    with pytest.raises(AssertionError, match="not in this order"):
        read("text", "three\none\n", "output")
    with pytest.raises(AssertionError, match="false: 1"):
        read("console", "$ false\n")
    with pytest.raises(AssertionError, match="true: 0"):
        read("console", "$ true\n", "fails")
    with pytest.raises(AssertionError, match="1 failed"):
        read("python", "def test_x(): assert 0\n", name="test_x.py")
    with pytest.raises(AssertionError, match="skipped"):
        read("python", "import pytest\ndef test_x(): pytest.skip()\n", name="test_x.py")
    with pytest.raises(AssertionError, match="to be done with nothing"):
        reader.read(next(iter(blocks_of(unnamed))))
    with pytest.raises(AssertionError, match="file's name"):
        read("python", "x = 1\n")
    with pytest.raises(AssertionError):
        read("python", "def pytest_ciq_record(config, recrod): ...\n", "hook")


def test_the_readme_shows_what_the_demo_prints(
    tmp_path: Path, pytestconfig: pytest.Config, ptxas: Ptxas
) -> None:
    (shown,) = [block for block in blocks_of(ROOT / "README.md") if "output" in block.words]
    reader = Reader(tmp_path, pytestconfig, ptxas)
    tox = configparser.ConfigParser(interpolation=None)
    tox.read(ROOT / "tox.ini")
    reader.run(
        tox["testenv:demo"]["commands"].format(posargs="").replace("examples", f"{ROOT}/examples")
    )
    reader.read(shown)


def test_pages_name_options_that_exist() -> None:
    known = {option.flag for option in settings.OPTIONS}
    for page in PAGES:
        named = set(re.findall(r"--ciq-[a-z0-9-]+", page.read_text(encoding="utf-8")))
        assert named <= known, page


@pytest.mark.parametrize("name", make_reference.PAGES)
def test_the_reference_is_current(name: str) -> None:
    stored = (make_reference.HERE / name).read_text(encoding="utf-8")
    assert stored == make_reference.PAGES[name](), "run python docs/make_reference.py"


def links(page: Path) -> Iterator[str]:
    for found in re.finditer(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if not found[1].startswith(("http", "#", "mailto:")):
            yield found[1].partition("#")[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    assert [link for link in links(page) if not (page.parent / link).exists()] == []


def test_readme_is_two_screens() -> None:
    assert len((ROOT / "README.md").read_text(encoding="utf-8").splitlines()) <= 120


def test_every_page_is_in_a_table_of_contents() -> None:
    index = (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").rglob("*.md"):
        name = str(page.relative_to(ROOT / "docs")).removesuffix(".md")
        assert name == "index" or f"\n{name}\n" in index


@pytest.mark.parametrize(
    "path", sorted((ROOT / "examples" / "ci").glob("*.yml")), ids=lambda p: p.name
)
def test_ci_files_have_both_tiers_and_give_the_clocks_back(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    whole = yaml.safe_load(text)
    jobs = whole.get("jobs", whole)
    assert "--ciq-gpu" not in str(jobs["static"])
    assert "--ciq-gpu" in str(jobs["gpu"])
    assert "reset-clocks" in str(jobs["gpu"])
    known = {option.flag for option in settings.OPTIONS}
    assert set(re.findall(r"--ciq-[a-z0-9-]+", text)) <= known
