"""Durations drawn once, so that schedules can be compared on the same samples.

Each op has one factor per sample in every schedule (common random numbers), so that a difference between two
schedules is due to the schedules alone.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from ..errors import OptPipeError
from ..ops import BW, B, C, F, O, OpKind, R, W
from ..profile import CostProfile
from . import paths
from .lower import Lowered

MOST_FACTORS = 2**26  # numbers drawn at once: half a GiB, and twice that during the draw


@dataclass(frozen=True)
class Noise:
    """Random factors on durations: log-normal with mean 1, by their sigma.

    Attributes:
        op: of every compute op independently. `copy`: of every transfer independently.
        device: one factor per device and sample (drift, devices of different speed).
        comm: one factor per sample for all messages between devices.
        straggler: in each sample one random device is slower by this share (0.1: 10 %).

    Raises:
        OptPipeError: for a negative value.
    """

    op: float = 0.05
    copy: float = 0.0
    device: float = 0.0
    comm: float = 0.0
    straggler: float = 0.0

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if not 0 <= value < 10:
                raise OptPipeError(f"noise.{entry.name}: must be from 0 to 10, got {value}")


@dataclass(frozen=True, eq=False)
class Scenarios:
    """Sampled factors on the durations of a problem.

    Attributes:
        own: (samples, kinds, stages, microbatches) of each op. `drift`: (samples, devices) of all
            ops of a device. `comm`: (samples,) of all messages.
    """

    own: np.ndarray
    drift: np.ndarray
    comm: np.ndarray

    def __len__(self) -> int:
        return len(self.comm)


def factors(random: np.random.Generator, sigma: float, shape: tuple[int, ...]) -> np.ndarray:
    """Draw log-normal factors with mean 1."""
    return np.exp(sigma * random.standard_normal(shape) - sigma * sigma / 2)


def require_samples(profile: CostProfile, microbatches: int, samples: int) -> None:
    """Refuse a number of samples that cannot be drawn.

    Raises:
        OptPipeError: for fewer than one, or for more factors than fit into memory.
    """
    if samples < 1:
        raise OptPipeError(f"samples: must be at least 1, got {samples}")
    ops = len(OpKind) * len(profile.stages) * microbatches
    if samples * ops > MOST_FACTORS:
        raise OptPipeError(
            f"samples: {samples} are too many for {len(profile.stages)} stages and {microbatches}"
            f" microbatches: at most {MOST_FACTORS // ops} can be drawn"
        )


def draw_scenarios(
    profile: CostProfile, microbatches: int, noise: Noise, samples: int, seed: int = 0
) -> Scenarios:
    """Draw `samples` sets of durations for schedules with the profile's chunks and placement.

    Raises:
        OptPipeError: for fewer than one sample, or more than can be drawn.
    """
    require_samples(profile, microbatches, samples)
    random = np.random.default_rng(seed)
    drift = factors(random, noise.device, (samples, profile.devices))
    slow = random.integers(profile.devices, size=samples)
    drift[np.arange(samples), slow] *= 1 + noise.straggler
    comm = factors(random, noise.comm, (samples,))
    own = np.ones((samples, len(OpKind), len(profile.stages), microbatches), np.float32)
    # C last, so that the numbers of schedules without recomputation do not depend on it
    for kinds, sigma in (([F, B, W, BW], noise.op), ([O, R], noise.copy), ([C], noise.op)):
        if sigma:
            own[:, kinds] = factors(random, sigma, own[:, kinds].shape)
    return Scenarios(own, drift, comm)


def replay_scenarios(
    lowered: Lowered, scenarios: Scenarios, objective: str = "flush"
) -> np.ndarray:
    """Return the cost (ns) of a lowered schedule in each scenario, (samples,) int64; the limit is kept in
    all of them."""
    graph, table = lowered.graph, lowered.schedule.table
    rows = graph.row_of
    _, kinds, stages, microbatches = scenarios.own.shape
    unit = (table[:, 0] * stages + table[:, 1]) * microbatches + table[:, 2]
    compute = lowered.replay().compute_rows
    costs = np.empty((len(scenarios), 2), np.int64)
    paths.scenario_paths(
        graph.first,
        graph.inputs,
        graph.lags,
        graph.durations,
        np.where(rows >= 0, unit[rows], -1),
        lowered.schedule.devices[rows],
        graph.message,
        graph.op_at[[device[0] for device in compute]],
        graph.op_at[[device[-1] for device in compute]],
        scenarios.own.reshape(len(scenarios), kinds * stages * microbatches),
        scenarios.drift,
        scenarios.comm,
        costs,
    )
    return costs[:, 0 if objective == "flush" else 1]


def scenario_bounds(
    profile: CostProfile, scenarios: Scenarios, objective: str = "flush"
) -> np.ndarray:
    """Return a lower bound per scenario, in ns, for the cost of any schedule in it, (samples,) int64.

    The bound `bounds.bounds.naive`, sample by sample: a device does all its work, with each backward as
    the cheaper of B + W and BW, and starts (for ``flush``) no earlier than the fastest microbatch
    reaches its first stage. A backward in a pair, which scatters as its forward does, takes at least its
    time less what the pair hides, times the least factor of any forward of its device. The rounding
    error, a ns per op, is subtracted.
    """
    size = len(scenarios)
    place = np.array(profile.placement)
    durations = scenarios.own.astype(np.float64) * profile.durations_ns[None, :, :, None]
    durations *= scenarios.drift[:, place][:, None, :, None]
    back = np.minimum(durations[:, B] + durations[:, W], durations[:, BW])
    if np.any(profile.pair_hidden):
        back = np.minimum(back, _in_pairs(profile, scenarios, durations))
    work = (durations[:, F] + back).sum(2)
    passed = np.cumsum([0, *profile.messages_ns])
    come = passed[None, :, None] * scenarios.comm[:, None, None]
    come = come + np.cumsum(durations[:, F], axis=1) - durations[:, F]
    first = come.min(2) if objective == "flush" else np.zeros((size, len(place)))
    bounds = np.zeros(size)
    for device in range(profile.devices):
        mine = np.flatnonzero(place == device)
        bounds = np.maximum(bounds, first[:, mine[0]] + work[:, mine].sum(1))
    least: np.ndarray = np.maximum(0, np.floor(bounds) - durations[0].size).astype(np.int64)
    return least


def _in_pairs(profile: CostProfile, scenarios: Scenarios, durations: np.ndarray) -> np.ndarray:
    """Return what each backward adds at least to a forward that it is one op with, W included, (samples,
    stages, microbatches) ns."""
    place = np.array(profile.placement)
    together = place[:, None] == place
    hidden = np.where(together, profile.hidden_ns(*np.indices(together.shape)), 0).max(axis=0)
    factor = scenarios.own[:, F].min(axis=2)  # by stage; of a device the least
    least = np.where(together, factor[:, None, :], np.inf).min(axis=2)
    least = least * scenarios.drift[:, place]
    rest = np.maximum(0, profile.durations_ns[[B, BW]] - hidden)[None] * least[:, None]
    split, whole = rest[:, 0, :, None] + durations[:, W], rest[:, 1, :, None]
    found: np.ndarray = np.minimum(split, whole)
    return found
