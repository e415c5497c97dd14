"""What ranks do to meet in groups of two, as for NCCL's messages."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.distributed as dist

from optpipe_sim.ops import Op
from optpipe_sim.runtime.execute.nccl import pair_groups
from optpipe_sim.schedule import Schedule


@dataclass(frozen=True)
class Meet:
    """The groups of some pipelines, over gloo; each rank returns from whom a number came.

    Attributes:
        pipelines: their ranks. schedule: any of as many devices as there are ranks.
    """

    pipelines: tuple[tuple[int, ...], ...]
    schedule: Schedule

    def perform(self, rank: int, begun: Callable[[Op], None]) -> list[int]:
        mine = next(ranks for ranks in self.pipelines if rank in ranks)
        pairs = sorted([*pairwise(mine), *pairwise(reversed(mine))])
        groups = pair_groups(pairs, len(self.pipelines) > 1, "gloo")
        came = []
        for pair in pairs:
            number = torch.tensor([rank])
            if rank == pair[0]:
                dist.send(number, pair[1], group=groups[pair])
            elif rank == pair[1]:
                dist.recv(number, pair[0], group=groups[pair])
                came.append(int(number))
            if rank in pair:
                dist.destroy_process_group(groups[pair])
        return came
