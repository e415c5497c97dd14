"""`estimate`: from a model, a machine and a parallelism to a profile."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import OptPipeError
from ..execution import Execution
from ..option_fields import made_of, takes
from ..profile import CostProfile
from ..schedules.sliced.exchange import with_context_exchange
from ..stage_cost import with_overhead
from .imbalance import EVEN, Imbalance, as_imbalance
from .layout import Layout
from .machine_files import load_machine
from .machines import Machine, Rates
from .model_files import load_model
from .models import Model
from .parallelism import check_work, message_ns, offloading
from .provenance import provenance
from .slices import lengths_of, slice_length, sliced_stages
from .stages import Stages
from .work import Work

Source = str | os.PathLike[str] | Mapping[str, Any]


@takes(Layout, Work)
def estimate(
    model: Model | Source,
    machine: Machine | Source,
    devices: int,
    *,
    levels: bool | None = None,
    items: bool = True,
    offload: bool | None = None,
    rates: Rates | None = None,
    execution: Execution | str | None = None,
    name: str | None = None,
    **options: Any,
) -> CostProfile:
    """Estimate the profile of a model on a machine from its shapes.

    Args:
        model, machine: a name, a file, a mapping, or what `load_model` and `load_machine` return.
        devices: GPUs of one replica; the pipeline gets p = devices / (tp * cp) of them.
        levels: whether stages get levels of recomputation (see `recompute.levels`), for schedules and
            solvers to choose from; not with `recompute`. By default they do unless `recompute` says what
            every run recomputes.
        items: whether the profile has the costs layer by layer, too, of which stages in other chunks are made.
        offload: False for none; True to insist; None for one wherever the machine has PCIe data.
        rates: achieved rates in the place of the machine's own, such as `calibrate` returns.
        execution: how the trainer issues the work; None: as the runs were issued that the machine's
            rates are fitted to.
        name: of the profile; by default model, machine and sizes.
        options: the fields of `Layout` and of `Work`.

    Raises:
        OptPipeError: one line with what does not fit.
    """
    model = model if isinstance(model, Model) else load_model(model)
    layout, work = made_of(options, Layout, Work, devices=devices)
    machine = machine if isinstance(machine, Machine) else load_machine(machine)
    machine = machine if rates is None else machine.with_rates(rates)
    return estimated(model, machine, layout, work, levels, items, offload, name, execution)


def estimated(
    model: Model,
    machine: Machine,
    layout: Layout,
    work: Work,
    levels: bool | None = None,
    items: bool = True,
    offload: bool | None = None,
    name: str | None = None,
    execution: Execution | str | None = None,
    limit_bytes: int | None = None,
) -> CostProfile:
    """Return the profile of a model with a layout and its work, as `estimate` does; under a limit other than what driver
    and libraries leave, if one is given.

    Raises:
        OptPipeError: one line with what does not fit.
    """
    spread = as_imbalance(work.imbalance, model.experts, layout.ep)
    work = work.on(layout, imbalance=spread.usual)
    part = work if work.slices == 1 else replace(work, seq=slice_length(work))
    check_work(model, part)
    machine.peak(work.dtype)
    with_levels, copies = _has_levels(levels, work), offloading(machine, layout, offload)
    apart = (items or work.pairs != "none") and work.slices == 1
    stages = Stages(model, machine, layout, part, copies, with_levels, apart)
    lengths = lengths_of(stages)
    costs = stages.stage_costs() if work.slices == 1 else sliced_stages(stages, lengths)
    latency, occupancy = message_ns(model, machine, layout, part)
    p, overhead_ns = layout.pipeline, round(machine.rates.op_us * 1e3)
    usable = machine.limit_bytes()
    limit = usable if limit_bytes is None else limit_bytes
    made = CostProfile(
        name=name or f"{model.name}-{machine.name}-p{p}-tp{work.tp}-s{work.seq}-b{work.microbatch}",
        devices=p,
        chunks=layout.chunks,
        slices=work.slices,
        placement=layout.placement,  # type: ignore[arg-type]
        stages=tuple(with_overhead(cost, overhead_ns) for cost in costs),
        latency_ns=latency,
        occupancy_ns=occupancy,
        offload=None if copies is None else copies.section,
        memory_limit=(limit,) * p,
        execution=machine.issued_as(execution),
        meta=provenance(stages, work, lengths) | _imbalance(stages, spread) | _stash(stages),
        items=tuple(stages.items) if apart else (),
    )
    if work.pairs != "none":
        made = replace(made, pair_hidden=made.hidden_for([cost.layers or 0 for cost in costs]))
    return with_context_exchange(made) if work.slice_by == "exchange" else made


def _has_levels(asked: bool | None, work: Work) -> bool:
    """Return whether stages get levels of recomputation: unless `work` says what every run recomputes."""
    if asked and work.recompute != "none":
        raise OptPipeError(f"levels: give them or recompute={work.recompute}, not both")
    return work.recompute == "none" if asked is None else asked


def _imbalance(stages: Stages, spread: Imbalance) -> dict[str, Any]:
    """Return how unevenly experts are loaded, and what the ends of a range are to the work and the activations
    of its middle, at ``imbalance``; nothing where they are loaded evenly."""
    if spread == EVEN:
        return {}

    def totals(imbalance: float) -> tuple[int, int]:
        costs = stages.with_work(imbalance=imbalance).stage_costs()
        return sum(one.work_ns for one in costs), sum(one.act_bytes for one in costs)

    if not spread.spread:
        return {"imbalance": spread.to_json()}
    low, usual, high = map(totals, spread[:3])
    ends = [[end[at] / usual[at] for end in (low, high)] for at in (0, 1)]
    return {"imbalance": {**spread.to_json(), "time": ends[0], "act": ends[1]}}


def _stash(stages: Stages) -> dict[str, Any]:
    """Return what a paged stash saves on the stage that it saves most, and the buffers of each device that it needs
    beside its pages; nothing without one."""
    if not stages.work.paged_stash:
        return {}
    both = zip(stages.stage_costs(), stages.with_work(paged_stash=0.0).stage_costs(), strict=True)
    saved = [
        (plain.act_bytes - own.act_bytes, own.static_bytes - plain.static_bytes)
        for own, plain in both
    ]
    stage = max(range(len(saved)), key=lambda at: saved[at])
    less, more = saved[stage]
    return {
        "paged_stash": {
            "stage": stage,
            "saved_bytes": less,
            "buffer_bytes": more * stages.layout.chunks,
        }
    }
