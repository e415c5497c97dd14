"""The ranks of one pipeline, one process that has all of them or a process group; and the weights that several of
its stages have copies of: they start equal, and get the sum of all gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import OptPipeError, RuntimeFault
from ..schedule.shape import Shape

Tied = Sequence[tuple[int, str]]
Members = Mapping[int, nn.Parameter | None]


class PipelineGroup:
    """Which process runs which rank, and small messages between the processes.

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
        """Return the values of all processes, by rank; plain data."""
        if self.rank is None:
            return [value]
        found: list[Any] = [None] * self.ranks
        with blamed(self.rank, "exchanging what all ranks have to know"):
            dist.all_gather_object(found, value, group=self.group)
        return found

    def put(self, value: Any, rank: int) -> None:
        """Send plain data and tensors to another rank."""
        with blamed(self.rank, f"sending to rank {rank}"):
            dist.send_object_list([value], group=self.group, group_dst=rank)

    def take(self, rank: int) -> Any:
        """Return what another rank has `put`."""
        box: list[Any] = [None]
        with blamed(self.rank, f"waiting for rank {rank}"):
            dist.recv_object_list(box, group=self.group, group_src=rank)
        return box[0]

    def send(self, tensor: Tensor, rank: int) -> None:
        """Send a tensor whose layout the other rank knows."""
        with blamed(self.rank, f"sending a gradient to rank {rank}"):
            dist.send(self._carried(tensor), group=self.group, group_dst=rank)

    def receive(self, like: Tensor, rank: int) -> Tensor:
        """Return a tensor as `like` that another rank sends."""
        box = torch.empty_like(self._carried(like))
        with blamed(self.rank, f"waiting for a gradient of rank {rank}"):
            dist.recv(box, group=self.group, group_src=rank)
        return box.to(like.device)

    def _carried(self, tensor: Tensor) -> Tensor:
        """Return a tensor where the group's messages are: gloo has them in host memory."""
        return tensor.cpu() if dist.get_backend(self.group) == "gloo" else tensor


@contextmanager
def blamed(rank: int | None, doing: str) -> Iterator[None]:
    """Raise errors of torch.distributed inside the block as faults that say which rank was doing what."""
    try:
        yield
    except OptPipeError:
        raise
    except RuntimeError as error:
        why = str(error).split("\n")[0]
        raise RuntimeFault(f"rank {rank or 0}: {doing}: {why}") from error


class TiedWeights:
    """Groups of parameters that are one weight of the model.

    Args:
        members: per weight, by stage, its copy; None where another process has it.
        ranks: of the pipeline, which all call these methods together.
    """

    def __init__(self, members: Sequence[Members], shape: Shape, ranks: PipelineGroup) -> None:
        self.members, self.shape, self.ranks = members, shape, ranks

    @classmethod
    def named(
        cls,
        groups: Sequence[Tied],
        modules: Mapping[int, nn.Module],
        shape: Shape,
        ranks: PipelineGroup,
    ) -> TiedWeights:
        """Return the weights of a user's own modules.

        Args:
            groups: per weight the stages that have it, and its name in each.
            modules: the stages of this process.

        Raises:
            OptPipeError: where there is no such parameter.
        """
        found: list[Members] = []
        for group in groups:
            members: dict[int, nn.Parameter | None] = {}
            for stage, name in sorted(group):
                if not 0 <= stage < shape.stages:
                    raise OptPipeError(f"tied: there is no stage {stage}")
                module = modules.get(stage)
                members[stage] = None if module is None else _parameter(module, stage, name)
            found.append(members)
        return cls(found, shape, ranks)

    def start_equal(self) -> None:
        """Give all copies the numbers of the first stage's."""
        for members in self.members:
            own = [p.detach() for p in members.values() if p is not None]
            first = members[min(members)]
            self._share(members, own, None if first is None else first.detach())

    def add_up(self) -> None:
        """Give all copies the sum of their gradients, added up from the first stage to the last."""
        for members in self.members:
            own = [p for p in members.values() if p is not None]
            if self.ranks.rank is None:
                add_up(own)
                continue
            root, total = self.shape.placement[min(members)], None
            if self.ranks.rank == root:
                shares = [
                    self.ranks.receive(own[0].grad, self.shape.placement[stage])
                    if copy is None
                    else copy.grad
                    for stage, copy in members.items()
                ]
                total = _sum(shares)
            else:
                for copy in own:
                    self.ranks.send(copy.grad, root)
            self._share(members, [copy.grad for copy in own], total)

    @torch.no_grad()
    def _share(self, members: Members, own: Sequence[Any], value: Tensor | None) -> None:
        """Write the value that the first stage's rank has into the tensors of all copies; `own`: of this process."""
        root, *others = dict.fromkeys(self.shape.placement[stage] for stage in sorted(members))
        if self.ranks.rank == root:
            for rank in sorted(others):
                self.ranks.send(value, rank)
        elif own and self.ranks.rank is not None:
            value = self.ranks.receive(own[0], root)
        for tensor in own:
            tensor.copy_(value)

    def repeated(self) -> set[int]:
        """Return the ids of those copies that are not the first of their weight."""
        first = [members[min(members)] for members in self.members]
        every = {id(p) for members in self.members for p in members.values() if p is not None}
        return every - {id(p) for p in first if p is not None}

    def every(self) -> list[nn.Parameter]:
        """Return the copies of this process, each once."""
        found = {id(p): p for members in self.members for p in members.values() if p is not None}
        return list(found.values())


@torch.no_grad()
def add_up(copies: Sequence[nn.Parameter]) -> None:
    """Give copies of a weight in one process, in the order of their stages, the sum of their gradients."""
    each = {id(copy): copy.grad for copy in copies}.values()
    if len(each) > 1 and all(gradient is not None for gradient in each):
        total = _sum(list(each))
        for gradient in each:
            gradient.copy_(total)


def _sum(gradients: Sequence[Tensor | None]) -> Tensor:
    total = None
    for gradient in gradients:
        assert gradient is not None
        total = gradient.clone() if total is None else total + gradient
    assert total is not None
    return total


def _parameter(module: nn.Module, stage: int, name: str) -> nn.Parameter:
    found = dict(module.named_parameters(remove_duplicate=False)).get(name)
    if found is None:
        raise OptPipeError(f"tied: stage {stage} has no parameter {name!r}")
    if not found.requires_grad:
        raise OptPipeError(f"tied: {name!r} of stage {stage} is frozen; leave the group out")
    return found
