"""The answers of `advise --family`, as the command gives them."""

from __future__ import annotations

import json
import subprocess
import sys
from time import perf_counter

from optpipe_sim.costs import load_machine
from optpipe_sim.costs.advise.rows import LIMITS
from optpipe_sim.errors import OptPipeError
from optpipe_sim.study.tasks import Count, Row

VERSION = 2
ROOM = 0.05  # of the memory that driver and libraries leave: what plans leave free


def run(
    model: str,
    gpus: Count,
    global_batch: Count,
    seq: Count,
    machine: str,
    family: str,
    seed: int = 0,
) -> Row:
    """Return the best plan in the options of `family`, its time and MFU, the best of the same split
    without the family, a bound on both, and how long the command took, its start included."""
    asked = {
        "model": model, "machine": machine, "gpus": gpus, "global-batch": global_batch, "seq": seq,
        "family": family, "seed": seed, "memory-limit": _limit(machine),
    }  # fmt: skip
    options = [word for key, value in asked.items() for word in (f"--{key}", str(value))]
    began = perf_counter()
    command = [sys.executable, "-m", "optpipe_sim", "advise", *options, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OptPipeError(done.stderr.strip() or f"advise ended with {done.returncode}")
    took = perf_counter() - began
    answer = json.loads(done.stdout)
    row = answer["rows"][0]
    return {
        **{key: row[key] for key in ("pp", "tp", "cp", "ep", "dp", "zero", "chunks", "recompute")},
        "schedule": answer["told"],
        "layers": answer["told_layers"],
        "iteration_ns": answer["told_iteration_ns"],
        "mfu": answer["told_mfu"],
        "plausible": row["plausible"],
        "limited_by": row["limited_by"],
        "limited_share": sum(
            row["parts"][key] for key in LIMITS.get(row["limited_by"], ("compute",))
        ),
        "free_ns": answer.get("free_ns"),
        "bound_ns": answer.get("layout_bound_ns"),
        "command": answer["command"],
        "seconds": round(took, 1),
    }


def _limit(machine: str) -> str:
    """Return the limit of a device, in whole tenths of a GiB."""
    usable = int(load_machine(machine).usable_bytes * (1 - ROOM))
    return f"{usable * 10 // 2**30 / 10}GiB"
