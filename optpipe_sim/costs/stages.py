"""What the stages of a model cost on a layout: each has so many layers of each kind, the first one the embedding, the
last one the head."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

from ..errors import OptPipeError
from ..profile.dealing import deal_layers
from ..profile.items import EMBEDDING, HEAD, MTP, Item, deal_items, decoder_layers
from ..profile.streams import Streams
from ..schedule.shape import expand_placement
from ..stage_cost import StageCost
from .layer import Layer, device_parameters, layer
from .layout import Layout
from .machines import Machine
from .models import Model, embedding_parameters, head_parameters
from .pairs import layer_streams
from .parallelism import (
    Copies,
    check_work,
    decoder_counts,
    mtp_stage,
    stage_kinds,
    static_parts,
    sum_seconds,
    zero_seconds,
)
from .recompute.levels import layer_drops, stage_levels
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
    working_set,
)
from .work import Work

OPS = ("F", "B", "W")
NAMES = {True: "layer", False: "expert layer"}

KINDS = True, False, None  # of layers: plain; with experts; projections of those for further tokens

_Kinds = tuple[int, int, int]  # how many of each
_Key = tuple[
    _Kinds, bool, bool
]  # of a stage: its layers, whether it has the embedding, and the head


class LayerCost(NamedTuple):
    """What one layer of a kind costs on a device, wherever it is.

    Attributes:
        work: its work. `times`: seconds per op. `exposed_s`: see `exposed_exchange`.
        weights: outside and inside experts.
        act, held: bytes that are kept for B, and of these for W: the rest of what W needs is recomputed for it.
        working, buffers: what one such layer of a stage needs beside. `copies`: of its weights.
    """

    work: Layer
    times: dict[str, OpTime]
    exposed_s: float
    weights: tuple[int, int]
    act: int
    held: int
    working: int
    buffers: int
    copies: int


class ModelCosts(NamedTuple):
    """What the layers of a model cost by their kind, and the embedding and the head: seconds per op."""

    layers: dict[bool | None, LayerCost]
    ends: tuple[dict[str, OpTime], dict[str, OpTime]]


@lru_cache(maxsize=4096)
def model_costs(model: Model, machine: Machine, work: Work) -> ModelCosts:
    """Return what depends on neither the layers of stages nor the replicas: many layouts share it."""
    kinds: set[bool | None] = {*model.dense, *([None] if model.mtp else [])}
    found = {}
    for kind in kinds:
        one = projection(model, work) if kind is None else layer(model, kind, work)
        found[kind] = LayerCost(
            one,
            {op: op_time(one, op, machine, model, work) for op in OPS},
            exposed_exchange(one, machine, model, work),
            device_parameters(model, kind, work),
            one.kept_bytes(),
            min(one.held_for_w, one.kept_bytes()),
            working_set(one, machine),
            buffer_bytes(one.gemms, machine, work),
            fp8_copy_bytes(one, work),
        )
    first, last = (
        {op: edge(op, machine, model, work) for op in OPS} for edge in (embedding_time, head_time)
    )
    return ModelCosts(found, (first, last))


class Parts(NamedTuple):
    """A stage before its microbatches: seconds per op, bytes kept for B and for W and those that
    may be offloaded, weights outside and inside experts, what is held of these (see `static_parts`), the working set, and
    copies of its weights."""

    times: dict[str, OpTime]
    act: int
    held: int
    movable: int
    weights: tuple[int, int]
    static: tuple[int, int, int]
    reserve: int
    excess: int
    copies: int


class Stages:
    """A model on a layout: what one layer of each kind costs, how many each stage has, and what that costs.

    Attributes:
        work: of one slice.
        items: the model layer by layer, embedding and head included; empty unless wanted or needed for `counts`.
        counts: decoder layers per stage, as given or balanced; see `parallelism.mtp_stage`.
        keys: what each stage has. `parts`: what that costs: most stages are alike.

    Raises:
        OptPipeError: for layers that the model does not have, or more stages than it has.
    """

    def __init__(
        self,
        model: Model,
        machine: Machine,
        layout: Layout,
        work: Work,
        copies: Copies | None = None,
        levels: bool = False,
        items: bool = False,
    ) -> None:
        self.model, self.machine, self.layout = model, machine, layout
        self.work, self.copies = work, copies
        self.costs = model_costs(model, machine, work)
        self._drops = (
            {
                kind: layer_drops(self.costs.layers[kind].work, model, machine, work)
                for kind in self.costs.layers
                if kind is not None
            }
            if levels
            else {}
        )
        dealt = layout.layers is None and work.slices == 1
        self.items = self._items() if items or dealt else []
        self.counts = self._balanced() if layout.layers is None else self._given(layout.layers)
        self.keys = self._kinds_of_stages()
        self.parts = {key: self._parts(*key) for key in dict.fromkeys(self.keys)}

    def with_work(self, **changes: Any) -> Stages:
        """Return the same stages with other work, of which each has as many layers."""
        layout, work = replace(self.layout, layers=self.counts), replace(self.work, **changes)
        check_work(self.model, work)
        return Stages(self.model, self.machine, layout, work, self.copies, bool(self._drops))

    def stage_costs(self) -> list[StageCost]:
        """Return the cost of every stage."""
        known = {
            key: self._cost(
                part, key[0], sum(key[0][:2]) + sum(key[1:]) or None, self.layout.chunks
            )
            for key, part in self.parts.items()
        }
        return [known[key] for key in self.keys]

    @property
    def exposed_s(self) -> float:
        """The seconds that the exchange of tokens adds to the F and the B of a microbatch where it is hidden behind no
        other one, over all stages."""
        body = self.model.dense + self.model.dense[-1:] * self.model.mtp
        return sum(self.costs.layers[kind].exposed_s for kind in body)

    def _given(self, given: Sequence[int | str]) -> list[int | str]:
        """Return the layers per stage as given, checked."""
        stages = self.layout.pipeline * self.layout.chunks
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

    def _balanced(self) -> Sequence[int]:
        """Return the layers per stage that give devices work as equal as layers allow."""
        placed = expand_placement(self.layout.placement, self.layout.pipeline, self.layout.chunks)
        if self.work.slices == 1:
            return decoder_layers(self.items, deal_items(self.items, placed, self.model.name))
        more = self.work.slices - 1  # attention of a slice in the middle
        cost = {
            kind: sum(one.times[op].total + more * one.times[op].attention for op in OPS)
            for kind, one in self.costs.layers.items()
        }
        each = [cost[dense] for dense in self.model.dense]
        first, last = (sum(end[op].total for op in OPS) for end in self.costs.ends)
        last += self.model.mtp * (last + each[-1] + cost.get(None, 0.0))
        return deal_layers(tuple(each), first, last, placed, self.model.name)

    def _kinds_of_stages(self) -> list[_Key]:
        """Return how many layers of each kind each stage has, and which has the embedding and the head."""
        kinds: list[_Kinds] = [
            (*kind, 0) for kind in stage_kinds(self.model, decoder_counts(self.counts))
        ]
        at = mtp_stage(self.counts)
        more = zip(kinds[at], self._further(self.model.mtp), strict=True)
        kinds[at] = tuple(map(sum, more))  # type: ignore[assignment]
        return [(kind, at == 0, at == len(kinds) - 1) for at, kind in enumerate(kinds)]

    def _further(self, count: int) -> _Kinds:
        """What so many layers that predict further tokens are made of."""
        dense = self.model.dense[-1]
        return count * dense, count * (not dense), count

    def _items(self) -> list[Item]:
        """Return the model layer by layer."""

        def item(
            name: str, kind: _Kinds, first: bool = False, last: bool = False, table: bool = True
        ) -> Item:
            part = self._parts(kind, first, last, table)
            cost = self._cost(part._replace(reserve=0), kind, 1, 1)
            return Item(name, cost, part.reserve, self._streams(kind))

        none = (0, 0, 0)
        kinds = {
            one: item(NAMES[one], (one, not one, 0)) for one in self.costs.layers if one is not None
        }
        body = [kinds[dense] for dense in self.model.dense]
        body += [item(MTP, self._further(1), table=at == 0) for at in range(self.model.mtp)]
        return [item(EMBEDDING, none, first=True), *body, item(HEAD, none, last=True)]

    def _streams(self, kind: _Kinds) -> Streams | None:
        """Return what the one layer of an item does on the two streams of a pair; its projection comes
        before it."""
        if self.work.pairs == "none" or not any(kind):
            return None
        dense, _, projections = kind
        one = self.costs.layers[bool(dense)]
        times = one.times
        if projections:
            times = {op: times[op].plus(self.costs.layers[None].times[op]) for op in OPS}
        return layer_streams(one.work, times, self.machine, self.model, self.work)

    def _parts(self, kind: _Kinds, first: bool, last: bool, table: bool = True) -> Parts:
        """Return a stage of so many layers, with the embedding or the head; layers that predict further
        tokens need the `table` of the embedding."""
        times = {op: OpTime() for op in OPS}
        act = held = excess = buffers = working = copies = 0
        count = [0, 0]
        for which, number in zip(KINDS, kind, strict=True):
            if not number:
                continue
            one = self.costs.layers[which]
            for op in OPS:
                times[op] = times[op].plus(one.times[op].times(number))
            act += number * one.act
            held += number * one.held
            count = [c + number * w for c, w in zip(count, one.weights, strict=True)]
            working = max(working, one.working)
            buffers += one.buffers
            copies += number * one.copies
        movable = act
        heads = last * (1 + self.model.mtp)  # each further token has its logits and its loss
        for edge, number in zip(self.costs.ends, (int(first), heads), strict=True):
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
            most = max(one.working for one in self.costs.layers.values())
            excess = max(-logits, head_working_set(self.machine, self.model, self.work) - most)
        if first and last and self.model.tied:
            count[0] -= self.model.vocab * self.model.hidden // self.work.tp
        weights = count[0], count[1]
        moved = sum_seconds(weights, self.layout, self.machine, self.work)
        times["W"] = times["W"].plus(OpTime(elementwise=moved))
        reserve = working + buffers + round(self.machine.rates.workspace_mib * 2**20)
        reserve += userbuffer_bytes(self.model, self.work)
        if self.layout.zero == 3:  # one layer's weights gathered, the next one's on the way
            most = max(sum(one.weights) for one in self.costs.layers.values())
            reserve += 2 * most * self.work.element
        static = static_parts(weights, self.layout, self.work)
        return Parts(times, act, held, movable, weights, static, reserve, excess, copies)

    def _cost(self, part: Parts, kind: _Kinds, layers: int | None, chunks: int) -> StageCost:
        """Return what a stage costs, one of `chunks` on its device."""
        times = part.times
        exchange = zero_seconds(part.weights, self.layout, self.machine, self.work.gradient_bytes)
        hidden = self.machine.rates.gemm_overlap
        seconds = {
            op: times[op].total + max(0.0, exchange[op] - hidden * times[op].gemm) for op in OPS
        }
        factor = self.machine.rates.memory_factor
        act = round(part.act * factor)
        w, moved = min(act, round(part.held * factor)), min(act, part.movable)
        out, back = (None, None) if self.copies is None else self.copies.times_ns(moved)
        dropping = [
            (self._drops[which], number)
            for which, number in zip(KINDS[:2], kind[:2], strict=True)
            if number and self._drops
        ]  # levels keep projections
        return StageCost(
            t_f_ns=max(1, round(seconds["F"] * 1e9)),
            t_b_ns=max(1, round(seconds["B"] * 1e9)),
            t_w_ns=round(seconds["W"] * 1e9),
            act_bytes=act,
            w_bytes=w,
            offload_bytes=moved,
            static_bytes=max(
                0, sum(part.static) + part.reserve // chunks + part.excess + part.copies
            ),
            t_offload_ns=out,
            t_reload_ns=back,
            layers=layers,
            recompute=stage_levels(dropping, act, w, factor) if dropping else (),
        )
