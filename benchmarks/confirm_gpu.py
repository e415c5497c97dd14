"""What a prediction is worth on a GPU: one command, under nine minutes, with what torch brings.

    make confirm-gpu         (or: python benchmarks/confirm_gpu.py --write results/confirm_gpu)
    make confirm-gpu-long    models of 7 and 14 billion parameters at several lengths, and what
                             recomputing takes

One GPU plays all ranks, one after the other: each rank's whole program with its real copies, its
neighbours played back over modelled links. Needs torch, numpy, scipy and yaml; numba makes it quick.
`--rehearse` is the same on the CPU with a tiny model.

A process of its own does the work. Where it crashes or hangs, another goes on with the parts that are left;
everything found until then is in the folder.
"""

from __future__ import annotations

import argparse
import gc
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

try:
    from datetime import UTC, datetime

    import torch

    from benchmarks.gpu.parts import LOST, crashed, hung, kept_in
    from optpipe_sim import __version__
    from optpipe_sim.costs.models import Model
    from optpipe_sim.errors import OptPipeError
    from optpipe_sim.processes.fresh import how_it_ended
    from optpipe_sim.runtime.device import prepare_cuda
except ImportError as missing:
    sys.exit(f"confirm_gpu: {missing}; it needs Python 3.11, torch, numpy, scipy and yaml")

DONE, PROBLEMS, BAD_INPUT, INTERRUPTED = 0, 10, 2, 130  # a process that hangs is ended with 1
FIRST = ("adaoffload",)  # under a cap, with its gradients and memory rank by rank
# name, chunks, placement, and whether it is built for the limit
RANKED = (
    ("1f1b",),
    ("zb-1p", 1, "loop", True),
    ("1f1b-i", 2),
    ("zb-v", 2, "vee", True),
    ("v-half", 2, "vee"),
    ("adaoffload",),
    ("optimised",),
)
LEVELS = ("norms+mlp", "full", "stage")
RECOMPUTING = ("1f1b:recompute=full", "1f1b:recompute=stage,apart=yes", "zb-h1:recompute=norms+mlp")
LLAMA_2B = Model("llama-2b", 16, 3072, 24, 32000, kv_heads=8, ffn=8192)
TINY = Model("tiny", 4, 64, 4, 96, kv_heads=2, ffn=96)
LENGTHS = {"llama2-7b": (2048, 4096, 8192), "gpt-14.6b": (1024, 2048)}


def main() -> int:
    arguments = _parser().parse_args()
    folder = Path(arguments.write)
    if arguments.goes_on is not None:
        return campaign(arguments, folder, resume=arguments.goes_on)
    with compiling(arguments.rehearse):
        return parent(folder)


def parent(folder: Path) -> int:
    """Have processes do the work until it is done, one after the other."""
    over, status = 0, LOST
    while True:
        command = [sys.executable, __file__, *sys.argv[1:], "--goes-on", "yes" if over else "no"]
        try:
            status = subprocess.call(command)
        except KeyboardInterrupt:
            return INTERRUPTED
        if status in (DONE, PROBLEMS, BAD_INPUT, INTERRUPTED):
            break
        how = {LOST: "its device answers no more"}.get(status, how_it_ended(status))
        how = "it hung, see failures.txt" if hung(folder) else how
        before, over = over, crashed(folder, how)
        if over <= before:  # it ends outside of any part
            print(f"confirm_gpu: {how}; what was found until then is in {folder}", file=sys.stderr)
            return 1
        print(f"confirm_gpu: {how}; going on with the parts that are left", flush=True)
    if status in (DONE, PROBLEMS):
        shutil.rmtree(kept_in(folder), ignore_errors=True)
        page = folder / "report.md"
        print(page.read_text() if page.is_file() else f"confirm_gpu: no report; see {folder}")
    return 1 if status == PROBLEMS else status


@contextmanager
def compiling(rehearse: bool) -> Iterator[None]:
    """Compile the loops of the search meanwhile, which takes a minute or two on a new machine: the GPU would wait.

    A rehearsal on a machine of few cores would wait itself."""
    if rehearse:
        yield
        return
    command = [sys.executable, "-m", "optpipe_sim.solvers.race.compiling"]
    quiet = subprocess.DEVNULL
    process = subprocess.Popen(command, cwd=ROOT, stdout=quiet, stderr=quiet)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--write", metavar="FOLDER", required=True, help="where the files go")
    parser.add_argument("--long", action="store_true", help="7B and 14B models, several lengths")
    parser.add_argument("--rehearse", action="store_true", help="on the CPU, with a tiny model")
    parser.add_argument("--deterministic", action="store_true", help="kernels that repeat bitwise")
    parser.add_argument("--seconds", type=float, help="in all (500; --long: 560)")
    parser.add_argument("--no-tests", action="store_true", help="leave the tests for GPUs out")
    parser.add_argument(  # of the process that does the work: whether one has begun it
        "--goes-on", type=lambda text: text == "yes", help=argparse.SUPPRESS
    )
    return parser


def campaign(arguments: argparse.Namespace, folder: Path, resume: bool) -> int:
    """Do the work, or go on with it."""
    try:
        environment = {} if arguments.rehearse else prepare_cuda(arguments.deterministic)
    except OptPipeError as error:
        print(f"confirm_gpu: {error}", file=sys.stderr)
        return BAD_INPUT
    if arguments.rehearse:
        torch.set_num_threads(1)
    from benchmarks.gpu.campaign import Campaign, Runner

    gc.freeze()  # what has been imported stays: to look through it again after each part takes 0.3 s
    planned = Campaign(
        works(arguments.long, arguments.rehearse),
        device="cpu" if arguments.rehearse else "cuda",
        seconds=arguments.seconds or (560 if arguments.long else 500),
        tests=not (arguments.no_tests or arguments.long),
        traces=not arguments.long,
        meta={
            "made": datetime.now(UTC).isoformat(timespec="seconds"),
            "by": f"optpipe_sim {__version__}, {' '.join(['confirm_gpu.py', *_given(sys.argv[1:])])}",
            "host": f"{platform.system()} {platform.release()}, {platform.machine()}",
            "environment": environment,
        },
    )
    try:
        found = Runner(planned, folder, lambda text: print(text, flush=True), resume).run()
    except (OptPipeError, OSError) as error:
        print(f"confirm_gpu: {error}", file=sys.stderr)
        return BAD_INPUT
    except KeyboardInterrupt:
        print(f"confirm_gpu: interrupted; what was found is in {folder}", file=sys.stderr)
        return INTERRUPTED
    failed = any(one["status"] != 0 for one in found["tests"].values())
    return PROBLEMS if failed or any(part["problem"] for part in found["parts"]) else DONE


def _given(words: Sequence[str]) -> list[str]:
    """The command line without what this program adds to it."""
    return list(words[: words.index("--goes-on")] if "--goes-on" in words else words)


def works(long: bool, rehearse: bool):
    """What is profiled and run."""
    from benchmarks.gpu.campaign import Ranked, Work
    from optpipe_sim.costs import load_model

    first = Work(
        LLAMA_2B, replays=("1f1b",), loops=FIRST, ranked=tuple(Ranked(*one) for one in RANKED)
    )
    if rehearse:
        small = {"devices": 2, "seq": 32, "dtype": "fp32", "microbatches": 4, "samples": 3}
        tiny = replace(
            first,
            model=TINY,
            **small,
            iterations=2,
            sweeps=3,
            solve_seconds=0.5,
            rank_iterations=1,
            rank_sweeps=1,
        )
        return (
            replace(tiny, replays=(), loops=RECOMPUTING, levels=LEVELS, ranked=())
            if long
            else tiny,
        )
    if not long:
        return (first,)
    return tuple(
        Work(
            at_length(load_model(name), seq),
            seq=seq,
            samples=10,
            sweeps=3,
            # at the shortest length, levels of recomputation too
            loops=("1f1b", "adaoffload", *(RECOMPUTING if seq == lengths[0] else ())),
            levels=LEVELS if seq == lengths[0] else (),
            capped=False,
        )
        # what comes last may be left out for lack of time
        for at in range(max(map(len, LENGTHS.values())))
        for name, lengths in LENGTHS.items()
        for seq in lengths[at : at + 1]
    )


def at_length(model: Model, seq: int) -> Model:
    """The model with as many learned positions as the sequences need."""
    return replace(model, positions=max(model.positions, seq)) if model.positions else model


if __name__ == "__main__":
    sys.exit(main())
