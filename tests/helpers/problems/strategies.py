"""Random profiles, schedules and limits for hypothesis.

Small counts and short times on purpose: ties at one instant are where implementations differ.
Structure is drawn by hypothesis; the interleaving comes from one drawn seed, which is quick.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from random import Random
from typing import Any

from hypothesis import strategies as st

from optpipe_sim import simulate
from optpipe_sim.errors import Deadlock, OutOfMemory
from optpipe_sim.ops import BW, COMPUTE, B, C, F, O, Op, Pair, R, W
from optpipe_sim.profile import CostProfile, Offload
from optpipe_sim.profile.parts import join
from optpipe_sim.schedule import Schedule, Shape
from optpipe_sim.stage_cost import RecomputeLevel, StageCost, with_overhead
from optpipe_sim.trace import Trace

SEEDS = st.integers(0, 2**32 - 1)


@st.composite
def profiles(
    draw: st.DrawFn,
    *,
    max_devices: int = 4,
    max_chunks: int = 3,
    offload: bool | None = None,
    levels: bool = False,
    slices: bool = False,
) -> CostProfile:
    """Profiles of any kind: p <= 4, v <= 3, loop, vee or explicit placement, uneven costs in ns,
    zeros where they are allowed, both kinds of links, engines and host links, groups, a host limit,
    and at times a memory limit per device of at least `least_limits`.

    `offload`: True or False to have, or not to have, an offload section for certain. `levels`:
    stages may have levels of recomputation, ops an overhead, and links may be blocking. `slices`: sequences may be
    cut into two or three slices.
    """
    random = Random(draw(SEEDS))
    devices = draw(st.integers(1, max_devices))
    chunks = draw(st.integers(1, max_chunks))
    placement: Any = list(range(devices)) * chunks
    if chunks == 2 and random.random() < 0.5:
        placement = "vee"
    elif random.random() < 0.4:
        random.shuffle(placement)
    copies = draw(st.booleans()) if offload is None else offload
    longest = random.choice((2, 4, 4, 12, 10**6))
    count = random.choice((1, 1, 2, 3)) if slices else 1
    stages = [_sliced(random, longest, copies, levels, count) for _ in range(devices * chunks)]
    if random.random() < 0.4:
        stages = [stages[0]] * len(stages)
    if levels:
        overhead = random.choice((0, 0, 1, longest))
        stages = [with_overhead(cost, overhead) for cost in stages]
    latency = random.choice((0, 0, 1, longest))
    count_all, hidden = devices * chunks, random.choice((0, 1, longest))
    if levels and random.random() < 0.4:
        hidden = tuple(
            tuple(random.randint(0, longest) for _ in range(count_all)) for _ in range(count_all)
        )
    profile = CostProfile(
        name="random",
        devices=devices,
        chunks=chunks,
        placement=placement if placement == "vee" else tuple(placement),
        stages=tuple(stages),
        latency_ns=random.choice((0, 0, 1, longest)),
        occupancy_ns=random.randint(0, latency),
        links=random.choice(("latency", "serial", *(["blocking"] * levels))),
        offload=_engines(random, devices) if copies else None,
        slices=count,
        pair_hidden=hidden if levels else 0,
    )
    if random.random() < 0.5:
        return profile
    return limited(profile, random)


def _stage(random: Random, longest: int, copies: bool) -> StageCost:
    act = random.choice((0, 1, 2, 3, 10))
    w = random.choice((0, act, act // 2))
    moved = random.choice((None, act, act // 2))
    fused = random.choice((None, None, random.randint(1, 2 * longest)))
    return StageCost(
        t_f_ns=random.randint(1, longest),
        t_b_ns=random.randint(1, longest),
        t_w_ns=random.choice((0, random.randint(0, longest))),
        t_bw_ns=fused,
        act_bytes=act,
        w_bytes=w,
        offload_bytes=moved,
        static_bytes=random.choice((0, 0, 5)),
        t_offload_ns=random.choice((0, random.randint(0, 2 * longest))) if copies else None,
        t_reload_ns=random.choice((0, random.randint(0, 2 * longest))) if copies else None,
    )


LEVELS = ((), ("light",), ("light", "full"), ("full", "light"))


def _sliced(random: Random, longest: int, copies: bool, levels: bool, slices: int) -> StageCost:
    """A stage, of whole sequences or cut into slices with keys and values, alike or not."""
    names = random.choice(LEVELS) if levels else ()
    parts = []
    for _ in range(slices):
        cost = _stage(random, longest, copies)
        if slices > 1:
            kv = random.choice((0, 0, random.randint(0, cost.act_bytes)))
            cost = replace(cost, static_bytes=0, kv_bytes=kv)
        parts.append(replace(cost, recompute=_levels(random, cost, longest, names)))
    if random.random() < 0.4:
        parts = [parts[0]] * slices
    return parts[0] if slices == 1 else join(parts, random.choice((0, 0, 5)))


def _levels(
    random: Random, cost: StageCost, longest: int, names: Sequence[str]
) -> tuple[RecomputeLevel, ...]:
    """Levels of these names, with and without working memory of their own."""
    levels = []
    keep = cost.act_bytes
    for name in names:
        keep = random.randint(cost.kv_bytes, keep)
        dropped = cost.act_bytes - keep
        levels.append(
            RecomputeLevel(
                name,
                random.randint(1, longest),
                keep,
                random.choice((None, 0, random.randint(0, dropped))),
                random.choice((None, random.randint(0, dropped))),
            )
        )
    return tuple(levels)


def _engines(random: Random, devices: int) -> Offload:
    """Copy engines, host links and random groups of random devices."""
    left = random.sample(range(devices), devices)
    groups = []
    while left and random.random() < 0.6:
        size = random.randint(1, len(left))
        groups.append(tuple(left[:size]))
        left = left[size:]
    return Offload(
        copy_engines=random.choice(("separate", "shared")),
        host_link=random.choice((None, "per_direction", "single")),
        host_link_groups=tuple(groups),
        devices_per_node=random.choice((None, 1, devices)),
    )


def limited(profile: CostProfile, random: Random) -> CostProfile:
    """The profile with a limit per device: what it needs at least, and up to four activations more."""
    most = [0] * profile.devices
    for cost, device in zip(profile.stages, profile.placement, strict=True):
        most[device] = max(most[device], cost.act_bytes)
    limit = tuple(
        least + random.randint(0, 4 * act)
        for least, act in zip(profile.least_limits, most, strict=True)
    )
    return replace(profile, memory_limit=limit)


def that_fits(
    profile: CostProfile, schedule: Schedule, objective: str = "flush"
) -> tuple[CostProfile, Trace]:
    """The replay of a schedule; where it does not fit, with its own peaks as the limit."""
    try:
        return profile, simulate(schedule, profile, objective=objective)
    except (Deadlock, OutOfMemory):
        trace = simulate(schedule, profile, objective=objective, enforce=False)
        return replace(profile, memory_limit=tuple(map(int, trace.peak_bytes))), trace


@st.composite
def schedules(
    draw: st.DrawFn,
    profile: CostProfile,
    *,
    max_microbatches: int = 5,
    linked: bool | None = None,
    pairs: bool = False,
) -> Schedule:
    """Complete schedules for a profile that cannot deadlock without a memory limit.

    All programs, and the link orders where there are any, are cut from one random topological order
    of all ops, transfers included; B and W are fused or not, (stage, microbatch) by (stage,
    microbatch) or all alike; any part of the activations is offloaded, where the profile can.
    `linked`: True or False to have, or not to have, link orders for certain. `pairs`: some F's and backwards may be one op.
    """
    random = Random(draw(SEEDS))
    microbatches = draw(st.integers(1, max_microbatches))
    share = random.choice((0.0, 0.3, 0.7, 1.0)) if profile.offload is not None else 0.0
    shape = profile.shape(microbatches)
    needs = all_ops(
        shape,
        fused=random.choice((0.0, 0.5, 1.0)),
        offloaded=share,
        random=random,
    )
    recompute = recomputed(profile, shape, needs, random)
    weights = random.choice(({}, {F: 8}, {B: 8, BW: 8, R: 8}, {F: 4, O: 20}, {R: 0.05, O: 20}))
    order = random_order(needs, random, weights)
    entries: list[Op | Pair] = list(order)
    if pairs and random.random() < 0.5:
        order, entries = paired(order, needs, profile.placement, random)
    programs = [
        [one for one in entries if profile.placement[_first(one).stage] == device]
        for device in range(profile.devices)
    ]
    links = {}
    if profile.offload is not None and (random.random() < 0.4 if linked is None else linked):
        links = link_orders(profile, order, random if linked is None else None)
    return Schedule(shape, programs, links, recompute=recompute)


def recomputed(
    profile: CostProfile, shape: Shape, needs: dict[Op, list[Op]], random: Random
) -> dict[str, str]:
    """Random levels for random activations, by stage or one by one; adds C to `needs` for those
    that are recomputed apart."""
    levels: dict[str, str] = {}
    share, apart = random.choice((0.3, 1.0)), random.choice((0.0, 0.5, 1.0))
    for stage, cost in enumerate(profile.stages):
        names = [level.name for level in cost.recompute]
        whole = bool(names) and random.random() < 0.3
        if whole:
            levels[f"{stage}"] = random.choice(names)
        for unit in range(shape.units):
            forward, again, offload, reload, fused, back = (
                shape.op(kind, stage, unit) for kind in (F, C, O, R, BW, B)
            )
            own = bool(names) and random.random() < share
            if own:
                levels[str(forward).removeprefix("F")] = random.choice(names)
            if (whole or own) and random.random() < apart:
                needs[again] = [reload if offload in needs else forward]
                needs[fused if fused in needs else back].append(again)
    return levels


def all_ops(shape: Shape, *, fused: float, offloaded: float, random: Random) -> dict[Op, list[Op]]:
    """The ops of a complete schedule and what each of them waits for; `fused` and `offloaded` are
    the shares of (stage, unit) that have BW, or O and R."""
    needs: dict[Op, list[Op]] = {}
    backward: dict[tuple[int, int], Op] = {}
    for u in reversed(range(shape.units)):
        first, last = u % shape.slices == 0, (u + 1) % shape.slices == 0
        for s in reversed(range(shape.stages)):
            forward = shape.op(F, s, u)
            needs[forward] = [shape.op(F, s - 1, u)] if s else []
            needs[forward] += [] if first else [shape.op(F, s, u - 1)]
            whole = random.random() < fused
            back = backward[s, u] = shape.op(BW if whole else B, s, u)
            needs[back] = [forward] + ([backward[s + 1, u]] if s + 1 < shape.stages else [])
            needs[back] += [] if last else [backward[s, u + 1]]
            if not whole:
                needs[shape.op(W, s, u)] = [back]
            if random.random() < offloaded:
                offload, reload = shape.op(O, s, u), shape.op(R, s, u)
                needs[offload], needs[reload] = [forward], [offload]
                needs[back].append(reload)
    return needs


def random_order(needs: dict[Op, list[Op]], random: Random, weights: dict[Any, float]) -> list[Op]:
    """A random topological order; kinds with a greater weight (default 1) come the sooner."""
    missing = {op: len(wanted) for op, wanted in needs.items()}
    waiters: dict[Op, list[Op]] = {op: [] for op in needs}
    for op, wanted in needs.items():
        for need in wanted:
            waiters[need].append(op)
    ready = [op for op, count in missing.items() if not count]
    order = []
    while ready:
        chosen = random.choices(
            range(len(ready)), [weights.get(op.kind, 1) for op in ready] if weights else None
        )[0]
        ready[chosen], ready[-1] = ready[-1], ready[chosen]
        order.append(ready.pop())
        for op in waiters[order[-1]]:
            missing[op] -= 1
            if not missing[op]:
                ready.append(op)
    return order


def _first(entry: Op | Pair) -> Op:
    return entry.forward if isinstance(entry, Pair) else entry


def paired(
    order: Sequence[Op], needs: dict[Op, list[Op]], placement: Sequence[int], random: Random
) -> tuple[list[Op], list[Op | Pair]]:
    """A topological order with some F's made one op with a backward soon after them, and its entries. What is contracted
    stands next to each other in a topological order, so there is still no circle."""
    left, entries, share = list(order), [], random.choice((0.3, 0.7, 1.0))
    at = 0
    while at < len(left):
        op, chosen = left[at], None
        if op.kind is F and random.random() < share:
            for far in range(at + 1, min(at + 7, len(left))):
                back = left[far]
                same = placement[back.stage] == placement[op.stage]
                if same and back.kind in (B, BW) and not set(left[at:far]) & set(needs[back]):
                    chosen = far
                    break
        if chosen is None:
            entries.append(op)
            at += 1
        else:
            left.insert(at + 1, left.pop(chosen))
            entries.append(Pair(op, left[at + 1]))
            at += 2
    return left, entries


def link_orders(
    profile: CostProfile, order: Sequence[Op], random: Random | None = None
) -> dict[str, list[Op]]:
    """The link orders that a global order of all ops implies; with `random` each is given or not."""
    assert profile.offload is not None
    links: dict[str, list[Op]] = {}
    for number, group in enumerate(profile.host_links):
        for kinds in ("OR",) if profile.offload.host_link == "single" else ("O", "R"):
            links[f"{number}/{kinds}"] = [
                op
                for op in order
                if op.kind not in COMPUTE
                and op.kind.name in kinds
                and profile.placement[op.stage] in group
            ]
    return {key: ops for key, ops in links.items() if random is None or random.random() < 0.6}


@st.composite
def cases(
    draw: st.DrawFn, *, differ: bool = False, pairs: bool = False, **options: Any
) -> tuple[CostProfile, Schedule]:
    """A profile and a schedule for it; options as for `profiles`. `differ`: microbatches may; `pairs`: some F's and backwards
    may be one op."""
    profile = draw(profiles(**options))
    schedule = draw(schedules(profile, pairs=pairs))
    if differ:
        profile = differing(profile, schedule.shape.microbatches, Random(draw(SEEDS)))
    return profile, schedule


FACTORS = tuple(Fraction(text) for text in ("1", "1/2", "3/4", "1.3", "2", "2.51"))


def differing(profile: CostProfile, microbatches: int, random: Random) -> CostProfile:
    """The profile with microbatches that differ in time, size, both or not at all."""
    chosen = {
        key: tuple(random.choice(FACTORS) for _ in range(microbatches))
        for key in ("microbatch_time", "microbatch_bytes")
        if random.random() < 0.4
    }
    different = replace(profile, memory_limit=None, **chosen)
    return different if profile.memory_limit is None else limited(different, random)


@st.composite
def limits(draw: st.DrawFn, profile: CostProfile, peaks: Sequence[int]) -> tuple[int, ...]:
    """Limits between what each device needs at least and what a replay without limit took."""
    random = Random(draw(SEEDS))
    return tuple(
        random.randint(least, max(least, peak))
        for least, peak in zip(profile.least_limits, peaks, strict=True)
    )
