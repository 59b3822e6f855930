"""A kernel given as PTX."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_compileiq.errors import CiqError, SettingsError, ToolchainError
from pytest_compileiq.files import beside, read_plain
from pytest_compileiq.subjects.kernel import Arm, Build, Kernel, Launch, loaded_when_used
from pytest_compileiq.toolchain import ptx as _ptx
from pytest_compileiq.toolchain.assembler import Assembler, Job
from pytest_compileiq.toolchain.ptxas import Assembled

if TYPE_CHECKING:
    from pytest_compileiq.subjects.launcher import Dimensions


class PtxKernel(Kernel):
    """PTX from a file (relative to the test file) or as text, assembled for ``arch``.

    ``entry`` is needed when the PTX has several entry functions. Errors of the PTX are raised
    when it is first built, inside the test.

    For a GPU: ``grid`` and ``block`` (one to three numbers), ``args`` in the order of the
    PTX's parameters, ``shared_bytes`` of dynamic shared memory; ``check`` and ``outputs`` as for
    :class:`Kernel`. Arguments are GPU arrays (torch, cupy, cuda-core's Buffer), ints and floats,
    or numpy scalars where the exact C type matters. Without ``grid`` the kernel is only built.
    """

    takes_flags: ClassVar[bool] = True
    _nameless: ClassVar[str] = "ptx"

    def __init__(
        self,
        source: str | Path,
        *,
        arch: str,
        entry: str | None = None,
        name: str | None = None,
        grid: Dimensions | None = None,
        block: Dimensions | None = None,
        args: Sequence[Any] = (),
        shared_bytes: int = 0,
        check: Callable[[], object] | None = None,
        outputs: Sequence[Any] = (),
    ) -> None:
        if (grid is None) != (block is None):
            raise SettingsError(
                "PtxKernel: grid and block go together, and one of them is missing",
                remedy="give both to run the kernel, or neither to build it only",
            )
        self._grid, self._block, self._shared_bytes = grid, block, shared_bytes
        self._args = tuple(args)
        is_text = isinstance(source, str) and "\n" in source
        self._text = str(source) if is_text else None
        self._path = None if is_text else Path(source)
        self._arch = arch
        stem = entry or self._nameless if self._path is None else self._path.stem
        super().__init__(
            self._build_alone,
            name=name or stem,
            entry=entry,
            check=check,
            outputs=outputs,
            place=None if grid is None else self._copy,
        )

    def arch(self) -> str:
        return self._arch

    def text(self, folder: Path) -> str:
        """The PTX. Raises CiqError when it cannot be read or its entry is not clear."""
        if self._text is None:
            assert self._path is not None
            path = folder / self._path
            try:
                text = read_plain(path).decode()
            except FileNotFoundError:
                raise CiqError(
                    f"the PTX file {path} does not exist",
                    looked_at=[beside(path, ".ptx")],
                    remedy="a PTX path is relative to the test file: correct it, or commit the file",
                ) from None
            except (OSError, UnicodeDecodeError) as error:
                raise CiqError(
                    f"the PTX file {path} cannot be read ({error})",
                    remedy="give PtxKernel a text file that `nvcc -ptx` wrote",
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
            answer if isinstance(answer, CiqError) else self._checked(answer, assembler)
            for answer in assembler.run_all(jobs)
        ]

    def _checked(self, answer: Assembled, assembler: Assembler) -> Build | CiqError:
        build = self._built(answer)
        try:
            other = None if build.code is None else assembler.other(build.code)
        except CiqError as error:
            return error
        if other is None:
            return build
        ptxas = assembler.ptxas()
        return ToolchainError(
            f"{ptxas.path} says that it is ptxas {ptxas}, and another one has made the code: {other}",
            remedy="name that program itself with --ciq-ptxas, and not a wrapper around another one",
        )

    def _built(self, answer: Assembled) -> Build:
        if self._grid is None or self._block is None:
            return Build(answer.cubin, answer.log)
        assert self.entry is not None
        what = (answer.cubin, self.entry, self._grid, self._block, self._shared_bytes)

        def load(args: Sequence[Any]) -> Launch:
            from pytest_compileiq.subjects.launcher import Loaded

            return Loaded(*what).bind(args)

        launch = loaded_when_used(lambda: load(self._args))
        return Build(answer.cubin, answer.log, launch, load)

    def _copy(self, random: Random) -> Any:
        from pytest_compileiq.subjects import placing

        return placing.place(self._args, random)
