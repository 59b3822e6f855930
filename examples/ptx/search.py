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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from compileiq.ciq import Search
from compileiq.search_spaces.compilers import PtxasSearchSpace
from compileiq.types import WorkerTypes
from compileiq.utils.validation import Score

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
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--limit", type=float, default=1.0, help="seconds for one run of ptxas")
    parser.add_argument("--ptxas", default=os.environ.get("TRITON_PTXAS_PATH", "ptxas"))
    parser.add_argument("--ptx", type=Path, default=HERE / "sgemm.ptx")
    parser.add_argument("--arch", default="sm_90")
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()

    def score(acf: str | None) -> int | str:
        return spill_bytes(args.ptxas, args.ptx, args.arch, args.limit, acf)

    baseline = score(None)
    print(f"baseline: {baseline} spill bytes")
    worst = args.goal == "worst"
    winner: tuple[int, str] | None = None
    with tempfile.TemporaryDirectory(prefix="ciq-") as cache, ThreadPoolExecutor() as pool:
        search = Search(
            objective_function=score,  # not called: the loop below asks and tells
            search_space=PtxasSearchSpace(version="13.3"),
            search_config={
                "problem_type": "max" if worst else "min",
                "generations": args.generations,
                "pool_size": args.pool_size,
            },
            worker_type=WorkerTypes.MANUAL,
            engine={"name": "amber", "options": {"seed": args.seed}},
            cache_folder=Path(cache),
            disable_progress_bar=True,
        )
        for generation in range(args.generations):
            candidates = search.ask()  # a refill of failed candidates counts as one, too
            acfs = [str(candidate.params) for candidate in candidates]
            scores = list(pool.map(score, acfs))
            search.tell(
                [
                    Score(score=value, param_id=candidate.param_id, num_objectives=1)
                    for candidate, value in zip(candidates, scores, strict=True)
                ]
            )
            valid = [(v, a) for v, a in zip(scores, acfs, strict=True) if isinstance(v, int)]
            best = (max if worst else min)(valid, key=lambda pair: pair[0], default=None)
            if best and (winner is None or (best[0] > winner[0] if worst else best[0] < winner[0])):
                winner = best
            shown = winner[0] if winner else "none"
            print(f"generation {generation}: {len(valid)}/{len(scores)} valid, best {shown}")
    if winner is None:
        raise SystemExit("no candidate compiled: is this a ptxas 13.3?")
    args.output.write_bytes(bytes.fromhex(winner[1]))
    print(f"{args.output}: {winner[0]} spill bytes, baseline {baseline}")


if __name__ == "__main__":
    main()
