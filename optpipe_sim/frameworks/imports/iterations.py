"""From the ranges of all ranks to iterations: where each begins, which of other ranks belongs to it, and
how far the ranks' clocks are apart."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from ...errors import OptPipeError
from ...ops import F, Op
from ...schedule import Shape
from .gaps import edges
from .kineto import Range, RankTrace

Times = dict[Op, tuple[int, int]]  # start and end, in ns


def by_rank(traces: Sequence[RankTrace]) -> list[RankTrace]:
    """Return the files by rank; where they do not say it, by their first stage.

    Raises:
        OptPipeError: for two files of a rank.
    """
    if all(one.rank is None for one in traces):
        return sorted(traces, key=lambda one: min(each.op.stage for each in one.ranges))
    found: dict[int, RankTrace] = {}
    for one in traces:
        if one.rank is None:
            raise OptPipeError(f"{one.source}: does not say its rank, as other files do")
        if one.rank in found:
            raise OptPipeError(
                f"{one.source}: is of rank {one.rank}, as {found[one.rank].source} is; give one file per"
                " rank"
            )
        found[one.rank] = one
    # with several replicas the ranks of a pipeline are not 0 to p-1; their order counts
    return [found[rank] for rank in sorted(found)]


def shape_of(ranks: Sequence[RankTrace]) -> Shape:
    """Return the shape of the run, which has to be that of whole pipelines.

    Raises:
        OptPipeError: says which stage or rank is missing or there twice.
    """
    placed: dict[int, int] = {}
    for rank, trace in enumerate(ranks):
        for op in {one.op for one in trace.ranges}:
            if placed.setdefault(op.stage, rank) != rank:
                raise OptPipeError(
                    f"stage {op.stage} is on rank {placed[op.stage]} and on rank {rank}: give the files"
                    " of one pipeline"
                )
    stages = 1 + max(placed)
    missing = [stage for stage in range(stages) if stage not in placed]
    last = next((one.sends_from for one in ranks if one.sends_from == stages - 1), None)
    worlds = {one.world for one in ranks if one.world is not None}
    partly = [world for world in worlds if world % len(ranks)]
    if missing or stages % len(ranks) or last is not None or partly:
        what = f"{stages} stages"
        if missing:
            what = f"stage {missing[0]} is in no file"
        elif last is not None:
            what = f"stage {last} sends its output to a stage that is in no file"
        elif partly:
            what = f"a run of {partly[0]} ranks"
        raise OptPipeError(f"{what}, on {len(ranks)} ranks: is the file of a rank missing?")
    microbatches = 1 + max(one.op.microbatch for trace in ranks for one in trace.ranges)
    placement = tuple(placed[stage] for stage in range(stages))
    return Shape(len(ranks), stages // len(ranks), microbatches, placement)


# -- iterations -----------------------------------------------------------------------------------


def iterations_of(ranks: Sequence[RankTrace]) -> list[list[Times]]:
    """Return the whole iterations that all ranks have, each with the times of every rank.

    Raises:
        OptPipeError: if a rank has none.
    """
    own = [_whole(trace) for trace in ranks]
    firsts = _aligned([[_middle(times) for times in each] for each in own])
    count = min(len(each) - first for each, first in zip(own, firsts, strict=True))
    return [
        [each[first + at] for each, first in zip(own, firsts, strict=True)] for at in range(count)
    ]


def _whole(trace: RankTrace) -> list[Times]:
    """Cut the ranges of a rank into iterations, without what was recorded of others at both ends.

    An iteration is the same ops every time. Where it begins is told by two facts: a backward follows its
    forward, and before the first op a rank waits for the optimizer and for other ranks.
    """
    ranges = trace.ranges
    size = len({one.op for one in ranges})
    starts = list(range(min(size, len(ranges) - size + 1)))
    pause: dict[int, int] = {}  # the shortest one before each op of an iteration
    for at in range(1, len(ranges)):
        free = ranges[at].start_ns - ranges[at - 1].end_ns
        pause[at % size] = min(pause.get(at % size, free), free)
    starts.sort(key=lambda at: -pause.get(at, 0))
    if len(ranges) % size == 0:  # most likely nothing else was recorded
        starts.sort(key=lambda at: at > 0)
    for first in starts:
        parts = [ranges[at : at + size] for at in range(first, len(ranges) - size + 1, size)]
        if all(map(_in_order, parts)):
            return [
                {one.op: (one.start_ns, max(one.end_ns, one.start_ns + 1)) for one in part}
                for part in parts
            ]
    counts = Counter(one.op for one in ranges)
    (often, most), (seldom, least) = counts.most_common()[0], counts.most_common()[-1]
    raise OptPipeError(
        f"{trace.source}: its {len(ranges)} ranges are not iterations of the same {size} ops, each"
        f" backward after its forward: {seldom} is there {least} times, {often} {most} times"
    )


def _in_order(part: Sequence[Range]) -> bool:
    seen: set[tuple[int, int]] = set()
    ops = set()
    for one in part:
        key = one.op.stage, one.op.microbatch
        if one.op.kind is F:
            seen.add(key)
        elif key not in seen:
            return False
        ops.add(one.op)
    return len(ops) == len(part)


def _middle(times: Times) -> int:
    return (min(start for start, _ in times.values()) + max(end for _, end in times.values())) // 2


def _aligned(middles: Sequence[Sequence[int]]) -> list[int]:
    """Return how many iterations to leave out at the beginning of each rank, so that those that are
    left ran at the same time: recording may begin in different iterations."""
    reference = max(each[0] for each in middles)
    return [min(range(len(each)), key=lambda at: abs(each[at] - reference)) for each in middles]


def length(iteration: Sequence[Times]) -> int:
    """Return the time of an iteration, from its first op to the end of its last."""
    starts = [start for times in iteration for start, _ in times.values()]
    return max(end for times in iteration for _, end in times.values()) - min(starts)


def together(ranks: Sequence[RankTrace]) -> Iterator[str]:
    """Say which ranks have ops that run at the same time: their durations are not their own."""
    for rank, trace in enumerate(ranks):
        busy, both, free = 0, 0, -(2**62)
        for one in trace.ranges:
            busy += one.end_ns - one.start_ns
            both += max(0, min(one.end_ns, free) - one.start_ns)
            free = max(free, one.end_ns)
        if both > busy / 100:
            yield (
                f"overlap: on rank {rank} ops run at the same time for {both / busy:.0%} of their time;"
                " the profile has them one after the other"
            )


# -- clocks ---------------------------------------------------------------------------------------


def shifts_of(shape: Shape, iterations: Sequence[Sequence[Times]]) -> list[int]:
    """Return the shift of each rank's clock: 0, unless messages arrive before they are sent; then
    half of the difference of the one-way delays between neighbours (as in network time
    protocols).

    Raises:
        OptPipeError: if no clocks explain the messages, as with files of different runs.
    """
    delays: dict[tuple[int, int], list[int]] = defaultdict(list)
    for iteration in iterations:
        times = {op: when for part in iteration for op, when in part.items()}
        for source, op in edges(shape, times):
            pair = shape.placement[source.stage], shape.placement[op.stage]
            delays[pair].append(times[op][0] - times[source][1])
    least = {pair: min(each) for pair, each in delays.items()}
    most = (
        min(map(length, iterations)) / 10
    )  # a range may end a little after its op sent its message
    for (here, there), forth in least.items():
        back = least.get((there, here))
        if back is not None and here < there and forth + back < -most:
            raise OptPipeError(
                f"ranks {here} and {there}: messages arrive before they are sent in both directions, by"
                f" {-(forth + back) / 1e6:.3f} ms together: the files are not of the same iterations"
            )
    shifts = {0: 0}
    todo = [0]
    while todo:
        here = todo.pop()
        for there in range(shape.devices):
            out, home = least.get((here, there)), least.get((there, here))
            if there in shifts or (out is None and home is None):
                continue
            apart = 0
            if min(out or 0, home or 0) < 0:
                apart = ((home or 0) - (out or 0)) // 2
            shifts[there] = shifts[here] + apart
            todo.append(there)
    return [shifts.get(rank, 0) for rank in range(shape.devices)]


def moved(times: Times, by: int) -> Times:
    """Return the times by another clock."""
    return {op: (start + by, end + by) for op, (start, end) in times.items()}
