"""A kernel that can be built with and without an ACF."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from pytest_compileiq.errors import CiqError
from pytest_compileiq.isolation import child
from pytest_compileiq.toolchain import acf as _acf
from pytest_compileiq.toolchain import cubin as _cubin
from pytest_compileiq.toolchain.acf import Acf
from pytest_compileiq.toolchain.assembler import Assembler
from pytest_compileiq.toolchain.cubin import Cubin
from pytest_compileiq.toolchain.ptxas import Resources, parse_resources
from pytest_compileiq.verdict import BASELINE_ARM, one_line

#: Enqueues one launch on the current CUDA stream and does not wait for it.
Launch = Callable[[], None]


@dataclass(frozen=True)
class Build:
    """What ``build(acf)`` returns.

    ``cubin`` is the machine code, as bytes or as the path of a file that is read as soon as
    the build returns, or None when the build cannot give it: then nothing can be proven about
    arrival and effect. ``ptxas_log`` is the output of ``ptxas -v``, from which registers and
    spills are read.

    ``launch`` runs the kernel on the buffers that the kernel's ``check`` reads; None when there
    is no GPU. ``load(buffers)`` loads the machine code once more, at another address, and
    returns a launch on the buffers that ``Kernel.place`` gave. Without it every measurement is
    of one placement, and what that placement is worth cannot be told from what the ACF is.
    """

    cubin: bytes | Path | None = None
    ptxas_log: str | None = None
    launch: Launch | None = None
    load: Callable[[Any], Launch] | None = None

    @functools.cached_property
    def code(self) -> Cubin | None:
        """The parsed cubin. Raises CiqError when it is not one."""
        if self.cubin is None:
            return None
        return _cubin.read(_contents(self.cubin))

    @functools.cached_property
    def resources(self) -> dict[str, Resources]:
        """Resources of each entry function; empty when there is no report."""
        return parse_resources(self.ptxas_log or "")


def _contents(cubin: bytes | Path) -> bytes:
    if isinstance(cubin, Path):
        return cubin.read_bytes()
    if not isinstance(cubin, bytes):
        raise TypeError(f"Build.cubin is bytes or a Path, not {type(cubin).__name__}")
    return cubin


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to build a kernel. The baseline has no ACF and no flags."""

    name: str
    acf: Acf | None = None
    flags: tuple[str, ...] = ()


BASELINE = Arm(BASELINE_ARM)


class Kernel:
    """Any kernel: ``build(acf)`` compiles it, with the ACF at that path or with None.

    ``build`` has to hand the path to ptxas unchanged (``--apply-controls=<path>``), and must
    not apply any ACF when it gets None. ``entry`` names the entry function when the cubin has
    several.

    For a GPU: ``check()`` raises, or returns False, when the results of the last launch are wrong;
    ``outputs`` are the buffers that a launch writes, filled with NaN before each check, and
    ``place(random)`` returns copies of the working buffers at new addresses, for ``Build.load``.
    """

    #: Whether ``build_all`` honours ``Arm.flags``, so that raw -O0 and -O3 can be asked for.
    takes_flags: ClassVar[bool] = False

    def __init__(
        self,
        build: Callable[[Path | None], Build],
        *,
        name: str | None = None,
        entry: str | None = None,
        check: Callable[[], object] | None = None,
        outputs: Sequence[Any] = (),
        place: Callable[[Random], Any] | None = None,
    ) -> None:
        self._build = build
        self.name = one_line(name or getattr(build, "__name__", type(build).__name__))
        self.entry = entry
        self.check = check
        self.outputs = tuple(outputs)
        self._place = place

    def build(self, acf: Path | None) -> Build:
        """Compile the kernel with the ACF at that path, or without any."""
        return self._build(acf)

    def place(self, random: Random) -> Any:
        """The working buffers at new addresses; both arms of a comparison share them."""
        return None if self._place is None else self._place(random)

    def build_all(
        self, arms: Sequence[Arm], assembler: Assembler, folder: Path
    ) -> list[Build | Exception]:
        """Build each arm; an exception is an answer. ``folder`` is that of the test file."""
        answers: list[Build | Exception] = []
        for arm in arms:
            child.progress(arm.name, kernel=self.name)
            try:
                answers.append(self._build_arm(arm, assembler))
            except Exception as error:
                answers.append(error)
        return answers

    def _build_arm(self, arm: Arm, assembler: Assembler) -> Build:
        built = self.build(None if arm.acf is None else assembler.staging.path(arm.acf))
        if not isinstance(built, Build):
            raise TypeError(f"build() returned {type(built).__name__}, not a Build")
        # Now, not later: the next arm may write to the same path.
        return built if built.cubin is None else replace(built, cubin=_contents(built.cubin))

    def _build_alone(self, acf: Path | None) -> Build:
        """``build`` of an adapter, for people who call it themselves, outside a test session."""
        assembler = Assembler()
        arm = BASELINE if acf is None else Arm(acf.name, _acf.load(acf))
        try:
            (answer,) = self.build_all([arm], assembler, Path.cwd())
        finally:
            assembler.close()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def ptx_sha256(self, folder: Path) -> str | None:
        """Hash of the normalised PTX, or None when the PTX is not known."""
        return None

    def arch(self) -> str | None:
        """The architecture that is built for, such as ``sm_90a``, or None when not known."""
        return None

    def code_of(self, build: Build) -> Cubin | None:
        code = build.code
        if code is not None and self.entry and f".text.{self.entry}" not in code.text:
            raise CiqError(
                f"{self.name}: the cubin has no entry function {self.entry}",
                looked_at=[", ".join(sorted(code.text))],
                remedy="correct entry=; names are those of the cubin, mangled for C++",
            )
        return code

    def resources_of(self, build: Build) -> Resources | None:
        """Resources of the kernel's own entry function, or None without a report."""
        found = build.resources
        if self.entry is not None:
            return found.get(self.entry)
        if len(found) > 1:
            raise CiqError(
                f"{self.name}: ptxas reports {len(found)} entry functions and entry= is not given",
                looked_at=[", ".join(sorted(found))],
                remedy="name one of them with entry=",
            )
        return next(iter(found.values()), None)


def loaded_when_used(load: Callable[[], Launch]) -> Launch:
    """The launch that ``load`` gives, asked for at the first call: a build may want no GPU."""
    loaded = functools.cache(load)
    return lambda: loaded()()


class Workbench:
    """A kernel on the bench of one test: every arm is built once, whoever asks."""

    def __init__(self, kernel: Kernel, assembler: Assembler, folder: Path) -> None:
        self.kernel = kernel
        self.assembler = assembler
        self.folder = folder
        self._built: dict[tuple[str, tuple[str, ...]], Build | Exception] = {}

    def build(self, arms: Sequence[Arm]) -> list[Build | Exception]:
        """The answer for each arm, in order."""
        keys = [(arm.acf.sha256 if arm.acf else "", arm.flags) for arm in arms]
        new = {key: arm for key, arm in zip(keys, arms, strict=True) if key not in self._built}
        if new:
            answers = self.kernel.build_all(list(new.values()), self.assembler, self.folder)
            self._built.update(zip(new, answers, strict=True))
        return [self._built[key] for key in keys]

    def staged(self, acf: Acf) -> Path:
        return self.assembler.staging.path(acf)
