"""The device, versions and clocks of this machine, for the provenance of measurements."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from ...version import __version__

if TYPE_CHECKING:
    from ..model.plan import Stages

MEASURED = {
    "t_f, t_b, t_w, t_bw": "measured: medians",
    "t_comm": "not measured",
    "t_offload, t_reload": "fitted to measured copies beside GEMMs",
    "act, w, offload": "measured",
    "static": "weights, gradients and reserve measured; optimizer by its bytes per weight",
}


def provenance(plan: Stages, device: torch.device | None) -> dict[str, Any]:
    """The provenance of a measured profile; `device` is None for fake tensors."""
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
    """Name, memory, threads or driver, clocks where they can be read."""
    if device.type != "cuda":
        return {
            "kind": "cpu",
            "name": _processor(),
            "cores": os.cpu_count(),
            "threads": torch.get_num_threads(),
            "clocks_mhz": _cpu_clocks(),
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
        **_nvidia_smi(),
    }


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def _cpu_clocks() -> dict[str, float] | None:
    """Lowest and highest clock of the cores now, where the system reports it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return None
    clocks = [float(line.partition(":")[2]) for line in lines if line.startswith("cpu MHz")]
    return {"least": min(clocks), "most": max(clocks)} if clocks else None


def _nvidia_smi() -> dict[str, Any]:
    """Driver and clocks, where nvidia-smi reports them."""
    keys = ("driver_version", "clocks.sm", "clocks.mem", "clocks.max.sm", "power.limit")
    command = ["nvidia-smi", f"--query-gpu={','.join(keys)}", "--format=csv,noheader,nounits"]
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return {}
    values = [value.strip() for value in found.stdout.splitlines()[0].split(",")]
    return {"nvidia_smi": dict(zip(keys, values, strict=False))}
