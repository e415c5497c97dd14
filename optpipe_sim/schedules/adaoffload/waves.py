"""AdaOffload following waves, for devices with several chunks.

A microbatch passes the pipeline as a wave, forward and back, with a separate pace in every chunk;
the next microbatch follows one period later. The published V schedules are such orders: the fastest
paces give ZB-V; slower ones, with which the chunks of a device take turns, give V-Half. The greedy
follows an order as far as memory and copies allow, and handles warm-up and cool-down itself.

Sources: Qi et al., Pipeline Parallelism with Controllable Memory (arXiv 2405.15362), for building
blocks made of paces; the greedy is AdaOffload (see there).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from ...ops import B, F, OpKind, W
from ...profile import CostProfile
from . import state
from .runs import Greedy, Order, Problem, Setting


class Wave(NamedTuple):
    """A run of the greedy that follows a wave.

    Attributes:
        forward, later_forward: paces of the F's in the first and in the second half of the chunks,
            as `wave_order` has them. backward, later_backward: of the B's. defer, window: see
            `wave_order`.
        tolerance, ahead, headroom, oldest, keep, reload_first, depth: see `runs.Setting`.
        late: see `wave_order`.
    """

    forward: int
    later_forward: int
    backward: int
    later_backward: int
    defer: int
    window: int
    tolerance: int
    ahead: int
    headroom: int
    oldest: int
    keep: int
    reload_first: int
    depth: int
    late: int

    def parameters(self, chunks: int) -> dict[str, int]:
        """Return all parameters by name, the paces chunk by chunk, as `wave_order` has them."""
        halves = {
            "forward": (self.forward, self.later_forward),
            "backward": (self.backward, self.later_backward),
        }
        paces = {
            f"{way}{chunk}": half[2 * chunk // chunks]
            for way, half in halves.items()
            for chunk in range(chunks)
        }
        return {**self._asdict(), **paces}

    def order(self, profile: CostProfile, microbatches: int) -> Order:
        """Compute when each op is due on a profile."""
        return wave_order(profile, microbatches, self.parameters(profile.chunks))

    @property
    def setting(self) -> Setting:
        return Setting(
            tolerance=self.tolerance,
            ahead=self.ahead,
            headroom=self.headroom,
            oldest=self.oldest,
            keep=self.keep,
            reload_first=self.reload_first,
            depth=self.depth,
        )


# In the order of their marginal gain: a greedy cover of 100 waves, found in 5 s each, and of the settings in `adaoffload`
# over 176 problems (2 to 4 chunks, in a loop or a V, 4 to 24 devices, a quarter to most of 1F1B's memory, whole and
# selectively recomputed activations, cheap and expensive copies). The first eight are 1.8 % above the best of all on
# average, twenty of them 0.6 %; the settings add nothing. Ten waves chosen on one half of 116 of them are 2.8 to 3.7 %
# above the best on the other.
WAVES = tuple(
    Wave(*values)
    for values in (
        (1500, 1000, 1000, 1800, 125, 10000, 500, 1500, 3, 0, 0, 1, 0, 125),
        (1000, 2300, 2600, 3000, 500, 1000000, 700, 3000, 3, 0, 0, 0, 0, 750),
        (1000, 700, 1200, 700, 50, 5000, 0, 1500, 1, 0, 1, 0, 700, 250),
        (3000, 2600, 2600, 3000, 2000, 1000000, 1000, 5000, 24, 0, 0, 0, 0, 0),
        (1000, 700, 1800, 1000, 125, 2000, 300, 1500, 2, 0, 0, 1, 700, 1000),
        (2300, 2000, 2300, 2300, 500, 10000, 1000, 2000, 12, 0, 0, 0, 0, 0),
        (1200, 1000, 1500, 1000, 1000, 30000, 700, 2000, 3, 0, 0, 1, 0, 500),
        (1500, 700, 3000, 1000, 2000, 10000, 0, 1500, 2, 0, 1, 0, 0, 250),
        (700, 700, 2600, 1000, 500, 5000, 300, 1000, 3, 0, 1, 1, 0, 750),
        (3000, 1500, 3000, 2600, 0, 30000, 300, 5000, 24, 0, 0, 0, 0, 500),
        (1000, 1500, 700, 2600, 0, 2000, 700, 1500, 24, 0, 0, 0, 1500, 0),
        (2300, 3000, 1800, 3000, 125, 1000000, 700, 1500, 6, 0, 0, 0, 0, 750),
        (700, 1200, 1000, 1200, 500, 5000, 500, 1500, 1, 0, 1, 1, 0, 500),
        (1800, 700, 2000, 1000, 500, 5000, 700, 2000, 2, 0, 1, 0, 0, 125),
        (700, 700, 700, 700, 250, 0, 500, 1500, 12, 0, 0, 0, 0, 250),
        (1200, 1000, 2300, 700, 1000, 10000, 300, 3000, 3, 0, 1, 0, 1000, 500),
        (1800, 3000, 1000, 3000, 1000, 1000000, 1000, 3000, 12, 0, 0, 0, 0, 0),
        (1500, 700, 2600, 2600, 0, 5000, 300, 1500, 2, 0, 1, 0, 1500, 250),
        (2000, 1200, 2000, 1200, 250, 30000, 700, 2000, 2, 0, 1, 0, 1500, 500),
        (2000, 3000, 3000, 2000, 50, 30000, 300, 3000, 6, 0, 0, 0, 0, 750),
        # earlier ones, the best for the synthetic cases of tests/schedules/test_adaoffload.py with room for two
        (1800, 2600, 1000, 3000, 1000, 1000000, 700, 3000, 3, 0, 0, 0, 0, 0),
        (2600, 2300, 1000, 2600, 2000, 2000, 700, 3000, 3, 0, 0, 0, 1500, 0),
    )
)


def play(problem: Problem, way: Setting | Wave, stop_ns: int = state.FOREVER) -> Greedy | None:
    """Run the greedy with a setting or along a wave; None if it would end after `stop_ns`."""
    if isinstance(way, Setting):
        return problem.play(way, stop_ns)
    order = way.order(problem.profile, problem.microbatches)
    found = problem.play(way.setting, stop_ns, order)
    return None if found is None else found._replace(setting=way)


def wave_order(profile: CostProfile, microbatches: int, waves: Mapping[str, int]) -> Order:
    """Compute when each op is due, in waves.

    Args:
        profile: with its chunks and placement; any.
        microbatches: m.
        waves: ``forward0``, ``backward0``, ...: the pace of a wave in a chunk: its time per stage,
            in thousandths of the F (the B) and the communication after it; ``defer``: how long
            after its B a W is due, in thousandths of the work on p microbatches; ``window``: see
            `Order`, in thousandths of a typical F; ``late``: of how many last microbatches the W's are due
            when all else is done, in thousandths of p: they run while the last backwards pass the stages before.
    """
    durations, latency, p = profile.durations_ns, profile.t_comm_ns, profile.devices
    stages = len(profile.stages)
    period = int(np.bincount(profile.placement, durations[[F, B, W]].sum(axis=0), p).max())
    first = np.zeros((len(OpKind), stages), np.int64)
    now = 0
    for s in range(stages):
        first[F, s] = now
        now += waves[f"forward{s // p}"] * (int(durations[F, s]) + latency) // 1000
    for s in reversed(range(stages)):
        first[B, s] = now
        first[W, s] = now + int(durations[B, s]) + waves["defer"] * p * period // 1000
        now += waves[f"backward{s // p}"] * (int(durations[B, s]) + latency) // 1000
    due = first[:, :, None] + period * np.arange(microbatches, dtype=np.int64)
    due[W, :, max(0, microbatches - waves["late"] * p // 1000) :] += due.max()
    return Order(due, waves["window"] * int(np.median(durations[F])) // 1000)
