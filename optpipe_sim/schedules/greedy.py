"""Programs that grow op by op, with the clock and the memory of each device; the basis of the
automatic zero-bubble schedules. Compiled: `zb_v`, `zb_auto` and `v_shape` say in which order ops come.

Ops are appended in an order in which their inputs are known, so the times equal those of the replay
(with latency links). All compute ops share one stream, so memory depends on the order alone: a
limit that holds here holds with any durations. The ops of a kind run in the order of the microbatches on each
stage, so that a program needs the kind and the stage of its ops only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..codes import B, F, W
from ..compiled import packed, part, step
from ..errors import OutOfMemory
from ..ops import MESSAGES, OWN
from ..profile import CostProfile
from ..schedule import Schedule
from ..units import Size, as_limit, format_size, size_above

FOREVER = 2**62  # ns

# What to do with a wait that is too short for another whole W: leave it idle, append a W if the device
# cannot afford to idle, or always append one. A W here delays the next op.
NEVER, PAST_SLACK, ALWAYS = range(3)

# Rows of `Grown.device`: the end of its last op (ns); bytes held; idle time since its first op (ns); whether
# it has begun, and when (ns); its limit and what it holds in any case (bytes); ops so far; W's that have
# become possible, those that have run, and the bytes of those that have not.
FREE, HELD, IDLE, BEGUN, FIRST, LIMIT, STATIC, LENGTH, POSSIBLE, RUN, PENDING, DEVICE_ROWS = range(
    12
)
# Rows of `Grown.stage`: its device; latency of the edge to the next stage.
HOME, LATENCY, STAGE_ROWS = range(3)
# Entries of `Grown.state`: the most that any device idles, and what some device will idle in any case (ns).
MOST_IDLE, EXPECTED_IDLE, ENTRIES = range(3)


@packed
class Grown(NamedTuple):
    """A schedule under construction; p devices, S stages, m microbatches."""

    device: np.ndarray  # (DEVICE_ROWS, p)
    stage: np.ndarray  # (STAGE_ROWS, S)
    duration: np.ndarray  # (3, S) of F, B and W, in ns
    net: np.ndarray  # (3, S) the bytes that an F, B or W allocates less those that it releases
    done: np.ndarray  # (2, S) how many microbatches have an F, a B
    ends: np.ndarray  # (2, S, m) when these end, in ns
    program: np.ndarray  # (p, ops) kind * S + stage
    waiting: (
        np.ndarray
    )  # (p, S / p * m) the stages of the W's of a device, in the order of their B's
    chosen: np.ndarray  # (p,) what each device has chosen in a round; its meaning is its user's
    state: np.ndarray  # (ENTRIES,)


def begin(
    costs: CostProfile, microbatches: int, limits: Sequence[int], expected_idle: int = 0
) -> Grown:
    """Return an empty schedule.

    Args:
        costs: with the schedule's chunks and placement.
        microbatches: m.
        limits: bytes per device; only `room` and `make_room` check them.
        expected_idle: the idle time (ns) that some device will have in any case.
    """
    p, stages = costs.devices, len(costs.stages)
    device = np.zeros((DEVICE_ROWS, p), np.int64)
    device[HELD] = device[STATIC] = costs.static_bytes
    device[LIMIT] = limits
    stage = np.zeros((STAGE_ROWS, stages), np.int64)
    stage[HOME] = costs.placement
    stage[LATENCY, :-1] = costs.messages_ns
    state = np.array([0, expected_idle], np.int64)
    own = stages // p * microbatches
    return Grown(
        device=device,
        stage=stage,
        duration=costs.durations_ns[[F, B, W]],
        net=(costs.allocated_bytes - costs.released_bytes)[[F, B, W]],
        done=np.zeros((2, stages), np.int64),
        ends=np.zeros((2, stages, microbatches), np.int64),
        program=np.zeros((p, 3 * own), np.int32),
        waiting=np.zeros((p, own), np.int32),
        chosen=np.zeros(p, np.int64),
        state=state,
    )


@part
def arrival(g: Grown, kind: int, s: int) -> int:
    """Return when the inputs of the next F or B of stage s arrive; `FOREVER` if it has none, or not all its inputs have
    been appended."""
    _, stages, m = g.ends.shape
    at, time = g.done[kind, s], 0
    for needs, other in ((OWN[kind], s), (kind, s + MESSAGES[kind])):
        if needs >= 0 and 0 <= other < stages:
            if at == g.done[needs, other]:
                return FOREVER
            latency = g.stage[LATENCY, min(s, other)] if other != s else 0
            time = max(time, g.ends[needs, other, at] + latency)
    return int(time) if at < m else FOREVER


@step
def exists(g: Grown, kind: int, s: int) -> bool:
    """Whether stage s has a next F or B, all inputs of which have been appended."""
    return arrival(g, kind, s) < FOREVER


@step
def _log(g: Grown, d: int, kind: int, s: int) -> None:
    g.program[d, g.device[LENGTH, d]] = kind * g.stage.shape[1] + s
    g.device[LENGTH, d] += 1


@part
def put(g: Grown, kind: int, s: int) -> None:
    """Append the next op of this kind (F or B)."""
    d = g.stage[HOME, s]
    start, free = arrival(g, kind, s), g.device[FREE, d]
    if not g.device[BEGUN, d]:
        g.device[BEGUN, d], g.device[FIRST, d] = 1, start
    elif start > free:
        g.device[IDLE, d] += start - free
        g.state[MOST_IDLE] = max(g.state[MOST_IDLE], g.device[IDLE, d])
    end = max(start, free) + g.duration[kind, s]
    g.device[FREE, d] = end
    g.ends[kind, s, g.done[kind, s]] = end
    g.done[kind, s] += 1
    _log(g, d, kind, s)
    g.device[HELD, d] += g.net[kind, s]
    if kind == B:
        g.device[PENDING, d] -= g.net[W, s]
        g.waiting[d, g.device[POSSIBLE, d]] = s
        g.device[POSSIBLE, d] += 1


@part
def put_w(g: Grown, d: int) -> None:
    """Append the W that has waited longest."""
    s = g.waiting[d, g.device[RUN, d]]
    g.device[RUN, d] += 1
    g.device[FREE, d] += g.duration[W, s]
    g.device[HELD, d] += g.net[W, s]
    g.device[PENDING, d] += g.net[W, s]
    _log(g, d, W, s)


@part
def fill(g: Grown, d: int, until: int, last: int) -> None:
    """Fill a device's wait for an op whose input arrives at `until` with W's: whole ones while
    they fit, then according to `last`."""
    while g.device[RUN, d] < g.device[POSSIBLE, d]:
        ends = g.device[FREE, d] + g.duration[W, g.waiting[d, g.device[RUN, d]]]
        gap = until - g.device[FREE, d]
        if ends > until:
            if gap > 0 and (last == ALWAYS or (last == PAST_SLACK and gap > slack(g, d))):
                put_w(g, d)
            return
        put_w(g, d)


@step
def slack(g: Grown, d: int) -> int:
    """Return how much longer this device may idle without becoming the most idle one (ns)."""
    return int(max(g.state[MOST_IDLE], g.state[EXPECTED_IDLE]) - g.device[IDLE, d])


@step
def room(g: Grown, d: int, size: int) -> bool:
    """Whether `size` more bytes could be held after all pending W's."""
    return bool(g.device[HELD, d] - g.device[PENDING, d] + size <= g.device[LIMIT, d])


@step
def make_room(g: Grown, d: int, size: int) -> bool:
    """Append as few W's as necessary to hold `size` more bytes; False (and none appended) if
    that is impossible."""
    if not room(g, d, size):
        return False
    while g.device[HELD, d] + size > g.device[LIMIT, d]:
        put_w(g, d)
    return True


@step
def finish(g: Grown) -> None:
    """Append the rest of the W's."""
    for d in range(g.device.shape[1]):
        while g.device[RUN, d] < g.device[POSSIBLE, d]:
            put_w(g, d)


def longest_span(g: Grown) -> int:
    """Return the longest device span: from the first start of a device to its last end, in ns."""
    return int((g.device[FREE] - g.device[FIRST]).max())


def as_schedule(g: Grown, costs: CostProfile) -> Schedule:
    """Return the programs as a schedule on the costs that they were grown with."""
    lengths, stages = g.device[LENGTH], g.stage.shape[1]
    entries = np.concatenate([row[:length] for row, length in zip(g.program, lengths, strict=True)])
    # the k-th op of its kind and stage is that of microbatch k
    order = np.argsort(entries, kind="stable")
    firsts = np.searchsorted(entries[order], entries)
    microbatch = np.empty(len(entries), np.int64)
    microbatch[order] = np.arange(len(entries))
    table = np.stack([*np.divmod(entries, stages), microbatch - firsts], axis=1)
    return Schedule.from_table(
        costs.shape(g.ends.shape[2]), table, np.concatenate([[0], np.cumsum(lengths)])
    )


def device_limits(costs: CostProfile, limit: Size | None, activations: int) -> list[int]:
    """Return the bytes that each device may hold: `limit` (static included), else `activations` of
    its largest stage in addition to its static bytes.

    Raises:
        OutOfMemory: if one microbatch alone needs more; names the device and the least limit.
    """
    costs.require_memory("memory limit")
    largest, least = [0] * costs.devices, list(costs.static_bytes)
    for device, cost in zip(costs.placement, costs.stages, strict=True):
        largest[device] = max(largest[device], cost.act_bytes)
        least[device] += cost.act_bytes
    if limit is None:
        return [
            max(needed, static + activations * size)
            for needed, static, size in zip(least, costs.static_bytes, largest, strict=True)
        ]
    limit = as_limit("limit", limit, costs.tiny)
    worst = max(range(costs.devices), key=least.__getitem__)
    if limit < least[worst]:
        raise OutOfMemory(
            f"device {worst}: a limit of {format_size(limit)} does not hold one microbatch without"
            f" offloading; the least limit that works is {size_above(least[worst])}"
        )
    return [limit] * costs.devices
