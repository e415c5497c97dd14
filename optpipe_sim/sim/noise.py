"""The distribution of a lowered schedule's time over random durations."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from ..errors import OptPipeError
from ..ops import O
from . import paths
from .lower import Lowered


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


def replay_noisy(
    lowered: Lowered, noise: Noise, samples: int, seed: int = 0, objective: str = "flush"
) -> np.ndarray:
    """Return the cost (ns) of `samples` noisy copies of a lowered schedule, (samples,) int64.

    Every copy keeps the memory limit: its grants wait for the releases that the lowering chose.
    The same seed gives the same copies.
    """
    if samples < 1:
        raise OptPipeError(f"samples: must be at least 1, got {samples}")
    random = np.random.default_rng(seed)
    graph, devices = lowered.graph, lowered.profile.devices
    rows = graph.row_of
    kinds = lowered.schedule.table[:, 0]
    spread = np.where(kinds < O, noise.op, noise.copy)[rows] * (rows >= 0)
    drift = factors(random, noise.device, (samples, devices))
    drift[np.arange(samples), random.integers(devices, size=samples)] *= 1 + noise.straggler
    compute = lowered.replay().compute_rows
    costs = np.empty((samples, 2), np.int64)
    paths.noisy_paths(
        graph.first,
        graph.inputs,
        graph.lags,
        graph.durations,
        spread,
        lowered.schedule.devices[rows],
        graph.message,
        graph.op_at[[rows[0] for rows in compute]],
        graph.op_at[[rows[-1] for rows in compute]],
        drift,
        factors(random, noise.comm, (samples,)),
        random,
        costs,
    )
    return costs[:, 0 if objective == "flush" else 1]


def factors(random: np.random.Generator, sigma: float, shape: tuple[int, ...]) -> np.ndarray:
    """Draw log-normal factors with mean 1."""
    return np.exp(sigma * random.standard_normal(shape) - sigma * sigma / 2)
