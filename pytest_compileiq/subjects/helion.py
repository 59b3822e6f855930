"""A kernel written in Helion (1.0 and later), with one fixed configuration.

The ACF goes in as Helion's own ``advanced_controls_file``. What Helion then launches, one Triton
function with its arguments, is caught in the place of its launcher and handled like any other
Triton kernel: Helion would leave ptx_options out of the baseline, and Triton would then take a
global PTXAS_OPTIONS.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_compileiq.errors import CiqError, SettingsError
from pytest_compileiq.subjects.triton import TritonKernel
from pytest_compileiq.subjects.triton_call import Call
from pytest_compileiq.toolchain import caches


@dataclass(frozen=True, slots=True)
class _Launch:
    """What Helion would launch, and what its function returns."""

    jit: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    options: dict[str, Any]
    result: Any


class HelionKernel(TritonKernel):
    """A ``@helion.kernel`` function with the arguments of one call.

    ``config`` is a ``helion.Config``, needed unless the function has exactly one: an ACF belongs
    to one PTX. The function has to launch one kernel and to return what that writes:
    ``check(result)`` gets it, and its tensors are filled with NaN before each check.

    With tensors on the CPU the kernel is compiled for ``arch`` ("sm_90a"), without a GPU.
    """

    def __init__(
        self,
        fn: Any,
        *,
        args: Sequence[Any],
        config: Any = None,
        check: Callable[[Any], object] | None = None,
        name: str | None = None,
        arch: str | None = None,
    ) -> None:
        self._first: _Launch | None = None
        super().__init__(
            fn,
            grid=(1,),
            args=args,
            config=config,
            name=name or str(getattr(fn, "name", "helion")),
            arch=arch,
            check=None if check is None else lambda: check(self._launch_of(None).result),
        )

    def _call(self, acf: Path | None) -> tuple[Call, list[str]]:
        launch = self._launch_of(acf)
        first = self._first or launch
        options = dict(launch.options)
        words = (options.pop("ptx_options", None) or "").split()
        # The buffers are the first call's, so that all arms share them, and check() knows them.
        call = Call(
            jit=launch.jit, args=first.args, constexprs={}, options=options, grid=launch.grid
        )
        return call, words

    def _launch_of(self, acf: Path | None) -> _Launch:
        """Have Helion generate its code, and catch the launch. The baseline's is kept."""
        if acf is None and self._first is not None:
            return self._first
        if acf is not None and self._first is None:
            self._launch_of(None)
        caught: list[tuple[Any, tuple[int, ...], tuple[Any, ...], dict[str, Any]]] = []

        def catch(jit: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
            caught.append((jit, grid, args, options))

        # Helion sets TRITON_CACHE_DIR for good where it is missing.
        with caches.applied({"TRITON_CACHE_DIR": None}):
            bound = self._fn.bind(self._args)
            result = bound.compile_config(self._helion_config(acf))(*self._args, _launcher=catch)
        if len(caught) != 1:
            raise SettingsError(
                f"{self.name} launches {len(caught)} kernels, and an ACF belongs to one",
                remedy="split the function, and test each part",
            )
        launch = _Launch(*caught[0], result)
        if self._first is None:
            self.outputs = self._written(launch)
            self._first = launch
        return launch

    def _helion_config(self, acf: Path | None) -> Any:
        import helion

        config = self._config
        if config is None and len(self._fn.configs) == 1:
            (config,) = self._fn.configs
        if config is None:
            raise SettingsError(
                f"{self.name} has {len(self._fn.configs)} configurations, and an ACF belongs to one",
                remedy="name it: HelionKernel(..., config=helion.Config(...))",
            )
        chosen = dict(config.config)
        if chosen.pop("advanced_controls_file", None):
            raise SettingsError(
                f"{self.name}: the configuration applies an ACF to the baseline, too",
                remedy="leave the ACF to the mark or the verb, and take advanced_controls_file out",
            )
        if acf is not None:
            chosen["advanced_controls_file"] = str(acf)
        return helion.Config(**chosen)

    def _written(self, launch: _Launch) -> tuple[Any, ...]:
        """The tensors of the result, each of which has to be an argument of the launch."""
        result = launch.result
        parts = result if isinstance(result, list | tuple) else (result,)
        tensors = tuple(part for part in parts if hasattr(part, "untyped_storage"))
        storages = {
            arg.untyped_storage().data_ptr()
            for arg in launch.args
            if hasattr(arg, "untyped_storage")
        }
        if not tensors or any(t.untyped_storage().data_ptr() not in storages for t in tensors):
            raise CiqError(
                f"{self.name} does not return what its kernel writes, so its result cannot be "
                "checked after another launch",
                remedy="return the output tensors themselves; do the rest in check=",
            )
        return tensors
