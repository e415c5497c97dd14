"""The device, versions and clocks of this machine, for the provenance of measurements; and what a communicator of NCCL
takes of a GPU's memory, outside torch's allocator. That is measured in a process of its own, which may fail or hang:

    python -m optpipe_sim.runtime.measure.machine 0

(Not confirmed on a GPU yet.)
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from ...version import __version__
from ..device import beside

if TYPE_CHECKING:
    from ..model.plan import Stages


LOAD_WIDTH, LOAD_AT_ONCE, LOAD_S = 4096, 16, 0.2  # of the GEMMs under which clocks are read
MEASURED = {
    "t_f, t_b, t_w, t_bw": "measured: medians",
    "t_comm": "not measured",
    "t_offload, t_reload": "fitted to measured copies beside GEMMs",
    "act, w, offload": "measured",
    "static": "weights, gradients and reserve measured; optimizer by its bytes per weight",
    "interference": "measured: durations beside copies and after an idle gap, over those alone",
}
TIMEOUT_S = 60.0
ROOT = Path(__file__).parents[3]  # of the package, which need not be installed


def provenance(plan: Stages, device: torch.device | None) -> dict[str, Any]:
    """Return the provenance of a measured profile; `device` is None for fake tensors."""
    facts = plan.facts()
    return {
        "source": f"optpipe-sim profile: {plan.title} on {'fake' if device is None else device}",
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": facts["model"],
        "device": {"kind": "fake"} if device is None else device_facts(device),
        "versions": {
            "optpipe_sim": __version__,
            "torch": str(torch.__version__),
            "python": platform.python_version(),
        },
        "work": facts["work"],
        "layers_per_stage": list(plan.layers or ()),
        "provenance": dict(MEASURED),
    }


def device_facts(device: torch.device) -> dict[str, Any]:
    """Return name, memory, threads or driver, and clocks where they can be read."""
    if device.type != "cuda":
        names, clocks = _cpu_info("model name"), [*map(float, _cpu_info("cpu MHz"))]
        return {
            "kind": "cpu",
            "name": names[0] if names else platform.processor() or platform.machine(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "clocks_mhz": {"least": min(clocks), "most": max(clocks)} if clocks else None,
        }
    facts = torch.cuda.get_device_properties(device)
    free, total = torch.cuda.mem_get_info(device)
    # without the memory of the CUDA context and of other processes
    usable = free + torch.cuda.memory_reserved(device)
    return {
        "kind": facts.name.lower().replace(" ", "-"),
        "name": facts.name,
        "capability": f"{facts.major}.{facts.minor}",
        "multiprocessors": facts.multi_processor_count,
        "memory_bytes": total,
        "usable_bytes": usable,
        "cuda": torch.version.cuda,
        **_nvidia_smi(facts),
    }


def _cpu_info(key: str) -> list[str]:
    """Return what Linux says of each core; nothing on other systems."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return []
    return [line.partition(":")[2].strip() for line in lines if line.startswith(key)]


def _nvidia_smi(facts: Any) -> dict[str, Any]:
    """Return driver, limits and clocks of this GPU as nvidia-smi reports them: at rest, and while GEMMs run."""
    uuid = getattr(facts, "uuid", None)  # torch's index counts the visible devices only
    which = [] if uuid is None else [f"--id=GPU-{uuid}"]
    known = _query(
        which, "driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.limit"
    )
    if not known:
        return {}
    with under_load():
        busy = _query(which, "clocks.sm", "clocks.mem", "power.draw")
    return {"nvidia_smi": known, "clocks_under_load": busy}


def _query(which: list[str], *keys: str) -> dict[str, str]:
    """Return what nvidia-smi says of these; nothing where it is missing, or does not know the device
    (MIG)."""
    command = [
        "nvidia-smi",
        *which,
        f"--query-gpu={','.join(keys)}",
        "--format=csv,noheader,nounits",
    ]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    lines = found.stdout.splitlines()
    values = [value.strip() for value in lines[0].split(",")] if lines else []
    return dict(zip(keys, values, strict=False))


@contextmanager
def under_load() -> Iterator[None]:
    """Have GEMMs run on the current GPU, from before the block to its end."""
    square = torch.full((LOAD_WIDTH,) * 2, 1 / LOAD_WIDTH, device="cuda", dtype=torch.bfloat16)

    def work() -> None:
        for _ in range(LOAD_AT_ONCE):
            torch.mm(square, square)
        torch.cuda.current_stream(square.device).synchronize()

    with beside(work):
        time.sleep(LOAD_S)
        yield
    torch.cuda.synchronize()


@cache
def communicator_bytes(index: int) -> int | str:
    """Return the bytes of one communicator on that GPU, or why they are not known.

    One GPU can have a communicator of one process only: the buffers that connect it to another GPU come on
    top (`nccl.Nccl.buffer_bytes` has all of it, where there are several GPUs).
    """
    command = [sys.executable, "-m", __name__, str(index)]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=TIMEOUT_S)
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
