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
from . import progress
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


# In the order of their marginal gain over `adaoffload.CHUNKED`: a greedy cover of 6306 random waves
# over 34 instances (2 or 3 chunks, in a loop or a V, 4 to 16 devices, memory of a quarter, a third
# and a half of what 1F1B holds): on these the makespan is 5.5 % shorter on average (with the 14 best waves).
WAVES = tuple(
    Wave(*values)
    for values in (
        (1800, 2600, 1000, 3000, 1000, 1000000, 700, 3000, 3, 0, 0, 0, 0, 0),
        (1200, 2600, 1800, 3000, 2000, 1000000, 700, 1500, 6, 0, 0, 0, 0, 0),
        (1000, 3000, 3000, 2000, 500, 10000, 700, 3000, 6, 0, 0, 0, 1500, 0),
        (3000, 2000, 1000, 3000, 1000, 5000, 700, 3000, 3, 0, 0, 0, 0, 0),
        (3000, 700, 700, 2300, 2000, 1000000, 700, 1500, 6, 0, 0, 0, 0, 0),
        (1800, 1000, 1200, 1800, 50, 10000, 500, 3000, 4, 0, 0, 1, 0, 0),
        (3000, 700, 1500, 3000, 1000, 1000000, 700, 1500, 6, 1, 0, 0, 1500, 0),
        (2300, 2300, 2600, 2000, 250, 5000, 1000, 1500, 1, 0, 0, 0, 0, 0),
        (2600, 2300, 1000, 2600, 2000, 2000, 700, 3000, 3, 0, 0, 0, 1500, 0),
        (1000, 2300, 1000, 3000, 2000, 1000000, 700, 1500, 6, 0, 0, 0, 0, 0),
    )
)


def play(problem: Problem, way: Setting | Wave, stop_ns: int = progress.FOREVER) -> Greedy | None:
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
