"""Find a ptxas that knows ``--apply-controls``, run it, read what it reports."""

from __future__ import annotations

import functools
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from pytest_compileiq.errors import AcfError, AssemblyError, CiqError, ToolchainError
from pytest_compileiq.toolchain import process
from pytest_compileiq.toolchain import ptx as _ptx
from pytest_compileiq.verdict import Reason

MINIMUM = (13, 3)
WHEEL = "nvidia-cuda-nvcc"
_INSTALL = f"install one, `pip install '{WHEEL}==13.3.*'`, or name it with --ciq-ptxas=PATH"
_VERSION_TIMEOUT = 20.0

_RELEASE = re.compile(r"release (\d+)\.(\d+), V(\d+)\.(\d+)\.(\d+)")
_ENTRY = re.compile(r"Compiling entry function '([\w$]+)'")
_FUNCTION = re.compile(r"Function properties for '?([\w$]+)'?")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_BARRIERS = re.compile(r"used (\d+) barriers")
_SHARED = re.compile(r"(\d+)(?:\+\d+)? bytes smem")
_CONSTANT = re.compile(r"(\d+) bytes cmem\[\d+\]")
_AT_LINE = re.compile(r"^ptxas .*, line (\d+); ")
_OF_THE_TARGET = re.compile(r"\.target|\.version|gpu-name")
#: Lines of ptxas' complaints that a message holds: the first ones name the cause.
_ERRORS = 3


@dataclass(frozen=True, slots=True)
class Ptxas:
    """One ptxas program: its path and its version as integers, such as (13, 3, 73)."""

    path: Path
    version: tuple[int, ...]

    @property
    def release(self) -> str:
        """``13.3``: what an ACF is bound to."""
        return ".".join(str(part) for part in self.version[:2])

    def __str__(self) -> str:
        return ".".join(str(part) for part in self.version)


@dataclass(frozen=True, slots=True)
class Resources:
    """What ``ptxas -v`` reports for one entry function; bytes a thread, a block for shared."""

    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    barriers: int
    shared_bytes: int
    constant_bytes: int

    @property
    def spill_bytes(self) -> int:
        return self.spill_store_bytes + self.spill_load_bytes

    def as_numbers(self) -> dict[str, int]:
        return {**asdict(self), "spill_bytes": self.spill_bytes}


@dataclass(frozen=True, slots=True)
class Assembled:
    """One successful run of ptxas."""

    cubin: bytes
    log: str


def candidates(explicit: Path | None, env: Mapping[str, str]) -> Iterator[tuple[str, Path]]:
    """Every place a ptxas may be, as (where, path), in the documented order.

    An explicit path is the only candidate: falling through to another ptxas than the one the
    user named would hide a typo.
    """
    if explicit is not None:
        yield "--ciq-ptxas", explicit
        return
    if triton := env.get("TRITON_PTXAS_PATH"):
        yield "TRITON_PTXAS_PATH", Path(triton)
    for folder in env.get("PATH", "").split(os.pathsep):
        if folder and os.access(program := Path(folder) / "ptxas", os.X_OK):
            yield "PATH", program
    if wheel := _from_wheel():
        yield f"the {WHEEL} wheel", wheel


def _from_wheel() -> Path | None:
    from importlib.metadata import PackageNotFoundError, distribution

    try:
        files = distribution(WHEEL).files or []
    except PackageNotFoundError:
        return None
    for file in files:
        if file.name == "ptxas" and file.parent.name == "bin":
            return Path(str(file.locate()))
    return None


def find(explicit: Path | None = None, env: Mapping[str, str] | None = None) -> Ptxas:
    """The first ptxas of 13.3 or newer. Raises ToolchainError that lists all looked at."""
    looked_at: list[str] = []
    too_old = False
    for where, path in candidates(explicit, os.environ if env is None else env):
        try:
            found = identify(path)
        except ToolchainError as error:
            looked_at.append(f"{where}: {error.what}")
            if explicit is not None:
                raise ToolchainError(
                    f"--ciq-ptxas={path} cannot be used: {error.what}",
                    remedy=error.remedy or _INSTALL,
                    reason=error.reason,
                ) from error
            continue
        if found.version >= MINIMUM:
            return found
        too_old = True
        looked_at.append(f"{where}: {path} is ptxas {found}")
    floor = ".".join(map(str, MINIMUM))
    what = (
        f"every ptxas here is too old: --apply-controls needs {floor} or newer"
        if too_old
        else f"no ptxas of {floor} or newer was found"
    )
    empty = "--ciq-ptxas, TRITON_PTXAS_PATH, PATH and the wheel, none of which has a ptxas"
    raise ToolchainError(what, looked_at=looked_at or [empty], remedy=_INSTALL)


def identify(path: Path) -> Ptxas:
    """Ask a ptxas for its version; the answer is kept while the file stays the same.

    That it hung is kept, too, and said: each question is 20 s, and one test asks several times.
    """
    try:
        stat = path.stat()
    except OSError as error:
        raise ToolchainError(
            f"{path} cannot be read ({error.strerror})", remedy=_INSTALL
        ) from error
    answer = _identify(path, stat.st_mtime_ns, stat.st_size)
    if answer is None:
        raise ToolchainError(
            f"{path} --version hung and was killed after {_VERSION_TIMEOUT:g} s, and is not asked "
            "again in this session",
            reason=Reason.HUNG,
        )
    return answer


@functools.lru_cache(maxsize=16)
def _identify(path: Path, mtime_ns: int, size: int) -> Ptxas | None:
    """None: it hung. Raises ToolchainError, which is not kept, for anything else that is wrong."""
    try:
        finished = process.run([path, "--version"], timeout=_VERSION_TIMEOUT)
    except OSError as error:
        raise ToolchainError(f"{path} cannot be started ({error.strerror})") from error
    if finished.returncode is None:
        return None
    if finished.died_by:
        raise ToolchainError(
            f"{path} --version crashed with {finished.died_by}", reason=Reason.CRASHED
        )
    match = _RELEASE.search(finished.output)
    if match is None:
        raise ToolchainError(
            f"{path} does not answer --version like a ptxas (exit status "
            f"{finished.returncode}, output {finished.output.strip()[:120]!r})"
        )
    return Ptxas(path, tuple(int(part) for part in match.groups()[2:]))


def parse_resources(log: str) -> dict[str, Resources]:
    """Read ``ptxas -v`` output: one Resources for each entry function named in it.

    An empty answer means that the tool reported nothing (a cache answered, or ``-v`` was not
    given), never "no spills". The report does not say which entry calls a device function that
    was not inlined, so the spills of such functions count for every entry.
    """
    found: dict[str, Resources] = {}
    called = (0, 0)
    name = function = ""
    spills = (0, 0, 0)
    for line in log.splitlines():
        if match := _ENTRY.search(line):
            name = match.group(1)
        elif match := _FUNCTION.search(line):
            function = match.group(1)
        elif match := _SPILLS.search(line):
            if function and function != name:
                called = (called[0] + int(match[2]), called[1] + int(match[3]))
            else:
                spills = (int(match[1]), int(match[2]), int(match[3]))
        elif name and (match := _USED.search(line)):
            barriers = _BARRIERS.search(line)
            shared = _SHARED.search(line)
            found[name] = Resources(
                registers=int(match[1]),
                stack_bytes=spills[0],
                spill_store_bytes=spills[1],
                spill_load_bytes=spills[2],
                barriers=int(barriers[1]) if barriers else 0,
                shared_bytes=int(shared[1]) if shared else 0,
                constant_bytes=sum(int(size) for size in _CONSTANT.findall(line)),
            )
            name, spills = "", (0, 0, 0)
    return {
        entry: replace(
            used,
            spill_store_bytes=used.spill_store_bytes + called[0],
            spill_load_bytes=used.spill_load_bytes + called[1],
        )
        for entry, used in found.items()
    }


def assemble(
    ptxas: Ptxas,
    ptx: str,
    *,
    arch: str,
    acf: Path | None = None,
    flags: Sequence[str] = (),
    timeout: float,
    keep: Path | None = None,
) -> Assembled:
    """Assemble PTX text for ``arch`` (such as ``sm_90a``) with or without an ACF.

    ``timeout`` is in seconds. ``keep`` is a folder that keeps the PTX and the cubin; without
    it both are removed. Raises AcfError (ptxas refused the ACF), AssemblyError (it refused
    the PTX), ToolchainError (it crashed or hung).
    """
    folder = Path(tempfile.mkdtemp(prefix="ptxas-", dir=keep))
    try:
        source, cubin = folder / "kernel.ptx", folder / "kernel.cubin"
        source.write_text(ptx, encoding="utf-8")
        argv = [str(ptxas.path), "-v", f"-arch={arch}", *flags]
        if acf is not None:
            argv.append(f"--apply-controls={acf}")
        argv += [str(source), "-o", str(cubin)]
        try:
            finished = process.run(argv, timeout=timeout)
        except OSError as error:
            raise ToolchainError(f"{ptxas.path} cannot be started ({error.strerror})") from error
        if finished.returncode == 0 and cubin.is_file():
            return Assembled(cubin.read_bytes(), finished.output)
        raise _failure(ptxas, finished, ptx, arch=arch, acf=acf, timeout=timeout)
    finally:
        if keep is None:
            shutil.rmtree(folder, ignore_errors=True)


def _failure(
    ptxas: Ptxas,
    finished: process.Finished,
    ptx: str,
    *,
    arch: str,
    acf: Path | None,
    timeout: float,
) -> CiqError:
    looked_at = [" ".join(finished.argv)]
    arm = "with the ACF" if acf else "without an ACF"
    if finished.returncode is None:
        return ToolchainError(
            f"ptxas {ptxas} hung {arm} and was killed after {timeout:g} s",
            looked_at=looked_at,
            remedy="raise --ciq-ptxas-timeout if the kernel is that large; else drop this ACF",
            reason=Reason.HUNG,
        )
    if finished.died_by:
        return ToolchainError(
            f"ptxas {ptxas} crashed with {finished.died_by} {arm}",
            looked_at=looked_at,
            remedy="repeat the command above; a crash with the ACF alone means: drop this ACF",
            reason=Reason.CRASHED,
        )
    if acf is not None and not acf.exists():
        return ToolchainError(
            f"the staged ACF {acf} vanished, so ptxas {ptxas} could not read it",
            looked_at=looked_at,
            remedy="keep what cleans up temporary files away from TMPDIR while tests run",
        )
    if acf is not None and (refusal := acf_refusal(finished.output)):
        return AcfError(f"ptxas {ptxas} refused the ACF: {refusal}", looked_at=looked_at)
    said = _first_errors(finished.output)
    if _OF_THE_TARGET.search(said):
        remedy = (
            f"the PTX says .target {_ptx.target(ptx)}: check arch=, which is {arch!r}, and that "
            "this ptxas knows its .version"
        )
    elif acf is None:
        remedy = "correct the PTX, or make it anew with `nvcc -ptx`"
    else:
        remedy = "drop this ACF if ptxas takes the PTX without it"
    return AssemblyError(
        f"ptxas {ptxas} could not assemble the PTX for {arch} {arm} "
        f"(exit status {finished.returncode}): {said or 'it printed nothing'}",
        looked_at=looked_at,
        remedy=remedy,
    )


def _first_errors(output: str) -> str:
    """The first errors of ptxas' output, without its path; what else it says if it names none."""
    lines = [" ".join(line.split()) for line in output.splitlines()]
    lines = [
        _AT_LINE.sub(r"line \1: ", line)
        for line in lines
        if line and not line.startswith("ptxas info")
    ]
    lines = [line for line in lines if "warning :" not in line] or lines
    more = len(lines) - _ERRORS
    shown = " / ".join(lines[:_ERRORS])[:600]
    return shown + (f" / and {more} more line{'s' * (more > 1)}" if more > 0 else "")


def acf_refusal(output: str) -> str | None:
    """The part of a compiler's output that says it refused the ACF, or None.

    The wordings are those of ptxas 13.0 to 13.5; all end with exit status 255.
    """
    for line in output.splitlines():
        text = line.partition(":")[2].strip() or line.strip()
        lowered = line.lower()
        if "compiler controls" in lowered or "not in expected format" in lowered:
            return text
        if "payload is not valid" in lowered or ".acf' could not be opened" in lowered:
            return text
    return None
