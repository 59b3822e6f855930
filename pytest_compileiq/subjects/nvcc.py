"""A kernel written in CUDA C++: nvcc makes the PTX, the session's ptxas makes the cubin.

The ACF is for ptxas, so nvcc is asked for PTX only, and its own ptxas, which may be too old to
take an ACF (13.0 is), has no part. PTX of an older release is accepted by a newer ptxas.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from pytest_compileiq.errors import CiqError, ToolchainError
from pytest_compileiq.files import beside
from pytest_compileiq.subjects.ptx import PtxKernel
from pytest_compileiq.toolchain import process
from pytest_compileiq.toolchain.caches import applied
from pytest_compileiq.verdict import Reason

if TYPE_CHECKING:
    from pytest_compileiq.subjects.launcher import Dimensions

_TIMEOUT = 300.0
#: Options that nvcc adds to every command line behind the user's back.
_BEHIND = ("NVCC_APPEND_FLAGS", "NVCC_PREPEND_FLAGS")


class NvccKernel(PtxKernel):
    """CUDA C++ from a file (relative to the test file) or as text, compiled for ``arch``.

    ``flags`` are nvcc's (``-O3``, ``-I``, ``-D``, ``--use_fast_math``), with paths relative to the
    test file, too; ``nvcc`` is the program, looked up on PATH. Flags in NVCC_APPEND_FLAGS and
    NVCC_PREPEND_FLAGS are kept out, as they may hold an ACF. ``entry`` is needed when the source has
    several kernels, mangled unless ``extern "C"``. Everything else is as for :class:`PtxKernel`.
    """

    _nameless: ClassVar[str] = "nvcc"

    def __init__(
        self,
        source: str | Path,
        *,
        arch: str,
        flags: Sequence[str] = (),
        nvcc: str = "nvcc",
        entry: str | None = None,
        name: str | None = None,
        grid: Dimensions | None = None,
        block: Dimensions | None = None,
        args: Sequence[Any] = (),
        shared_bytes: int = 0,
        check: Callable[[], object] | None = None,
        outputs: Sequence[Any] = (),
    ) -> None:
        self._flags = tuple(flags)
        self._nvcc = nvcc
        self._made: dict[Path, str] = {}
        super().__init__(
            source,
            arch=arch,
            entry=entry,
            name=name,
            grid=grid,
            block=block,
            args=args,
            shared_bytes=shared_bytes,
            check=check,
            outputs=outputs,
        )

    def text(self, folder: Path) -> str:
        """The PTX that nvcc makes, once a folder. Raises CiqError with nvcc's own words."""
        if folder not in self._made:
            self._made[folder] = self._compiled(folder)
        text = self._made[folder]
        self._settle_entry(text)
        return text

    def _compiled(self, folder: Path) -> str:
        program = shutil.which(self._nvcc)
        if program is None:
            raise ToolchainError(
                f"{self.name}: there is no {self._nvcc} on PATH",
                remedy="install the CUDA toolkit, or give nvcc=PATH; or commit the PTX and use "
                "PtxKernel",
            )
        with tempfile.TemporaryDirectory(prefix="ciq-nvcc-") as scratch:
            source = self._written(folder, Path(scratch))
            ptx = Path(scratch) / "kernel.ptx"
            # In this folder and without its path, which assert() would write into the PTX.
            argv = [os.path.abspath(program), "-ptx", f"-arch={self._arch}", "-I.", *self._flags]
            with applied(dict.fromkeys(_BEHIND)):
                finished = process.run([*argv, source, "-o", ptx], timeout=_TIMEOUT, cwd=folder)
            looked_at = [f"cd {folder}", " ".join(finished.argv)]
            if finished.returncode is None:
                raise ToolchainError(
                    f"{self.name}: nvcc hung and was killed after {_TIMEOUT:g} s",
                    looked_at=looked_at,
                    reason=Reason.HUNG,
                )
            if finished.returncode != 0 or not ptx.exists():
                said = [line for line in finished.output.splitlines() if line.strip()]
                raise CiqError(
                    f"{self.name}: nvcc could not compile {Path(source).name} for {self._arch}: "
                    f"{' / '.join(said[:6])[:600] or 'it printed nothing'}",
                    looked_at=looked_at,
                    remedy="mend the source or flags=: no ACF has come to it yet",
                    reason=Reason.CRASHED,
                )
            # Names of files in it may be of any encoding.
            return ptx.read_text(encoding="utf-8", errors="replace")

    def _written(self, folder: Path, scratch: Path) -> str:
        """The source as nvcc gets it: the user's file, seen from ``folder``, or the text's copy."""
        if self._path is None:
            path = scratch / "kernel.cu"
            path.write_text(f'#line 1 "{path.name}"\n{self._text}', encoding="utf-8")
            return str(path)
        path = folder / self._path
        if not path.is_file():
            raise CiqError(
                f"the CUDA source {path} does not exist",
                looked_at=[beside(path, ".cu")],
                remedy="the path of a source is relative to the test file: correct it, or commit the "
                "file",
            )
        return os.path.relpath(path.parent.resolve() / path.name, folder.resolve())
