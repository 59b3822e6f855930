"""A kernel given as PTX."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from pytest_compileiq.errors import CiqError
from pytest_compileiq.files import read_plain
from pytest_compileiq.subjects.kernel import Arm, Build, Kernel
from pytest_compileiq.toolchain import ptx as _ptx
from pytest_compileiq.toolchain.assembler import Assembler, Job


class PtxKernel(Kernel):
    """PTX from a file (relative to the test file) or as text, assembled for ``arch``.

    ``entry`` is needed when the PTX has several entry functions. Errors of the PTX are raised
    when it is first built, inside the test.
    """

    takes_flags: ClassVar[bool] = True

    def __init__(
        self,
        source: str | Path,
        *,
        arch: str,
        entry: str | None = None,
        name: str | None = None,
    ) -> None:
        is_text = isinstance(source, str) and "\n" in source
        self._text = str(source) if is_text else None
        self._path = None if is_text else Path(source)
        self._arch = arch
        stem = entry or "ptx" if self._path is None else self._path.stem
        super().__init__(self._assemble_one, name=name or stem, entry=entry)

    def arch(self) -> str:
        return self._arch

    def text(self, folder: Path) -> str:
        """The PTX. Raises CiqError when it cannot be read or its entry is not clear."""
        if self._text is None:
            assert self._path is not None
            path = folder / self._path
            try:
                text = read_plain(path).decode()
            except (OSError, UnicodeDecodeError) as error:
                raise CiqError(
                    f"the PTX file {path} cannot be read ({error})",
                    remedy="a PTX path is relative to the test file",
                ) from error
        else:
            text = self._text
        self._settle_entry(text)
        return text

    def _settle_entry(self, text: str) -> None:
        found = _ptx.entries(text)
        if not found:
            raise CiqError(
                f"{self.name}: the PTX has no .entry function",
                remedy="make it with `nvcc -ptx` from a __global__ function",
            )
        if self.entry is None:
            if len(found) > 1:
                raise CiqError(
                    f"{self.name}: the PTX has {len(found)} entry functions, "
                    f"and entry= does not say which is meant: {', '.join(found)}",
                    remedy=f'write PtxKernel(..., entry="{found[0]}")',
                )
            self.entry = found[0]
        elif self.entry not in found:
            raise CiqError(
                f"{self.name}: the PTX has no entry function {self.entry}; it has "
                f"{', '.join(found)}",
                remedy="correct entry=; names are those of the PTX, mangled for C++",
            )

    def ptx_sha256(self, folder: Path) -> str:
        return _ptx.normalised_sha256(self.text(folder))

    def build_all(
        self, arms: Sequence[Arm], assembler: Assembler, folder: Path
    ) -> list[Build | Exception]:
        text = self.text(folder)
        jobs = [Job(text, self._arch, arm.acf, arm.flags) for arm in arms]
        return [
            answer if isinstance(answer, CiqError) else Build(answer.cubin, answer.log)
            for answer in assembler.run_all(jobs)
        ]

    def _assemble_one(self, acf: Path | None) -> Build:
        """``build`` for people who call it themselves, outside a test session."""
        from pytest_compileiq.toolchain.acf import load

        assembler = Assembler()
        arm = Arm("acf", load(acf)) if acf is not None else Arm("baseline")
        try:
            answer = self.build_all([arm], assembler, Path.cwd())[0]
        finally:
            assembler.close()
        if isinstance(answer, Exception):
            raise answer
        return answer
