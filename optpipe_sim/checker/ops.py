"""The checker's view of order alone: are the ops complete, the link orders valid, is there a cycle?"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from itertools import pairwise

from ..ops import BW, TRANSFERS, B, C, F, O, Op, R, W
from ..profile import CostProfile
from ..schedule import Schedule
from .costs import Costs
from .stepped import anchors, engines, link_of


def completeness(schedule: Schedule) -> list[str]:
    """Ops missing, doubled, of both kinds, without their partner, or on the wrong device."""
    shape = schedule.shape
    problems = []
    for device, program in enumerate(schedule.flat_programs):
        for op in program:
            owner = shape.placement[op.stage]
            if owner != device:
                problems.append(
                    f"device {device}: {op} stands here, but stage {op.stage} lives on device {owner}"
                )
    count = Counter(op for program in schedule.flat_programs for op in program)
    for stage, device in enumerate(shape.placement):
        for unit in range(shape.units):
            recomputing = shape.op(C, stage, unit)
            problems += [f"device {device}: {text}" for text in _of_activation(count, recomputing)]
            whole = f"{stage}.{recomputing.microbatch}"
            named = {f"{stage}", whole, f"{whole}/{recomputing.slice}"} & schedule.recompute.keys()
            if count[recomputing] and not named:
                problems.append(
                    f"device {device}: {recomputing} recomputes what is kept whole: no level is given for it"
                )
    return problems


def level_problems(schedule: Schedule, profile: CostProfile) -> list[str]:
    """Levels of recomputation that the profile does not have."""
    problems = []
    for key, name in schedule.recompute.items():
        known = [level.name for level in profile.stages[int(key.partition(".")[0])].recompute]
        if name not in known:
            problems.append(
                f"recompute {key}: the profile {profile.name} has no level {name!r} there, only"
                f" {', '.join(known) or 'none'}"
            )
    return problems


def split_problems(schedule: Schedule, profile: CostProfile) -> list[str]:
    """B and W of stages of which the profile has only the whole backward; the first of each."""
    first: dict[int, Op] = {}
    for program in schedule.flat_programs:
        for op in program:
            if op.kind in (B, W) and not profile.stages[op.stage].splits:
                first.setdefault(op.stage, op)
    return [
        f"device {schedule.shape.placement[stage]}: {op} is a part of a backward of which the profile"
        f" {profile.name} has only the whole (t_bw), no t_b and t_w"
        for stage, op in sorted(first.items())
    ]


def _of_activation(count: Counter[Op], op: Op) -> Iterator[str]:
    """Yield the problems of the ops of one activation, given one of them."""
    f, b, w, bw, c, o, r = (op._replace(kind=kind) for kind in (F, B, W, BW, C, O, R))
    for op in (f, b, w, bw, c, o, r):
        if count[op] > 1:
            yield f"{op} is in the programs {count[op]} times"
    if not count[f]:
        yield f"{f} is missing"
    if count[bw]:
        for op in (b, w):
            if count[op]:
                yield f"{op} and {bw} are both there, give B and W or BW"
    else:
        for op in (b, w):
            if not count[op]:
                yield f"{op} is missing (and there is no BW for it)"
    if count[o] and not count[r]:
        yield f"{o} offloads what no R reloads"
    if count[r] and not count[o]:
        yield f"{r} reloads what no O offloads"


def link_problems(schedule: Schedule, profile: CostProfile) -> list[str]:
    """Yield link orders of unknown links, and those that do not list each of their transfers once."""
    if profile.offload is None:
        # an empty order of a device's link is harmless
        known = {f"{device}/{kind.name}" for device in range(profile.devices) for kind in TRANSFERS}
        return [
            f"link order {key}: there is no such link, as the profile {profile.name} has no offload"
            " section"
            for key, ops in schedule.link_order.items()
            if ops or key not in known
        ]
    on_link: dict[str, list[Op]] = {}
    for device in range(profile.devices):
        for kind in TRANSFERS:
            on_link.setdefault(link_of(profile, device, Op(kind, 0, 0)), [])
    for device, program in enumerate(schedule.flat_programs):
        for op in program:
            if op.kind in TRANSFERS:
                on_link[link_of(profile, device, op)].append(op)
    problems = []
    for key, ops in schedule.link_order.items():
        if key not in on_link:
            problems.append(
                f"link order {key}: there is no such link, only {', '.join(sorted(on_link))}"
            )
            continue
        listed = Counter(ops)
        problems += [
            f"link order {key}: {_at(schedule, op)} is missing"
            for op in on_link[key]
            if not listed[op]
        ]
        for op, times in listed.items():
            if op not in on_link[key]:
                problems.append(
                    f"link order {key}: {_at(schedule, op)} is no transfer of this link"
                )
            elif times > 1:
                problems.append(f"link order {key}: {_at(schedule, op)} is listed {times} times")
    return problems


def _at(schedule: Schedule, op: Op) -> str:
    return f"{op} (device {schedule.shape.placement[op.stage]})"


def circle(schedule: Schedule, profile: CostProfile) -> list[str]:
    """Describe orders that deadlock whatever the memory: the ops that wait for one another."""
    waits = _order_edges(schedule, profile)
    missing = {op: len(needs) for op, needs in waits.items()}
    waiters: dict[Op, list[Op]] = {op: [] for op in waits}
    for op, needs in waits.items():
        for need in needs:
            waiters[need].append(op)
    ready = deque(op for op, number in missing.items() if not number)
    while ready:
        for op in waiters[ready.popleft()]:
            missing[op] -= 1
            if not missing[op]:
                ready.append(op)
    blocked = {op: waits[op] for op, number in missing.items() if number}
    if not blocked:
        return []
    # from any of them, going back over ops that have not ended leads into a cycle
    op, seen = next(iter(blocked)), set()
    while op not in seen:
        seen.add(op)
        op = next(need for need in blocked[op] if need in blocked)
    ring = _shortest_circle(op, blocked)
    links = [
        f"{_at(schedule, one)} waits for {_at(schedule, other)} {blocked[one][other]}"
        for one, other in zip(ring, ring[1:] + ring[:1], strict=True)
    ]
    return [f"the order can never go on, its ops wait in a circle: {', '.join(links)}"]


def _order_edges(schedule: Schedule, profile: CostProfile) -> dict[Op, dict[Op, str]]:
    """Return what each op waits for, and why, memory aside."""
    costs = Costs(schedule, profile)
    here = {op for program in schedule.flat_programs for op in program}
    waits: dict[Op, dict[Op, str]] = {op: {} for op in here}

    def follow(ops: Sequence[Op], why: str) -> None:
        for before, after in pairwise(ops):
            waits[after].setdefault(before, why)

    for op in waits:
        for need in costs.needs(op):
            if need in here:
                waits[op][need] = "(its input)"
        if op in costs.ahead:
            waits[op][costs.ahead[op]] = "(one op with it)"
    for program in schedule.flat_programs:
        follow(costs.streamed(program), "(before it in the program)")
        for queue in engines(profile, program):
            follow(queue, "(before it on the copy engine)")
        for reload, anchor in anchors(program).items():
            anchor = costs.ahead.get(anchor, anchor) if anchor is not None else None
            if anchor is not None:
                waits[reload].setdefault(anchor, "(the compute op before it in the program)")
    for key, ops in schedule.link_order.items():
        follow(ops, f"(before it in link order {key})")
    return waits


def _shortest_circle(start: Op, waits: dict[Op, dict[Op, str]]) -> list[Op]:
    """Return the shortest cycle of waiting ops through `start`, which lies on one."""
    came: dict[Op, Op] = {}
    queue = deque([start])
    while start not in came:
        op = queue.popleft()
        for need in waits[op]:
            if need in waits and need not in came:
                came[need] = op
                queue.append(need)
    ring = [came[start]]
    while ring[-1] != start:
        ring.append(came[ring[-1]])
    return ring[::-1]
