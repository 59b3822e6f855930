"""A CompileIQ search on a GPU, for the examples: candidates compile in parallel, and are timed
one after the other against the baseline in a process that may crash.

An example gives ``open_kernel()``, which makes an ``Opened``: PTX, launch shape, arguments and a
check. The search assembles that PTX with each ACF and asks a *bench*, a process of its own, for
the ratio of the times. A bench that crashes, hangs or gives a wrong result is replaced; a new one
is forked from a server that has torch imported and CUDA untouched, so it costs about a second.

The score is the median of candidate / baseline over interleaved pairs: an absolute time would
follow the clock, which moves by several percent within a search on a card that is not locked.
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import hashlib
import importlib.util
import multiprocessing
import os
import random
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

INVALID = "*"
#: Seconds after which a run of ptxas, and a candidate on the GPU, are given up.
PTXAS_LIMIT, GPU_LIMIT = 8.0, 5.0
#: Of the seconds that a search is given: for the finals, in which each finalist meets this many
#: fresh benches. In one process the place of the code alone is worth up to 1 %.
FINALS = 24.0
FINALISTS, PLACES = 6, 3


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A kernel with buffers on the GPU, ready to be launched from any cubin of its PTX.

    ``args`` are tensors and numbers in the order of the PTX's parameters; parameters that they
    do not reach (Triton's scratch pointers) are null. ``check()`` raises on a wrong result.
    """

    ptx: str
    grid: tuple[int, ...]
    threads: int
    args: Sequence[Any]
    outputs: Sequence[Any]
    check: Callable[[], object]
    shared_bytes: int = 0
    arch: str = "sm_90a"
    flags: tuple[str, ...] = ()


def opened_triton(
    kernel: Any,
    grid: tuple[int, ...],
    args: Sequence[Any],
    options: dict[str, Any],
    *,
    outputs: Sequence[Any],
    check: Callable[[], object],
) -> Opened:
    """An ``Opened`` of a Triton kernel, compiled for these arguments; needs a GPU."""
    built = kernel.warmup(*args, grid=grid, **options)
    # What Triton made a constant of (the integer 1, too) is no parameter of the PTX.
    kinds = list(built.src.signature.values())[: len(args)]
    return Opened(
        ptx=built.asm["ptx"],
        grid=grid,
        threads=32 * built.metadata.num_warps,
        args=[value for value, kind in zip(args, kinds, strict=True) if kind != "constexpr"],
        outputs=outputs,
        check=check,
        shared_bytes=built.metadata.shared,
        flags=("-lineinfo",),  # as Triton calls ptxas
    )


# The bench: a process of its own, in which CUDA starts


class Driver:
    """The five calls of the CUDA driver that load a cubin and launch it."""

    SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES

    def __init__(self, opened: Opened) -> None:
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._opened = opened
        self._entry, kinds = parameters(opened.ptx)
        self._values = [
            _as_c(kind, opened.args[at] if at < len(opened.args) else 0)
            for at, kind in enumerate(kinds)
        ]
        self._pointers = (ctypes.c_void_p * len(kinds))(
            *(ctypes.cast(ctypes.pointer(value), ctypes.c_void_p) for value in self._values)
        )

    def load(self, cubin: bytes) -> Callable[[], None]:
        """Load a cubin; returns what enqueues one launch of it on torch's current stream."""
        import torch

        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), cubin)
        name = self._entry.encode()
        self._call("cuModuleGetFunction", ctypes.byref(function), module, name)
        opened = self._opened
        self._call("cuFuncSetAttribute", function, self.SHARED, opened.shared_bytes)
        x, y, z = (*opened.grid, 1, 1)[:3]
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        shape = (x, y, z, opened.threads, 1, 1, opened.shared_bytes)

        def launch() -> None:
            self._call("cuLaunchKernel", function, *shape, stream, self._pointers, None)

        return launch

    def _call(self, name: str, *args: Any) -> None:
        status = getattr(self._cuda, name)(*args)
        if status != 0:
            raise RuntimeError(f"{name} returned CUDA error {status}")


def parameters(ptx: str) -> tuple[str, list[str]]:
    """Name of the entry function and the types of its parameters, such as ``u64``."""
    match = re.search(r"\.entry\s+([\w$]+)\s*\((.*?)\)", ptx, re.DOTALL)
    if match is None:
        raise ValueError("the PTX has no .entry function")
    return match[1], re.findall(r"\.param\s+\.(?:align\s+\d+\s+\.)?(\w+)", match[2])


def _as_c(kind: str, value: Any) -> Any:
    plain = value.data_ptr() if hasattr(value, "data_ptr") else value
    signed = kind.replace("u", "s").replace("b", "s")
    c = {"s64": ctypes.c_int64, "s32": ctypes.c_int32, "f32": ctypes.c_float}[signed]
    return c(plain)


def serve(peer: Connection, module: str, function: str) -> None:
    """The life of a bench: open the kernel, then time the cubins that come in."""
    sys.path.insert(0, str(Path(module).parent))
    import torch

    spec = importlib.util.spec_from_file_location("example", module)
    assert spec is not None
    assert spec.loader is not None
    example = importlib.util.module_from_spec(spec)
    sys.modules["example"] = example
    spec.loader.exec_module(example)
    opened: Opened = getattr(example, function)()
    peer.send((opened.ptx, opened.arch, opened.flags))
    driver = Driver(opened)
    base = driver.load(peer.recv())
    run_checked(opened, base)
    cache = torch.empty(64 * 2**20, dtype=torch.int32, device="cuda")  # 256 MiB, five times L2
    peer.send(None)
    while True:
        cubin, rounds = peer.recv()
        try:
            candidate = driver.load(cubin)
            run_checked(opened, candidate)
            found = ratios(base, candidate, rounds, cache)
            run_checked(opened, candidate)
            peer.send(("ok", found))
        except AssertionError as error:
            peer.send(("wrong", str(error).strip()[:200]))
        except RuntimeError as error:
            peer.send(("crashed", str(error).splitlines()[0][:200]))
            return


def run_checked(opened: Opened, launch: Callable[[], None]) -> None:
    """One launch into buffers full of NaN, and its check."""
    import torch

    for buffer in opened.outputs:
        buffer.view(torch.uint8).fill_(0xFF)
    launch()
    torch.cuda.synchronize()
    opened.check()


def ratios(
    base: Callable[[], None], candidate: Callable[[], None], rounds: int, cache: Any
) -> list[float]:
    """Times of the candidate over those of the baseline, four pairs a round, in coin order.

    A spin kernel goes first, so that the host has enqueued the round before the GPU begins it;
    the L2 cache is written over before each launch.
    """
    import torch

    found: list[float] = []
    for _ in range(rounds):
        pairs = []
        torch.cuda._sleep(2_000_000)  # clock cycles: about a millisecond
        for _ in range(4):
            order = [("base", base), ("candidate", candidate)]
            if random.random() < 0.5:
                order.reverse()
            pair = {}
            for name, launch in order:
                start = torch.cuda.Event(enable_timing=True)
                end = torch.cuda.Event(enable_timing=True)
                cache.zero_()
                start.record()
                launch()
                end.record()
                pair[name] = (start, end)
            pairs.append(pair)
        torch.cuda.synchronize()
        for pair in pairs:
            base_ms, candidate_ms = (
                pair[name][0].elapsed_time(pair[name][1]) for name in ("base", "candidate")
            )
            found.append(candidate_ms / base_ms)
    return found


# The parent: compiles, asks benches, drives the search


class Bench:
    """The process that holds the GPU; replaced after each death."""

    def __init__(self, module: Path, function: str) -> None:
        # A server of its own forks the benches: torch imported, CUDA untouched, no threads.
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(["torch", "triton"])
        self._target = (str(module), function)
        self._process: Any = None
        self._cubin: bytes | None = None
        self.deaths = 0

    def open(self, limit: float = 120.0) -> tuple[str, str, tuple[str, ...]]:
        """Start a process; returns PTX, architecture and ptxas flags of its kernel."""
        self._peer, theirs = self._context.Pipe()
        self._process = self._context.Process(
            target=serve, args=(theirs, *self._target), daemon=True
        )
        self._process.start()
        theirs.close()
        opened: tuple[str, str, tuple[str, ...]] = self._answer(limit)
        return opened

    def baseline(self, cubin: bytes) -> None:
        """Give the process its baseline, which it runs and checks. Raises EOFError if it dies."""
        self._cubin = cubin
        self._peer.send(cubin)
        self._answer(60.0)

    def time(self, cubin: bytes, rounds: int) -> tuple[str, Any]:
        """("ok", ratios), or ("wrong" | "crashed" | "hung", why)."""
        if self._process is None:
            assert self._cubin is not None
            self.open()
            self.baseline(self._cubin)
        try:
            self._peer.send((cubin, rounds))
            status, value = self._answer(GPU_LIMIT + 0.1 * rounds)
        except TimeoutError:
            status, value = "hung", f"no answer within {GPU_LIMIT:g} s"
        except (EOFError, OSError):
            self._process.join(5)
            status, value = "crashed", f"the process died with {self._process.exitcode}"
        if status != "ok":  # a wrong kernel may have written anywhere
            self.close()
            self.deaths += 1
        return status, value

    def _answer(self, limit: float) -> Any:
        if not self._peer.poll(limit):
            raise TimeoutError
        return self._peer.recv()

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._peer.close()
            self._process = None


@dataclass
class Candidate:
    generation: int
    acf: str = field(repr=False)
    status: str = "ok"
    ratio: float | None = None
    why: str = ""

    @property
    def sha256(self) -> str:
        return hashlib.sha256(bytes.fromhex(self.acf)).hexdigest()


def assemble(
    ptxas: str, ptx: str, arch: str, flags: Sequence[str], acf: str | None
) -> bytes | tuple[str, str]:
    """The cubin, or ("refused" | "hung", why)."""
    with tempfile.TemporaryDirectory(prefix="ciq-") as folder:
        source, cubin = Path(folder, "kernel.ptx"), Path(folder, "kernel.cubin")
        source.write_text(ptx)
        command = [ptxas, f"-arch={arch}", *flags, str(source), "-o", str(cubin)]
        if acf is not None:
            Path(folder, "candidate.acf").write_bytes(bytes.fromhex(acf))
            command.append(f"--apply-controls={folder}/candidate.acf")
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=PTXAS_LIMIT)
        except subprocess.TimeoutExpired:
            return "hung", f"ptxas took more than {PTXAS_LIMIT:g} s"
        if done.returncode != 0:
            return "refused", (done.stderr or done.stdout).strip()[:200]
        return cubin.read_bytes()


def tune(
    name: str, module: Path, function: str, *, seconds: float, out: Path, ptxas: str, seed: int
) -> None:
    """Search for at most ``seconds``; writes best.acf, results.csv and perhaps crash.acf."""
    end = time.monotonic() + seconds
    out.mkdir(parents=True, exist_ok=True)
    bench = Bench(module, function)
    tried: list[Candidate] = []
    try:
        ptx, arch, flags = bench.open()
        (out / "kernel.ptx").write_text(ptx)
        base = assemble(ptxas, ptx, arch, flags, None)
        if not isinstance(base, bytes):
            raise SystemExit(f"{name}: the baseline does not assemble: {base[1]}")
        bench.baseline(base)
        status, control = bench.time(base, 8)
        if status != "ok":
            raise SystemExit(f"{name}: the baseline does not run: {control}")
        print(f"{name}: baseline against itself {statistics.median(control):.4f}", flush=True)
        reserve = min(FINALS, 0.3 * seconds)
        search(bench, tried, (ptxas, ptx, arch, flags), seed=seed, end=end - reserve)
        best = finals(bench, tried, (ptxas, ptx, arch, flags), end=end)
        if best is not None:
            (out / "best.acf").write_bytes(bytes.fromhex(best.acf))
        crash = confirmed_crash(bench, tried, (ptxas, ptx, arch, flags), end=end)
        if crash is not None:
            (out / "crash.acf").write_bytes(bytes.fromhex(crash.acf))
    finally:
        bench.close()
        write_csv(out / "results.csv", tried)
    counts = dict.fromkeys(("ok", "refused", "wrong", "crashed", "hung"), 0)
    for candidate in tried:
        counts[candidate.status] += 1
    print(
        f"{name}: {len(tried)} candidates {counts}; best "
        + (f"{1 / best.ratio:.4f}x" if best and best.ratio else "none")
        + (f"; crash.acf: {crash.why}" if crash else ""),
        flush=True,
    )


Kernel = tuple[str, str, str, tuple[str, ...]]  # ptxas, PTX, architecture, flags


def search(bench: Bench, tried: list[Candidate], kernel: Kernel, *, seed: int, end: float) -> None:
    """Ask CompileIQ for generations of ACFs and tell it their scores, until the time is up."""
    from compileiq.ciq import Search
    from compileiq.search_spaces.compilers import PtxasSearchSpace
    from compileiq.types import WorkerTypes
    from compileiq.utils.validation import Score

    with tempfile.TemporaryDirectory(prefix="ciq-") as cache, ThreadPoolExecutor(cores()) as pool:
        engine = Search(
            objective_function=len,  # not called: this loop asks and tells
            search_space=PtxasSearchSpace(version="13.3"),
            search_config={"problem_type": "min", "generations": 200, "pool_size": 32},
            worker_type=WorkerTypes.MANUAL,
            engine={"name": "amber", "options": {"seed": seed}},
            cache_folder=Path(cache),
            disable_progress_bar=True,
        )
        generation = 0
        while time.monotonic() < end:
            asked = engine.ask()
            acfs = [str(candidate.params) for candidate in asked]
            batch = [Candidate(generation, acf) for acf in acfs]
            cubins = pool.map(lambda acf: assemble(*kernel, acf), acfs)
            for candidate, cubin in zip(batch, cubins, strict=True):
                if time.monotonic() > end:
                    pool.shutdown(wait=False, cancel_futures=True)
                    return
                judge(bench, candidate, cubin)
                tried.append(candidate)
            engine.tell(
                [
                    Score(
                        score=INVALID if one.ratio is None else one.ratio,
                        param_id=candidate.param_id,
                        num_objectives=1,
                    )
                    for one, candidate in zip(batch, asked, strict=True)
                ]
            )
            valid = [one.ratio for one in tried if one.ratio is not None]
            print(
                f"  generation {generation}: {len(valid)}/{len(tried)} valid, "
                f"best {min(valid, default=float('nan')):.4f}, {bench.deaths} benches lost",
                flush=True,
            )
            generation += 1


def judge(bench: Bench, candidate: Candidate, cubin: bytes | tuple[str, str]) -> None:
    """Fill in what the bench says: one round first, two more for what is not clearly slow."""
    if not isinstance(cubin, bytes):
        candidate.status, candidate.why = cubin
        return
    found: list[float] = []
    for rounds in (1, 2):
        status, value = bench.time(cubin, rounds)
        if status != "ok":
            candidate.status, candidate.why = status, str(value)
            return
        found += value
        if statistics.median(found) > 1.03:
            break
    candidate.ratio = statistics.median(found)


def finals(bench: Bench, tried: list[Candidate], kernel: Kernel, *, end: float) -> Candidate | None:
    """Time the fastest few again, on fresh benches: the search's own best is partly luck."""
    ranked = sorted(
        (one for one in tried if one.ratio is not None), key=lambda one: one.ratio or 0.0
    )[:FINALISTS]
    survivors = []
    for candidate in ranked:
        if survivors and time.monotonic() > end - 5:
            break
        cubin = assemble(*kernel, candidate.acf)
        assert isinstance(cubin, bytes)  # it was assembled before
        found = []
        for _ in range(PLACES):
            bench.close()
            status, value = bench.time(cubin, 15)
            if status != "ok":
                candidate.status, candidate.ratio, candidate.why = status, None, str(value)
                break
            found.append(statistics.median(value))
        else:
            told = ", ".join(f"{one:.4f}" for one in found)
            print(f"  final: {candidate.ratio:.4f} in the search, {told} again")
            candidate.ratio = statistics.fmean(found)
            survivors.append(candidate)
    return min(survivors, key=lambda one: one.ratio or 0.0, default=None)


def confirmed_crash(
    bench: Bench, tried: list[Candidate], kernel: Kernel, *, end: float
) -> Candidate | None:
    """An ACF that has crashed before and does so again on two fresh benches."""
    for candidate in [one for one in tried if one.status == "crashed"]:
        if time.monotonic() > end - 2:
            return None
        cubin = assemble(*kernel, candidate.acf)
        if not isinstance(cubin, bytes):
            continue
        bench.close()
        if bench.time(cubin, 1)[0] == "crashed" and bench.time(cubin, 1)[0] == "crashed":
            return candidate
    return None


def write_csv(path: Path, tried: Sequence[Candidate]) -> None:
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["generation", "sha256", "status", "time_ratio", "why"])
        for one in tried:
            table.writerow([one.generation, one.sha256, one.status, one.ratio, one.why])


def cores() -> int:
    return len(os.sched_getaffinity(0))


def main(module: str, kernels: Sequence[str]) -> None:
    """The command line of each example's search.py; ``kernels`` name ``open_<kernel>``."""
    parser = argparse.ArgumentParser(description="Search for an ACF with NVIDIA CompileIQ")
    parser.add_argument("kernel", choices=kernels, nargs="?", default=kernels[0])
    parser.add_argument("--seconds", type=float, default=90.0, help="for the whole search")
    parser.add_argument("--out", type=Path, required=True, help="folder for best.acf and the csv")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ptxas", default=os.environ.get("TRITON_PTXAS_PATH", "ptxas"))
    args = parser.parse_args()
    tune(
        args.kernel,
        Path(module),
        f"open_{args.kernel}",
        seconds=args.seconds,
        out=args.out,
        ptxas=args.ptxas,
        seed=args.seed,
    )
