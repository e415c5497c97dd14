"""The order of microbatches: what the phases assume of it, and what that costs a proof.

**First in, first out** (``fifo``). Without offloading and recomputation microbatches are alike: times of
one kind on one stage may be dealt out sorted (engines and the bytes held do not depend on which
microbatch an op is of, and if each time exceeds its partner by at least d, the k-th smallest one exceeds
the k-th smallest partner by at least d). So some optimal schedule keeps the order, and the bound of the
phase is a bound on all. With offloading it is a restriction, and only finds schedules: a microbatch
parked on the host while others overtake it saves them their copies, which pays if copies are slow and
memory is scarce (a few per cent in three of a hundred random small problems). So it is with levels of
recomputation, as soon as two microbatches may hold different amounts of memory.

**Free**. Only stage 0 runs microbatches that are alike by number, which merely names them: the bound
holds for every schedule.

**Ranks** are a relaxation: F, B and W number k of each stage, counted in time, in place of those of
a microbatch; O number k, and R for the B number r. Each k-th event needs k of what it waits for, so
every schedule satisfies the constraints below; the bytes held are the same. The relaxation loses
that an offloaded activation belongs to the same microbatch at all stages. It is small and fast, and
its bound holds for every schedule.

**Windows** do not constrain the order itself, but when the n-th F and the n-th B of
each stage start in every schedule that costs less than the incumbent (`bounds.windows`). Each
microbatch takes one place at each stage, and so one window. That leaves few orders if memory is
scarce, and covers all of them, so it is tried before ``free`` (makespans only).

For the objective ``span`` the same holds, since a device may delay its first op in this model: the
times of all ops stay the same.
"""

from __future__ import annotations

from itertools import pairwise
from math import gcd
from typing import Any, NamedTuple

import numpy as np

from ...bounds.windows import Windows
from ...ops import B, F, O, Op, OpKind, R, W
from ...schedules.sliced.orders import backward_units
from .constraints import add_op
from .model import Model, binding

FIFO, FREE, RANKS, WINDOWS = "fifo", "free", "ranks", "windows"


def in_order(model: Model) -> None:
    """Every stage runs all forwards, and all backwards, in the order of microbatches; where these are
    alike, what goes with them as well. Absent copies keep a place of zero duration in the chain, so that
    one chain links all that are present."""
    chains = [(F, list(model.units)), (B, backward_units(model.problem.shape))]
    if not model.problem.decides:
        chains += [(kind, list(model.units)) for kind in (W, O, R)]
    for s in model.stages:
        for kind, units in chains:
            for i, j in pairwise(units):
                first, second = model.op(kind, s, i), model.op(kind, s, j)
                if first not in model.start or (kind is W and (s, i) in model.fused):
                    continue  # W's that are absent would break the chain
                if kind in (O, R):
                    lasts = model.duration(kind, (s, i)) * model.present[first]
                    model.cp.add(model.start[second] >= model.start[first] + lasts)
                else:
                    model.after(first, second)


def by_number(model: Model) -> None:
    """Stage 0 runs microbatches that are alike by number."""
    parts = model.part_of[:: model.problem.shape.slices]
    for part in dict.fromkeys(parts):
        alike = [
            j
            for j, of in zip(model.units[:: model.problem.shape.slices], parts, strict=True)
            if of == part
        ]
        for i, j in pairwise(alike):
            model.after(model.op(F, 0, i), model.op(F, 0, j))


def in_windows(model: Model, windows: Windows) -> None:
    """Every F and every backward starts in the window of its place among those of its stage."""
    for s in model.stages:
        for kind in (F, B):
            first = -(-windows.earliest[kind, s] // model.unit_ns)
            last = windows.latest[kind, s] // model.unit_ns
            _one_place_each(model, kind, s, first, last)


def _one_place_each(
    model: Model, kind: OpKind, s: int, first: np.ndarray, last: np.ndarray
) -> None:
    cp, order = model.cp, model.units
    takes: dict[tuple[int, int], Any] = {}
    for j in order:
        start = model.start[Op(kind, s, j)]
        places = [j] if kind is F and s == 0 else order
        for n in places:
            literal = takes[j, n] = cp.new_bool_var(f"{kind.name}{s}.{j} is number {n}")
            cp.add(start >= int(first[n])).only_enforce_if(literal)
            cp.add(start <= int(last[n])).only_enforce_if(literal)
        cp.add_exactly_one([takes[j, n] for n in places])
    if len(takes) > len(order):
        for n in order:
            cp.add_exactly_one([takes[j, n] for j in order])


# -- ranks, and memory in order -------------------------------------------------------------------


def ranked_copies(model: Model) -> None:
    """O's and R's by rank: if n activations are offloaded at a
    stage, these are O number 0 to n - 1, and R's for the last n B's: the R's from any one on are
    as many as the B's that they serve, all of which come after it."""
    cp, m = model.cp, model.problem.microbatches
    for s in sorted({stage for stage, _ in model.moved}):
        more_than = [model.moved[s, n] for n in model.units]
        for fewer, more in pairwise(more_than):
            cp.add_implication(more, fewer)
        for k, there in enumerate(more_than):
            out, reload = Op(O, s, k), Op(R, s, m - 1 - k)
            for op in (out, reload):
                add_op(model, op, model.duration(op.kind, (s, k)), there)
            model.after(Op(F, s, k), out, there)
            model.after(reload, Op(B, s, m - 1 - k), there)
        for r in model.units:
            for k in range(r + 1):
                # with n > m - 1 - r + k copies, R for B number r has at least k O's before it
                model.after(Op(O, s, k), Op(R, s, r), more_than[m - 1 - r + k])


class _Change(NamedTuple):
    """A change of the held bytes, by `op` at `time`, if `literal` (None: always)."""

    op: Op
    time: Any
    literal: Any
    size: int


def memory_in_order(model: Model, paired: bool) -> None:
    """When an F or R allocates on a device, what has been allocated less what has been released fits:
    literals say what is over by then, where the order of microbatches does not. `paired`: an O and an R
    of the same number are of one activation.

    Stronger than intervals (`constraints.device_memory`), but it grows faster, and it holds in order only.
    """
    problem, cp = model.problem, model.cp
    for device, binds in enumerate(binding(problem)):
        if not binds:
            continue
        assert problem.limits is not None
        takes, gives = _changes(model, device)
        unit = gcd(*(step.size for step in takes + gives))
        room = (problem.limits[device] - problem.profile.static_bytes[device]) // unit
        for at in takes:
            level = sum(
                step.size // unit * _taken(model, step, at, paired) for step in takes
            ) - sum(step.size // unit * _given(model, step, at, paired) for step in gives)
            fits = cp.add(level <= room)
            if at.literal is not None:
                fits.only_enforce_if(at.literal)


def _changes(model: Model, device: int) -> tuple[list[_Change], list[_Change]]:
    """Return what ops of a device allocate at their start, and what they release at their end."""
    table = model.table(0)
    takes, gives = [], []
    for op in model.start:
        if model.problem.profile.placement[op.stage] == device:
            literal = model.present[op] if op.kind in (O, R) else None
            taken, given = (
                int(array[op.kind, op.stage, 0])
                for array in (table.allocated_bytes, table.released_bytes)
            )
            if taken:
                takes.append(_Change(op, model.start[op], literal, taken))
            if given:
                gives.append(_Change(op, model.end[op], literal, given))
    return takes, gives


def _taken(model: Model, step: _Change, at: _Change, paired: bool) -> Any:
    """Return 1, or an expression that is 1 unless `step` is absent or certainly later than `at`."""
    there = 1 if step.literal is None else step.literal
    if step.op == at.op:
        return 1
    if step.op[:2] == at.op[:2]:
        return there if step.op.microbatch < at.op.microbatch else 0
    if paired and step.op.stage == at.op.stage:
        if step.op.kind is F and step.op.microbatch <= at.op.microbatch:
            return 1
        if step.op.kind is R and step.op.microbatch >= at.op.microbatch:
            return 0
    later = model.cp.new_bool_var(f"{step.op} after {at.op}")
    model.cp.add(step.time > at.time).only_enforce_if(later)
    if step.literal is not None:
        model.cp.add_implication(later, step.literal)
    return there - later


def _given(model: Model, step: _Change, at: _Change, paired: bool) -> Any:
    """Return 0, or an expression that is 1 only if `step` is present and no later than `at`."""
    copies = step.op.kind is O and at.op.kind is R
    if step.op.stage == at.op.stage and not copies and step.op.microbatch >= at.op.microbatch:
        return 0
    own = paired and copies and step.op.stage == at.op.stage
    if own and step.op.microbatch <= at.op.microbatch:
        return step.literal
    before = model.cp.new_bool_var(f"{step.op} before {at.op}")
    model.cp.add(step.time <= at.time).only_enforce_if(before)
    if step.literal is not None:
        model.cp.add_implication(before, step.literal)
    return before
