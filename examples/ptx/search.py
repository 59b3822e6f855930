"""Search for the ACFs beside this file with NVIDIA CompileIQ. Needs no GPU.

The score is what ptxas says it spills, in bytes, so a minute on two cores is enough. The
committed files were made with ptxas 13.3.73 and compileiq 1.1.0 by

    python search.py --goal best -o best.acf
    python search.py --goal worst --generations 3 -o worst.acf

CompileIQ fetches its ptxas search space by itself, or takes it from CIQ_SEARCH_SPACES_DIR.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from compileiq.search_spaces.compilers import PtxasSearchSpace

from pytest_compileiq import open_search

HERE = Path(__file__).parent
SPILLS = re.compile(r"(\d+) bytes spill stores, (\d+) bytes spill loads")
INVALID = "*"


def spill_bytes(ptxas: str, ptx: Path, arch: str, limit: float, acf: str | None) -> int | str:
    """Bytes of spill stores and loads with the ACF (hex), or "*" when it does not compile.

    "*" also when ptxas needs more than ``limit`` seconds: some ACFs unroll without end.
    """
    with tempfile.TemporaryDirectory(prefix="ciq-") as folder:
        command = [ptxas, "-v", f"-arch={arch}", str(ptx), "-o", f"{folder}/kernel.cubin"]
        if acf is not None:
            Path(folder, "candidate.acf").write_bytes(bytes.fromhex(acf))
            command.append(f"--apply-controls={folder}/candidate.acf")
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit)
        except subprocess.TimeoutExpired:
            return INVALID
    found = SPILLS.search(done.stdout + done.stderr)
    if done.returncode != 0 or found is None:
        return INVALID
    return int(found[1]) + int(found[2])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--goal", choices=("best", "worst"), required=True)
    parser.add_argument("--generations", type=int, default=12)
    parser.add_argument("--pool-size", type=int, default=48)
    parser.add_argument("--limit", type=float, default=1.0, help="seconds for one run of ptxas")
    parser.add_argument("--ptxas", default=os.environ.get("TRITON_PTXAS_PATH", "ptxas"))
    parser.add_argument("--ptx", type=Path, default=HERE / "sgemm.ptx")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()

    def score(config: Any) -> int | str:
        return spill_bytes(args.ptxas, args.ptx, args.arch, args.limit, config or None)

    baseline = score({})
    print(f"baseline: {baseline} spill bytes")
    with tempfile.TemporaryDirectory(prefix="ciq-") as folder:
        search = open_search(
            score,
            PtxasSearchSpace(version="13.3"),
            folder=Path(folder),
            generations=args.generations,
            pool_size=args.pool_size,
            problem_type="min" if args.goal == "best" else "max",
            workers=len(os.sched_getaffinity(0)),
            disable_progress_bar=False,
        )
        best = search.start().get_best_result()
    args.output.write_bytes(bytes.fromhex(best["params"]))
    print(f"{search.calls} calls, without a score: {search.causes or 'none'}")
    print(f"{args.output}: {best['score_1']} spill bytes, baseline {baseline}")


if __name__ == "__main__":
    main()
