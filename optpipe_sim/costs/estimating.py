"""`estimate`: from a model, a machine and a parallelism to a profile."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ..errors import OptPipeError
from ..execution import Execution, load_execution
from ..option_fields import made_of, takes
from ..profile import CostProfile
from ..profile.dealing import deal_layers
from ..profile.items import EMBEDDING, HEAD, MTP, Item, deal_items, decoder_layers
from ..profile.streams import Streams
from ..schedule.shape import expand_placement
from ..schedules.sliced.exchange import with_context_exchange
from ..stage_cost import StageCost, with_overhead
from .imbalance import EVEN, Imbalance, as_imbalance
from .layer import Layer, device_parameters, layer
from .layout import Layout
from .machine_files import load_machine
from .machines import Machine, Rates
from .model_files import load_model
from .models import Model, embedding_parameters, head_parameters
from .pairs import layer_streams
from .parallelism import (
    check_work,
    decoder_counts,
    message_ns,
    mtp_stage,
    offloading,
    stage_kinds,
    stage_layers,
    static_bytes,
    sum_seconds,
    zero_seconds,
)
from .provenance import iteration_facts, provenance
from .recompute.levels import stage_levels, working_set
from .roofline import (
    OpTime,
    buffer_bytes,
    embedding_time,
    exposed_exchange,
    fp8_copy_bytes,
    head_bytes,
    head_time,
    head_working_set,
    op_time,
    projection,
    userbuffer_bytes,
)
from .slices import (
    Piece,
    in_slices,
    lengths_of_equal_time,
    placed,
    require_slice_by,
    slice_length,
)
from .work import Work

Source = str | os.PathLike[str] | Mapping[str, Any]
OPS = ("F", "B", "W")
NAMES = {True: "layer", False: "expert layer"}

KINDS = True, False, None  # of layers: plain; with experts; projections of those for further tokens

# how many of each kind a stage has, and whether it has the embedding, and the head
_Kinds = tuple[int, int, int]
_Key = tuple[_Kinds, bool, bool]


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
    made = estimated(model, _machine(machine, rates), layout, work, levels, items, offload, name)
    return made if execution is None else replace(made, execution=load_execution(execution))


def estimated(
    model: Model,
    machine: Machine,
    layout: Layout,
    work: Work,
    levels: bool | None = None,
    items: bool = True,
    offload: bool | None = None,
    name: str | None = None,
) -> CostProfile:
    """Return the profile of a model with a layout and its work, as `estimate` does.

    Raises:
        OptPipeError: one line with what does not fit.
    """
    spread = as_imbalance(work.imbalance, model.experts, layout.ep)
    work = replace(work.on(layout), imbalance=spread.usual)
    check_work(model, replace(work, seq=slice_length(work)))
    machine.peak(work.dtype)
    plan = _Plan(model, machine, layout, replace(work, seq=slice_length(work)))
    lengths = plan.lengths()
    counts = plan.counts()
    with_levels = _has_levels(levels, work)
    costs, section = offloading(plan.stages(counts, with_levels), machine, layout, offload)
    if work.slices > 1:
        costs = plan.sliced_stages(lengths, counts, with_levels, offload)
    apart = (items or work.pairs != "none") and work.slices == 1
    own = plan.items(with_levels) if apart else []
    moved, _ = offloading([one.cost for one in own], machine, layout, offload)
    latency, occupancy = message_ns(model, machine, layout, plan.work)
    p = layout.pipeline
    made = CostProfile(
        name=name or f"{model.name}-{machine.name}-p{p}-tp{work.tp}-s{work.seq}-b{work.microbatch}",
        devices=p,
        chunks=layout.chunks,
        slices=work.slices,
        placement=layout.placement,  # type: ignore[arg-type]
        stages=tuple(with_overhead(cost, round(machine.rates.op_us * 1e3)) for cost in costs),
        latency_ns=latency,
        occupancy_ns=occupancy,
        offload=section,
        memory_limit=(machine.limit_bytes(),) * p,
        execution=machine.issued_as(),
        meta=provenance(model, machine, layout, work, counts, plan.facts(counts), lengths)
        | plan.imbalance(spread, counts),
        items=tuple(map(Item.costing, own, moved)),
    )
    if work.pairs != "none":
        made = replace(made, pair_hidden=made.hidden_for([cost.layers or 0 for cost in costs]))
    return with_context_exchange(made) if work.slice_by == "exchange" else made


def _machine(given: Machine | Source, rates: Rates | None) -> Machine:
    machine = given if isinstance(given, Machine) else load_machine(given)
    return machine if rates is None else machine.with_rates(rates)


def _has_levels(asked: bool | None, work: Work) -> bool:
    """Return whether stages get levels of recomputation: unless `work` says what every run recomputes."""
    if asked and work.recompute != "none":
        raise OptPipeError(f"levels: give them or recompute={work.recompute}, not both")
    return work.recompute == "none" if asked is None else asked


class _Parts(NamedTuple):
    """A stage before its microbatches: seconds per op, bytes kept for B and for W and those that
    may be offloaded, weights outside and inside experts, the working set, and copies of its weights."""

    times: dict[str, OpTime]
    act: int
    held: int
    movable: int
    weights: tuple[int, int]
    reserve: int
    excess: int
    copies: int = 0


class _Plan:
    """The layers of a model on a layout: what one of each kind costs, and stages of them."""

    def __init__(self, model: Model, machine: Machine, layout: Layout, work: Work) -> None:
        self.model, self.machine, self.layout = model, machine, layout
        self.work = work  # of one slice
        kinds = {model.is_dense(at) for at in range(model.layers)}
        self.layers: dict[bool | None, Layer] = {kind: layer(model, kind, work) for kind in kinds}
        if model.mtp:
            self.layers[None] = projection(model, work)
        self.weights = {kind: device_parameters(model, kind, work) for kind in self.layers}
        self.times = {
            kind: {op: op_time(one, op, machine, model, work) for op in OPS}
            for kind, one in self.layers.items()
        }
        self.ends = [
            {op: edge(op, machine, model, work) for op in OPS}
            for edge in (embedding_time, head_time)
        ]

    def imbalance(self, spread: Imbalance, counts: Sequence[int | str]) -> dict[str, Any]:
        """Return how unevenly experts are loaded, and what the ends of a range are to the work and the activations
        of its middle, at ``imbalance``; nothing where they are loaded evenly."""
        if spread == EVEN:
            return {}

        def totals(imbalance: float) -> tuple[int, int]:
            work = replace(self.work, imbalance=imbalance)
            layout = replace(self.layout, chunks=1)
            stages = _Plan(self.model, self.machine, layout, work).stages(counts, False)
            return sum(one.work_ns for one in stages), max(one.act_bytes for one in stages)

        if not spread.spread:
            return {"imbalance": spread.to_json()}
        low, usual, high = map(totals, spread[:3])
        ends = [[end[at] / usual[at] for end in (low, high)] for at in (0, 1)]
        return {"imbalance": {**spread.to_json(), "time": ends[0], "act": ends[1]}}

    def lengths(self) -> tuple[int, ...]:
        """Return the tokens of each slice, of equal length or of equal time.

        Raises:
            OptPipeError: where it is neither.
        """
        require_slice_by(self.work.slice_by)
        equal = (self.work.seq,) * self.work.slices
        if self.work.slice_by != "time" or self.work.slices == 1:
            return equal
        kind = self.model.is_dense(self.model.layers - 1)
        return lengths_of_equal_time(equal, self.times[kind], self.work.cp * self.work.tp)

    def pieces(
        self, lengths: Sequence[int], costs: Callable[[_Plan], list[StageCost]]
    ) -> list[Piece]:
        """Return the slices, in order, with what `costs` says of a plan for one as long."""
        known = {}
        for length in set(lengths):
            work = replace(self.work, seq=length)
            check_work(self.model, work)
            own = _Plan(self.model, self.machine, self.layout, work)
            known[length] = Piece(costs(own), own.layers, own.times, work)
        return [known[length]._replace(start=start) for start, length in placed(lengths)]

    def sliced_stages(
        self,
        lengths: Sequence[int],
        counts: Sequence[int | str],
        levels: bool,
        offload: bool | None,
    ) -> list[StageCost]:
        """Stages of whole sequences, with the costs of their slices."""

        def of(part: _Plan) -> list[StageCost]:
            costs = part.stages(counts, levels)
            return offloading(costs, self.machine, self.layout, offload)[0]

        kinds = [kind[:2] for kind, *_ in self._known(counts)[0]]
        return in_slices(self.pieces(lengths, of), kinds, self.model, self.machine)

    def counts(self) -> Sequence[int | str]:
        """Layers per stage, checked or balanced."""
        stages, given = self.layout.pipeline * self.layout.chunks, self.layout.layers
        if given is not None:
            try:
                counts = decoder_counts(given)
            except ValueError:
                raise OptPipeError(f"layers: expected whole numbers, got {given}") from None
            if len(counts) != stages or min(counts) < 0 or sum(counts) != self.model.layers:
                raise OptPipeError(
                    f"layers: expected {stages} numbers that add up to {self.model.layers}, the"
                    f" layers of {self.model.name}; got {', '.join(map(str, given))}"
                )
            marked = sum(isinstance(count, str) for count in given)
            if marked > bool(self.model.mtp) or any(counts[mtp_stage(given) + 1 :]):
                raise OptPipeError(
                    "layers: an m marks the stage with the layers that predict further tokens, which come after"
                    f" all others; {self.model.name} has {self.model.mtp}; got {', '.join(map(str, given))}"
                )
            return list(given)
        placed = expand_placement(self.layout.placement, self.layout.pipeline, self.layout.chunks)
        if self.work.slices == 1:
            items = self.items(levels=False)
            return decoder_layers(items, deal_items(items, placed, self.model.name))
        more = self.work.slices - 1  # attention of a slice in the middle
        cost = {
            kind: sum(times[op].total + more * times[op].attention for op in OPS)
            for kind, times in self.times.items()
        }
        each = [cost[self.model.is_dense(at)] for at in range(self.model.layers)]
        first, last = (sum(end[op].total for op in OPS) for end in self.ends)
        last += self.model.mtp * (last + each[-1] + cost.get(None, 0.0))
        return deal_layers(tuple(each), first, last, placed, self.model.name)

    def stages(self, counts: Sequence[int | str], levels: bool) -> list[StageCost]:
        """Return the cost of every stage."""
        keys, known = self._known(counts)
        costs = {key: self._stage(part, self.layout.chunks) for key, part in known.items()}
        if levels:
            costs = {key: self._with_levels(cost, key[0]) for key, cost in costs.items()}
        said = stage_layers(counts, self.model.mtp)
        return [replace(costs[key], layers=said[at]) for at, key in enumerate(keys)]

    def facts(self, counts: Sequence[int | str]) -> dict[str, Any]:
        """Return what holds for the whole iteration."""
        keys, known = self._known(counts)
        spent = {
            key: {
                op: time._replace(attention=self.work.slices * time.attention)
                for op, time in part.times.items()
            }
            for key, part in known.items()
        }
        weights = [known[key].weights for key in keys]
        work = replace(self.work, seq=self.work.slices * self.work.seq)
        more = {
            kind: exposed_exchange(one, self.machine, self.model, self.work)
            for kind, one in self.layers.items()
        }
        body = [self.model.is_dense(at) for at in range(self.model.layers)]
        exposed = sum(more[kind] for kind in [*body, *body[-1:] * self.model.mtp])
        by_stage = [spent[key] for key in keys]
        return iteration_facts(
            self.model, self.machine, self.layout, work, by_stage, weights, exposed
        )

    def _known(self, counts: Sequence[int | str]) -> tuple[list[_Key], dict[_Key, _Parts]]:
        """Return the kind of each stage, and the parts of each kind: most stages are alike."""
        kinds: list[_Kinds] = [
            (*kind, 0) for kind in stage_kinds(self.model, decoder_counts(counts))
        ]
        at = mtp_stage(counts)
        more = zip(kinds[at], self._further(self.model.mtp), strict=True)
        kinds[at] = tuple(map(sum, more))  # type: ignore[assignment]
        keys = [(kind, at == 0, at == len(kinds) - 1) for at, kind in enumerate(kinds)]
        return keys, {key: self._parts(*key) for key in dict.fromkeys(keys)}

    def _further(self, count: int) -> _Kinds:
        """What so many layers that predict further tokens are made of."""
        dense = self.model.is_dense(self.model.layers - 1)
        return count * dense, count * (not dense), count

    def items(self, levels: bool) -> list[Item]:
        """Return the model layer by layer, embedding and head included."""

        def item(
            name: str, kind: _Kinds, first: bool = False, last: bool = False, table: bool = True
        ) -> Item:
            part = self._parts(kind, first, last, table)
            cost = self._stage(part._replace(reserve=0), 1)
            cost = self._with_levels(cost, kind) if levels else cost
            return Item(name, cost, part.reserve, self._streams(kind))

        none = (0, 0, 0)
        kinds = {one: item(NAMES[one], (one, not one, 0)) for one in self.layers if one is not None}
        body = [kinds[self.model.is_dense(at)] for at in range(self.model.layers)]
        body += [item(MTP, self._further(1), table=at == 0) for at in range(self.model.mtp)]
        return [item(EMBEDDING, none, first=True), *body, item(HEAD, none, last=True)]

    def _streams(self, kind: _Kinds) -> Streams | None:
        """Return what the one layer of an item does on the two streams of a pair; its projection comes
        before it."""
        if self.work.pairs == "none" or not any(kind):
            return None
        dense, _, projections = kind
        which, times = bool(dense), self.times[bool(dense)]
        if projections:
            times = {op: times[op].plus(self.times[None][op]) for op in OPS}
        return layer_streams(self.layers[which], times, self.machine, self.model, self.work)

    def _parts(self, kind: _Kinds, first: bool, last: bool, table: bool = True) -> _Parts:
        """Return a stage of so many layers, with the embedding or the head; layers that predict further
        tokens need the `table` of the embedding."""
        times = {op: OpTime() for op in OPS}
        act = held = excess = buffers = working = copies = 0
        count = [0, 0]
        for which, number in zip(KINDS, kind, strict=True):
            if not number:
                continue
            one = self.layers[which]
            for op in OPS:
                times[op] = times[op].plus(self.times[which][op].times(number))
            act += number * one.kept_bytes()
            # of what its W needs, a layer holds what it keeps; the rest is recomputed for it
            held += number * min(one.held_for_w, one.kept_bytes())
            count = [c + number * w for c, w in zip(count, self.weights[which], strict=True)]
            working = max(working, working_set(one, self.machine))
            buffers += buffer_bytes(one.gemms, self.machine, self.work)
            copies += number * fp8_copy_bytes(one, self.work)
        movable = act
        heads = last * (1 + self.model.mtp)  # each further token has its logits and its loss
        for edge, number in zip(self.ends, (int(first), heads), strict=True):
            if number:
                times = {op: times[op].plus(edge[op].times(number)) for op in OPS}
        if first:
            count[0] += -(-embedding_parameters(self.model) // self.work.tp)
            act += self.work.norm_tokens * self.model.hidden if self.model.gpt else 0
        if kind[2] and table and not first and not self.model.tied:  # its own copy of the table
            count[0] += -(-embedding_parameters(self.model) // self.work.tp)
        if last:
            count[0] += -(-head_parameters(self.model) // self.work.tp)
            extra, logits = (
                heads * size for size in head_bytes(self.machine, self.model, self.work)
            )
            act, held, movable = act + extra + logits, held + extra, movable + extra
            # beyond the working set of a layer, which comes after the logits are released
            most = max(working_set(one, self.machine) for one in self.layers.values())
            excess = max(-logits, head_working_set(self.machine, self.model, self.work) - most)
        if first and last and self.model.tied:
            count[0] -= self.model.vocab * self.model.hidden // self.work.tp
        moved = sum_seconds((count[0], count[1]), self.layout, self.machine, self.work)
        times["W"] = times["W"].plus(OpTime(elementwise=moved))
        reserve = working + buffers + round(self.machine.rates.workspace_mib * 2**20)
        reserve += userbuffer_bytes(self.model, self.work)
        if self.layout.zero == 3:  # one layer's weights gathered, the next one's on the way
            reserve += 2 * max(sum(w) for w in self.weights.values()) * self.work.element
        return _Parts(times, act, held, movable, (count[0], count[1]), reserve, excess, copies)

    def _stage(self, part: _Parts, chunks: int) -> StageCost:
        times, act, held, weights = part.times, part.act, part.held, part.weights
        exchange = zero_seconds(weights, self.layout, self.machine, self.work.gradient_bytes)
        hidden = self.machine.rates.gemm_overlap
        seconds = {
            op: times[op].total + max(0.0, exchange[op] - hidden * times[op].gemm) for op in OPS
        }
        factor = self.machine.rates.memory_factor
        each = self.work.weight_bytes
        static = static_bytes(weights, self.layout, each, self.work.held_gradient_bytes)
        kept = round(act * factor)
        return StageCost(
            t_f_ns=max(1, round(seconds["F"] * 1e9)),
            t_b_ns=max(1, round(seconds["B"] * 1e9)),
            t_w_ns=round(seconds["W"] * 1e9),
            act_bytes=kept,
            w_bytes=min(kept, round(held * factor)),
            offload_bytes=min(kept, part.movable),
            static_bytes=max(0, static + part.reserve // chunks + part.excess + part.copies),
        )

    def _with_levels(self, cost: StageCost, kind: _Kinds) -> StageCost:
        """Return a stage of so many layers, with its levels of recomputation, which keep projections."""
        layers = [
            (self.layers[which], number)
            for which, number in zip(KINDS[:2], kind[:2], strict=True)
            if number
        ]
        if not layers:
            return cost
        found = stage_levels(
            layers, cost.act_bytes, cost.w_bytes, self.model, self.machine, self.work
        )
        return replace(cost, recompute=found)
