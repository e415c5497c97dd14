"""From a schedule to the linear program of each rank: every step with its engine and its waits, nothing left to
decide.

A pure pass over a lowered schedule. One host thread can issue a program from first to last, as each step waits
only for earlier ones (so it is issued to CUDA streams); or one thread per engine runs its own steps in order
and waits for the events named (so it runs on CPU).

What holds of the programs of a schedule, for any durations and any interleaving of the engines (tests check each
rule on the programs alone: tests/helpers/ranks/soundness.py):

- Each op runs once, after all its inputs.
- Each message is sent, posted and received once, in one order for both ranks.
- An activation is on the host before its memory is dropped; memory is allocated before a reload; what uses a
  reloaded activation waits for it.
- Walked through together, each as far as it can go, all programs come to their end.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from ...errors import InvalidSchedule, OptPipeError
from ...op_costs import moves_of_keys, op_costs
from ...ops import BW, COMPUTE, B, C, F, O, Op, R
from ...profile import CostProfile, Offload
from ...schedule import Schedule
from ...sim.graph import shared_links
from ...sim.lower import Lowered, lower
from ...stage_cost import StageCost
from ...trace import Span
from ..model.recompute import level_of

COMPUTE_ENGINE, GRANT, OFFLOAD, RELOAD, COPIES = "compute", "grant", "offload", "reload", "copies"
DROP = "drop"  # in the order of the O's, so that no drop waits for anything but its own


class Event(NamedTuple):
    """A point in an op's life on this rank: its ``start`` or ``end``; for an R also ``granted``,
    for an O also ``dropped`` (its device memory is released)."""

    point: str
    op: Op

    def __str__(self) -> str:
        return f"{self.point} of {self.op}"


@dataclass(frozen=True)
class Step:
    """One step of a program.

    Attributes:
        do: ``post`` (a receive), ``recv`` (wait for it), ``run``, ``send``; ``offload``, ``drop``,
            ``grant`` (allocate memory for an R), ``reload``; ``pass`` and ``turn`` (pass on, and wait for, the
            turn on a host link that several ranks share).
        op: the op; of messages the one that produces the content, of ``turn`` the one to wait for.
        engine: which engine's queue it stands in.
        after: events on this rank that have to come first (those of its own engine's earlier steps
            go without saying).
        peer: the other rank of a message or a turn.
        keys: of an offload, whether it moves keys and values that later slices read.
    """

    do: str
    op: Op
    engine: str
    after: tuple[Event, ...] = ()
    peer: int = -1
    keys: bool = False

    def __str__(self) -> str:
        peer = {"post": " from rank {}", "recv": " from rank {}", "send": " to rank {}"}
        after = f" after {', '.join(map(str, self.after))}" if self.after else ""
        return f"{self.do} {self.op}{peer.get(self.do, '').format(self.peer)}{after}"


@dataclass(frozen=True)
class Program:
    """What one rank does in an iteration.

    Attributes:
        rank: its number. steps: in issue order.
        levels: by stage and microbatch (and slice), the level of recomputation of what is not kept
            whole; where there is no C the backward recomputes.
    """

    rank: int
    steps: tuple[Step, ...]
    levels: Mapping[tuple[int, ...], str] = field(default_factory=dict)

    def by_engine(self) -> dict[str, list[Step]]:
        """Return the steps of each engine's queue."""
        queues: dict[str, list[Step]] = defaultdict(list)
        for step in self.steps:
            queues[step.engine].append(step)
        return dict(queues)


@dataclass(frozen=True, eq=False)
class Prepared:
    """A schedule that ranks are ready to run. `programs`: of each; default: those of the schedule."""

    lowered: Lowered
    programs: tuple[Program, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "programs", self.programs or linear_programs(self.lowered))

    @property
    def schedule(self) -> Schedule:
        """As it is issued."""
        return self.lowered.schedule

    @cached_property
    def inputs(self) -> dict[Op, Op]:
        """For each op that takes another's result, that one."""
        return inputs_of(self.schedule)


def prepare(schedule: Schedule, profile: CostProfile | None, limit: Any = None) -> Prepared:
    """Return the programs of a schedule, one per rank. The halves of pairs run one after the other.

    Lowering checks the schedule; what holds of the programs then is said above.

    Args:
        profile: None: all ops take as long, and no memory is limited.

    Raises:
        OptPipeError: where it is not sound, does not keep the limit, offloads to drives, or recomputes at a
            level that the runtime does not have, or without a profile.
    """
    if profile is None:
        if schedule.levels.names:
            raise OptPipeError("profile: the schedule recomputes; give the profile with its levels")
        profile = _uniform(schedule)
    check_tier(schedule, profile)
    schedule = schedule.parted()
    for name in schedule.levels.names:
        level_of(name)
    return Prepared(lower(schedule, profile, limit))


def _uniform(schedule: Schedule) -> CostProfile:
    """Return a profile whose ops all take 1 ms: it orders the ops, and limits no memory."""
    shape = schedule.shape
    ns = 1_000_000
    each = shape.slices  # a byte
    cost = StageCost(ns, ns, ns, t_offload_ns=ns, t_reload_ns=ns, act_bytes=each, w_bytes=each)
    return CostProfile(
        "uniform",
        shape.devices,
        (cost,) * shape.stages,
        chunks=shape.chunks,
        placement=shape.placement,
        offload=Offload(),
    ).with_slices(shape.slices)


def check_whole(schedule: Schedule, whose: str) -> None:
    """Refuse slices of sequences, where `whose` run takes whole ones.

    Raises:
        OptPipeError: says what runs slices.
    """
    if schedule.shape.slices > 1:
        raise OptPipeError(
            f"slices: the schedule cuts sequences into {schedule.shape.slices}; {whose} take whole sequences"
            " (PipelineStep runs slices of one's own modules, `optpipe-sim confirm` those of a named model)"
        )


def check_tier(schedule: Schedule, profile: CostProfile) -> None:
    """Refuse offloads to drives, as the runtime has host memory only.

    Raises:
        OptPipeError: says what to do instead.
    """
    drives = profile.offload is not None and profile.offload.nvme is not None
    if drives and any(op.kind is O for program in schedule.flat_programs for op in program):
        raise OptPipeError(
            f"profile {profile.name}: offload.nvme: the schedule offloads to NVMe drives, the runtime to host"
            " memory only; take a profile without nvme, or a schedule without offloads"
        )


def linear_programs(lowered: Lowered) -> tuple[Program, ...]:
    """Return the program of every rank.

    Receives are posted one compute op ahead and, per pair of ranks, in the order in which they are
    sent, so that transports without tags (NCCL) agree on what a message is. A recomputation is a
    compute op, or part of one.

    Memory that an O frees is dropped before the first op that needs it, and at the latest before the
    R of the same activation: before the compute op that this R may run beside (its anchor), or before the R
    is granted, where the O is predicted to have ended by then; else just before the reload. (An R may be
    granted while its O still runs; a grant that waited for this O could wait for ever.)
    """
    schedule = lowered.schedule
    inputs, levels = inputs_of(schedule), levels_of(schedule)
    spans = {span.op: span for span in lowered.replay().spans}
    return tuple(
        Program(
            rank,
            tuple(_steps(lowered, rank, inputs, spans)),
            {at: name for at, name in levels.items() if schedule.shape.placement[at[0]] == rank},
        )
        for rank in range(schedule.shape.devices)
    )


def levels_of(schedule: Schedule) -> dict[tuple[int, ...], str]:
    """Return, by stage and microbatch (and slice), the level of recomputation of what is not kept whole."""
    names, table = schedule.levels
    return {
        tuple(schedule.shape.op(F, stage, unit)[1:]): names[number - 1]
        for stage, row in enumerate(table.tolist())
        for unit, number in enumerate(row)
        if number
    }


def keys_moved(schedule: Schedule, profile: CostProfile) -> dict[Op, Op]:
    """Return, for each O that moves keys and values, the F of the microbatch's last slice, which it follows."""
    if schedule.shape.slices == 1:
        return {}
    rows = zip(*(each.tolist() for each in moves_of_keys(schedule, profile)), strict=True)
    return {schedule.op(moving): schedule.op(forward) for moving, forward in rows}


def inputs_of(schedule: Schedule) -> dict[Op, Op]:
    """Return, for each op that takes the result of a neighbouring stage, the op that makes it."""
    stages = schedule.table[:, 1]
    waiting, needed = schedule.edges
    between = stages[waiting] != stages[needed]
    return {
        schedule.op(consumer): schedule.op(producer)
        for consumer, producer in zip(
            waiting[between].tolist(), needed[between].tolist(), strict=True
        )
    }


def _require_issuable(program: Sequence[Op], rank: int) -> None:
    """Refuse a copy in front of what it copies. A replay waits for that; a host cannot wait for what it has not issued."""
    issued: set[Op] = set()
    for op in program:
        issued.add(op)
        if (
            op.kind in (O, R)
            and (first := op._replace(kind=F if op.kind is O else O)) not in issued
        ):
            raise InvalidSchedule(
                f"rank {rank}: {op} is before {first} in the program, so that nothing can run it; put it behind"
            )


def _steps(
    lowered: Lowered,
    rank: int,
    inputs: dict[Op, Op],
    spans: dict[Op, Span],
) -> Iterator[Step]:
    schedule = lowered.schedule
    place = schedule.shape.placement
    program = schedule.flat_programs[rank]
    consumers = {producer: consumer for consumer, producer in inputs.items()}
    waits = lowered.waits
    asks = op_costs(schedule, lowered.profile).asks
    shared = lowered.profile.shares_copy_engine
    out, back = (COPIES, COPIES) if shared else (OFFLOAD, RELOAD)
    posts = _posts(schedule, rank, inputs)
    turns, passes = _turns(lowered, rank)
    keys = keys_moved(schedule, lowered.profile)
    _require_issuable(program, rank)
    dropped: set[Op] = set()
    copied: list[Op] = []  # O's in the order of their queue
    anchor: Op | None = None
    granted: Op | None = None

    def drops(needed: Sequence[Op]) -> Iterator[Step]:
        # on one engine the ones before it have ended as well, and their memory counts as free
        last = max((copied.index(op) for op in needed), default=-1)
        for op in copied[: last + 1]:
            if op not in dropped:
                dropped.add(op)
                yield Step("drop", op, DROP, (Event("end", op),))

    for at, op in enumerate(program):
        for_memory = waits.get(op, ())
        offloaded = [o for o in for_memory if o.kind is O]
        if op.kind in COMPUTE:
            yield from posts.get(op, ())
            yield from drops(offloaded)
            yield from drops(
                [
                    own
                    for back_op in _anchored(program, at)
                    if (own := back_op._replace(kind=O)) in copied
                    and spans[own].end_ns < spans[op].start_ns
                ]
            )
            after = [Event("dropped", o) for o in offloaded]
            if granted is not None and asks[schedule.row(op)]:
                after.append(Event("granted", granted))
            if op.kind in (B, BW, C) and schedule.row(back_op := op._replace(kind=R)) >= 0:
                after.append(Event("end", back_op))
            source, target = inputs.get(op), consumers.get(op)
            if source is not None and place[source.stage] != rank:
                yield Step("recv", source, COMPUTE_ENGINE, peer=place[source.stage])
            yield Step("run", op, COMPUTE_ENGINE, tuple(after))
            if target is not None and place[target.stage] != rank:
                yield Step("send", op, COMPUTE_ENGINE, peer=place[target.stage])
            anchor = op
            continue
        if op.kind is O:
            copied.append(op)
            yield from turns.get(op, ())
            ends = [op._replace(kind=F), *([keys[op]] if op in keys else [])]
            yield Step("offload", op, out, tuple(Event("end", f) for f in ends), keys=op in keys)
            yield from passes.get(op, ())
            continue
        own = op._replace(kind=O)
        granted_ns = spans[op].grant_ns
        early = own in offloaded or (granted_ns is not None and spans[own].end_ns < granted_ns)
        yield from drops([*offloaded, own] if early else offloaded)
        after = [Event("dropped", o) for o in offloaded]
        if early and own not in offloaded:
            after.append(Event("dropped", own))
        after += [Event("end", o) for o in for_memory if o.kind is not O]
        if anchor is not None:
            after.append(Event("start", anchor))
        yield Step("grant", op, GRANT, tuple(after))
        granted = op
        yield from turns.get(op, ())
        if not early:
            yield from drops([own])
        yield Step("reload", op, back, (Event("granted", op), Event("dropped", own)))
        yield from passes.get(op, ())
    yield from drops(copied)


def _anchored(program: Sequence[Op], at: int) -> Iterator[Op]:
    """Yield the R's between the compute op at a place and the next one."""
    for op in itertools.islice(program, at + 1, None):
        if op.kind in COMPUTE:
            return
        if op.kind is R:
            yield op


def _posts(schedule: Schedule, rank: int, inputs: dict[Op, Op]) -> dict[Op, list[Step]]:
    """Return, by compute op, the receives that are posted before it: those of the next compute op, and
    all that the same peer sends earlier."""
    place = schedule.shape.placement
    mine = {producer for consumer, producer in inputs.items() if place[consumer.stage] == rank}
    sent = {
        peer: [op for op in program if op in mine]
        for peer, program in enumerate(schedule.flat_programs)
        if peer != rank
    }
    number = {op: at for ops in sent.values() for at, op in enumerate(ops)}
    posted = dict.fromkeys(sent, 0)
    compute = [op for op in schedule.flat_programs[rank] if op.kind in COMPUTE]
    posts: dict[Op, list[Step]] = {}
    for at, here in enumerate(compute):
        for op in compute[at : at + 2]:
            source = inputs.get(op)
            if source is None or source not in number:
                continue
            peer = place[source.stage]
            for early in sent[peer][posted[peer] : number[source] + 1]:
                posts.setdefault(here, []).append(Step("post", early, COMPUTE_ENGINE, peer=peer))
            posted[peer] = max(posted[peer], number[source] + 1)
    return posts


def _turns(lowered: Lowered, rank: int) -> tuple[dict[Op, list[Step]], dict[Op, list[Step]]]:
    """Return, by transfer on a host link that several ranks share, the turns to wait for before it, and
    those to pass on after it, in the order of the lowered schedule."""
    schedule = lowered.schedule
    shared = lowered.profile.shares_copy_engine
    turns: dict[Op, list[Step]] = {}
    passes: dict[Op, list[Step]] = {}
    for key in shared_links(schedule, lowered.profile):
        order = schedule.link_order[key]
        for before, op in itertools.pairwise(order):
            here, there = (schedule.shape.placement[o.stage] for o in (op, before))
            if here == there and (shared or before.kind is op.kind):
                continue  # one queue
            engine = {O: COPIES if shared else OFFLOAD, R: COPIES if shared else RELOAD}
            if rank == here:
                turns.setdefault(op, []).append(Step("turn", before, engine[op.kind], peer=there))
            if rank == there != here:  # on one rank the end of `before` suffices
                passes.setdefault(before, []).append(
                    Step("pass", before, engine[before.kind], peer=here)
                )
    return turns, passes
