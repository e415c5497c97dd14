"""Stages divided into chunks, merged, and cut into slices of the sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate, pairwise

from ..errors import ProfileError
from ..stage_cost import AMOUNTS, RecomputeLevel, StageCost
from ..units import counted


def join(
    slices: Sequence[StageCost], static_bytes: int = 0, layers: int | None = None
) -> StageCost:
    """Return a stage whose microbatches are cut into `slices`, in the order of the sequence.

    Raises:
        ProfileError: for slices with different levels of recomputation.
    """
    names = [[level.name for level in part.recompute] for part in slices]
    if any(other != names[0] for other in names):
        raise ProfileError("recompute: every slice needs the same levels, in the same order")
    whole = replace(
        _sum(slices),
        static_bytes=static_bytes,
        layers=layers,
        overhead_ns=sum(part.overhead_ns for part in slices),
    )
    return replace(whole, slices=tuple(slices)) if len(slices) > 1 else whole


def _sum(slices: Sequence[StageCost]) -> StageCost:
    """Return a whole sequence; a level recomputes the same layers in each of its slices."""
    whole = merge(slices)
    levels = zip(whole.recompute, slices[0].recompute, strict=True)
    same = tuple(replace(level, layers=first.layers) for level, first in levels)
    return replace(whole, recompute=same)


def cut_sequence(cost: StageCost, slices: int) -> StageCost:
    """Cut the microbatches of a stage into equal slices; the remainder goes to the first one.

    Raises:
        ProfileError: for a slice that would take less than 1 ns.
    """
    if min(cost.t_f_ns, cost.t_b_ns, cost.fused_ns) < slices:
        raise ProfileError(f"a stage of {cost.t_f_ns} ns cannot be cut into {slices} slices")
    weights = [1] * slices

    def shares(value: int | None) -> Sequence[int | None]:
        return [None] * slices if value is None else _share(value, weights)

    amounts = {key: shares(getattr(cost, key)) for key in AMOUNTS}
    amounts |= {"static_bytes": [0] * slices, "layers": [None] * slices}
    acts = _share(cost.act_bytes, weights)
    least = list(acts)
    levels = []
    for level in cost.recompute:
        keeps = _within(_share(level.keep_bytes, weights), acts)
        least = list(map(min, least, keeps))
        parts = zip(
            _share(level.t_ns, weights),
            keeps,
            shares(level.work_bytes),
            shares(level.b_work_bytes),
            strict=True,
        )
        levels.append([RecomputeLevel(level.name, *part, level.layers) for part in parts])
    for key, most in (("w_bytes", acts), ("offload_bytes", acts), ("kv_bytes", least)):
        amounts[key] = _within(_share(getattr(cost, key), weights), most)
    slices_of = [
        StageCost(
            **{key: values[at] for key, values in amounts.items()},  # type: ignore[arg-type]
            recompute=tuple(level[at] for level in levels),
            splits=cost.splits,
        )
        for at in range(slices)
    ]
    return join(slices_of, cost.static_bytes, cost.layers)


def change(cost: StageCost, by: Callable[[StageCost], StageCost]) -> StageCost:
    """Change a stage, slice by slice where it has slices; static memory and layers as a whole."""
    if not cost.slices:
        return by(cost)
    changed = by(replace(cost, slices=()))
    parts = [replace(by(part), static_bytes=0, layers=None) for part in cost.slices]
    return join(parts, changed.static_bytes, changed.layers)


def change_all(
    stages: Sequence[StageCost], by: Callable[[StageCost], StageCost]
) -> tuple[StageCost, ...]:
    """Change all stages in the same way; those that share one cost still do, as most of a model's do."""
    changed = {one: change(cost, by) for one, cost in {id(cost): cost for cost in stages}.items()}
    return tuple(changed[id(cost)] for cost in stages)


def evenly(count: int, parts: int) -> list[int]:
    """Split `count` layers into `parts` contiguous runs; the first ones get one more."""
    low, more = divmod(count, parts)
    return [low + (at < more) for at in range(parts)]


def deal(
    runs: Sequence[Sequence[StageCost]], parts: int, placement: Sequence[int]
) -> list[list[int] | None]:
    """Return how many layers each of a run's new stages gets, for runs of stages that become `parts` stages each.

    A run's new stages have equally many layers, or some have one more: those whose devices have the
    fewest, so that devices have as equal numbers as their runs allow; the first ones otherwise. None for
    a run with a stage that has no number of layers.

    Args:
        runs: the stages that become `parts` new ones, in model order.
        placement: the device of each new stage, run by run.
    """
    counts: list[list[int] | None] = []
    for run in runs:
        layers = [cost.layers for cost in run if cost.layers is not None]
        known = len(layers) == len(run)
        counts.append([sum(layers) // parts] * parts if known else None)
    load = [0] * (max(placement) + 1)
    for at, device in enumerate(placement):
        load[device] += (counts[at // parts] or [0] * parts)[at % parts]
    for at, (run, dealt) in enumerate(zip(runs, counts, strict=True)):
        if dealt is None:
            continue
        devices = placement[at * parts : (at + 1) * parts]
        for _ in range(sum(cost.layers or 0 for cost in run) % parts):
            least = min(dealt)
            free = (part for part in range(parts) if dealt[part] == least)
            part = min(free, key=lambda part: load[devices[part]])
            dealt[part] += 1
            load[devices[part]] += 1
    while _even_out(counts, parts, placement, load):
        pass
    return counts


def deal_anew(runs: Sequence[Sequence[StageCost]], parts: int, devices: int) -> list[int] | None:
    """Return how many layers each new stage of a loop gets where all runs have equally many, no multiple
    of `parts`; else None.

    As one layer is then like another, they are dealt over the whole model, and devices have equally many.
    A device's longer stages are those nearest the middle of the model, so that the longer stages follow
    each other: neighbours work on long ones at the same time. Where only each run's layers are
    dealt, long and short stages alternate, and interleaved 1F1B waits for the long ones.
    """
    layers = [sum(cost.layers or 0 for cost in run) for run in runs]
    unknown = any(cost.layers is None for run in runs for cost in run)
    if unknown or len(set(layers)) > 1 or layers[0] < parts or layers[0] % parts == 0:
        return None
    stages = len(runs) * parts
    each, more = divmod(sum(layers) // devices, stages // devices)
    counts = [each] * stages
    for device in range(devices):
        own = range(device, stages, devices)
        for stage in sorted(own, key=lambda stage: abs(2 * stage + 1 - stages))[:more]:
            counts[stage] += 1
    return counts


def _even_out(
    counts: Sequence[list[int] | None], parts: int, placement: Sequence[int], load: list[int]
) -> bool:
    """Move one layer from a device to one with at least two fewer, over others if need be; return
    whether one moved.

    A layer moves within a run, from a part that has one more to one that has not.
    """
    moves: dict[int, dict[int, tuple[list[int], int, int]]] = {}
    for at, dealt in enumerate(counts):
        if dealt is None or min(dealt) == max(dealt):
            continue
        for more in range(parts):
            for less in range(parts):
                if dealt[more] > dealt[less]:
                    source, target = placement[at * parts + more], placement[at * parts + less]
                    moves.setdefault(source, {})[target] = dealt, more, less
    for first in sorted(range(len(load)), key=lambda device: -load[device]):
        paths = {first: [first]}
        waiting = [first]
        for device in waiting:
            if load[device] <= load[first] - 2:
                path = paths[device]
                for source, target in pairwise(path):
                    dealt, more, less = moves[source][target]
                    dealt[more] -= 1
                    dealt[less] += 1
                load[first] -= 1
                load[device] += 1
                return True
            for target in moves.get(device, {}):
                if target not in paths:
                    paths[target] = [*paths[device], target]
                    waiting.append(target)
    return False


def divide(cost: StageCost, parts: int, layers: Sequence[int] | None = None) -> list[StageCost]:
    """Divide a stage into `parts` parts: equal ones, or whole layers where it has a number of layers.

    Of L layers the parts get `layers`; without these the first parts get one more where they do not
    divide equally. Every number n of a stage (times, bytes) goes to a part of k layers as floor(n * k /
    L), and the remainder to the first part, so that the parts add up to the stage exactly; without
    layers each part counts as one of `parts`. Where that would give the first part more w or offload
    than act (by a few bytes), the excess moves on to the next one.

    Raises:
        ProfileError: for more parts than layers, or a part that would take less than 1 ns.
    """
    if parts == 1:
        return [cost]
    if cost.layers is not None and parts > cost.layers:
        raise ProfileError(
            f"a stage of {counted(cost.layers, 'layer')} cannot be divided into {parts} chunks:"
            f" it divides only between layers, into at most {cost.layers}"
        )
    if cost.layers is None:
        return _cut(cost, [1] * parts)
    return _cut(cost, layers or evenly(cost.layers, parts))


def _cut(cost: StageCost, weights: Sequence[int]) -> list[StageCost]:
    """Return the parts of a stage, each with its weight's share of the ``sum(weights)`` layers; see `divide`."""
    if len(weights) == 1:
        return [cost]
    if cost.slices:
        cuts = [_cut(part, weights) for part in cost.slices]
        own = _cut(replace(cost, slices=()), weights)
        return [
            join([cut[at] for cut in cuts], part.static_bytes, part.layers)
            for at, part in enumerate(own)
        ]
    total = sum(weights)
    if min(cost.t_f_ns, cost.t_b_ns, cost.fused_ns) * min(weights) < total:
        raise ProfileError(
            f"a stage of {cost.t_f_ns} ns cannot be divided into {len(weights)} chunks"
        )
    shares: dict[str, Sequence[int | None]] = {}
    for key in AMOUNTS:
        value = getattr(cost, key)
        shares[key] = [None] * len(weights) if value is None else _share(value, weights)
    acts = _share(cost.act_bytes, weights)
    for key in ("w_bytes", "offload_bytes"):
        shares[key] = _within(_share(getattr(cost, key), weights), acts)
    levels = [_cut_level(level, weights, acts) for level in cost.recompute]
    least = [min([act, *(level[at].keep_bytes for level in levels)]) for at, act in enumerate(acts)]
    shares["kv_bytes"] = _within(_share(cost.kv_bytes, weights), least)
    return [
        StageCost(
            **{key: shares[key][at] for key in AMOUNTS},  # type: ignore[arg-type]
            recompute=tuple(level[at] for level in levels),
            splits=cost.splits,
        )
        for at in range(len(weights))
    ]


def _share(value: int, weights: Sequence[int]) -> list[int]:
    """Split `value` by weight, rounded down; the remainder goes to the first part."""
    later = [value * weight // sum(weights) for weight in weights[1:]]
    return [value - sum(later), *later]


def _within(shares: Sequence[int], most: Sequence[int]) -> list[int]:
    """Limit each of `shares` to its `most`: the excess moves on to the next one."""
    fitting, rest = [], 0
    for share, limit in zip(shares, most, strict=True):
        fitting.append(min(share + rest, limit))
        rest += share - fitting[-1]
    return fitting


def _cut_level(
    level: RecomputeLevel, weights: Sequence[int], acts: Sequence[int]
) -> list[RecomputeLevel]:
    """Return a level of recomputation for each part of a stage; `acts` are the parts' activations.

    Time and kept bytes divide as all numbers do. Working bytes stay as given, at most act - keep of the
    part, because a part works through its layers one by one as the whole did. The number of recomputed
    layers is known for parts that get a whole number of them.
    """
    keeps = _within(_share(level.keep_bytes, weights), acts)

    def most(work: int | None, act: int, keep: int) -> int | None:
        return None if work is None else min(work, act - keep)

    return [
        RecomputeLevel(
            level.name,
            time,
            keep,
            most(level.work_bytes, act, keep),
            most(level.b_work_bytes, act, keep),
            None if level.layers is None else _whole(level.layers * weight, sum(weights)),
        )
        for time, keep, act, weight in zip(
            _share(level.t_ns, weights), keeps, acts, weights, strict=True
        )
    ]


def _whole(value: int, by: int) -> int | None:
    """Return `value` / `by` where that is a whole number above 0, else None."""
    return value // by if value and value % by == 0 else None


def regroup(
    costs: Sequence[StageCost], parts: int, dealt: Sequence[int] | None = None
) -> list[StageCost]:
    """Turn adjacent stages into `parts` stages: merged, divided, or cut where the new stages begin.

    If all stages have a number of layers, the new ones get `dealt`, or the first ones get one more.
    Otherwise each stage is divided into `parts`, which then merge.

    Raises:
        ProfileError: see `divide`.
    """
    if len(costs) == 1:
        return divide(costs[0], parts, dealt)
    layers = [cost.layers for cost in costs if cost.layers is not None]
    if len(layers) < len(costs):
        pieces = [part for cost in costs for part in divide(cost, parts)]
        return [merge(pieces[at : at + len(costs)]) for at in range(0, len(pieces), len(costs))]
    if sum(layers) < parts:
        raise ProfileError(
            f"{len(costs)} stages of {counted(sum(layers), 'layer')} cannot make {parts}:"
            " stages divide only between layers"
        )
    ends = list(accumulate(dealt or evenly(sum(layers), parts)))
    groups: list[list[StageCost]] = [[] for _ in ends]
    first = 0
    for cost, count in zip(costs, layers, strict=True):
        shared = [
            min(end, first + count) - max(start, first)
            for start, end in zip([0, *ends], ends, strict=False)
        ]
        mine = [at for at, number in enumerate(shared) if number > 0]
        for at, piece in zip(mine, _cut(cost, [shared[at] for at in mine]), strict=True):
            groups[at].append(piece)
        first += count
    return [merge(group) for group in groups]


def merge(costs: Sequence[StageCost]) -> StageCost:
    """Merge adjacent stages into one."""
    if len(costs) == 1:
        return costs[0]
    if costs[0].slices:
        columns = zip(*(cost.slices for cost in costs), strict=True)
        own = merge([replace(cost, slices=()) for cost in costs])
        return join([merge(column) for column in columns], own.static_bytes, own.layers)
    total: dict[str, int | None] = {}
    for key in AMOUNTS:
        values = [cost.fused_ns if key == "t_bw_ns" else getattr(cost, key) for cost in costs]
        total[key] = None if None in values else sum(values)
    splits = all(cost.splits for cost in costs)
    if not splits:  # only the whole backward of the merged stage is known
        total |= {"t_b_ns": total["t_bw_ns"], "t_w_ns": 0, "w_bytes": 0}
    if not splits or all(cost.t_bw_ns is None for cost in costs):
        total["t_bw_ns"] = None
    return StageCost(**total, recompute=_merge_levels(costs), splits=splits)  # type: ignore[arg-type]


def _merge_levels(costs: Sequence[StageCost]) -> tuple[RecomputeLevel, ...]:
    """Merge levels by name; a stage without that name is kept whole."""
    names = dict.fromkeys(level.name for cost in costs for level in cost.recompute)
    merged = []
    for name in names:
        having = [(cost, level) for cost in costs for level in cost.recompute if level.name == name]
        whole = sum(cost.act_bytes for cost in costs if cost.level(name) is None)
        work = b_work = None
        if any(level.work_bytes is not None for _, level in having):
            work = max(level.working_bytes(cost.act_bytes) for cost, level in having)
        if any(level.b_work_bytes is not None for _, level in having):
            b_work = max(
                level.working_bytes(cost.act_bytes)
                if level.b_work_bytes is None
                else level.b_work_bytes
                for cost, level in having
            )
        counts = [level.layers for _, level in having]
        merged.append(
            RecomputeLevel(
                name,
                sum(level.t_ns for _, level in having),
                whole + sum(level.keep_bytes for _, level in having),
                work,
                b_work,
                None if None in counts else sum(count for count in counts if count),
            )
        )
    return tuple(merged)


def check_slices(cost: StageCost) -> None:
    """Refuse slices that do not add up to their stage.

    Raises:
        ProfileError: where they do not.
    """
    if cost.slices:
        whole = _sum(cost.slices)
        keys = {*AMOUNTS, "recompute", "splits"} - {"static_bytes", "layers"}
        if any(getattr(cost, key) != getattr(whole, key) for key in keys):
            raise ProfileError("slices: do not add up to the stage; change them, not their sum")
