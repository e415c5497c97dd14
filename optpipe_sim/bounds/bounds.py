"""Lower bounds on the cost of any schedule, each with its proof.

Notation: device d holds the stages s_1 < ... < s_k (model order); work(d) is the compute time of one
microbatch on it, every backward counted as the cheaper of B + W and BW; cap(d) is its memory limit
less its static bytes; `back` of a stage is the cheaper of B and BW (what the stage before waits
for). Messages take at least `t_comm` between devices, on serial links too; shared host links and
host limits only make schedules later; so none of them can break a bound.

With levels of recomputation all treatments of all activations are covered: heads, chains and work
do not count recomputation, sizes are the least over the levels, and the recomputation that must be
paid to make activations fit is added where that is valid (`relief`; proofs in docs/bounds.md).

Used throughout: of one microbatch the F's of d run in model order and its B's in the reverse, so
the first compute op of d is an F of s_1, its first backward one of s_k, its last backward one of
s_1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from ..execution import IDEAL
from ..ops import O, OpKind, R
from ..profile import CostProfile
from ..stage_cost import StageCost
from . import slices
from .chains import Chains, Drain, by_worth, filled, least_drains, pending_w_ways
from .ends import after_last_forward, relief_of_one, wait_of_many, waits_of_one
from .hidden import hidden_on
from .relaxed import relaxed, relaxed_cost
from .relief import (
    Step,
    backwards,
    by_price,
    copy_rate,
    most_saved,
    steps,
    ways,
)


class Bound(NamedTuple):
    """A time that no schedule can beat, and the name of its proof."""

    ns: int
    name: str


def lower_bound(
    profile: CostProfile,
    microbatches: int,
    objective: str | None = None,
    memory_limit: int | Sequence[int] | None = None,
    pairs: bool | None = None,
) -> Bound:
    """Return the best bound of this module (with slices: of `slices`) for schedules with the profile's
    chunks, placement and slices.

    Args:
        profile: costs, chunks and placement; its memory limit counts unless `memory_limit` is given.
        microbatches: m.
        objective: ``flush`` (bounds the makespan) or ``span`` (the longest device span); None: what an
            iteration takes under the profile's execution.
        memory_limit: bytes per device (one number, or one per device).
        pairs: whether of schedules in which forwards and backwards may run as one op, too; None: where the execution has
            them and the profile says what they hide.

    Raises:
        OptPipeError: for another objective.
    """
    if profile.execution != IDEAL:  # of schedules that split backwards, and of those that do not
        found = [
            lower_bound(
                profile.issued(splits),
                microbatches,
                objective or profile.issue(splits).objective,
                memory_limit,
                profile.may_pair(splits) if pairs is None else pairs,
            )
            for splits in (False, True)
        ]
        return min(found, key=lambda bound: bound.ns)
    objective = objective or "flush"
    if profile.may_pair(splits=True) if pairs is None else pairs and profile.pair_hidden:
        return with_pairs(profile, microbatches, objective, memory_limit)
    if not profile.alike:
        return max(
            lower_bound(profile.lightest, microbatches, objective, memory_limit, pairs=False),
            Bound(naive(profile, microbatches, objective), "work"),
            Bound(one_microbatch(profile, objective), "one microbatch"),
            key=lambda bound: bound.ns,
        )
    if profile.slices > 1:
        return Bound(*slices.best(profile, microbatches, objective, memory_limit))
    bounds = [
        Bound(naive(profile, microbatches, objective), "work"),
        Bound(one_microbatch(profile, objective), "one microbatch"),
        Bound(fill_and_drain(profile, microbatches, objective, memory_limit), "fill and drain"),
        Bound(residency(profile, microbatches, objective, memory_limit), "residency"),
    ]
    return max(bounds, key=lambda bound: bound.ns)  # of equal bounds the simplest


def with_pairs(
    profile: CostProfile,
    microbatches: int,
    objective: str = "flush",
    memory_limit: int | Sequence[int] | None = None,
) -> Bound:
    """A bound for schedules whose forwards and backwards may run as one op.

    Proof. A pair takes no less than either of its ops, so chains hold, that of one microbatch among
    them. And a device works for at least its work less what its pairs hide (`hidden`). Let n forwards
    of d start before its first backward does, at t: no backward was there to pair them with, so at most
    all others are in pairs. They take x ns; ``t - x`` is bounded as in `fill_and_drain`, since before t
    only F's run. The last backward of d is in no pair either, whose forward's own backward would come
    later still; so what is lost after it is as there, too. The bound is the least over n. What is idle after
    the last forward is not counted: that may be in a pair. Residency counts no work without levels of
    recomputation.
    """
    if not profile.alike:
        least = with_pairs(profile.lightest, microbatches, objective, memory_limit)
    elif profile.slices > 1:
        least = Bound(0, "work")
    else:
        chains = Chains(profile, objective)
        ns = max(_fill_with_pairs(chains, d, microbatches, memory_limit) for d in chains.stages_of)
        least = Bound(ns, "fill and drain")
        if not profile.has_levels:
            held = residency(profile, microbatches, objective, memory_limit)
            least = max(least, Bound(held, "residency"), key=lambda bound: bound.ns)
    return max(
        Bound(naive(profile, microbatches, objective, pairs=True), "work"),
        Bound(one_microbatch(profile, objective), "one microbatch"),
        least,
        key=lambda bound: bound.ns,
    )


def _fill_with_pairs(
    chains: Chains, device: int, microbatches: int, memory_limit: int | Sequence[int] | None
) -> int:
    """Return the bound of `with_pairs` from one device."""
    profile, stages = chains.profile, chains.stages_of[device]
    ends = _ends(chains, device, microbatches, memory_limit)
    waits: list[int] | None = None
    floor = ends.head
    if ends.capacity is not None:
        if len(stages) == 1:
            waits = waits_of_one(
                profile, stages[0], microbatches, ends.capacity, ends.head, ends.first_back
            )
        else:
            small = relaxed(profile)
            floor = max(
                floor,
                wait_of_many(
                    small, stages, microbatches, ends.capacity, ends.head, ends.first_back
                ),
            )
    work = microbatches * chains.work(stages)
    after = least_drains(ends.tail, ends.drains)[1]
    hidden = hidden_on(profile, stages, microbatches)
    sends = [chains.sends(s) for s in stages]
    sending = microbatches * sum(map(sum, sends)) - sends[0][1]
    longest = max(profile.stages[s].t_f_ns for s in stages)
    longest_sent = max(
        profile.stages[s].t_f_ns + one for s, (one, _) in zip(stages, sends, strict=True)
    )
    best: int | None = None
    for n in range(len(stages), microbatches * len(stages) + 1):
        if waits is not None and n > len(waits):
            break
        wait = waits[n - 1] if waits is not None else max(floor, ends.first_back - n * longest)
        sent = max(ends.head, ends.first_back - n * longest_sent) + sending
        ns = max(wait, sent) + work + after - hidden.at_most(microbatches * len(stages) - n)
        best = ns if best is None else min(best, ns)
        if waits is None and wait == floor and sent == ends.head + sending:
            break  # more forwards hide nothing more
    assert best is not None
    return best


def naive(
    profile: CostProfile, microbatches: int, objective: str = "flush", pairs: bool = False
) -> int:
    """Every device does all its work, and cannot start before a microbatch has come to it. With `pairs`, less
    what these hide.

    Proof: the first op of d is an F of s_1, which ends a chain of F's and messages; from then on
    the device works for at least m work(d). A span has no such head start. Where links are blocking
    it sends all its messages as well, of a span all but that of its last backward.
    """
    chains = Chains(profile.lightest, objective)
    whole = profile.slices == 1  # else a later stage may begin with the first slice
    shares = Counter(profile.factors) or {profile.classes[0]: microbatches}
    costs = [(count, profile.stages_of(*factors)) for factors, count in shares.items()]
    best = 0
    for stages in chains.stages_of.values():
        sends = [sum(chains.sends(s)) for s in stages]
        last = chains.sends(stages[0])[1] if objective == "span" else 0
        own = sum(
            count * part.work_ns
            for count, each in costs
            for s in stages
            for part in each[s].slices or (each[s],)
        )
        work = own + microbatches * sum(sends) - last
        if pairs:
            work -= hidden_on(profile, stages, microbatches).at_most(
                microbatches * len(stages) * profile.slices
            )
        best = max(best, (chains.head(stages[0]) if whole else 0) + work)
    return best


def one_microbatch(profile: CostProfile, objective: str = "flush") -> int:
    """The longest chain of ops of one microbatch.

    Proof: F's from stage a to the last, backwards down to stage b, and the weight gradient of b
    follow one another, messages between. For the makespan a = 0 and any b; for a span a = b, the
    lowest stage of a device: both ends of the chain are ops of that device.
    """
    if not profile.alike:
        return max(one_microbatch(profile.of_class(*one), objective) for one in profile.classes)
    if profile.slices > 1:
        return slices.one_microbatch(profile)
    chains = Chains(profile, objective)
    if objective == "span":
        return max(
            chains.until_back(stages[0])
            - chains.forward_from(stages[0])
            + chains.full_back(stages[0])
            for stages in chains.stages_of.values()
        )
    return max(chains.until_back(s) + chains.full_back(s) for s in range(len(profile.stages)))


def fill_and_drain(
    profile: CostProfile,
    microbatches: int,
    objective: str = "flush",
    memory_limit: int | Sequence[int] | None = None,
) -> int:
    """A device can only fill the time before its first backward with the forwards that fit its
    memory, and the time after its last one with the W's that do.

    Proof. Let t be the start of d's first backward. Then t >= b, the end of the chain of F's to the
    last stage and of backwards down to s_k. Before t only F's run on d, x ns of them in all; after t
    it has at least m work(d) - x to do. Let E be the end of its last backward; after E only W's
    run, u ns of them in all. So ``E >= t - x + m work(d) - u``. After E the device works for u,
    and other devices take the last microbatch down the stages below s_1: a chain of length
    q. So ``makespan >= E + max(u, q) >= t - x + m work(d) + max(0, q - u)``. It remains to bound
    t - x from below and u from above.

    *u*: when the last backward starts, its own act and the w_bytes of each W pending are held, within
    cap(d). So u is at most its own W and what W's of w_bytes that fit into cap(d) - act(s_1)
    take: where all W's are alike floor of that over w_bytes, at most all but one; else at most the
    fractional optimum.

    *t - x, one stage*: if n F's run before t, ``t - x >= max(b, h + g_n) - n F``, h being the earliest
    start of d's first F and g_n the earliest end of its n-th F after it. No B has released
    anything before t, so when the n-th F starts, k O's have ended with ``n act <= cap + k offload``,
    at least k_n; the k-th O to end follows k F's and the other O's (one engine, one at a time):
    ``e_k >= max(e_{k-1}, g_k) + O``; so ``g_n >= max(g_{n-1}, e_{k_n}) + F``. The least over n is taken.

    *t - x, several stages*: let y be the F time before b. As x <= y + t - b, ``t - x >= b - y``. Now
    y <= b - h; and all F's that start before b have their act within cap(d) plus what O's have
    released by then. Those O's start after the first F (of s_1) has ended; on one engine
    they release at most the fractional optimum for that time, and F's of that many bytes take at most
    the fractional optimum for these; stages that are alike: of whole activations (`ends`).

    *After the last F, one stage*: let its last F start at s, within e - s = F, and let t <= s, so that
    nothing before t is counted twice. The backward of that microbatch starts no sooner than delay D
    after e. Until e + D the device runs B's and W's of others only: at s, the others' activations and
    w_bytes of pending W's lie within cap(d) - act, and what is on the host has a B no sooner than its R,
    granted after s, has ended, the n-th of them no sooner than n R after s. The longest that all of this
    can take is less than D by some idle time. After the last B, which ends after e + D, a device idles q
    - u, as before. Alternatively all of it is added up until e + D + B + q, the microbatch itself
    included. If t > s, all m F's come before t (n = m), and only q - u is counted.

    For a span all times count from the first F of d, to which the chain to t goes back as well (the
    first backward's microbatch came by s_1 no earlier); q is 0.
    """
    parts = fill_and_drain_parts(profile, microbatches, objective, memory_limit)
    return max(part.ns for part in parts)


class Parts(NamedTuple):
    """What `fill_and_drain` counts on one device, in ns: `head` before its first op, `wait` (t - x
    in the proof there, the head included), its `work`, and `tail` after it."""

    device: int
    head: int
    wait: int
    work: int
    tail: int

    @property
    def ns(self) -> int:
        """The bound from this device."""
        return self.wait + self.work + self.tail


def fill_and_drain_parts(
    profile: CostProfile,
    microbatches: int,
    objective: str = "flush",
    memory_limit: int | Sequence[int] | None = None,
    only: int | None = None,
) -> list[Parts]:
    """Return the parts of `fill_and_drain` device by device; `only`: of that device."""
    chains = Chains(profile, objective)
    parts = []
    for d, stages in sorted(chains.stages_of.items()):
        if only not in (None, d):
            continue
        ends = _ends(chains, d, microbatches, memory_limit)
        lost = least_drains(ends.tail, ends.drains)[1]
        if ends.capacity is None:
            wait, after = ends.head, lost
        elif len(stages) == 1:
            wait, after = _one_stage(profile, stages[0], microbatches, ends)
        else:
            wait, after = _many_stages(profile, stages, microbatches, ends)
        part = Parts(d, ends.head, wait, microbatches * chains.work(stages), after)
        if profile.sending_ns:
            sending = _with_sends(chains, part, stages, microbatches, ends.first_back, lost)
            part = max(part, sending, key=lambda each: each.ns)
        parts.append(part)
    return parts


class _Ends(NamedTuple):
    """What a device has before its first op and after its last backward, in ns. `capacity`: bytes for
    activations; None: no limit, or one that no schedule can keep. `first_back`: the earliest start of its
    first backward."""

    capacity: int | None
    head: int
    first_back: int
    tail: int
    drains: list[Drain]


def _ends(
    chains: Chains, device: int, microbatches: int, memory_limit: int | Sequence[int] | None
) -> _Ends:
    profile, stages = chains.profile, chains.stages_of[device]
    limits = profile.limits(memory_limit)
    capacity = None if limits is None else limits[device] - profile.static_bytes[device]
    first_back = chains.until_back(stages[-1])
    if chains.objective == "span":
        first_back -= chains.forward_from(stages[0])
    tail, drains = 0, [Drain(0, True, 0, 0)]
    if chains.objective == "flush" and stages[0] > 0:
        tail = chains.tail(stages[0])
        drains = pending_w_ways(profile, stages, microbatches, capacity)
    least = max(relaxed_cost(profile.stages[s]).act_bytes for s in stages)
    if capacity is not None and capacity < least:
        capacity = None
    return _Ends(capacity, chains.head(stages[0]), first_back, tail, drains)


def _with_sends(
    chains: Chains,
    part: Parts,
    stages: Sequence[int],
    microbatches: int,
    first_back: int,
    after: int,
) -> Parts:
    """The same bound for blocking links, whose messages count as work: those of n forwards before
    the first backward, all but that of the last backward before that ends."""
    sends = [chains.sends(s) for s in stages]
    work = microbatches * (chains.work(stages) + sum(map(sum, sends))) - sends[0][1]
    wait = part.head
    if len(stages) == 1:
        each = chains.profile.stages[stages[0]].t_f_ns + sends[0][0]
        wait = min(max(first_back - n * each, part.head) for n in range(1, microbatches + 1))
    return Parts(part.device, part.head, wait, work, after)


def _one_stage(profile: CostProfile, s: int, microbatches: int, ends: _Ends) -> tuple[int, int]:
    """Return t - x, and the time that the device loses from its last forward on, where their sum is least.

    What is recomputed after the first backward counts before it, or after the last forward, but not
    in both.
    """
    capacity, head, first_back, tail, drains = ends
    assert capacity is not None
    waits = waits_of_one(profile, s, microbatches, capacity, head, first_back)
    cost = profile.stages[s]
    delay = first_back - head - cost.t_f_ns
    offloads = profile.offload is not None
    last = after_last_forward(cost, microbatches, capacity, delay, tail, drains, offloads)
    plain, lost = least_drains(tail, drains)
    relief = relief_of_one(profile, s, waits, capacity, head)
    after = []
    for n, (wait, relieved) in enumerate(zip(waits, relief, strict=False), 1):
        idle, both = (last.in_all, last.lost) if n < microbatches else (plain, lost)
        after.append(max((wait, both), (relieved, idle), key=sum))
    return min(after, key=sum, default=(head, plain))


def _many_stages(
    profile: CostProfile, stages: Sequence[int], microbatches: int, ends: _Ends
) -> tuple[int, int]:
    """As `_one_stage`, for several: what is recomputed counts before the first backward or after the last."""
    capacity, head, first_back, tail, drains = ends
    assert capacity is not None
    plain, lost = least_drains(tail, drains)
    relieved = wait_of_many(profile, stages, microbatches, capacity, head, first_back)
    if lost == plain:
        return relieved, plain
    small = relaxed(profile)
    wait = wait_of_many(small, stages, microbatches, capacity, head, first_back)
    return max((wait, lost), (relieved, plain), key=sum)


def residency(
    profile: CostProfile,
    microbatches: int,
    objective: str = "flush",
    memory_limit: int | Sequence[int] | None = None,
) -> int:
    """Little's law: bytes held, summed over time, fit into the limit times the device's span.

    Proof. From the start of F(s, j) to that of its backward passes at least r, the chain to the
    last stage and back. An activation that stays holds act all the while; one that goes to the host
    holds its offloadable part at least during F, O and R and the rest all the while; then the backward
    holds act while it runs, and w_bytes are held while W does (BW: act while it runs). All of it
    lies between the first F of d and its last compute op, a window of T, and so do the O's and the
    R's, one at a time per engine. So cap(d) T >= the sum of what the m microbatches of each
    stage hold, where those that go to the host take no more engine time than T; the least sum is
    the fractional optimum of giving the time of one engine to where it saves most per ns. T is at most the
    span, and the makespan less the earliest start of d.
    """
    limits = profile.limits(memory_limit)
    if limits is None:
        return 0
    chains = Chains(profile, objective)
    best = 0
    for d, stages in chains.stages_of.items():
        capacity = limits[d] - profile.static_bytes[d]
        if capacity < max(1, *(relaxed_cost(profile.stages[s]).act_bytes for s in stages)):
            continue
        waits = [chains.until_back(s) - chains.forward_from(s) for s in stages]
        costs = [profile.stages[s] for s in stages]
        held = microbatches * sum(map(_held_byte_ns, costs, waits))
        saved = [
            _saved_byte_ns(cost, wait) if profile.offload else 0
            for cost, wait in zip(costs, waits, strict=True)
        ]
        relief = [
            (Step(step.saved_bytes * wait, step.cost_ns), microbatches)
            for cost, wait in zip(costs, waits, strict=True)
            for step in steps(cost)
            if wait
        ]
        work = microbatches * chains.work(stages)
        for engine in _engine_ns(profile, stages):
            savings = [
                (microbatches * each, microbatches * busy)
                for each, busy in zip(saved, engine, strict=True)
            ]
            window = _least_window(held, savings, capacity, work, relief)
            best = max(best, chains.head(stages[0]) + window)
    return best


def _held_byte_ns(cost: StageCost, wait_ns: int) -> int:
    """Return the byte-ns that one microbatch holds if it is kept, and the least that its backward holds."""
    backward = min(
        way.held_bytes * (cost.t_b_ns + way.extra_ns) + cost.w_bytes * cost.t_w_ns
        if way.split
        else way.held_bytes * (cost.fused_ns + way.extra_ns)
        for way in backwards(cost)
    )
    return cost.act_bytes * wait_ns + backward


def _saved_byte_ns(cost: StageCost, wait_ns: int) -> int:
    """Return the most byte-ns that offloading one microbatch can save."""
    copies = min(out[0] + back[0] for out, back in zip(ways(cost, O), ways(cost, R), strict=True))
    return cost.offloadable * max(0, wait_ns - cost.t_f_ns - copies)


def _engine_ns(profile: CostProfile, stages: Sequence[int]) -> list[list[int]]:
    """Return, per copy engine of a device, the least time that the copies of each stage occupy it."""
    costs = [profile.stages[s] for s in stages]
    out, back = ([_whole_copy_ns(cost, kind) for cost in costs] for kind in (O, R))
    if profile.shares_copy_engine:
        return [[one + other for one, other in zip(out, back, strict=True)]]
    return [out, back]


def _whole_copy_ns(cost: StageCost, kind: OpKind) -> int:
    """Return the time to copy everything that can be moved, at the rate of the fastest level (times of
    copies are rounded)."""
    rate = copy_rate(cost, kind)
    return int(cost.offloadable / rate) if rate else 0


def _least_window(
    held: int,
    savings: Sequence[tuple[int, int]],
    capacity: int,
    work: int,
    relief: Sequence[tuple[Step, int]],
) -> int:
    """The least T with ``capacity T >= held - what engine time T saves - what recomputing in the
    remaining time saves``: both sides are monotone."""
    low, high = 0, max(work, -(-held // capacity))
    savings, relief = by_worth(savings), by_price(relief)
    while low < high:
        middle = (low + high) // 2
        saved = filled(savings, middle) + most_saved(relief, max(0, middle - work))
        if capacity * middle >= held - saved:
            high = middle
        else:
            low = middle + 1
    return low
