"""The ranks of one pipeline: one process that has all of them, or a process group."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import OptPipeError, RuntimeFault


class PipelineGroup:
    """Who runs which rank, and small messages between them.

    Attributes:
        rank: of this process; None where it runs all of them.

    Args:
        ranks: of the pipeline.
        group: their process group; default: all processes, where there are that many.
        alone: have this process run all ranks, whatever others there are.

    Raises:
        OptPipeError: where the group has another number of processes.
    """

    def __init__(self, ranks: int, group: Any = None, alone: bool = False) -> None:
        self.ranks, self.group, self.rank = ranks, group, None
        if alone or (group is None and (ranks == 1 or not dist.is_initialized())):
            return
        size = dist.get_world_size(group)
        if size != ranks:
            raise OptPipeError(
                f"group: the schedule is for {ranks} devices, the process group has {size} ranks;"
                " give the group of the ranks of this pipeline"
            )
        self.group = group or dist.group.WORLD
        self.rank = dist.get_rank(self.group)

    def has(self, rank: int) -> bool:
        """Whether this process runs that rank."""
        return self.rank is None or self.rank == rank

    def gather(self, value: Any) -> list[Any]:
        """Return what all processes give, by rank: plain data."""
        if self.rank is None:
            return [value]
        found: list[Any] = [None] * self.ranks
        with self.named("exchanging what all ranks have to know"):
            dist.all_gather_object(found, value, group=self.group)
        return found

    def put(self, value: Any, rank: int) -> None:
        """Send plain data and tensors to another rank."""
        with self.named(f"sending to rank {rank}"):
            dist.send_object_list([value], group=self.group, group_dst=rank)

    def take(self, rank: int) -> Any:
        """Return what another rank has `put`."""
        box: list[Any] = [None]
        with self.named(f"waiting for rank {rank}"):
            dist.recv_object_list(box, group=self.group, group_src=rank)
        return box[0]

    def send(self, tensor: Tensor, rank: int) -> None:
        """Send a tensor whose layout the other rank knows."""
        with self.named(f"sending a gradient to rank {rank}"):
            dist.send(self._carried(tensor), group=self.group, group_dst=rank)

    def receive(self, like: Tensor, rank: int) -> Tensor:
        """Return a tensor as `like` that another rank sends."""
        box = torch.empty_like(self._carried(like))
        with self.named(f"waiting for a gradient of rank {rank}"):
            dist.recv(box, group=self.group, group_src=rank)
        return box.to(like.device)

    def _carried(self, tensor: Tensor) -> Tensor:
        """Return a tensor where the group's messages are: gloo has them in host memory."""
        return tensor.cpu() if dist.get_backend(self.group) == "gloo" else tensor

    @contextmanager
    def named(self, doing: str) -> Iterator[None]:
        """Raise errors of torch.distributed inside the block as faults that say what was being done."""
        try:
            yield
        except OptPipeError:
            raise
        except RuntimeError as error:
            why = str(error).split("\n")[0]
            raise RuntimeFault(f"rank {self.rank or 0}: {doing}: {why}") from error
