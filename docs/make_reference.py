"""Writes docs/reference/*.md from the code: options, marks, subjects, fixtures, hooks, and so on.

``python docs/make_reference.py`` writes the pages, ``tests/test_docs.py`` says when they are
stale. What a docstring, a help text or the schema says is said there and nowhere else.
"""

from __future__ import annotations

import ast
import inspect
import json
import re
from collections.abc import Callable, Iterable
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest_compileiq
from pytest_compileiq import CIQ, __main__, marks, settings
from pytest_compileiq.verdict import Check, Status

HERE = Path(__file__).parent / "reference"
PACKAGE = Path(pytest_compileiq.__file__).parent
WRITTEN_BY = "\n<!-- Written by docs/make_reference.py: change the code, then run it. -->\n"

#: What an option's help has no room for.
NOTES = {
    "gpu": "An index counts in your `CUDA_VISIBLE_DEVICES`. Others are `cuda:N`, `nvml:N`, the "
    "beginning of a UUID, a MIG UUID and a PCI id. A list hands out whichever is free.",
    "clocks": "`auto` locks if the driver allows it. `require` fails if it does not, or if the "
    "clock did not hold. `observe` never sets anything.",
    "sm_mhz": "`base` is the clock that the card can sustain. A number is snapped down to the "
    "card's list.",
    "lease_dir": "Else `/run/lock/ciq`, `$XDG_RUNTIME_DIR/ciq`, `/tmp/ciq-<uid>`: the first that "
    "is there.",
    "ptxas": "Else `TRITON_PTXAS_PATH`, `PATH`, the `nvidia-cuda-nvcc` wheel: the first that is "
    "13.3 or newer.",
    "isolate": "`auto` isolates each test that uses a `ciq` fixture when there is a GPU.",
    "debug_pack": "A debug pack is an asset of CompileIQ's releases. Else the mark's `o0=` and `o3=`, or "
    "raw `-O0` and `-O3`, see `ciq_canary`.",
    "plots": "Needs the extra `plots`, and `--ciq-gpu`: only what was timed is drawn.",
    "retune": "By time with `--ciq-gpu`, by spills without, or by an objective's score. The search "
    "takes three quarters of `--ciq-timeout` at most, which the test gets once more.",
    "accept": "Writes nothing else. With `--ciq-retune`, the winner takes the place of an ACF that still "
    "fails, and its test fails until the next run has judged it.",
    "keep": "`CIQ_KEEP_CACHE=1` does so for searches.",
}


def _markdown(text: str) -> str:
    """A docstring, which is reStructuredText of the plainest kind, as Markdown."""
    lines: list[str] = []
    example: list[str] | None = None
    for line in [*inspect.cleandoc(text).splitlines(), "."]:
        if example is not None:
            if not line or line.startswith("    "):
                example.append(line)
                continue
            code = dedent("\n".join(example)).strip()
            lines += ["", "```python hook", code, "```", ""]
            example = None
        if line.endswith("::"):
            line, example = line[:-1], []
        line = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", line)
        lines.append(line.replace("``", "`"))
    return "\n".join(lines[:-1]).strip()


def _table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    head = list(head)
    lines = [head, ["---"] * len(head), *map(list, rows)]
    return "\n".join("| " + " | ".join(cell for cell in line) + " |" for line in lines) + "\n"


def _signature(function: Callable[..., Any]) -> str:
    """The parameters without their types, which the docstring tells better."""
    parameters = [
        one.replace(annotation=inspect.Parameter.empty)
        for one in inspect.signature(function).parameters.values()
        if one.name != "self"
    ]
    return str(inspect.Signature(parameters))


def _shown(value: str | float) -> str:
    return value if isinstance(value, str) else f"{value:g}"


def options() -> str:
    rows = []
    for one in settings.OPTIONS:
        value = "" if one.metavar is None else f"={one.metavar}"
        value = f"[{value}]" if one.const else value
        default = "" if one.default in (None, False) else f"`{_shown(one.default)}`"
        note = NOTES.get(one.name, "")
        value = value.replace("|", "\\|")
        rows.append([f"`{one.flag}{value}`", f"{one.help}. {note}".strip(), default])
    assert NOTES.keys() <= {one.name for one in settings.OPTIONS}
    return (
        f"# Options, variables and ini keys\n{WRITTEN_BY}\n"
        "Each option can be given in three places, and the first of them wins: the command line "
        "(`--ciq-gpu-timeout`), the environment (`PYTEST_CIQ_GPU_TIMEOUT`), the ini file "
        "(`ciq_gpu_timeout`). A switch is on with `1`, `true`, `yes` or `on`. In pytest 9's "
        '`[tool.pytest]` each value is a string: `ciq_budget = "3"`, `ciq_strict = "true"`. '
        "`pytest` prints in its header what was set and where. For what a mark decides "
        "(limits, ACFs), there is no option.\n\n"
        + _table(["option", "meaning", "default"], rows)
        + "\nA relative path is relative to the folder that pytest was started in, or, from the "
        "ini file, to the rootdir. `pytest -p no:compileiq` removes the plugin.\n"
    )


def marks_page() -> str:
    parts = [
        (
            f"# Marks\n{WRITTEN_BY}\n"
            "A mark says what has to hold; the test hands over its subject with `ciq.check(subject)`. "
            "The closest mark wins: of a parameter set, the function, the class, the module. A mark "
            "on a test that hands nothing over fails that test, and so does a wrong argument. Paths "
            "are relative to the test file. The checks run in the order of this page.\n"
        )
    ]
    for name, (_, kind) in marks.MARKS.items():
        text = _markdown(kind.__doc__ or "").partition(": ")[2]
        text = text[0].upper() + text[1:]
        parts.append(f"\n## {name}\n\n`{name}{marks.signature(kind)}`\n\n{text}\n")
    verbs = [
        [f"`ciq.{name}{_signature(getattr(CIQ, name))}`", _first(getattr(CIQ, name).__doc__)]
        for name in vars(CIQ)
        if name.startswith("assert_") or name in ("check", "compare")
    ]
    parts.append("\n## The verbs of `ciq`\n\n" + _table(["call", "meaning"], verbs))
    parts.append(
        "\n`ciq.on_gpu` says whether kernels are launched and timed in this run.\n\n"
        "## `ciq.compare`\n\n"
        + _markdown(pytest_compileiq.CIQ.compare.__doc__ or "")
        + "\n\nIt returns a `Comparison`. "
        + _markdown(pytest_compileiq.Comparison.__doc__ or "")
        + "\n"
    )
    return "".join(parts)


def _first(text: str | None) -> str:
    return _markdown(text or "").partition("\n\n")[0].replace("\n", " ")


def subjects() -> str:
    names = ["PtxKernel", "NvccKernel", "TritonKernel", "HelionKernel", "Kernel", "Build"]
    names += ["Objective", "ForkWorker", "open_search"]
    parts = [
        (
            f"# Subjects and other classes\n{WRITTEN_BY}\n"
            "All of these are imported from `pytest_compileiq`. What a test hands to `ciq.check` is a "
            "kernel, an `Objective`, or a function, which is taken as an objective.\n"
        )
    ]
    for name in names:
        made = getattr(pytest_compileiq, name)
        call = made.using if name == "ForkWorker" else made
        shown = f"{name}.using" if name == "ForkWorker" else name
        parts.append(
            f"\n## {name}\n\n```text\n{_wrapped(shown + _signature(call))}\n```\n\n"
            f"{_markdown(made.__doc__ or '')}\n"
        )
        if name == "ForkWorker" and call.__doc__:
            parts.append(f"\n{_markdown(call.__doc__)}\n")
    return "".join(parts)


def _wrapped(call: str) -> str:
    """A long signature with one argument a line."""
    if len(call) <= 90:
        return call
    name, _, rest = call.partition("(")
    arguments = re.split(r", (?=[\w*]+(?:=|,|$))", rest[:-1])
    return f"{name}(\n" + "".join(f"    {one},\n" for one in arguments) + ")"


def _functions(module: str) -> list[ast.FunctionDef]:
    tree = ast.parse((PACKAGE / module).read_text(encoding="utf-8"))
    return [
        node
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_")
    ]


def fixtures() -> str:
    parts = [
        f"# Fixtures\n{WRITTEN_BY}\nAll are of function scope. `pytest --fixtures` lists them.\n"
    ]
    for node in sorted(_functions("pytest_fixtures.py"), key=lambda node: node.name):
        parts.append(f"\n## {node.name}\n\n{_markdown(ast.get_docstring(node) or '')}\n")
    return "".join(parts)


def hooks() -> str:
    parts = [
        (
            f"# Hooks\n{WRITTEN_BY}\n"
            "For a `conftest.py` or a plugin. An implementation names only the arguments that it "
            "needs.\n"
        )
    ]
    for node in _functions("hookspecs.py"):
        names = ", ".join(argument.arg for argument in node.args.args)
        first = any("firstresult=True" in ast.unparse(one) for one in node.decorator_list)
        many = "The first answer that is not None counts." if first else "All are called."
        text = _markdown(ast.get_docstring(node) or "")
        parts.append(f"\n## {node.name}\n\n`{node.name}({names})`. {many}\n\n{text}\n")
    return "".join(parts)


def commands() -> str:
    rows = [
        [f"`python -m pytest_compileiq {name}`", line]
        for name, (_, line) in __main__.COMMANDS.items()
    ]
    return (
        f"# Commands\n{WRITTEN_BY}\nWhat runs no tests. Each takes `--help`.\n\n"
        + _table(["command", "meaning"], rows)
        + "\nThe exit status of `doctor` is the number of faults, that of `diagnose` 0 for a "
        "search without a finding. `replay` is for runs that measured, with `--ciq-gpu` or an "
        "objective whose scores vary: it is 0 if every verdict came out again, 1 if one did not, "
        "2 if a file is no report or nothing was measured in it, as in one of the static tier. "
        "No command reads pytest's ini file: `doctor` takes the "
        "variables (`PYTEST_CIQ_PTXAS`), and `reset-clocks` `--ciq-lease-dir` as well; both say "
        "so where an ini file sets one of their keys.\n"
    )


def schema() -> str:
    """The keys of --ciq-json, level by level, as schema.json has them."""
    whole = json.loads((PACKAGE / "report" / "schema.json").read_text(encoding="utf-8"))
    rows: list[list[str]] = []

    def walk(part: dict[str, Any], path: str) -> None:
        for name, inner in part.get("properties", {}).items():
            here = f"{path}.{name}" if path else name
            kind = inner.get("type", "")
            kind = " or ".join(kind) if isinstance(kind, list) else kind
            told = inner.get("description", "")
            if "enum" in inner:
                told = f"{told} One of {', '.join(json.dumps(one) for one in inner['enum'])}."
            if "const" in inner:
                told = f"{told} Always {json.dumps(inner['const'])}."
            rows.append([f"`{here}`", kind, told.strip().replace("|", "\\|")])
            walk(inner, here)
            walk(inner.get("items", {}), f"{here}[]")

    walk(whole, "")
    words = ", ".join(f"`{one.value}`" for one in Check)
    states = ", ".join(f"`{one.value}`" for one in Status)
    return (
        f"# The JSON report\n{WRITTEN_BY}\n"
        f"`--ciq-json=PATH` writes it. {whole['description']} The checks are {words}; a status is "
        f"one of {states}. The schema itself is `pytest_compileiq/report/schema.json`, in the "
        "package.\n\n" + _table(["key", "type", "meaning"], rows)
    )


PAGES: dict[str, Callable[[], str]] = {
    "options.md": options,
    "marks.md": marks_page,
    "subjects.md": subjects,
    "fixtures.md": fixtures,
    "hooks.md": hooks,
    "commands.md": commands,
    "schema.md": schema,
}


def main() -> None:
    for name, page in PAGES.items():
        text = page()
        path = HERE / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {path}")


if __name__ == "__main__":
    main()
