"""Any schedule with recomputation: one level for every activation, inside backwards or apart.

Published patterns know no recomputation. A pattern is built for the costs that its stages have at
the level (`at_level`), and its programs then say so (`with_level`): that is how frameworks combine
the two (Megatron-LM's ``--recompute-granularity``, torchtitan's activation checkpointing).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..errors import InvalidSchedule
from ..op_table import make_table
from ..ops import BW, B, C, O, Op, R
from ..profile import CostProfile
from ..schedule import Schedule
from ..stage_cost import StageCost

YES_NO = {"yes": True, "no": False, "true": True, "false": False}


def parse_yes_no(text: str) -> bool:
    """True for ``yes``, False for ``no``.

    Raises:
        InvalidSchedule: for anything else.
    """
    if text.lower() not in YES_NO:
        raise InvalidSchedule(f"expected yes or no, got {text!r}")
    return YES_NO[text.lower()]


def at_level(profile: CostProfile, level: str) -> CostProfile:
    """The profile as a pattern has to plan with it where every stage is recomputed at `level`.

    Backwards last the recomputation longer, what is kept stands for the activation, and the largest
    working memory of a stage is set aside. A stage without that level is kept whole.

    Raises:
        InvalidSchedule: where no stage has such a level.
    """
    known = list(dict.fromkeys(one.name for cost in profile.stages for one in cost.recompute))
    if level not in known:
        raise InvalidSchedule(
            f"recompute={level}: the profile {profile.name} has no such level; it has"
            f" {', '.join(known) or 'none (give its stages a list recompute)'}"
        )
    return profile.map_stages(lambda _, cost: _plain(cost, level))


def _plain(cost: StageCost, level: str) -> StageCost:
    """A stage that costs without levels what it costs at `level`, but for its working memory, which
    it holds all the time."""
    found = cost.level(level)
    if found is None:
        return replace(cost, recompute=())
    times = make_table([replace(cost, recompute=(found,))]).duration_ns[:, 0, 1]
    work = max(
        found.working_bytes(cost.act_bytes), found.b_working_bytes(cost.act_bytes, cost.w_bytes)
    )
    return replace(
        cost,
        t_b_ns=int(times[B]),
        t_bw_ns=None if cost.t_bw_ns is None else int(times[BW]),
        act_bytes=found.keep_bytes,
        w_bytes=min(cost.w_bytes, found.keep_bytes),
        offload_bytes=min(cost.offloadable, found.keep_bytes),
        static_bytes=cost.static_bytes + work,
        t_offload_ns=None if cost.t_offload_ns is None else int(times[O]),
        t_reload_ns=None if cost.t_reload_ns is None else int(times[R]),
        recompute=(),
    )


def with_level(schedule: Schedule, profile: CostProfile, level: str, apart: bool) -> Schedule:
    """The schedule with every activation recomputed at `level`, where its stage has it: inside its
    backward, or `apart`, by an op C right before it, which then runs while the backward would wait
    for its gradient."""
    costs = profile.for_shape(schedule.shape).stages
    stages = {stage for stage, cost in enumerate(costs) if cost.level(level) is not None}

    def spelt(program: tuple[Op, ...]) -> Iterator[Op]:
        for op in program:
            if apart and op.kind in (B, BW) and op.stage in stages:
                yield Op(C, op.stage, op.microbatch)
            yield op

    return schedule.replace(
        programs=[tuple(spelt(program)) for program in schedule.programs],
        recompute={str(stage): level for stage in sorted(stages)},
    )
