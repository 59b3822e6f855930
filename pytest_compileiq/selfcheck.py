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
from pytest_compileiq.gpu import identity, session
from pytest_compileiq.measure import audit
from pytest_compileiq.measure.audit import Audit
from pytest_compileiq.measure.replay import comparison_of, record_units
from pytest_compileiq.measure.timer import Pair, Timer
from pytest_compileiq.measure.units import Comparison, Side
from pytest_compileiq.replay import read
from pytest_compileiq.subjects import launcher
from pytest_compileiq.subjects.kernel import Build, Kernel, Launch

SCHEMA = 1
_FIELDS = ("kernel", "sessions", "faster", "slower", "allowed", "unit sd", "resolves", "seconds")

# Each thread doubles every step-th number: needs memory bandwidth and little else.
_COPY = """
.version 7.8
.target sm_80
.address_size 64
.visible .entry copy(.param .u64 to, .param .u64 from, .param .u32 n)
{
    .reg .pred %p;
    .reg .b32 %i, %n, %step, %b;
    .reg .f32 %f;
    .reg .b64 %to, %from, %a, %o;
    ld.param.u64 %to, [to];
    ld.param.u64 %from, [from];
    ld.param.u32 %n, [n];
    mov.u32 %b, %ntid.x;
    mov.u32 %i, %tid.x;
    mov.u32 %step, %ctaid.x;
    mad.lo.u32 %i, %step, %b, %i;
    mov.u32 %step, %nctaid.x;
    mul.lo.u32 %step, %step, %b;
again:
    setp.ge.u32 %p, %i, %n;
    @%p bra done;
    mul.wide.u32 %o, %i, 4;
    add.u64 %a, %from, %o;
    ld.global.f32 %f, [%a];
    add.f32 %f, %f, %f;
    add.u64 %a, %to, %o;
    st.global.f32 [%a], %f;
    add.u32 %i, %i, %step;
    bra again;
done:
    ret;
}
"""


def own_pairs() -> dict[str, Pair]:
    """Two kernels that need nothing but cuda-core: one of about 100 us, one of a few."""
    from pytest_compileiq.gpu import stream
    from pytest_compileiq.toolchain.assembler import Assembler, Job

    where = stream.current()
    device = where.device
    assembler = Assembler()
    try:
        (answer,) = assembler.run_all([Job(_COPY, f"sm_{device.arch}")])
    finally:
        assembler.close()
    if isinstance(answer, CiqError):
        raise answer
    cubin = answer.cubin
    blocks = 4 * device.properties.multiprocessor_count

    def pair(bytes_: int) -> Pair:
        buffers = [device.allocate(bytes_, stream=where) for _ in ("to", "from")]
        for buffer in buffers:
            buffer.fill(0, stream=where)
        args = (*buffers, bytes_ // 4)

        def load(placed: launcher.Placed) -> Launch:
            loaded = launcher.Loaded(cubin, "copy", blocks, 512)
            prepared = loaded.prepare(placed.args)

            def launch(_keep: launcher.Placed = placed) -> None:
                loaded.launch_prepared(prepared)

            return launch

        build = Build(cubin, load=load)
        kernel = Kernel(
            lambda acf: build,
            name=f"copy {bytes_ >> 20} MiB",
            place=lambda random: launcher.place(args, random),
        )
        return Pair(kernel, {Side.BASE: build, Side.CANDIDATE: build})

    return {"copy 128 MiB": pair(128 << 20), "copy 2 MiB": pair(2 << 20)}


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
def held(spec: str, mode: Any = "observe", sm_mhz: str | int = "base") -> Iterator[session.Held]:
    """Hold a GPU outside pytest, and show it to CUDA alone. Raises GpuError."""
    gpus = identity.resolve(spec)
    os.environ.update(identity.cuda_environment(gpus[0]))
    with session.acquire(gpus[:1], mode=mode, sm_mhz=sm_mhz, label="selfcheck") as mine:
        yield mine


def main(arguments: Sequence[str]) -> int:
    args = _arguments(arguments)
    seed = random.SystemRandom().getrandbits(32) if args.seed is None else args.seed
    try:
        if args.trace is not None:
            return _report(args, seed, "recorded", dict(_on_trace(args, seed)))
        with held(args.gpu, args.clocks) as mine:
            told = f"{mine.gpu}, clocks {mine.state}"
            return _report(args, seed, told, dict(_on_device(args, seed, mine)))
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


Found = tuple[str, tuple[list[Comparison], float]]


def _on_device(args: argparse.Namespace, seed: int, mine: session.Held) -> Iterator[Found]:
    from pytest_compileiq.measure.cuda import CudaDriver

    driver = CudaDriver()
    pairs = own_pairs() if args.pairs is None else pairs_of(args.pairs)
    timer = Timer(driver, seed=seed, reasons=mine.monitor.reasons)
    for name, pair in pairs.items():
        began = time.perf_counter()
        sessions = audit.on_device(
            name, pair, timer,
            seed=seed, alpha=args.alpha, sessions=args.sessions, units=args.units,
        )  # fmt: skip
        yield name, (list(sessions), time.perf_counter() - began)


def _on_trace(args: argparse.Namespace, seed: int) -> Iterator[Found]:
    document = read(args.trace)
    for record in document["records"]:
        name = str(record.get("kernel"))
        recorded = [comparison_of(sample) for sample in record.get("samples") or []]
        if not any(one.units for one in recorded):
            raise GpuError(f"{args.trace} holds no units of {name}", remedy="use selfcheck --out")
        began = time.perf_counter()
        sessions = audit.on_trace(
            name, recorded, seed=seed, alpha=args.alpha, sessions=args.sessions, units=args.units
        )
        yield name, (list(sessions), time.perf_counter() - began)


def _report(
    args: argparse.Namespace,
    seed: int,
    device: str,
    found: Mapping[str, tuple[list[Comparison], float]],
) -> int:
    audits = {
        name: audit.summary(name, args.alpha, sessions) for name, (sessions, _) in found.items()
    }
    print(f"{device}; alpha {args.alpha:g} a direction, seed {seed}")
    print("  ".join(f"{field:>14}" for field in _FIELDS))
    for name, one in audits.items():
        print("  ".join(f"{cell:>14}" for cell in _cells(one, found[name][1])))
    if args.out is not None:
        write(args.out, seed, device, audits, {name: one for name, (one, _) in found.items()})
    bad = [one.name for one in audits.values() if not one.kept]
    if bad:
        print(f"more false verdicts than alpha {args.alpha:g} allows: {', '.join(bad)}")
    return 1 if bad else 0


def _cells(one: Audit, seconds: float) -> list[str]:
    return [
        one.name,
        str(one.sessions),
        str(one.faster),
        str(one.slower),
        str(one.allowed),
        f"{one.unit_sd:.3%}",
        f"{math.expm1(one.half_width):.2%}",
        f"{seconds:.1f}",
    ]


def write(
    path: Path,
    seed: int,
    device: str,
    audits: Mapping[str, Audit],
    sessions: Mapping[str, Sequence[Comparison]],
) -> None:
    """Write all samples, for ``replay`` and for ``selfcheck --trace``."""
    document = {
        "schema": SCHEMA,
        "device": device,
        "seed": seed,
        "audits": [
            {key: value if value == value else None for key, value in asdict(one).items()}
            for one in audits.values()
        ],
        "records": [
            {"kernel": name, "samples": [record_units(one) for one in many]}
            for name, many in sessions.items()
        ],
    }
    data = json.dumps(document, allow_nan=False).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    # Without a time stamp: the same samples make the same file.
    path.write_bytes(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
