"""A kernel written in Triton, built by Triton itself, with a GPU or without one."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from random import Random
from typing import Any, ClassVar

from pytest_compileiq.errors import CiqError, SettingsError
from pytest_compileiq.subjects import triton_call
from pytest_compileiq.subjects.kernel import BASELINE, Arm, Build, Kernel, loaded_when_used
from pytest_compileiq.subjects.triton_call import Call, Grid
from pytest_compileiq.toolchain import caches
from pytest_compileiq.toolchain import ptx as _ptx
from pytest_compileiq.toolchain.assembler import Assembler


class TritonKernel(Kernel):
    """A ``@triton.jit`` function with the arguments of one launch.

    ``args`` are positional, in the order of the function's parameters; ``constexprs`` go by
    name, and so do Triton's ``options`` (num_warps, num_stages, ...). Numbers are specialised as
    at a launch. In the place of a tensor may stand its type, such as ``"*fp16"`` (16-byte
    aligned): then the kernel is compiled for ``arch`` ("sm_90a") and no GPU is needed or touched.
    Tensors on the CPU or the meta device serve as well.

    An autotuned function needs ``config``, one of its ``triton.Config``: an ACF belongs to one
    PTX. The values of ``@triton.heuristics`` are worked out as at a launch.
    """

    takes_flags: ClassVar[bool] = True

    def __init__(
        self,
        fn: Any,
        *,
        grid: Grid,
        args: Sequence[Any],
        constexprs: Mapping[str, Any] | None = None,
        config: Any = None,
        check: Callable[[], object] | None = None,
        outputs: Sequence[Any] = (),
        name: str | None = None,
        arch: str | None = None,
        **options: Any,
    ) -> None:
        self._fn = fn
        self._grid = grid
        self._args = tuple(args)
        self._constexprs = dict(constexprs or {})
        self._config = config
        self._arch = arch
        self._options = options
        self._ptx: str | None = None
        super().__init__(
            self._build_alone,
            name=name or _name_of(fn),
            check=check,
            outputs=outputs,
            place=self._moved,
        )

    def arch(self) -> str:
        """Such as ``sm_90a``: that of the GPU which the tensors are on, else ``arch=``."""
        if not self._on_gpu():
            if self._arch is None:
                raise SettingsError(
                    f"{self.name}: no argument is on a GPU, and arch= does not say what to "
                    "compile for",
                    remedy=f'write {type(self).__name__}(..., arch="sm_90a")',
                )
            return self._arch
        here = triton_call.gpu_arch()
        if self._arch not in (None, here):
            raise CiqError(
                f"{self.name} is for {self._arch}, and its tensors are on a GPU of {here}",
                remedy="leave arch= out to follow the GPU, or run on the GPU that is meant",
            )
        return here

    def ptx_sha256(self, folder: Path) -> str:
        if self._ptx is None:
            self._build_alone(None)
        assert self._ptx is not None
        return _ptx.normalised_sha256(self._ptx)

    def _build_arm(self, arm: Arm, assembler: Assembler) -> Build:
        path = None if arm.acf is None else assembler.staging.path(arm.acf)
        call, words = self._call(path)
        on_gpu = self._on_gpu()
        host = str(triton_call.host_folder(assembler))
        with caches.applied({"TRITON_CACHE_DIR": host}):
            arch = self.arch()  # starts Triton's driver, which has a C compiler make a part of it
        made = triton_call.compiled(
            call, assembler, " ".join([*words, *arm.flags]), arch=arch, on_gpu=on_gpu
        )
        if arm == BASELINE:
            self._ptx = made.ptx
        self.entry = made.entry
        if not on_gpu:
            return Build(made.cubin, made.log)
        launch = loaded_when_used(lambda: made.load(call, call.values))
        return Build(made.cubin, made.log, launch, functools.partial(made.load, call))

    def _call(self, acf: Path | None) -> tuple[Call, list[str]]:
        """What is compiled, and with which words for ptxas."""
        jit, constexprs, options = self._resolved()
        own = options.pop("ptx_options", None) or ""
        if "apply-controls" in own:
            raise SettingsError(
                f"{self.name}: ptx_options= applies an ACF to the baseline, too",
                remedy="leave the ACF to the mark or the verb, and take it out of ptx_options=",
            )
        words = own.split()
        if acf is not None:
            words.append(f"--apply-controls={acf}")
        call = Call(
            jit=jit,
            args=[_stand_in(value, self.name) for value in self._args],
            constexprs=constexprs,
            options=options,
            grid=self._grid,
        )
        return call, words

    def _resolved(self) -> tuple[Any, dict[str, Any], dict[str, Any]]:
        """The JIT function under the decorators, its constexprs and Triton's options."""
        from triton import knobs
        from triton.runtime import Autotuner, Heuristics, JITFunction

        fn, constexprs, options = self._fn, dict(self._constexprs), dict(self._options)
        while not isinstance(fn, JITFunction):
            if isinstance(fn, Autotuner):
                for key, value in self._chosen(fn).items():
                    into = constexprs if key in fn.arg_names else options
                    if key in into:
                        raise SettingsError(
                            f"{self.name}: {key} is given twice, here and by the configuration",
                            remedy=f"take {key} out of the call: the configuration has it",
                        )
                    into[key] = value
            elif isinstance(fn, Heuristics):
                known = {**dict(zip(fn.arg_names, self._args, strict=False)), **constexprs}
                for key, rule in fn.values.items():
                    constexprs[key] = known[key] = rule(known)
            else:
                raise SettingsError(
                    f"{self.name}: {self._fn!r} is no @triton.jit function",
                    remedy="unset TRITON_INTERPRET: an interpreted function is never compiled"
                    if knobs.runtime.interpret
                    else "hand over the decorated function itself, not a call of it",
                )
            fn = fn.fn
        return fn, constexprs, options

    def _chosen(self, autotuner: Any) -> dict[str, Any]:
        config = self._config
        if config is None and len(autotuner.configs) == 1:
            (config,) = autotuner.configs
        if config is None:
            raise SettingsError(
                f"{self.name} is autotuned over {len(autotuner.configs)} configurations, and an "
                "ACF belongs to one of them",
                looked_at=[str(one) for one in autotuner.configs[:4]],
                remedy="name it: TritonKernel(..., config=triton.Config({...}, num_warps=8))",
            )
        if config.pre_hook is not None:
            raise SettingsError(
                f"{self.name}: the configuration has a pre_hook, which would run between launches",
                remedy="call it yourself, and give a configuration without it",
            )
        chosen: dict[str, Any] = config.all_kwargs()
        return chosen

    def _on_gpu(self) -> bool:
        """Is an argument a tensor on a GPU, or a descriptor of one?"""
        holders = [
            arg if hasattr(arg, "device") else getattr(arg, "base", None) for arg in self._args
        ]
        devices = [getattr(holder, "device", None) for holder in holders]
        return any(getattr(device, "type", None) == "cuda" for device in devices)

    def _moved(self, random: Random) -> list[Any]:
        from pytest_compileiq.subjects import placing

        call, _ = self._call(None)
        return placing.place(call.values, random)


def _name_of(fn: Any) -> str:
    """The name of the function under its decorators."""
    while not hasattr(fn, "__name__") and hasattr(fn, "fn"):
        fn = fn.fn
    return str(getattr(fn, "__name__", type(fn).__name__))


def _stand_in(value: Any, kernel: str) -> Any:
    """A tensor that is given as its type, in a form that Triton compiles for; else the value."""
    if not isinstance(value, str):
        return value
    from triton import MockTensor
    from triton import language as tl

    kind = re.fullmatch(r"\*(?:(i|u)(\d+)|(\w+))", value)
    try:
        assert kind is not None
        name = kind[3] or {"i": "int", "u": "uint"}[kind[1]] + kind[2]
        return MockTensor(tl.dtype(name))
    except AssertionError:
        raise SettingsError(
            f"{kernel}: there is no tensor of type {value!r}",
            remedy='write "*fp16", "*bf16", "*fp32", "*i32", "*u8", ...; a number as itself',
        ) from None
