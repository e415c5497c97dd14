"""What a communicator of NCCL takes of a GPU's memory, outside torch's allocator; in a process of its own, which
may fail or hang.

    python -m optpipe_sim.runtime.measure.communicator 0

Not confirmed on a GPU yet.
"""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from pathlib import Path

import torch
import torch.distributed as dist

TIMEOUT_S = 60.0
ROOT = Path(__file__).parents[3]  # of the package, which need not be installed


@cache
def communicator_bytes(index: int, timeout_s: float = TIMEOUT_S) -> int | str:
    """Return the bytes of one communicator on that GPU, or why they are not known.

    One GPU can have a communicator of one process only: the buffers that connect it to another GPU come on
    top (`nccl.Nccl.buffer_bytes` has all of it, where there are several GPUs).
    """
    command = [sys.executable, "-m", __name__, str(index)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s)
    except (OSError, subprocess.SubprocessError) as error:
        return f"not measured: {type(error).__name__}"
    said = done.stdout.split()
    if done.returncode or not said or not said[-1].isdigit():
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        return f"not measured: {last}"
    return int(said[-1])


def main(index: int) -> None:
    """Print the bytes that the first communicator allocates."""
    torch.cuda.set_device(index)
    one = torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    before, _ = torch.cuda.mem_get_info()
    dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
    dist.all_reduce(one)
    torch.cuda.synchronize()
    print(max(0, before - torch.cuda.mem_get_info()[0]), flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main(int(sys.argv[1]))
