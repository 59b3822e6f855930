"""``python -m pytest_compileiq doctor``: one line a point, and behind each fault its cure.

Looks and never touches: no clock is set to find out whether one may be. The exit status is the
number of faults. A missing GPU is a note, as the static tier needs none. Pytest's ini file is not
read.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import NamedTuple

from pytest_compileiq.errors import CiqError, GpuError
from pytest_compileiq.gpu import identity
from pytest_compileiq.gpu.clocks import missing_permission
from pytest_compileiq.gpu.guardian_client import DriverError, find_pynvml, reset_command
from pytest_compileiq.gpu.lease import Folder, choose
from pytest_compileiq.gpu.recovery import left_behind
from pytest_compileiq.settings import ini_only
from pytest_compileiq.toolchain import acf, ptxas

OK, NOTE, FAULT = "ok", "note", "FAULT"
#: As NVML counts: a driver of CUDA 12 does not load what ptxas 13.3 makes.
_LEAST_CUDA = 13000
_TRITON_S = 120.0

# Asked in a process of its own: it imports Triton, and Triton remembers what it finds.
_ASK_TRITON = """
import json, triton
from triton.backends.nvidia import compiler
def path(arch):
    try: found = compiler.get_ptxas(arch)
    except TypeError: found = compiler.get_ptxas()
    return getattr(found, "path", None) or found[0]
print(json.dumps([triton.__version__, path(90), path(100)]))
"""


class Line(NamedTuple):
    """One point: what it is about, how it stands, and for a fault what to do."""

    level: str
    point: str
    text: str
    cure: str = ""

    def __str__(self) -> str:
        cure = f"  ->  {self.cure}" if self.cure else ""
        return f"{self.level:<6}{self.point:<14}{self.text}{cure}"


def examine(env: Mapping[str, str], *, deadline_s: float = 60.0) -> Iterator[Line]:
    """All points in order. ``deadline_s`` is how long NVML may take to answer."""
    parts: dict[str, Callable[[], Iterable[Line]]] = {
        "packages": _packages,
        "ini file": lambda: _ini_file(env),
        "ptxas": lambda: _ptxas(env),
        "triton": _triton,
        "flashinfer": _flashinfer,
        "debug pack": lambda: [_debug_pack(env)],
        "search spaces": lambda: [_search_spaces(env)],
        "pynvml": lambda: [_binding()],
        "gpu": lambda: _gpus(deadline_s),
        "lease folder": lambda: _lease_folder(env),
    }
    for point, part in parts.items():
        try:
            yield from part()
        except (OSError, RuntimeError) as error:  # one broken part must not hide the others
            cure = "make it readable, or name another"
            yield Line(FAULT, point, f"cannot be looked at: {error}", cure)


def _given(env: Mapping[str, str], variable: str) -> Path | None:
    """The path in a variable, read as the settings read it."""
    text = env.get(variable)
    return Path(text).expanduser() if text else None


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text)[:3])


def _packages() -> Iterator[Line]:
    yield Line(OK, "python", platform.python_version())
    for package, floor in (("pytest", "8.0"), ("compileiq", "1.0.3"), ("cuda-core", "1.2")):
        cure = f"pip install '{package}>={floor}'"
        try:
            found = metadata.version(package)
        except metadata.PackageNotFoundError:
            if package == "cuda-core":
                gpu = "to run kernels: pip install 'pytest-compileiq[gpu]'"
                yield Line(NOTE, package, "not installed", gpu)
            else:
                yield Line(FAULT, package, "not installed", cure)
            continue
        fine = _version(found) >= _version(floor)
        yield Line(OK, package, found) if fine else Line(FAULT, package, found, cure)


def _ini_file(env: Mapping[str, str]) -> Iterator[Line]:
    for option, path in ini_only(("ptxas", "debug_pack", "lease_dir"), env, Path.cwd()):
        text = f"{path} sets {option.ini}, which only pytest reads: not looked at here"
        yield Line(NOTE, "ini file", text, f"run this with {option.variable} set as well")


def _ptxas(env: Mapping[str, str]) -> Iterator[Line]:
    chosen = False
    seen: set[Path] = set()
    given = _given(env, variable := "PYTEST_CIQ_PTXAS")
    # The plugin names its option for it, and nobody gave that here.
    for where, path in [(variable, given)] if given else ptxas.candidates(None, env):
        if path.resolve() in seen:
            continue
        seen.add(path.resolve())
        try:
            found = ptxas.identify(path)
        except CiqError as error:
            yield Line(NOTE, "ptxas", f"{where}: {error.what}")
            continue
        fits = found.version >= ptxas.MINIMUM
        state = "too old for ACFs" if not fits else "not used" if chosen else "used"
        yield Line(OK if fits else NOTE, "ptxas", f"{found} from {where}, {state}: {path}")
        chosen = chosen or fits
    if not chosen:
        cure = f"pip install '{ptxas.WHEEL}==13.3.*', or --ciq-ptxas=PATH"
        yield Line(FAULT, "ptxas", "none of 13.3 or newer", cure)


def _triton() -> Iterator[Line]:
    """The programs that Triton itself says it will run: its rules differ between versions."""
    if importlib.util.find_spec("triton") is None:
        yield Line(NOTE, "triton", "not installed: TritonKernel is not available")
        return
    command = [sys.executable, "-c", _ASK_TRITON]
    try:
        run = subprocess.run(command, capture_output=True, text=True, timeout=_TRITON_S, check=True)
        version, *paths = json.loads(run.stdout.splitlines()[-1])
    except subprocess.TimeoutExpired:
        text = f"has not said for {_TRITON_S:g} s which ptxas it runs"
        yield Line(FAULT, "triton", text, "see where `python -c 'import triton'` hangs")
        return
    except subprocess.CalledProcessError as error:
        said = (error.stderr or str(error)).strip().splitlines()
        yield Line(FAULT, "triton", f"cannot be asked: {said[-1][:120]}", "reinstall triton")
        return
    except (ValueError, IndexError):
        yield Line(NOTE, "triton", "does not say which ptxas it runs")
        return
    for arch, path in zip(("sm_90", "sm_100"), paths, strict=True):
        try:
            found = ptxas.identify(Path(path))
        except CiqError as error:
            yield Line(FAULT, "triton", f"{version} for {arch} runs {path}: {error.what}")
            continue
        fits = found.version >= ptxas.MINIMUM
        variables = "TRITON_PTXAS_PATH and TRITON_PTXAS_BLACKWELL_PATH"
        cure = "" if fits else f"set {variables} to a ptxas of 13.3 (tests with ciq do it for you)"
        text = f"{version} runs ptxas {found} for {arch}: {path}"
        yield Line(OK if fits else NOTE, "triton", text, cure)


def _flashinfer() -> Iterator[Line]:
    prebuilt = ("flashinfer_cubin", "flashinfer_jit_cache")
    found = [name for name in prebuilt if importlib.util.find_spec(name) is not None]
    if found:
        packages = " ".join(name.replace("_", "-") for name in found)
        text = f"prebuilt kernels would be used in place of ours: {', '.join(found)}"
        yield Line(FAULT, "flashinfer", text, f"pip uninstall {packages}")
    elif importlib.util.find_spec("flashinfer") is not None:
        yield Line(OK, "flashinfer", "installed, without prebuilt kernels")


def _debug_pack(env: Mapping[str, str]) -> Line:
    source = _given(env, "PYTEST_CIQ_DEBUG_PACK")
    if source is None:
        text = "not given: canaries use the mark's o0=, else raw -O0; an objective needs an ACF"
        return Line(NOTE, "debug pack", text)
    try:
        pack = acf.open_debug_pack(source)
    except (CiqError, OSError) as error:
        what = error.what if isinstance(error, CiqError) else str(error)
        return Line(FAULT, "debug pack", what, "name its folder or zip with --ciq-debug-pack")
    names = [name for name, found in (("O0.acf", pack.o0), ("O3.acf", pack.o3)) if found]
    return Line(OK, "debug pack", f"{source} with {' and '.join(names)}")


def _search_spaces(env: Mapping[str, str]) -> Line:
    folder = env.get("CIQ_SEARCH_SPACES_DIR")
    cure = "let CIQ_SEARCH_SPACES_DIR name a folder with manifest.json and its .bin files"
    if not folder:
        return Line(NOTE, "search spaces", "fetched by each search", f"without network: {cure}")
    manifest = Path(folder) / "manifest.json"
    if not manifest.is_file():
        return Line(FAULT, "search spaces", f"{folder} has no manifest.json", cure)
    spaces = sorted(path.name for path in Path(folder).glob("*.bin"))
    if not spaces:
        return Line(FAULT, "search spaces", f"{folder} has a manifest and no .bin file", cure)
    return Line(OK, "search spaces", f"{folder}: {', '.join(spaces)}")


def _binding() -> Line:
    """Three packages write the module ``pynvml``; only nvidia-ml-py has what is called here."""
    cure = "pip uninstall pynvml nvidia-ml-py3 nvidia-ml-py; pip install nvidia-ml-py"
    origin = find_pynvml()
    if origin is None:
        return Line(FAULT, "pynvml", "the module is missing", cure)
    versions = {}
    for name in ("nvidia-ml-py", "nvidia-ml-py3", "pynvml"):
        with contextlib.suppress(metadata.PackageNotFoundError):
            versions[name] = metadata.version(name)
    own = versions.pop("nvidia-ml-py", None)
    if own is None or "nvidia-ml-py3" in versions or origin.name == "__init__.py":
        others = ", ".join(f"{name} {version}" for name, version in versions.items())
        beside = f" (installed: {others})" if others else ""
        return Line(FAULT, "pynvml", f"{origin} is not nvidia-ml-py's{beside}", cure)
    if versions:
        text = f"nvidia-ml-py {own}, beside pynvml {versions['pynvml']}, which only warns"
        return Line(NOTE, "pynvml", text, "pip uninstall pynvml")
    return Line(OK, "pynvml", f"nvidia-ml-py {own}")


def _gpus(deadline_s: float) -> Iterator[Line]:
    try:
        machine = identity.survey(deadline_s=deadline_s)
    except DriverError as error:
        absent = error.code in (9, 12)
        text = "none: only the static tier runs here" if absent else error.what
        yield Line(NOTE if absent else FAULT, "gpu", text, "" if absent else error.remedy)
        return
    except GpuError as error:
        yield Line(FAULT, "gpu", error.what, error.remedy)
        return
    cuda = (
        "" if machine.cuda is None else f", CUDA {machine.cuda // 1000}.{machine.cuda % 1000 // 10}"
    )
    old = machine.cuda is not None and machine.cuda < _LEAST_CUDA
    cure = "to run kernels: driver 580 or newer, the first of CUDA 13" if old else ""
    yield Line(NOTE if old else OK, "driver", f"{machine.driver}{cuda}", cure)
    if not machine.rows:
        yield Line(NOTE, "gpu", "none: only the static tier runs here")
        return
    for row in machine.rows:
        if "fault" in row:
            text = f"{row['index']}: {row['fault']['text']}"
            yield Line(FAULT, "gpu", text, "ask for access to it, or leave it out of --ciq-gpu")
            continue
        mig = f", MIG: {', '.join(row['instances']) or 'no instance'}" if row["mig"] else ""
        yield Line(OK, "gpu", f"{row['index']}: {row['name']} {row['uuid']}{mig}")
    missing = missing_permission()
    if missing:
        cure = "run with CAP_SYS_ADMIN on the host, or let the site lock (pytest_ciq_lock_clocks)"
        yield Line(NOTE, "clock lock", f"{missing}: clocks are observed", cure)
    else:
        yield Line(OK, "clock lock", "nothing speaks against it (not tried)")


def _lease_folder(env: Mapping[str, str]) -> Iterator[Line]:
    path = _given(env, "PYTEST_CIQ_LEASE_DIR")
    place, _ = choose(path)
    if not place.exists():  # to open it would make it
        if os.access(place.parent, os.W_OK | os.X_OK):
            yield Line(OK, "lease folder", f"{place}, which the first run with a GPU makes")
        else:
            cure = "name another with --ciq-lease-dir"
            yield Line(FAULT, "lease folder", f"{place} is not there and cannot be made", cure)
        return
    try:
        folder = Folder(path)
    except GpuError as error:
        yield Line(FAULT, "lease folder", error.what, error.remedy)
        return
    note = folder.note()
    yield Line(NOTE if note else OK, "lease folder", note or str(folder.path))
    folder.close()
    for uuid in left_behind(path):
        text = f"a killed run may have left {uuid} locked"
        yield Line(FAULT, "clocks", text, reset_command(folder.path))


def main(arguments: Sequence[str]) -> int:
    """Print all points; returns the number of faults."""
    argparse.ArgumentParser(
        prog="python -m pytest_compileiq doctor", description=(__doc__ or "").partition("\n\n")[2]
    ).parse_args(arguments)
    faults = 0
    for line in examine(os.environ):
        print(line, flush=True)
        faults += line.level == FAULT
    print(f"{faults} fault{'s' * (faults != 1)}")
    return faults
