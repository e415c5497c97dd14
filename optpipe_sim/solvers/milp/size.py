"""The numbers of variables and constraints of the MILP by formula, without building it.

Between two groups of m ops (a kind and a stage each) precedence decides the order of no pair, of
the pairs of one microbatch, or of all pairs except those in which the group that comes first is
ahead in microbatches; so m^2, m (m - 1) or m (m - 1) / 2 pairs are open. The size of the model is
the sum of these over the pairs of groups on a device.
"""

from __future__ import annotations

from itertools import combinations
from math import comb

from ...ops import B, C, F, O, OpKind, R, W
from ..problem import Problem
from .options import MilpOptions
from .sets import Sets

Group = tuple[OpKind, int]


def size_formula(problem: Problem, options: MilpOptions | None = None) -> tuple[int, int]:
    """Return the numbers of variables and constraints of a problem's MILP, before time windows fix some."""
    sets = Sets(problem, options or MilpOptions())
    m, devices = sets.m, sets.devices
    stages, moves = len(sets.stages), len(sets.offloadable) * sets.m
    variables = 1 + 3 * stages * m + 3 * moves
    forward_first = [s for s in sets.stages if s == stages - 1 or not sets.options.drop]
    flow = 2 * (stages - 1) + stages + len(set(forward_first) - set(sets.choices))
    rows = flow * m + len(sets.chained) * (m - 1) + 3 * moves
    rows += sum(1 if _only_last(sets, s) else m for s in sets.stages)
    if sets.span and sets.mode != "all":
        variables += len(devices)
        rows += len(devices) * m
    parts = [_choices(sets)]
    parts += [part(sets, d) for d in devices for part in (_compute, _memory, _holdings)]
    for part in parts:
        variables, rows = variables + part[0], rows + part[1]
    sharing = _sharing(sets)
    pinned = sum(len(outs) * (len(outs) - 1) for outs in sets.nodes)
    sized = sum(len(outs) - 1 for outs in sets.nodes for out in outs if out.stage in sets.choices)
    variables += 2 * sharing + 2 * pinned + sized
    rows += 5 * sharing + 3 * pinned + sized + sum(map(len, sets.nodes))
    return variables, rows


def _only_last(sets: Sets, s: int) -> bool:
    return sets.options.drop and (W, s) in sets.chained


def _choices(sets: Sets) -> tuple[int, int]:
    """Choices: binaries and C's starts; one row each, and the rows that make a stage's choices equal."""
    m, variables, rows = sets.m, 0, 0
    for s, choices in sets.choices.items():
        variables += m * (
            1 + len(choices) - (s in sets.offloadable)
        )  # C's start, and u instead of x
        rows += m * (3 + sets.fusible(s))  # one choice; F before C before B; BW
        if sets.problem.per_stage:
            rows += (m - 1) * sum(not one.fused for one in choices)
    if sets.problem.per_stage:
        rows += (m - 1) * len(set(sets.offloadable) - set(sets.choices))
    return variables, rows


def _leads(one: Group, two: Group) -> bool:
    """Whether, for each microbatch, the op of group `one` comes before that of group `two`."""
    (kind, s), (other, to) = one, two
    if kind is F:
        return other not in (F, C) or s <= to
    return kind in (B, C) and other in (B, W) and s >= to


def _open(sets: Sets, one: Group, two: Group) -> int:
    """Return the pairs of ops of two groups on a device whose order precedence leaves open."""
    m = sets.m
    if not sets.options.fix:
        return m * m
    if _leads(two, one):
        one, two = two, one
    if not _leads(one, two):
        return m * m
    return comb(m, 2) if sets.mode == "all" or one in sets.chained else m * (m - 1)


def _compute(sets: Sets, d: int) -> tuple[int, int]:
    """Order of compute ops: binaries, two rows per pair, and the triangle inequalities."""
    m, fix, chained = sets.m, sets.options.fix, set(sets.chained)
    groups = [(kind, s) for s in sets.stages_of(d) for kind in sets.kinds_of(s)]
    own = borrowed = triangles = 0
    for group in groups:
        if group in chained:
            own += 0 if fix else comb(m, 2)
        elif group[0] is W and sets.follows(group[1]):
            borrowed += comb(m, 2)
        else:
            own += comb(m, 2)
            triangles += 2 * comb(m, 3)
    triple = {m * m: m * (m - 1), m * (m - 1): (m - 1) * (m - 2), comb(m, 2): comb(m - 1, 2)}
    for one, two in combinations(groups, 2):
        pairs = _open(sets, one, two)
        own += pairs
        triangles += ((one in chained) + (two in chained)) * triple[pairs]
    return own, 2 * (own + borrowed) + (triangles if sets.options.triangles else 0)


def _memory(sets: Sets, d: int) -> tuple[int, int]:
    """Memory at allocations: binaries, the rows that define them, and the rows of the limits."""
    if sets.room[d] is None:
        return 0, 0
    m = sets.m
    may_offload = sets.offloadable_of(d)
    takers = list(dict.fromkeys(op[:2] for op in sets.takers(d)))
    variables = rows = 0

    def later(first: Group, then: Group) -> int:
        """Return the pairs in which `then` may come before `first`, without those of one activation."""
        if first == then:
            return comb(m, 2) if sets.options.fix and first in sets.chained else m * (m - 1)
        pairs = _open(sets, first, then) if _leads(first, then) else m * m
        return min(pairs, m * (m - 1)) if first[1] == then[1] else pairs

    for s in may_offload:
        for taker in takers:  # z[O, q] and r[R, q]
            pairs = later(taker, (F, s))
            variables, rows = variables + 2 * pairs, rows + 5 * pairs
        for group in sets.freeing(d):  # z[F, R], z[B, R] and z[W, R]
            pairs = later((B, s), group)
            variables, rows = variables + pairs, rows + pairs
        for at in may_offload:  # z[O, R], unless both use the same engine
            if not sets.share((O, at), (R, s)):
                pairs = m * (m - 1) if at == s else m * m
                variables, rows = variables + pairs, rows + 2 * pairs
    return variables, rows + (len(takers) + len(may_offload)) * m


def _holdings(sets: Sets, d: int) -> tuple[int, int]:
    """Bytes of activations with choices at each allocation but their own: l, and its states."""
    m = sets.m
    takers = list(dict.fromkeys(op[:2] for op in sets.takers(d) + sets.backs(d)))
    variables = rows = 0
    for s in sets.stages_of(d):
        if s not in sets.choices or not sets.largest(s):
            continue
        for kind, at in takers:
            pairs = m * (m - 1) if at == s else m * m
            states = 3 + (s in sets.offloadable) + 2 * (kind is R)
            variables, rows = variables + pairs, rows + states * pairs
    return variables, rows


def _sharing(sets: Sets) -> int:
    """Pairs of transfers that share an engine or a link."""
    m = sets.m
    groups = [(kind, s) for kind in (O, R) for s in sets.offloadable]
    count = len(groups) * comb(m, 2)
    for one, two in combinations(groups, 2):
        if sets.share(one, two):
            count += m * (m - 1) if one[1] == two[1] else m * m
    return count
