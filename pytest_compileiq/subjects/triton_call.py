"""One call of a Triton function (3.5 to 3.9): compiled by Triton itself, loaded, launched.

The ACF goes in as the launch option ``ptx_options``, which every one of these versions takes.
The environment does not do: 3.5 has no variable for it, and the later ones read PTXAS_OPTIONS
once, when their backend is imported. ``ptx_options=""`` is what keeps such a global option out
of the baseline; None would let it in.
"""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_compileiq.errors import SettingsError, ToolchainError
from pytest_compileiq.subjects.kernel import Launch
from pytest_compileiq.toolchain import caches
from pytest_compileiq.toolchain import cubin as _cubin
from pytest_compileiq.toolchain.assembler import Assembler

#: Shape of a launch: one to three numbers, or a function of the arguments by name.
Grid = Sequence[int] | Callable[[dict[str, Any]], Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class Call:
    """A JIT function with everything that a launch gives it, but for ``ptx_options``."""

    jit: Any
    args: Sequence[Any]
    constexprs: Mapping[str, Any]
    options: Mapping[str, Any]
    grid: Grid

    @property
    def values(self) -> list[Any]:
        """Every argument of a launch, constexprs and defaults included, in order.

        Raises SettingsError when they do not fit the function's parameters.
        """
        try:
            bound = self.jit.signature.bind(*self.args, **self.constexprs)
        except TypeError as error:
            name = self.jit.__name__
            raise SettingsError(
                f"{name}: {error}",
                looked_at=[f"{name}{self.jit.signature}"],
                remedy="args= are positional, constexprs={...} go by name",
            ) from None
        bound.apply_defaults()
        return list(bound.arguments.values())


@dataclass(frozen=True, slots=True)
class Compiled:
    """What Triton made: its own object for the kernel, and what ``ptxas -v`` said.

    ``host`` is the folder for what Triton has a C compiler make of the launch.
    """

    kernel: Any
    log: str
    host: Path

    @property
    def cubin(self) -> bytes:
        return bytes(self.kernel.asm["cubin"])

    @property
    def ptx(self) -> str:
        return str(self.kernel.asm["ptx"])

    @property
    def entry(self) -> str:
        return str(self.kernel.metadata.name)

    def load(self, call: Call, values: Sequence[Any]) -> Launch:
        """Load the code into a module of its own, at another address than before."""
        from triton.runtime import driver

        again = copy.copy(self.kernel)
        again.module = again.function = again._run = None  # as a new one: it has to be loaded
        shape = call.grid
        if callable(shape):
            shape = shape(dict(zip(call.jit.arg_names, values, strict=True)))
        with caches.applied({"TRITON_CACHE_DIR": str(self.host)}):
            runner = again[(*shape, 1, 1)[:3]]
        device = driver.active.get_current_device()

        def launch() -> None:
            runner(*values, stream=driver.active.get_current_stream(device))

        return launch


def compiled(
    call: Call, assembler: Assembler, ptx_options: str, *, arch: str, on_gpu: bool
) -> Compiled:
    """Compile a call with the session's ptxas and without any cache.

    Raises whatever Triton raises (``PTXASError`` with ptxas' words when it refused an ACF), and
    ToolchainError when another ptxas ran.
    """
    _ = call.values  # a mistake in the call has to be named by us, not by Triton's own wrapper
    options = {**call.options, "ptx_options": ptx_options}
    target = _gpu() if on_gpu else _no_gpu(arch)
    with _unknown(call.jit), target, _tools(assembler) as said:
        try:
            kernel = call.jit.warmup(*call.args, grid=(1,), **call.constexprs, **options)
        except Exception as error:
            _, failed, command = str(error).partition("Repro command: ")
            if failed and not command.startswith(f"{assembler.ptxas().path} "):
                raise _other_ptxas(command.split()[0], assembler) from error
            raise
    made = Compiled(kernel, said.getvalue(), host_folder(assembler))
    if other := assembler.other(_cubin.read(made.cubin)):
        raise _other_ptxas(other, assembler)
    return made


def _other_ptxas(ran: str, assembler: Assembler) -> ToolchainError:
    """Triton falls back silently to the ptxas that it brings, whose refusals mean nothing here."""
    ours = assembler.ptxas()
    return ToolchainError(
        f"Triton ran another ptxas than it was told to: {ran}, not {ours}",
        looked_at=[f"{name}={ours.path}" for name in caches.PTXAS_VARIABLES],
        remedy="take triton.knobs.nvidia.ptxas out of the program",
    )


@contextmanager
def _unknown(jit: Any) -> Iterator[None]:
    """Triton's memory of what it compiled, new for this function and put back afterwards.

    It is asked before any cache on disk and before TRITON_ALWAYS_COMPILE, and knows an ACF by
    its path alone.
    """
    known = jit.device_caches
    jit.device_caches = type(known)(jit.create_binder)
    try:
        yield
    finally:
        jit.device_caches = known


@contextmanager
def _tools(assembler: Assembler) -> Iterator[io.StringIO]:
    """Triton with the session's ptxas and an empty cache; yields what it prints.

    That is ptxas' log, as it is asked for, and of a failed run the whole PTX.
    """
    said = io.StringIO()
    with caches.folder_of_one_test(assembler) as environment:
        triton: dict[str, str | None] = {
            name: value for name, value in environment.items() if name.startswith("TRITON_")
        }
        triton |= {"TRITON_DUMP_PTXAS_LOG": "1", "DISABLE_PTXAS_OPT": None}
        with caches.applied(triton), redirect_stdout(said):
            yield said


def host_folder(assembler: Assembler) -> Path:
    """Triton's C programs, which a C compiler makes in 0.5 s each and no ACF has a part in.

    One folder for the whole session: it never holds a kernel.
    """
    return assembler.staging.folder / "triton-host"


def gpu_arch() -> str:
    """The architecture that Triton tells ptxas for the current GPU: ``sm_90a`` for 9.0."""
    from triton.runtime import driver

    capability = driver.active.get_current_target().arch
    return f"sm_{capability}a" if capability >= 90 else f"sm_{capability}"


@contextmanager
def _gpu() -> Iterator[None]:
    yield


@contextmanager
def _no_gpu(arch: str) -> Iterator[None]:
    """A driver that knows the architecture and nothing else, so that no GPU is touched."""
    from triton.backends.compiler import GPUTarget
    from triton.runtime import driver

    capability = int("".join(filter(str.isdigit, arch)))
    former = driver._active  # there is no public way to read it without starting a driver
    driver.set_active(_NoGpu(GPUTarget("cuda", capability, 32)))
    try:
        yield
    finally:
        driver._active = former


class _NoGpu:
    """In the place of Triton's driver: enough to compile, not to launch."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0
