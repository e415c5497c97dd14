"""ZB-H1 and ZB-H2: handcrafted schedules with split backwards.

The previous stage waits only for the input gradient (B); the weight gradient (W) may run at any
time after it, and fills bubbles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..ops import B, F, Op, W
from ..profile import CostProfile
from ..schedule import Schedule


def zb_h1(profile: CostProfile, microbatches: int) -> Schedule:
    """Build ZB-H1: a third of 1F1B's bubble at 1F1B's memory; one chunk per device, any m.

    Rank r starts with p-r forwards; then B, W and F in turn, the W r microbatches behind the B. The
    bubble is (p-1)(F+B-W) + 4(p-1)c with c the P2P latency; rank r holds at most (p-r) M_B + r M_W,
    where M_B is the size of an activation before its B and M_W the part of it held until its W. At
    p = 4, m = 6::

        0 F0 F1 F2 F3 .  .  .  B0 W0 F4 B1 W1 F5 B2 W2 B3 W3 B4 W4 B5 W5
        1 .  F0 F1 F2 .  .  B0 F3 B1 W0 F4 B2 W1 F5 B3 W2 B4 W3 B5 W4 W5
        2 .  .  F0 F1 .  B0 F2 B1 F3 B2 W0 F4 B3 W1 F5 B4 W2 B5 W3 W4 W5
        3 .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 W0 F4 B4 W1 F5 B5 W2 W3 W4 W5

    Source: Qi et al., Zero Bubble Pipeline Parallelism (arXiv 2401.10241), figure 2, table 2.
    """
    p = profile.devices
    return _handcrafted(profile, microbatches, [(p - rank, rank) for rank in range(p)])


def zb_h2(profile: CostProfile, microbatches: int) -> Schedule:
    """Build ZB-H2: no bubble at equal costs, for about twice 1F1B's memory; one chunk per device,
    any m.

    As ZB-H1, with 2(p-r)-1 forwards first and the W 2r microbatches behind the B. The bubble is
    (p-1)(F+B+2c-2W); rank r holds at most (2(p-r)-1) M_B + 2r M_W. The device spans are shifted
    against one another, so only chained iterations have the full gain. At p = 4, m = 8::

        0 F0 F1 F2 F3 F4 F5 F6 B0 W0 F7 B1 W1 B2 W2 B3 W3 B4 W4 B5 W5 B6 W6 B7 W7 .  .  .
        1 .  F0 F1 F2 F3 F4 B0 F5 B1 F6 B2 W0 F7 B3 W1 B4 W2 B5 W3 B6 W4 B7 W5 W6 W7 .  .
        2 .  .  F0 F1 F2 B0 F3 B1 F4 B2 F5 B3 F6 B4 W0 F7 B5 W1 B6 W2 B7 W3 W4 W5 W6 W7 .
        3 .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 F5 B5 F6 B6 W0 F7 B7 W1 W2 W3 W4 W5 W6 W7

    Source: Qi et al., Zero Bubble Pipeline Parallelism (arXiv 2401.10241), figure 3, table 2.
    """
    p = profile.devices
    counts = [(2 * (p - rank) - 1, 2 * rank) for rank in range(p)]
    return _handcrafted(profile, microbatches, counts)


def _handcrafted(
    profile: CostProfile, microbatches: int, counts: list[tuple[int, int]]
) -> Schedule:
    """Build a schedule from, per rank, (forwards before the first B, how many microbatches W stays
    behind B)."""
    costs = profile.rechunk(1)
    programs = []
    for rank, (warm_up, behind) in enumerate(counts):
        forwards, backwards, weights = (
            [Op(kind, rank, j) for j in range(microbatches)] for kind in (F, B, W)
        )
        programs.append(with_weights_behind(forwards, backwards, weights, warm_up, behind))
    return Schedule(costs.shape(microbatches), programs)


def with_weights_behind(
    forwards: Sequence[Op],
    backwards: Sequence[Op],
    weights: Sequence[Op],
    warm_up: int,
    behind: int,
) -> Iterator[Op]:
    """Order `warm_up` forwards; then B, W and F in turn, the W's `behind` places behind the B's."""
    yield from forwards[:warm_up]
    for at, back in enumerate(backwards):
        yield back
        if at >= behind:
            yield weights[at - behind]
        if at + warm_up < len(forwards):
            yield forwards[at + warm_up]
    yield from weights[max(0, len(weights) - behind) :]
