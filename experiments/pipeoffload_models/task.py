"""A cell of PipeOffload's figure 15: MFU, activation memory and outcome, estimated and measured."""

from __future__ import annotations

from dataclasses import replace

from experiments.published import figure_15
from optpipe_sim.costs import load_machine
from optpipe_sim.costs.provenance import iteration_ns, mfu
from optpipe_sim.errors import OptPipeError
from optpipe_sim.names import build
from optpipe_sim.sim import simulate
from optpipe_sim.study.tasks import Count, Row, ScheduleName
from optpipe_sim.trace import Trace

VERSION = 1
_GIB = 2**30


def run(model: str, seq: Count, schedule: ScheduleName, machine: str = "a100-80gb") -> Row:
    """Return the estimate of a cell with the machine file's rates, and the published values.

    ``outcome`` is ``ran``, ``oom``, ``host`` (out of host memory) or, published only, ``skip`` (not
    run). Activation memory is the fullest device's peak less its weights, gradients and optimizer
    states; ``unshared_gib`` the same with a link per device where pairs share one. ``role``: ``fit``
    where the rates were fitted to the model, ``check`` where not.

    Raises:
        OptPipeError: where the figure has no such cell.
    """
    cells = figure_15(skipped=True)
    key = (model, seq, schedule)
    cell = next((one for one in cells if (one.model, one.seq, one.schedule) == key), None)
    if cell is None:
        raise OptPipeError(f"figure 15 has no {schedule} of {model} at sequence {seq}")
    device = load_machine(machine)
    # as in the calibration: built at the data sheet's rates, where F and B are nearest to equal, as
    # GIS-H is meant; with slower messages it would have two groups in flight, for twice the memory
    cell.replays.trace(cell.replays.machine.rates)
    trace = cell.replays.trace(device.rates)
    profile = trace.profile
    limit = device.memory_gib - device.rates.context_gib
    room = device.host_memory_gib or float("inf")
    peak, host = max(trace.peak_bytes) / _GIB, trace.host_peak_bytes / _GIB
    unshared = None
    if profile.offload is not None:
        alone = replace(profile, offload=replace(profile.offload, host_link_groups=()))
        built = build(schedule, alone, cell.setup.microbatches)
        unshared = _activation_gib(simulate(built, alone, enforce=False))
    ran = cell.outcome == "ran"
    time = iteration_ns(profile, trace.cost_ns)
    return {
        "devices": profile.devices,
        "role": cell.role,
        "outcome": "oom" if peak > limit else "host" if host > room else "ran",
        "published_outcome": cell.outcome,
        "mfu_percent": 100 * mfu(profile, time, cell.setup.microbatches),
        "published_mfu_percent": cell.percent if ran else None,
        "activation_gib": _activation_gib(trace),
        "unshared_gib": unshared,
        "published_activation_gib": cell.gib if ran else None,
        "iteration_ms": time / 1e6,
        "peak_gib": peak,
        "limit_gib": limit,
        "host_gib": host,
    }


def _activation_gib(trace: Trace) -> float:
    weights = trace.profile.meta["weights_bytes_per_device"]
    return float(max(b - w for b, w in zip(trace.peak_bytes, weights, strict=True))) / _GIB
