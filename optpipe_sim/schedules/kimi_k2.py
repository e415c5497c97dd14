"""Kimi K2's schedule: interleaved 1F1B in pairs, weight gradients apart, every activation on the host that has the time."""

from __future__ import annotations

import numpy as np

from ..ops import B, F, O, R, W
from ..profile import CostProfile
from ..schedule import Schedule, rows_of
from . import default_chunks
from .classic import Passes, interleaved_passes
from .copies import require_offload

# entries from a forward to its backward at least, so that one is left for each of its copies
APART = 3


def kimi_k2(
    profile: CostProfile,
    microbatches: int,
    chunks: int | None = None,
    group: int | None = None,
    pairs: bool | None = None,
) -> Schedule:
    """Run interleaved 1F1B with one more forward in the warm-up, W right behind its B, and activations offloaded.

    After the warm-up a forward and a backward of another microbatch run as one op with `pairs`, so that each hides the exchange of the
    other's tokens, else one after the other. The weight gradient follows, while the messages of both are under way. While they
    run, the activation of the forward before leaves and that of the next backward comes back. Activations whose backward is less than three such
    entries behind their forward stay: one entry would have to do for both copies. Memory limits are ignored. At p = 4, m = 8, v = 2
    (lower case: the second chunk)::

        0 F0 F1 F2 F3 f0 f1 f2 f3 F4 F5 F6 F7 b0 w0 .  .  .  .  f4 b1 w1 f5 b2 w2 f6 b3 w3 f7 B0 W0 B1 W1 B2 W2 B3 W3 b4 w4 .  b5 w5 .  b6 w6 b7 w7 B4 W4 B5 W5 B6 W6 B7 W7
             O0 O1 O2 O3 o0 o1 o2 o3 O4 r0 O6 r1                   r2       r3       R0       R1    R2    R3    r4    r5       r6       r7    R4    R5    R6    R7
        1 .  F0 F1 F2 F3 f0 f1 f2 f3 F4 F5 b0 w0 F6 b1 w1 F7 b2 w2 f4 b3 w3 f5 B0 W0 f6 B1 W1 f7 B2 W2 .  B3 W3 .  b4 w4 .  b5 w5 .  b6 w6 b7 w7 B4 W4 B5 W5 B6 W6 B7 W7 .
                O0 O1 O2 O3 o0 o1 o2 r0 O4 r1       r2       r3       R0       R1       R2       R3       r4       r5       r6       r7    R4    R5    R6    R7
        2 .  .  F0 F1 F2 F3 f0 f1 f2 f3 b0 w0 F4 b1 w1 F5 b2 w2 F6 b3 w3 F7 B0 W0 f4 B1 W1 f5 B2 W2 f6 B3 W3 f7 b4 w4 .  b5 w5 .  b6 w6 b7 w7 B4 W4 B5 W5 B6 W6 B7 W7 .  .
                   O0 O1 O2 O3 o0 r0 o2 r1       r2       r3       R0       R1       R2       R3       r4       r5       r6       r7    R4    R5    R6    R7
        3 .  .  .  F0 F1 F2 F3 f0 f1 b0 w0 f2 b1 w1 f3 b2 w2 F4 b3 w3 F5 B0 W0 F6 B1 W1 F7 B2 W2 f4 B3 W3 f5 b4 w4 f6 b5 w5 f7 b6 w6 b7 w7 B4 W4 B5 W5 B6 W6 B7 W7 .  .  .
                      O0 O1 O2 O3                               R0       R1       R2       R3                                        R4    R5    R6    R7

    Args:
        profile: with an offload section; re-chunked to `chunks` per device, placement ``loop``.
        microbatches, chunks, group: as for `interleaved_1f1b`.
        pairs: default: where the profile says what pairs hide.

    Raises:
        InvalidSchedule: for a profile that does not offload, and as `interleaved_1f1b` does.

    Source: Kimi Team, Kimi K2 (arXiv 2507.20534), section 2.4 and figure 7. What the report leaves open: that W comes right behind its B, and which
    activations stay.
    """
    require_offload(profile, "offloading")
    costs = profile.rechunk(default_chunks(profile, chunks))
    moves = np.array([cost.offloadable > 0 for cost in costs.stages])
    tables, paired = [], []
    for passes in interleaved_passes(costs, microbatches, group, pairs=True):
        table, begins_pair = _with_copies(passes, moves)
        tables.append(table)
        paired.append(begins_pair)
    joined = np.concatenate(paired)
    if not (bool(np.any(costs.pair_hidden)) if pairs is None else pairs):
        joined[:] = False
    return Schedule.from_tables(costs.shape(microbatches), tables, joined)


def _with_copies(passes: Passes, moves: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return a rank's program: entry by entry its forward, its backward, the O of its forward, the R of the next backward and
    its W; and which rows are the forward of an entry with both.

    Args:
        moves: (stages,) whether activations of a stage can leave.
    """
    forward, back = passes.forwards[:, 1:], passes.backwards[:, 1:]
    # the entries of the forwards, and of the backwards: the first one behind the warm-up has both
    at = np.arange(len(forward))
    of_back = at + passes.warm_up
    begun = np.empty((len(moves), forward[:, 1].max() + 1), np.int64)
    begun[tuple(forward.T)] = at
    before = begun[tuple(back.T)]  # the entry of each backward's forward
    leaves = moves[back[:, 0]] & (of_back - before >= APART)
    gone = back[leaves]
    parts = [
        (F, forward, 5 * at),
        (B, back, 5 * of_back + 1),
        (O, gone, 5 * before[leaves] + 2),
        (R, gone, 5 * (of_back[leaves] - 1) + 3),
        (W, back, 5 * of_back + 4),
    ]
    table = np.concatenate([rows_of(kind, *of.T) for kind, of, _ in parts])
    order = np.argsort(np.concatenate([place for *_, place in parts]))
    return table[order], (order >= passes.warm_up) & (order < len(forward))
