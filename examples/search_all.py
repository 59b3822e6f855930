"""Run the GPU searches of all examples, one after the other: an ACF and a table for each.

    python examples/search_all.py --seconds 90 --out DIR

writes DIR/<kernel>/best.acf, results.csv and kernel.ptx, and crash.acf where an ACF was met that
makes the kernel crash. Needs a GPU, torch, Triton, Helion, nvcc and ptxas 13.3 (TRITON_PTXAS_PATH
or PATH). A search that fails is reported at the end and stops none of the others.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
SEARCHES = {
    "attention": ("triton/search.py", "attention"),
    "matmul": ("triton/search.py", "matmul"),
    "softmax": ("triton/search.py", "softmax"),
    "helion-softmax": ("helion/search.py", "softmax"),
    "logsumexp": ("nvcc/search.py", "logsumexp"),
    "sgemm": ("ptx/search_gpu.py", "sgemm"),
}
#: Seconds that a search may take beyond its own: to import torch and compileiq, and to end.
GRACE = 45.0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=90.0, help="for each search")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="+", choices=SEARCHES, default=list(SEARCHES))
    args = parser.parse_args()
    failed = []
    for name in args.only:
        script, kernel = SEARCHES[name]
        out = args.out / name
        command = [sys.executable, str(HERE / script), kernel, "--out", str(out)]
        command += ["--seconds", f"{args.seconds:g}"]
        began = time.monotonic()
        try:
            status = subprocess.run(command, timeout=args.seconds + GRACE).returncode
        except subprocess.TimeoutExpired:
            status = -9
        seconds = time.monotonic() - began
        if status != 0 or not (out / "best.acf").exists():
            failed.append(name)
        print(f"== {name}: status {status}, {seconds:.0f} s", flush=True)
    if failed:
        print(f"no ACF for {', '.join(failed)}")
    return len(failed)


if __name__ == "__main__":
    sys.exit(main())
