"""Lower bounds on schedules over slices of the sequence.

They hold for every order and every treatment: recomputation is not counted, a backward counts as
the cheaper of B + W and BW. `back` of a slice is the cheaper of B and BW.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from ..ops import O
from ..profile import CostProfile
from .chains import Chains, back_ns, knapsack


def best(
    profile: CostProfile,
    microbatches: int,
    objective: str,
    memory_limit: int | Sequence[int] | None = None,
) -> tuple[int, str]:
    """Return the best bound of this module, in ns, and its name; of equal bounds the simplest."""
    given = (profile, microbatches, objective)
    bounds = [
        (work(*given), "work"),
        (one_microbatch(profile), "one microbatch"),
        (fill_and_drain(*given, memory_limit), "fill and drain"),
        (residency(*given, memory_limit), "residency"),
    ]
    return max(bounds, key=lambda bound: bound[0])


def work(profile: CostProfile, microbatches: int, objective: str) -> int:
    """Every device does all its work between the arrival of the first slice and the departure of the last.

    Proof. Let device d hold stages from s_1 on, in model order. Its first op is an F of a first
    slice at s_1, after the F's of that slice at all earlier stages. Of each microbatch its last
    backward is that of the first slice at s_1: backwards of a microbatch come in reverse, and down
    the stages. So after the last backward of all, that slice still goes down the stages before s_1;
    and by then all F's and backwards of d are done. W's may follow. A span has neither end.
    """
    best = 0
    chains = Chains(profile, objective)
    for stages in chains.stages_of.values():
        parts = [part for stage in stages for part in profile.stages[stage].slices]
        sends = sum(sum(chains.sends(s)) for s in stages) * profile.slices * microbatches
        full = microbatches * sum(part.work_ns for part in parts)
        direct = microbatches * sum(part.t_f_ns + back_ns(part) for part in parts)
        if objective == "span":
            # messages after its last op are not part of a span
            best = max(best, full + max(0, sends - profile.sending_ns))
            continue
        head, tail = _head(profile, stages[0]), _tail(profile, stages[0])
        best = max(
            best, head + full + sends, head + direct + max(0, sends - profile.sending_ns) + tail
        )
    return best


def one_microbatch(profile: CostProfile) -> int:
    """The longest chain of ops of one microbatch: its slices up the stages in order, and down in
    reverse; of a span, from the first F to the last backward of the device of stage 0.

    Proof: F of a slice follows that of the stage before and that of the slice before; the backward
    likewise, the other way round; the last op of all is the first slice's backward at stage 0 with
    its W.
    """
    stages, n = profile.stages, profile.slices
    at = [0] * n
    for number, cost in enumerate(stages):
        latency = profile.message_ns(number, number - 1)
        at = _passed([time + latency for time in at], [part.t_f_ns for part in cost.slices])
    at = [at[-1]] * n  # the last stage's backwards start after the F of the last slice
    for number in reversed(range(len(stages))):
        backs = [back_ns(part) for part in reversed(stages[number].slices)]
        latency = profile.message_ns(number, number + 1)
        at = _passed([time + latency for time in at], backs)
    first = stages[0].slices[0]
    return at[-1] - back_ns(first) + min(first.t_b_ns + first.t_w_ns, first.fused_ns)


def _passed(ready: list[int], durations: list[int]) -> list[int]:
    """Return the ends of ops that run one after another, each no earlier than it is ready."""
    ends, free = [], 0
    for time, duration in zip(ready, durations, strict=True):
        free = max(free, time) + duration
        ends.append(free)
    return ends


def fill_and_drain(
    profile: CostProfile,
    microbatches: int,
    objective: str,
    memory_limit: int | Sequence[int] | None = None,
) -> int:
    """A device can only fill the time before its first backward with the forwards that fit its memory,
    and the time after its last one with the W's that do; 0 without a limit.

    Proof, as of `bounds.fill_and_drain`. Let t be the start of d's first backward, x the F time before
    it, E the end of its last backward (of a first slice at s_1) and u the W time after E. Then
    ``E >= t - x + m work(d) - u``, and ``makespan >= E + max(u, q)``, where q is the chain of that slice
    down the stages below s_1. The first backward is of a last slice at s_k at the earliest, so t is
    at least b, the longest chain to it. Let y be the F time before b: as x <= y + t - b, t - x >= b - y.
    Nothing but O's releases anything of an activation before b: so the F's that start before b keep no
    more bytes than cap(d) and what O's release by then, on one engine, after the first F has ended.
    At E, the w_bytes of the W's that follow lie within cap(d).
    """
    limits = profile.limits(memory_limit)
    if limits is None:
        return 0
    chains, best = Chains(profile, objective), 0
    up, down = _chains_of_slices(profile)
    for d, stages in chains.stages_of.items():
        capacity = limits[d] - profile.static_bytes[d]
        parts = [part for stage in stages for part in profile.stages[stage].slices]
        first, last = stages[0], stages[-1]
        head = _head(profile, first) if objective == "flush" else 0
        tail = _tail(profile, first) if objective == "flush" else 0
        b = (up[0][0] if objective == "flush" else up[first][0]) + down[last][-1]
        forwards = [
            (part.t_f_ns * microbatches, part.least_waiting_bytes(False) * microbatches)
            for part in parts
        ]
        released = _released(profile, stages, b - head - profile.stages[first].slices[0].t_f_ns)
        y = b - head
        if released is not None:
            y = min(y, knapsack(forwards, capacity + released))
        weights = [(part.t_w_ns * microbatches, part.w_bytes * microbatches) for part in parts]
        work = microbatches * sum(part.work_ns for part in parts)
        best = max(best, b - y + work + max(0, tail - knapsack(weights, capacity)))
    return best


def residency(
    profile: CostProfile,
    microbatches: int,
    objective: str,
    memory_limit: int | Sequence[int] | None = None,
) -> int:
    """Little's law: bytes held, summed over time, fit into the limit times the device's span; 0 without a
    limit. Offloaded bytes count as not resident all the time between F and backward.

    Proof. From the start of a slice's F to that of its backward passes at least the longest chain up
    the later stages and slices and back. F and backward hold at least what is kept; in between
    what can neither be dropped nor offloaded is held. All of it lies between the device's first F
    and its last op.
    """
    limits = profile.limits(memory_limit)
    if limits is None:
        return 0
    chains, best, offloads = Chains(profile, objective), 0, profile.offload is not None
    up, down = _chains_of_slices(profile)
    for d, stages in chains.stages_of.items():
        capacity = limits[d] - profile.static_bytes[d]
        if capacity <= 0:
            continue
        held = 0
        for stage in stages:
            for k, part in enumerate(profile.stages[stage].slices):
                wait = up[stage][k] + down[stage][k] - part.t_f_ns
                held += part.least_waiting_bytes(False) * (part.t_f_ns + back_ns(part))
                held += part.least_waiting_bytes(offloads) * wait
        head = _head(profile, stages[0]) if objective == "flush" else 0
        best = max(best, head - (-held * microbatches // capacity))
    return best


def _head(profile: CostProfile, first: int) -> int:
    """Return the earliest start of an F at a stage."""
    return sum(
        profile.stages[s].slices[0].t_f_ns + profile.message_ns(s, s + 1) for s in range(first)
    )


def _tail(profile: CostProfile, first: int) -> int:
    """Return the time from the end of a first slice's backward at a stage to its end at the first stage."""
    return sum(
        back_ns(profile.stages[s].slices[0]) + profile.message_ns(s, s + 1) for s in range(first)
    )


def _chains_of_slices(profile: CostProfile) -> tuple[list[list[int]], list[list[int]]]:
    """Return, per stage and slice, the longest chain of one microbatch from the start of its F to the
    end of the last F of all, and from there to the start of its backward."""
    stages, n = profile.stages, profile.slices
    up = [[0] * n for _ in stages]
    down = [[0] * n for _ in stages]
    for s in reversed(range(len(stages))):
        for k in reversed(range(n)):
            above, behind = s + 1 < len(stages), k + 1 < n
            latency = profile.message_ns(s, s + 1)
            later = [0]
            later += [up[s + 1][k] + latency] if above else []
            later += [up[s][k + 1]] if behind else []
            up[s][k] = stages[s].slices[k].t_f_ns + max(later)
            before = [0]
            before += [down[s + 1][k] + back_ns(stages[s + 1].slices[k]) + latency] if above else []
            before += [down[s][k + 1] + back_ns(stages[s].slices[k + 1])] if behind else []
            down[s][k] = max(before)
    return up, down


def _released(profile: CostProfile, stages: Sequence[int], window_ns: int) -> int | None:
    """Return the most bytes that a device's O's release in a given time; None if some take no time."""
    if profile.offload is None or window_ns <= 0:
        return 0
    durations = profile.part_tables.duration_ns[:, :, O][:, :, list(stages)]
    moved = profile.part_tables.released_bytes[:, :, O][:, :, list(stages)]
    pairs = [(int(b), int(t)) for b, t in zip(moved.flat, durations.flat, strict=True) if b]
    if any(t == 0 for _, t in pairs):
        return None
    rate = max((Fraction(b, t) for b, t in pairs), default=Fraction(0))
    return -int(-rate * window_ns // 1)
