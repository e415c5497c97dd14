"""The checker's own rules: durations of ops, what they allocate, release and wait for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from fractions import Fraction
from functools import cache, partial

from ..ops import BW, COMPUTE, B, C, F, O, Op, Pair, R, SliceOp, W, dependencies
from ..profile import CostProfile
from ..schedule import Schedule
from ..stage_cost import RecomputeLevel, StageCost
from ..units import round_half_up

_SAME = (Fraction(1), Fraction(1))


def parts_of(
    profile: CostProfile, stage: int, factors: tuple[Fraction, Fraction]
) -> tuple[StageCost, ...]:
    """Return what each slice of a microbatch with these (time, bytes) factors costs a stage, its ops
    without their overhead."""
    cost = profile.stages[stage]
    return tuple(_part(one, *factors) for one in cost.slices or (cost,))


def _part(cost: StageCost, time: Fraction, size: Fraction) -> StageCost:
    beside = cost.overhead_ns

    def work(value: int) -> int:
        return round_half_up((value - beside) * time)

    def by(value: int, factor: Fraction) -> int:
        return round_half_up(value * factor)

    def held(value: int | None) -> int | None:
        return None if value is None else by(value, size)

    return replace(
        cost,
        overhead_ns=0,
        t_f_ns=work(cost.t_f_ns),
        t_b_ns=work(cost.t_b_ns),
        t_w_ns=work(cost.t_w_ns) if cost.splits else 0,
        t_bw_ns=None if cost.t_bw_ns is None else work(cost.t_bw_ns),
        act_bytes=by(cost.act_bytes, size),
        w_bytes=by(cost.w_bytes, size),
        kv_bytes=by(cost.kv_bytes, size),
        offload_bytes=held(cost.offload_bytes),
        t_offload_ns=held(cost.t_offload_ns),
        t_reload_ns=held(cost.t_reload_ns),
        recompute=tuple(
            replace(
                level,
                t_ns=by(level.t_ns, time),
                keep_bytes=by(level.keep_bytes, size),
                work_bytes=held(level.work_bytes),
                b_work_bytes=held(level.b_work_bytes),
            )
            for level in cost.recompute
        ),
    )


class Costs:
    """Durations, allocations and releases of the ops of a schedule, op by op, by the definition."""

    def __init__(self, schedule: Schedule, profile: CostProfile) -> None:
        self.profile = profile
        self.part = cache(partial(parts_of, profile))
        self.levels = schedule.recompute
        # the two halves of each pair: its backward by its F, and its F by its backward
        pairs = [one for program in schedule.programs for one in program if isinstance(one, Pair)]
        self.behind = {pair.forward: pair.backward for pair in pairs}
        self.ahead = {pair.backward: pair.forward for pair in pairs}
        ops = {op for program in schedule.flat_programs for op in program}
        self.apart = {op[1:] for op in ops if op.kind is C}
        # the activations whose copies may take keys and values along: what later slices read has
        # been read when their O is issued, behind the F of the microbatch's last slice
        last = schedule.shape.slices - 1
        self.read: set[tuple[int, ...]] = set()
        for program in schedule.flat_programs:
            done: set[tuple[int, ...]] = set()
            for op in program:
                if op.kind is F and op.slice == last:
                    done.add(op[1:3])
                if op.kind is O and (op.slice is None or op[1:3] in done):
                    self.read.add(op[1:])
        # an op is asked for these each time that it could begin
        for name in ("cost", "level", "moved", "duration_ns", "asks", "takes", "gives"):
            setattr(self, name, cache(getattr(self, name)))

    def cost(self, op: Op) -> StageCost:
        """Return what a stage costs on the microbatch, or slice of it, of an op; times have no overhead."""
        factors = self.profile.factors[op.microbatch] if self.profile.factors else _SAME
        return self.part(op.stage, factors)[op.slice or 0]

    def level_name(self, op: Op) -> str | None:
        """Return the level of recomputation of an op's activation; an entry for it alone takes precedence."""
        names = [f"{op.stage}.{op.microbatch}/{op.slice}", f"{op.stage}.{op.microbatch}"]
        return next(
            (self.levels[name] for name in [*names, f"{op.stage}"] if name in self.levels), None
        )

    def level(self, op: Op) -> RecomputeLevel | None:
        """That level in the profile."""
        name = self.level_name(op)
        return next((one for one in self.cost(op).recompute if one.name == name), None)

    def kept(self, op: Op) -> int:
        """Return the bytes that stay after F."""
        level = self.level(op)
        return self.cost(op).act_bytes if level is None else level.keep_bytes

    def moved(self, op: Op) -> int:
        """Return the bytes that O and R move."""
        kept = self.kept(op)
        if op[1:] not in self.read:
            kept -= self.cost(op).kv_bytes
        return min(self.cost(op).offload_bytes or 0, kept)

    def streamed(self, program: Iterable[Op]) -> list[Op]:
        """Return the ops that the compute stream runs, a pair as its F."""
        return [op for op in program if op.kind in COMPUTE and op not in self.ahead]

    def needs(self, op: Op) -> Iterator[Op]:
        """Yield the ops that an op waits for, whether or not the schedule has them: its inputs; and, for
        an O that moves keys and values too, the F that reads them last. What a pair waits for, its F
        waits for."""
        if op in self.ahead:
            return
        yield from dependencies(op)
        if op in self.behind:
            yield from dependencies(self.behind[op])
        if isinstance(op, SliceOp) and op.kind is O and op[1:] in self.read:
            left = self.kept(op) - self.cost(op).kv_bytes
            if self.moved(op) > min(self.cost(op).offload_bytes or 0, left):
                yield op._replace(kind=F, slice=self.profile.slices - 1)

    def is_inside(self, op: Op) -> bool:
        """Whether the backward of an op's activation recomputes it."""
        return self.level(op) is not None and op[1:] not in self.apart

    def working(self, op: Op) -> int:
        """Bytes held in addition to the kept ones while this F, or this backward with recomputation
        inside, runs."""
        level, cost = self.level(op), self.cost(op)
        if level is None:
            return 0
        work = level.work_bytes
        if work is None:
            work = cost.act_bytes - level.keep_bytes
        if op.kind is B:
            b_work = work if level.b_work_bytes is None else level.b_work_bytes
            return max(b_work, cost.w_bytes - level.keep_bytes, 0)
        return work

    def duration_ns(self, op: Op) -> int:
        """Return the duration of an op, or of the pair that it is half of, in ns."""
        forward = self.ahead.get(op, op)
        if forward not in self.behind:
            return self.alone_ns(op)
        halves = [self.alone_ns(forward), self.alone_ns(self.behind[forward])]
        hidden = self.profile.pair_hidden
        if not isinstance(hidden, int):
            hidden = hidden[forward.stage][self.behind[forward].stage]
        return sum(halves) - min(hidden, *halves)

    def alone_ns(self, op: Op) -> int:
        """Return the duration of an op that is not part of a pair, in ns."""
        cost, level = self.cost(op), self.level(op)
        again = 0 if level is None else level.t_ns
        inside = again if self.is_inside(op) else 0
        if op.kind in (O, R):
            whole = cost.offload_bytes or 0
            time = (cost.t_offload_ns if op.kind is O else cost.t_reload_ns) or 0
            if self.moved(op) == whole:
                return time
            return round_half_up(Fraction(time * self.moved(op), whole))
        fused = cost.t_b_ns + cost.t_w_ns if cost.t_bw_ns is None else cost.t_bw_ns
        beside = self.profile.overhead_ns
        return {
            F: cost.t_f_ns + beside,
            B: cost.t_b_ns + inside + beside,
            W: cost.t_w_ns + beside,
            BW: fused + inside + beside,
            C: again + beside,
        }[op.kind]

    def asks(self, op: Op) -> bool:
        """Whether an op is granted memory in program order; of a pair, its F is."""
        return op not in self.ahead and self._asks(op)

    def _asks(self, op: Op) -> bool:
        return op.kind in (F, R, C) or (op.kind in (B, BW) and self.is_inside(op))

    def takes(self, op: Op) -> int:
        """Return the bytes that an op allocates; of a pair, its F does so for both."""
        if op in self.ahead:
            return 0
        return self._takes(op) + (self._takes(self.behind[op]) if op in self.behind else 0)

    def _takes(self, op: Op) -> int:
        if op.kind is F:
            return self.kept(op) + self.working(op)
        if op.kind is R:
            return self.moved(op)
        if op.kind is C:
            return self.cost(op).act_bytes - self.kept(op)
        if op.kind in (B, BW) and self.is_inside(op):
            return self.working(op)
        return 0

    def gives(self, op: Op) -> int:
        """Return the bytes that an op releases at its end."""
        cost = self.cost(op)
        held = cost.act_bytes
        if self.is_inside(op):
            held = self.kept(op) + self.working(op)
        return {
            F: self.working(op),
            B: held - cost.w_bytes,
            W: cost.w_bytes,
            BW: held,
            O: self.moved(op),
        }.get(op.kind, 0)
