"""One run of AdaOffload's greedy: its parameters, the profile as arrays, and its result.

The event loop itself is compiled (`play`, `progress`).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import NamedTuple

import numpy as np

from ...errors import NoSolution
from ...ops import COMPUTE, TRANSFERS, B, F, O, Op, OpKind, R
from ...profile import CostProfile
from ...schedule import Schedule
from ...sim.host_links import link_keys
from ...units import format_size
from . import play, progress
from .levels import activation_costs, recomputed

UNBOUNDED = 2**40


class Setting(NamedTuple):
    """The parameters of one run of the greedy.

    Attributes:
        prefer: if both could start: 0 the backward, 1 forward and backward in turn, 2 the forward.
        tolerance: a W also starts if it delays the next F or B by up to this many thousandths of
            the W. pending: no forward starts while this many W's per chunk are pending. group: how
            many microbatches pass a chunk before the next chunk takes its turn (0: all of them, -1:
            as many as there are devices).
        ahead: how long before its B a reload may start, in thousandths of the reload, counted in
            B's of the stages after it. Activations that would already be due for reload are not
            offloaded. headroom: offload while fewer than this many further activations would fit.
        oldest: 1 offloads the oldest resident activation first, 0 the newest.
        keep: 1 admits a forward only if the reload of the next B then still fits.
        reload_first: 1 grants memory to a reload before a forward of the same instant. depth:
            microbatches in flight on a device, in thousandths of those that it has begun when B's
            arrive as early as possible; with uniform stages that is 1F1B's warm-up (0: unlimited).
    """

    prefer: int = 0
    tolerance: int = 1000
    pending: int = UNBOUNDED
    group: int = 1
    ahead: int = 1500
    headroom: int = 2
    oldest: int = 0
    keep: int = 0
    reload_first: int = 1
    depth: int = 0


class Order(NamedTuple):
    """An order for the compute ops to follow, as far as data and memory allow.

    Attributes:
        due_ns: (kinds, S, m) when each op is due. Only the order on a device matters: the op that
            is due first runs first, possibly after a short wait for its data (`tolerance`).
            `prefer`, `pending` and, for compute ops, `group` are then ignored. window_ns: how much
            later than the op that its device waits for an F may be due.
    """

    due_ns: np.ndarray
    window_ns: int


class Greedy(NamedTuple):
    """A finished run: per device the ops in the order they started, with their times; the level of
    recomputation of each activation (see `Problem`)."""

    profile: CostProfile
    setting: NamedTuple  # a `Setting` or a `waves.Wave`
    log: tuple[np.ndarray, ...]
    levels: np.ndarray

    @property
    def offloads(self) -> int:
        return sum(int((rows[:, progress.KIND] == O).sum()) for rows in self.log)

    def cost_ns(self, objective: str) -> int:
        """The makespan or longest device span of the run itself."""
        compute = [rows[np.isin(rows[:, progress.KIND], COMPUTE)] for rows in self.log]
        if objective == "span":
            return max(int(rows[-1, progress.END] - rows[0, progress.START]) for rows in compute)
        return max(int(rows[-1, progress.END]) for rows in compute)

    def schedule(self, microbatches: int) -> Schedule:
        """Make the schedule: the programs, and the order on host links that several queues share."""
        shape = self.profile.shape(microbatches)
        table = np.concatenate(self.log)[:, [progress.KIND, progress.STAGE, progress.MICROBATCH]]
        offsets = np.cumsum([0, *map(len, self.log)])
        order = self._link_order()
        if not self.levels.any():
            return Schedule.from_table(shape, table, offsets, order)
        return recomputed(shape, table, offsets, order, self.profile, self.levels)

    def _link_order(self) -> dict[str, list[Op]]:
        offload = self.profile.offload
        if offload is None or not self.offloads:
            return {}
        shared = offload.copy_engines == "shared"
        keys = link_keys(self.profile)
        queues: dict[str, set[int]] = {}
        for at, key in enumerate(keys):
            queues.setdefault(key, set()).add(at // 2 if shared else at)
        order: dict[str, list[tuple[int, Op]]] = {
            key: [] for key, some in queues.items() if len(some) > 1
        }
        for d, rows in enumerate(self.log):
            for row in rows[np.isin(rows[:, progress.KIND], TRANSFERS)].tolist():
                key = keys[2 * d + (row[progress.KIND] == R)]
                if key in order:
                    op = Op(
                        OpKind(row[progress.KIND]), row[progress.STAGE], row[progress.MICROBATCH]
                    )
                    order[key].append((row[progress.SERIAL], op))
        return {key: [op for _, op in sorted(ops)] for key, ops in order.items()}


class Problem:
    """A profile and its limits as the arrays that every run shares.

    Args:
        profile: with the chunks and the placement wanted.
        limits: bytes per device; None: unlimited, and nothing is offloaded.
        host: the share of the host memory that may be used beside the spare part, in thousandths.
            levels: (S, m) the level of each activation, by its number in its stage, from 1; 0: kept
            whole. None: all are kept whole.

    Raises:
        NoSolution: if the pinned host memory cannot hold the offloads that the limits require.
    """

    def __init__(
        self,
        profile: CostProfile,
        microbatches: int,
        limits: Sequence[int] | None,
        host: int = 1000,
        levels: np.ndarray | None = None,
    ) -> None:
        p, stages = profile.devices, profile.stages
        self.profile, self.microbatches = profile, microbatches
        offload = profile.offload if limits is not None else None
        place = np.array(profile.placement, np.int64)
        self.stages = np.argsort(place, kind="stable").astype(np.int64)
        self.stage = np.zeros((progress.STAGE_ROWS, len(stages)), np.int64)
        self.stage[progress.DEVICE] = place
        self.stage[progress.TOP] = -1
        if levels is None:
            levels = np.zeros((len(stages), microbatches), np.int64)
        self.costs = activation_costs(profile, levels)
        if not offload:
            self.costs.moved[:] = 0
        self.stage[progress.MOVES] = self.costs.moved.any(axis=1)
        self.device = np.zeros((progress.DEVICE_ROWS, p), np.int64)
        self.device[progress.COUNT] = np.bincount(place, minlength=p)
        self.device[progress.FIRST, 1:] = np.cumsum(self.device[progress.COUNT])[:-1]
        static = np.array(profile.static_bytes, np.int64)
        aside = np.zeros(p, np.int64)
        np.maximum.at(aside, place, self.costs.aside)
        free = progress.FOREVER if limits is None else np.array(limits) - static - aside
        self.device[progress.CAPACITY] = free
        keys = link_keys(profile)
        names = sorted(set(keys))
        self.links = [names.index(key) for key in keys]
        self.device[progress.LINK_O], self.device[progress.LINK_R] = (
            self.links[::2],
            self.links[1::2],
        )
        self.device[progress.NODE] = np.arange(p) // ((offload and offload.devices_per_node) or p)
        self.host = np.zeros((2, int(self.device[progress.NODE].max()) + 1), np.int64)
        self.host[0] = progress.FOREVER
        self.host_limit = offload.host_limit_bytes if offload else None
        self._spare(host)
        self.in_flight = self._in_flight()
        self.shared = int(profile.shares_copy_engine)

    def _spare(self, host: int) -> None:
        """Choose the stages that the oldest microbatch of a device may always offload, and compute
        what one microbatch at a time then needs; limited host memory is reserved for them."""
        for d in range(self.profile.devices):
            mine = [s for s in self.stages.tolist() if self.stage[progress.DEVICE, s] == d]
            may = [s for s in mine if self.stage[progress.MOVES, s]]
            if self.host_limit is not None:
                may = self._fewest(mine, may, int(self.device[progress.CAPACITY, d]))
                self.host[1, self.device[progress.NODE, d]] += self._moved(may)
            self.stage[progress.SPARE, may] = 1
            self.device[progress.NEED, d] = self._needs(mine, may)
        if self.host_limit is not None:
            short = int(self.host[1].max())
            if short > self.host_limit:
                raise NoSolution(
                    f"offload.host_limit: the memory limits ask for {format_size(short)} of pinned host"
                    f" memory on one node, but only {format_size(self.host_limit)} are allowed;"
                    " raise the memory limits or the host limit"
                )
            self.host[0] = (self.host_limit - self.host[1]) * host // 1000
            self.host[1] = 0

    def _in_flight(self) -> np.ndarray:
        """Per device, the microbatches it has begun when their B's come, in thousandths: the time
        from F to B of its lowest stage in units of the slowest device's F's and B's."""
        profile, (forward, backward) = self.profile, self.profile.durations_ns[:2]
        place = self.stage[progress.DEVICE]
        both = forward + backward
        slowest = np.bincount(place, both, profile.devices).max()
        messages_ns = 2 * np.array([*profile.messages_ns, 0])
        trip = np.cumsum((both + messages_ns)[::-1])[::-1]
        lowest = self.stages[self.device[progress.FIRST]]
        return np.asarray(trip[lowest] * 1000 // int(slowest), np.int64)

    def _needs(self, mine: list[int], away: Sequence[int]) -> int:
        """What one microbatch at a time needs on a device that can offload the stages `away`."""
        need, rest = 0, np.zeros(self.microbatches, np.int64)
        for s in mine:
            need = max(need, int((rest + self.costs.act[s]).max()))
            rest += self.costs.act[s] - (self.costs.moved[s] if s in away else 0)
        return need

    def _moved(self, some: Sequence[int]) -> int:
        """The most that these stages offload of one microbatch."""
        return int(self.costs.moved[list(some)].sum(axis=0).max())

    def _fewest(self, mine: list[int], may: list[int], capacity: int) -> list[int]:
        """Return the stages with the fewest bytes to offload that let one microbatch through; all
        stages if none do (then no run succeeds)."""
        if self._needs(mine, []) <= capacity:
            return []
        if len(may) > 12:
            return may
        choices = [list(some) for size in range(len(may) + 1) for some in combinations(may, size)]
        fitting = [some for some in choices if self._needs(mine, some) <= capacity]
        return min(fitting, key=self._moved, default=may)

    def play(
        self, setting: Setting, stop_ns: int = progress.FOREVER, order: Order | None = None
    ) -> Greedy | None:
        """Run the greedy, in its own order or as close as possible to `order`; None if it would end
        after `stop_ns`."""
        p, count, m = self.profile.devices, len(self.profile.stages), self.microbatches
        profile = self.profile
        stage, device = self.stage.copy(), self.device.copy()
        reload_ns = self.costs.durations_ns[R].max(axis=1)
        step_ns = max(1, int(profile.durations_ns[B].mean()) + profile.t_comm_ns)
        stage[progress.AHEAD] = np.maximum(1, -(-reload_ns * setting.ahead // (1000 * step_ns)))
        if setting.depth:
            device[progress.DEPTH] = np.maximum(1, -(-self.in_flight * setting.depth // 10**6))
        else:
            device[progress.DEPTH] = UNBOUNDED
        micro = np.zeros((progress.MICRO_ROWS, count, m), np.int64)
        micro[progress.READY :] = progress.FOREVER
        micro[progress.READY + F, 0] = 0
        micro[progress.ACT], micro[progress.MOVED] = self.costs.act, self.costs.moved
        device[progress.AWAKE], device[progress.WOKEN] = 1, np.arange(p)
        chunks = int(device[progress.COUNT].max())
        run = progress.Run(
            stage,
            device,
            self.stages,
            self.costs.durations_ns,
            self.costs.released,
            np.zeros((len(OpKind), count), np.int64),
            np.zeros((len(OpKind), count), np.int64),
            micro,
            np.full((3, p, 4), -1, np.int64),
            self.host.copy(),
            np.zeros(2 * p, np.int64),
            np.zeros((p, p), np.int64),
            np.zeros((2 * count * m + 3 * p + 1, 2), np.int64),
            np.zeros((p, 5 * chunks * m, progress.LOG_COLUMNS), np.int64),
            np.array([0, 0, 0, p], np.int64),
            self.shared,
            profile.latency_ns,
            profile.occupancy_ns,
            int(profile.serial_links),
            setting.prefer,
            setting.tolerance,
            min(UNBOUNDED, setting.pending * chunks),
            {0: m, -1: p}.get(setting.group, setting.group),
            setting.headroom,
            setting.oldest,
            setting.keep,
            setting.reload_first,
            np.zeros((0, count, m), np.int64) if order is None else order.due_ns,
            0 if order is None else order.window_ns,
        )
        if not play.play(run, stop_ns):
            return None
        log = tuple(run.log[d, : run.device[progress.LOGGED, d]] for d in range(p))
        return Greedy(profile, setting, log, self.costs.levels)
