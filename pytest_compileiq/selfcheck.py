"""``python -m pytest_compileiq selfcheck``: kernels against themselves, on the real device.

A verdict "faster" or "slower" on identical code is false, so this counts how often the engine is
wrong here, on this card in this state. The exit status is 1 if it is wrong more often than it
says (beyond what chance allows at 99 %).
"""

from __future__ import annotations

import argparse
import gzip
import importlib.util
import json
import math
import os
import random
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pytest_compileiq.errors import CiqError, GpuError, SettingsError
from pytest_compileiq.files import write_whole
from pytest_compileiq.gpu import identity, session
from pytest_compileiq.measure import audit
from pytest_compileiq.measure.audit import Audit, Deadline
from pytest_compileiq.measure.samples import comparison_of, record_units
from pytest_compileiq.measure.timer import Pair, Timer
from pytest_compileiq.measure.units import Comparison, Side
from pytest_compileiq.replay import read
from pytest_compileiq.subjects import launcher, placing
from pytest_compileiq.subjects.kernel import Build, Kernel, Launch

SCHEMA = 1
FIELDS = ("kernel", "sessions", "faster", "slower", "allowed", "unit sd", "resolves")

#: out[i] = 2 in[i] for all i, by as many blocks as run at once; then each thread idles for
#: ``cycles``. All blocks end together, so the kernel takes just so many cycles longer.
COPY_PTX = """
.version 7.8
.target sm_80
.address_size 64
.visible .entry copy(.param .u64 out, .param .u64 in, .param .u32 n, .param .u64 cycles)
{
    .reg .pred %p;
    .reg .b32 %i, %n, %step, %t, %b;
    .reg .f32 %f;
    .reg .b64 %out, %in, %a, %o, %cycles, %start, %now;
    ld.param.u64 %out, [out];
    ld.param.u64 %in, [in];
    ld.param.u32 %n, [n];
    ld.param.u64 %cycles, [cycles];
    mov.u32 %t, %tid.x;
    mov.u32 %b, %ntid.x;
    mov.u32 %i, %ctaid.x;
    mad.lo.u32 %i, %i, %b, %t;
    mov.u32 %step, %nctaid.x;
    mul.lo.u32 %step, %step, %b;
again:
    setp.ge.u32 %p, %i, %n;
    @%p bra copied;
    mul.wide.u32 %o, %i, 4;
    add.u64 %a, %in, %o;
    ld.global.f32 %f, [%a];
    add.f32 %f, %f, %f;
    add.u64 %a, %out, %o;
    st.global.f32 [%a], %f;
    add.u32 %i, %i, %step;
    bra again;
copied:
    setp.eq.u64 %p, %cycles, 0;
    @%p bra done;
    bar.sync 0;
    mov.u64 %start, %clock64;
idle:
    mov.u64 %now, %clock64;
    sub.u64 %now, %now, %start;
    setp.lt.u64 %p, %now, %cycles;
    @%p bra idle;
done:
    ret;
}
"""


def own_pairs(mebibytes: Sequence[int] = (128, 2)) -> dict[str, Pair]:
    """Kernels that need nothing but cuda-core: one of about 100 us, and one of a few."""
    from pytest_compileiq.gpu import stream
    from pytest_compileiq.toolchain.assembler import Assembler, Job

    where = stream.current()
    device = where.device
    assembler = Assembler()
    try:
        (answer,) = assembler.run_all([Job(COPY_PTX, f"sm_{device.arch}")])
    finally:
        assembler.close()
    if isinstance(answer, CiqError):
        raise answer
    cubin = answer.cubin
    blocks = 2 * device.properties.multiprocessor_count

    def pair(name: str, bytes_: int) -> Pair:
        buffers = [device.allocate(bytes_, stream=where) for _ in ("to", "from")]
        for buffer in buffers:
            buffer.fill(0, stream=where)
        args = (*buffers, bytes_ // 4, 0)

        def load(args: Sequence[Any]) -> Launch:
            return launcher.Loaded(cubin, "copy", blocks, 1024).bind(args)

        build = Build(cubin, load=load)
        kernel = Kernel(
            lambda acf: build,
            name=name,
            place=lambda random: placing.place(args, random),
        )
        return Pair(kernel, {Side.BASE: build, Side.CANDIDATE: build})

    return {name: pair(name, size << 20) for size in mebibytes for name in [f"copy {size} MiB"]}


def pairs_of(spec: str) -> dict[str, Pair]:
    """The pairs that ``FILE.py:FUNCTION`` returns, by name. Raises SettingsError."""
    path, _, function = spec.rpartition(":")
    file = Path(path)
    if not path or not file.is_file():
        raise SettingsError(
            f"--pairs={spec}: there is no file {path or spec}",
            remedy="give FILE.py:FUNCTION; the function returns a dict of measure.timer.Pair",
        )
    module_spec = importlib.util.spec_from_file_location(file.stem, file)
    assert module_spec is not None
    assert module_spec.loader is not None
    module = importlib.util.module_from_spec(module_spec)
    sys.modules[file.stem] = module
    sys.path.insert(0, str(file.parent.resolve()))  # as if it were run: it imports its neighbours
    module_spec.loader.exec_module(module)
    found = getattr(module, function, None)
    if found is None:
        raise SettingsError(f"--pairs={spec}: {path} has no function {function}")
    return dict(found())


@contextmanager
def held(spec: str, mode: Any) -> Iterator[session.Held]:
    """Hold a GPU outside pytest, and show it to CUDA alone. Raises GpuError."""
    gpus = identity.resolve(spec)
    os.environ.update(identity.cuda_environment(gpus[0]))
    with session.acquire(gpus[:1], mode=mode, sm_mhz="base", label="selfcheck") as mine:
        yield mine


def main(arguments: Sequence[str]) -> int:
    args = _arguments(arguments)
    seed = random.SystemRandom().getrandbits(32) if args.seed is None else args.seed
    try:
        if args.trace is not None:
            return _report(args, seed, "recorded", _on_trace(args, seed))
        with held(args.gpu, args.clocks) as mine:
            told = f"{mine.gpu}, clocks {mine.state}"
            return _report(args, seed, told, _on_device(args, seed, mine))
    except CiqError as error:
        print(error, file=sys.stderr)
        return 2


def _arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m pytest_compileiq selfcheck",
        description="Measure kernels against themselves, and count wrong verdicts.",
    )
    parser.add_argument("--gpu", default="0", metavar="SPEC", help="as --ciq-gpu (default 0)")
    parser.add_argument("--clocks", default="auto", choices=("auto", "require", "observe"))
    parser.add_argument("--sessions", type=int, default=200, help="for each kernel (default 200)")
    parser.add_argument("--limit", type=float, default=math.inf, help="seconds, for all kernels")
    parser.add_argument("--units", type=int, default=audit.UNITS, help="at most, in a session")
    parser.add_argument(
        "--alpha", type=float, default=0.05, help="error rate in each direction (default 0.05)"
    )
    parser.add_argument(
        "--pairs", metavar="FILE.py:FUNCTION", help="a function that returns kernels of your own"
    )
    parser.add_argument(
        "--trace", type=Path, metavar="FILE", help="judge what --out wrote, without a GPU"
    )
    parser.add_argument("--out", type=Path, metavar="FILE", help="write all samples (.json.gz)")
    parser.add_argument("--seed", type=int, help="of the random orders (default: by chance)")
    return parser.parse_args(arguments)


#: A kernel's name, and sessions on it that are yet to be run.
Named = tuple[str, Iterator[Comparison]]


def _on_device(args: argparse.Namespace, seed: int, mine: session.Held) -> Iterator[Named]:
    from pytest_compileiq.measure.cuda import CudaDriver

    # First, for they may import torch, whose stream the driver then takes.
    pairs = own_pairs() if args.pairs is None else pairs_of(args.pairs)
    timer = Timer(CudaDriver(), seed=seed, reasons=mine.monitor.reasons)
    for (name, pair), due in Deadline(args.limit).shared(list(pairs.items())):
        sessions = audit.on_device(
            name, pair, timer,
            seed=seed, alpha=args.alpha, sessions=args.sessions, units=args.units, deadline=due,
        )  # fmt: skip
        yield name, sessions


def _on_trace(args: argparse.Namespace, seed: int) -> Iterator[Named]:
    document = read(args.trace)
    for record in document["records"]:
        name = str(record.get("kernel"))
        recorded = [comparison_of(sample) for sample in record.get("samples") or []]
        if not any(one.units for one in recorded):
            raise GpuError(f"{args.trace} holds no units of {name}", remedy="use selfcheck --out")
        sessions = audit.on_trace(
            name, recorded, seed=seed, alpha=args.alpha, sessions=args.sessions, units=args.units
        )
        yield name, sessions


def _report(args: argparse.Namespace, seed: int, device: str, found: Iterator[Named]) -> int:
    print(f"{device}; alpha {args.alpha:g} a direction, seed {seed}")
    print(_line((*FIELDS, "seconds")))
    document: dict[str, Any] = {
        "schema": SCHEMA,
        "device": device,
        "seed": seed,
        "audits": [],
        "records": [],
    }
    bad = []
    began = time.perf_counter()
    for name, sessions in found:
        done = list(sessions)
        one = audit.summary(name, args.alpha, done)
        print(_line((*cells(one), f"{time.perf_counter() - began:.1f}")), flush=True)
        if not one.kept:
            bad.append(name)
        numbers = {key: value if value == value else None for key, value in asdict(one).items()}
        document["audits"].append(numbers)
        document["records"].append({"kernel": name, "samples": list(map(record_units, done))})
        if args.out is not None:  # after each kernel, for a later one may fail
            write(args.out, document)
        began = time.perf_counter()
    if bad:
        print(f"more false verdicts than alpha {args.alpha:g} allows: {', '.join(bad)}")
    return 1 if bad else 0


def _line(cells: Sequence[str]) -> str:
    return "  ".join(f"{cell:>14}" for cell in cells)


def cells(one: Audit) -> list[str]:
    """An audit as the FIELDS of a table."""
    return [
        one.name,
        str(one.sessions),
        str(one.faster),
        str(one.slower),
        str(one.allowed),
        f"{one.unit_sd:.3%}",
        f"{math.expm1(one.half_width):.2%}",
    ]


def write(path: Path, document: Mapping[str, Any]) -> None:
    """Write all samples, for ``replay`` and for ``selfcheck --trace``."""
    data = json.dumps(document, allow_nan=False).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a time stamp: the same samples make the same file.
    write_whole(path, gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
