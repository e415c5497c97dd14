"""Facts of a machine before anything is measured on it; each probe on its own, as any of them may fail on a
new machine."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import metadata
from typing import Any

import torch

from optpipe_sim.runtime.execute.transport import driver, pinned_zeros, wait_for_one
from optpipe_sim.runtime.measure.machine import device_facts
from optpipe_sim.runtime.model.plan import Plan

PACKAGES = [
    "numpy",
    "scipy",
    "pyyaml",
    "numba",
    "matplotlib",
    "rich",
    "simpy",
    "pyomo",
    "highspy",
    "ortools",
    "joblib",
    "pyarrow",
    "pytest",
    "hypothesis",
    "triton",
]
ENVIRONMENT = ("CUDA_", "TORCH_", "PYTORCH_", "NCCL_", "CUBLAS_", "OMP_")
SMI = ("topo -m", "-q -d CLOCK,PERFORMANCE,POWER")
MOST_LINES = 60


def probe(device: torch.device, plan: Plan) -> dict[str, Any]:
    """Run all probes; one that fails gives its reason in one line.

    Args:
        plan: a stage of it runs twice on the same numbers, to see whether gradients repeat.
    """
    questions: dict[str, Callable[[], Any]] = {
        "python": lambda: sys.version.split()[0],
        "torch": lambda: _torch(),
        "packages": packages,
        "environment": lambda: {k: v for k, v in os.environ.items() if k.startswith(ENVIRONMENT)},
        "device": lambda: device_facts(device),
        "repeats": lambda: repeats(plan, device),
    }
    if device.type == "cuda":
        questions |= {
            "nvidia_smi": lambda: {what: _smi(what) for what in SMI},
            "workspace_bytes": lambda: workspace_bytes(device),
            "allocator": lambda: rounding(device),
            "attention": attention,
            "gate": gate,
            "launch_us": launch_us,
            "pin_gib_s": pin_gib_s,
        }
    found: dict[str, Any] = {}
    for name, ask in questions.items():
        try:
            found[name] = ask()
        except Exception as error:  # a probe may fail
            found[name] = f"failed: {type(error).__name__}: {str(error).splitlines()[0:1]}"
    return found


def packages() -> dict[str, str | None]:
    """Return versions; None of what is not installed."""

    def version(name: str) -> str | None:
        try:
            return metadata.version(name)
        except metadata.PackageNotFoundError:
            return None

    return {name: version(name) for name in PACKAGES}


def repeats(plan: Plan, device: torch.device) -> dict[str, Any]:
    """Whether the same chain gives bitwise the same gradients twice, and by how much it does not:
    the largest difference, of the largest entry of that gradient."""
    runs = []
    worker = plan.worker(0, device)
    tokens, _ = plan.batch(device)
    for _ in range(2):
        for parameter in worker.parameters():
            parameter.grad = torch.zeros_like(parameter)
        worker.start_step(tokens, tokens)
        worker.run_chain((0, None), fused=True)
        worker.finish_step()
        runs.append([p.grad for p in worker.parameters() if p.grad is not None])
    different = 0
    worst = 0.0
    for one, other in zip(*runs, strict=True):
        if not torch.equal(one, other):
            different += 1
            largest = float(one.abs().max())
            worst = max(worst, float((one.float() - other.float()).abs().max()) / (largest or 1.0))
    return {"gradients": len(runs[0]), "different": different, "relative": worst}


def workspace_bytes(device: torch.device) -> int:
    """Return the bytes that the first GEMM on a new stream leaves allocated."""
    with torch.cuda.stream(torch.cuda.Stream(device)):
        x = torch.zeros(256, 256, device=device, dtype=torch.bfloat16)
        before = torch.cuda.memory_allocated(device)
        y = x @ x
        torch.cuda.synchronize(device)
        return int(torch.cuda.memory_allocated(device) - before - y.untyped_storage().nbytes())


def rounding(device: torch.device) -> dict[str, list[int]]:
    """Return, by the bytes asked for, those allocated and those reserved."""
    found = {}
    for size in (1000, 3 * 2**20 + 1, 30 * 2**20 + 1, 300 * 2**20 + 1):
        torch.cuda.empty_cache()
        before = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
        kept = torch.empty(size, dtype=torch.uint8, device=device)
        after = torch.cuda.memory_allocated(device), torch.cuda.memory_reserved(device)
        found[str(kept.numel())] = [b - a for a, b in zip(before, after, strict=True)]
        del kept
    return found


def attention() -> dict[str, Any]:
    """Return which fused attention kernels are on, and which one is taken for a causal bf16 head of 128."""
    x = torch.zeros(1, 8, 1024, 128, device="cuda", dtype=torch.bfloat16, requires_grad=True)
    chosen = torch._fused_sdp_choice(x, x, x, is_causal=True)
    on = torch.backends.cuda
    return {
        "chosen": str(torch.nn.attention.SDPBackend(chosen)),
        "flash": on.flash_sdp_enabled(),
        "cudnn": on.cudnn_sdp_enabled(),
        "efficient": on.mem_efficient_sdp_enabled(),
    }


def gate() -> dict[str, Any]:
    """Whether a stream waits for a word in pinned host memory, and how soon it goes on."""
    word = pinned_zeros(1)
    done = torch.cuda.Event()
    failed = wait_for_one(driver(), word.data_ptr())
    done.record()
    time.sleep(0.02)
    waited = not done.query()
    start = time.perf_counter()
    word[0] = 1
    while not done.query() and time.perf_counter() - start < 1:
        pass
    return {"error": failed, "waited": waited, "opens_us": (time.perf_counter() - start) * 1e6}


def launch_us(count: int = 2000) -> float:
    """Return how long the host takes to issue a small kernel, in us."""
    x = torch.zeros(16, device="cuda")
    x.add_(1)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(count):
        x.add_(1)
    took = time.perf_counter() - start
    torch.cuda.synchronize()
    return took / count * 1e6


def pin_gib_s(size: int = 1 << 30) -> float:
    """Return how fast host memory is pinned."""
    start = time.perf_counter()
    torch.empty(size, dtype=torch.uint8, pin_memory=True)
    return size / 2**30 / (time.perf_counter() - start)


def _torch() -> dict[str, Any]:
    nccl: Any = torch.cuda.nccl.version() if torch.cuda.is_available() else None
    return {
        "version": str(torch.__version__),
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
        "nccl": nccl and ".".join(map(str, nccl)),
    }


def _smi(what: str) -> list[str]:
    command = ["nvidia-smi", *what.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    return [line.rstrip() for line in done.stdout.splitlines() if line.strip()][:MOST_LINES]
