"""One device of a pipeline as a problem of its own: the least constraints that the rest imposes.

A device d has to run F, B and W (or BW) of its stages s_1 < ... < s_k for all m microbatches, O and R of
those it offloads, within its memory. `OneDevice` keeps all that and replaces the other devices
by times that no schedule can beat. By the *n-th* F of a stage we mean the n-th to start, whichever
microbatch that is; all are alike.

- **Releases**: the n-th F of s starts at ``releases[n]`` or later. A stage u before s, on a device e,
  has run n F's before, one at a time: from the earliest start of u on, n times what e runs per
  microbatch between u and s, and then the chain from there to s.
- **Delay**: the backward of a microbatch starts at s no sooner than ``delay`` after its F there has ended: the
  chain of F's to the last stage and of backwards down to s.
- **Backs**: the n-th backward of s starts at ``backs[n]`` or later. A device e with stages after s has run n
  forwards of all its stages and n backwards of those after s; a device with one stage also all W's but
  those that its memory can hold back; then the chain down to s.
- **Tails** (makespan only): when the n-th backward of s has ended, m - n + 1 backwards of every stage
  u before s are still to start, the first of them only a chain later; all of them with their
  weight gradients end no sooner than the makespan, nor does the last of them, but for the W's that memory
  can hold back, and the chain below u.
- **Follows** (makespan only): when the n-th F of s has ended, m - n + 1 backwards are a delay away, so
  the n-th one is. A device e with stages after s starts m - n + 1 of their F's and of the backwards of
  all its stages only a chain later; all of them with their weight gradients end no sooner than the
  makespan, nor does the last backward, but for the W's that memory can hold back, and the chain below
  it.

For a span the clock starts with d's first F, of s_1. Stages after s_1 start no sooner than the chain from
there, so only their work counts; there are no tails.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ...op_table import OpTable, make_table
from ...profile import CostProfile
from ...stage_cost import StageCost
from ..chains import Chains, Drain, back_ns, pending_w_ways
from ..ends import LastForward, after_last_forward, waits_of_one
from ..relief import backward_bytes


@dataclass(frozen=True)
class OneDevice:
    """The problem of one device; see the module.

    Attributes:
        device, stages, microbatches: of the problem.
        costs: of each stage.
        capacity: bytes for activations: the limit less the static bytes.
        delay: per stage, ns from the end of a microbatch's F to the start of its backward.
        earliest: (2, stages, m) ns, the releases of F's and the backs. later: likewise the follows and the tails.
        drains: ways to run the last backward, with the weight gradients that fit after each;
            `after_ns`: the longest that these can take.
        before_ns: the least idle time before the first backward, if a forward comes after it; known
            for one stage only, as `last` (see `ends`).
        offloads: whether it can. `exclusive`: whether O and R take turns.
    """

    device: int
    stages: tuple[int, ...]
    microbatches: int
    costs: tuple[StageCost, ...]
    capacity: int
    delay: tuple[int, ...]
    earliest: np.ndarray
    later: np.ndarray
    drains: tuple[Drain, ...]
    after_ns: int
    before_ns: int
    last: LastForward
    offloads: bool
    exclusive: bool

    @cached_property
    def table(self) -> OpTable:
        """What the ops of its stages take, allocate and release."""
        return make_table(self.costs)

    @property
    def possible(self) -> bool:
        """Whether each activation fits by itself, under the treatment that needs least."""
        return max(0, *(cost.least_running_bytes for cost in self.costs)) <= self.capacity


def one_device(
    profile: CostProfile,
    microbatches: int,
    device: int,
    objective: str,
    limits: Sequence[int],
) -> OneDevice:
    """Return the problem of a device; `limits` in bytes per device."""
    chains = Chains(profile, objective)
    stages = tuple(chains.stages_of[device])
    capacity = limits[device] - profile.static_bytes[device]
    costs = tuple(profile.stages[s] for s in stages)
    around = _Around(profile, chains, microbatches, limits, stages[0] if objective == "span" else 0)
    offload = profile.offload
    delay = tuple(
        chains.until_back(s) - chains.forward_from(s) - profile.stages[s].t_f_ns for s in stages
    )
    nothing = np.zeros(microbatches, np.int64)
    tails = np.array([around.tails(s) if objective == "flush" else nothing for s in stages])
    own = [tail + d + back_ns(c) for tail, d, c in zip(tails, delay, costs, strict=True)]
    others = [around.follows(s) if objective == "flush" else nothing for s in stages]
    drains = pending_w_ways(profile, stages, microbatches, capacity)
    after_ns = max(drain.weights_ns for drain in drains)
    before, last = 0, LastForward(0, 0, 0)
    if len(stages) == 1:
        first_back = costs[0].t_f_ns + delay[0]
        waits = waits_of_one(profile, stages[0], microbatches, capacity, 0, first_back)
        before = min(waits[: microbatches - 1], default=0)
        last = after_last_forward(
            costs[0], microbatches, capacity, delay[0], int(tails[0, -1]), drains, bool(offload)
        )
    return OneDevice(
        device,
        stages,
        microbatches,
        costs,
        capacity,
        delay,
        np.array([[find(s) for s in stages] for find in (around.releases, around.backs)]),
        np.array([np.maximum(own, others), tails]),
        tuple(drains),
        after_ns,
        before,
        last,
        offload is not None,
        profile.shares_copy_engine or profile.shares_host_link,
    )


class _Around:
    """The rest of the pipeline, seen from the start of stage `base`."""

    def __init__(
        self,
        profile: CostProfile,
        chains: Chains,
        microbatches: int,
        limits: Sequence[int],
        base: int,
    ) -> None:
        self.profile, self.chains, self.limits, self.base = profile, chains, limits, base
        self.count = np.arange(1, microbatches + 1)  # the n-th op has n of its kind with it
        self.microbatches = microbatches
        self.devices = [[s for s in stages if s >= base] for stages in chains.stages_of.values()]

    def _at(self, s: int) -> int:
        return self.chains.forward_from(s) - self.chains.forward_from(self.base)

    def _back_at(self, s: int) -> int:
        return self.chains.until_back(s) - self.chains.forward_from(self.base)

    def _held_back(self, s: int, count: np.ndarray) -> np.ndarray:
        """Return the time of the weight gradients of `count` backwards that memory forces to run; 0 for
        a device with stages other than s."""
        device = self.profile.placement[s]
        cost = self.profile.stages[s]
        room = self.limits[device] - self.profile.static_bytes[device] - backward_bytes(cost)
        if len(self.chains.stages_of[device]) > 1 or not cost.w_bytes or room < 0:
            return 0 * count
        most = room // cost.w_bytes + 1
        each = self.chains.full_back(s) - back_ns(cost)
        held: np.ndarray = np.maximum(0, count - most) * each
        return held

    def releases(self, s: int) -> np.ndarray:
        """Return (m,) the earliest start of the n-th F of s."""
        best = np.full(self.microbatches, self._at(s))
        for stages in self.devices:
            before = [u for u in stages if u < s]
            for first in range(len(before)):
                work = 0
                for u in before[first:]:
                    duration = self.profile.stages[u].t_f_ns
                    work += duration
                    chain = self._at(s) - self._at(u) - duration
                    best = np.maximum(best, self._at(before[first]) + self.count * work + chain)
        return best

    def backs(self, s: int) -> np.ndarray:
        """Return (m,) the earliest start of the n-th backward of s."""
        costs = self.profile.stages
        best = np.full(self.microbatches, self._back_at(s))
        for stages in filter(None, self.devices):
            start, last = self._at(stages[0]), stages[-1]
            forwards = self.count * sum(costs[u].t_f_ns for u in stages)
            chain = self._back_at(s) - self._at(last) - costs[last].t_f_ns
            best = np.maximum(best, start + forwards + chain)
            after = [u for u in stages if u > s]
            if after:
                low = after[0]
                done = forwards + self.count * sum(back_ns(costs[u]) for u in after)
                done = done + self._held_back(low, self.count)
                chain = self._back_at(s) - self._back_at(low) - back_ns(costs[low])
                best = np.maximum(best, start + done + chain)
        return best

    def tails(self, s: int) -> np.ndarray:
        """Return (m,) the least time from the end of the n-th backward of s to the makespan."""
        costs, chains = self.profile.stages, self.chains
        left = self.microbatches + 1 - self.count
        end = self._back_at(s) + back_ns(costs[s])
        best = np.zeros(self.microbatches, np.int64)
        for stages in self.devices:
            before = [u for u in stages if u < s]
            if before:
                whole = sum(chains.full_back(u) for u in before)
                best = np.maximum(best, self._back_at(before[-1]) - end + left * whole)
            for u in before:
                done = left * back_ns(costs[u]) + self._held_back(u, left)
                below = chains.tail(u) if u else 0
                best = np.maximum(best, self._back_at(u) - end + done + below)
        return best

    def follows(self, s: int) -> np.ndarray:
        """Return (m,) the least time from the end of the n-th F of s to the makespan, as the devices
        with stages after it tell."""
        costs, chains = self.profile.stages, self.chains
        left = self.microbatches + 1 - self.count
        end = self._at(s) + costs[s].t_f_ns
        best = np.zeros(self.microbatches, np.int64)
        for stages in self.devices:
            after = [u for u in stages if u > s]
            if not after:
                continue
            chain, low = self._at(after[0]) - end, stages[0]
            forwards = sum(costs[u].t_f_ns for u in after)
            whole = forwards + sum(chains.full_back(u) for u in stages)
            best = np.maximum(best, chain + left * whole)
            done = left * (forwards + sum(back_ns(costs[u]) for u in stages))
            done = done + self._held_back(low, left)
            best = np.maximum(best, chain + done + (chains.tail(low) if low else 0))
        return best
