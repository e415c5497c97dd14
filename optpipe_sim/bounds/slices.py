"""Lower bounds on schedules over slices of the sequence.

They hold for every order and every treatment: memory is not looked at, recomputation counts as
nothing, a backward as the cheaper of B + W and BW. `back` of a slice is the cheaper of B and BW.
"""

from __future__ import annotations

from ..profile import CostProfile
from .chains import Chains, back_ns


def work(profile: CostProfile, microbatches: int, objective: str) -> int:
    """Every device does all its work between the first slice that comes and the last that leaves.

    Proof. Let device d hold stages from s_1 on, in model order. Its first op is an F of a first
    slice at s_1, behind the F's of that slice at all stages before. Of each microbatch its last
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
            # what it sends behind its last op is no part of a span
            best = max(best, full + max(0, sends - profile.sending_ns))
            continue
        before = [profile.stages[stage].slices[0] for stage in range(stages[0])]
        latency = sum(chains.latency(stage, stage + 1) for stage in range(stages[0]))
        head = sum(part.t_f_ns for part in before) + latency
        tail = sum(map(back_ns, before)) + latency
        best = max(
            best, head + full + sends, head + direct + max(0, sends - profile.sending_ns) + tail
        )
    return best


def one_microbatch(profile: CostProfile, objective: str) -> int:
    """The longest chain of ops of one microbatch: its slices up the stages in order, and down in
    reverse; of a span, from the first F to the last backward of the device of stage 0.

    Proof: F of a slice follows that of the stage before and that of the slice before; the backward
    likewise, the other way round; the last op of all is the first slice's backward at stage 0 with
    its W.
    """
    chains, stages, n = Chains(profile, objective), profile.stages, profile.slices
    at = [0] * n
    for number, cost in enumerate(stages):
        latency = chains.latency(number, number - 1)
        at = _passed([time + latency for time in at], [part.t_f_ns for part in cost.slices])
    at = [at[-1]] * n  # the last stage's backwards start behind the F of the last slice
    for number in reversed(range(len(stages))):
        backs = [back_ns(part) for part in reversed(stages[number].slices)]
        latency = chains.latency(number, number + 1)
        at = _passed([time + latency for time in at], backs)
    first = stages[0].slices[0]
    return at[-1] - back_ns(first) + min(first.t_b_ns + first.t_w_ns, first.fused_ns)


def _passed(ready: list[int], durations: list[int]) -> list[int]:
    """The ends of ops that follow one another, each not before it is ready."""
    ends, free = [], 0
    for time, duration in zip(ready, durations, strict=True):
        free = max(free, time) + duration
        ends.append(free)
    return ends
