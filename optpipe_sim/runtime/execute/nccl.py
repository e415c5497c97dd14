"""Messages over NCCL: a communicator per directed pair of ranks, all of them created before the first step.
Not confirmed on GPUs yet.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ...errors import RuntimeFault
from ...ops import Op
from ..model.boundary import Layout
from ..program.program import Program
from .transport import Transport

POLL_S = 0.0002
Pair = tuple[int, int]  # sender, receiver


def directed_pairs(programs: Sequence[Program]) -> list[Pair]:
    """Return every (sender, receiver) of the programs, sorted: the order in which all ranks make and first
    use their communicators."""
    return sorted({(p.rank, s.peer) for p in programs for s in p.steps if s.do == "send"})


def pair_groups(
    pairs: Sequence[Pair], shared: bool = False, backend: str = "nccl"
) -> dict[Pair, Any]:
    """Return a process group for each directed pair of a pipeline's ranks.

    All processes of the default group make all groups, in one order. (torch would let the two ranks of a
    pair make theirs alone, by ``use_local_synchronization``, but then names it by how many groups each
    of them is in already. The middle ranks of a pipeline are in more than the first and the last: the
    two would wait for each other under different names. And where the default group is bound to devices,
    NCCL splits a group off with all of its ranks.)

    Args:
        pairs: in ranks of the default group; the same on all ranks of the pipeline.
        shared: whether the default group has other pipelines as well.
    """
    every = [list(pairs)]
    if shared:
        every = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(every, list(pairs))
    made = {
        pair: dist.new_group(sorted(pair), backend=backend)
        for pair in sorted({pair for one in every for pair in one})
    }
    return {pair: made[pair] for pair in pairs}


class Nccl(Transport):
    """Messages over NCCL: a communicator per directed pair of ranks.

    NCCL has no tags: on a communicator messages arrive in the order in which both sides issue them, and one
    that waits blocks those behind it. So each direction has its own, receives are posted
    in the sender's order (`program`), one compute op ahead, and neither direction waits for the
    other. A receive starts when the compute stream comes to where it was posted; its buffer is of
    the compute stream's memory there.

    torch makes the communicator of an unbatched send or receive at its first use, and that blocks
    the host until the other side comes to the same one: with two programs that meet their pairs in
    different orders, for ever. So every pair exchanges a byte here, in sorted order on all ranks:
    the least pair that has not met can always go on.

    Every process of the default group has to make one at the same time, each for its own pipeline (`pair_groups`).

    Args:
        rank: of this process in its pipeline. programs: of all ranks. timeout_s: for a message.
        group: of the ranks of one pipeline; default: all.

    Attributes:
        buffer_bytes: device memory that the communicators took, outside of torch's allocator.
    """

    def __init__(
        self,
        rank: int,
        programs: Sequence[Program],
        timeout_s: float = 60.0,
        group: Any = None,
    ) -> None:
        self.rank, self.timeout_s = rank, timeout_s
        self._posted: dict[Op, tuple[Any, Tensor]] = {}
        self._out: deque[tuple[Op, Any, Tensor]] = deque()
        # where torch has the ranks: sends and receives name them so, in any group
        self._place = [
            rank if group is None else dist.get_global_rank(group, rank)
            for rank in range(len(programs))
        ]
        pairs = directed_pairs(programs)
        placed = [(self._place[sender], self._place[receiver]) for sender, receiver in pairs]
        shared = group is not None and len(programs) < dist.get_world_size()
        groups = pair_groups(placed, shared)
        self._groups = {pair: groups[ends] for pair, ends in zip(pairs, placed, strict=True)}
        byte = torch.zeros(1, dtype=torch.uint8, device="cuda")
        torch.cuda.synchronize()
        free, _ = torch.cuda.mem_get_info()
        for pair in pairs:
            if rank in pair:
                self._meet(pair, byte)
        torch.cuda.synchronize()
        self.buffer_bytes = free - torch.cuda.mem_get_info()[0]

    def _meet(self, pair: Pair, byte: Tensor) -> None:
        """Make the communicator of a pair by its first message."""
        sender, receiver = pair
        if self.rank == sender:
            work = dist.isend(byte, self._place[receiver], group=self._groups[pair])
        else:
            work = dist.irecv(byte, src=self._place[sender], group=self._groups[pair])
        work.wait()

    def post(self, op: Op, peer: int, layout: Layout) -> None:
        """Allocate the buffer of a message and issue its receive."""
        buffer = torch.empty(layout[0], dtype=layout[1], device="cuda")
        group = self._groups[peer, self.rank]
        self._posted[op] = dist.irecv(buffer, src=self._place[peer], group=group), buffer

    def recv(self, op: Op, peer: int) -> Tensor:
        """Return the content of a posted message; the compute stream waits for it, the host does not."""
        work, buffer = self._posted.pop(op)
        work.wait()
        return buffer

    def send(self, op: Op, tensor: Tensor, peer: int) -> None:
        """Send a result of the compute stream as of now."""
        self.release_sent()
        kept = tensor.contiguous()
        group = self._groups[self.rank, peer]
        self._out.append((op, dist.isend(kept, self._place[peer], group=group), kept))

    def release_sent(self) -> None:
        """Release tensors whose send has ended on the device.

        Their memory is then free for the compute stream without `record_stream`. torch holds a
        reference of its own until `wait`, which costs nothing once the send has ended.
        """
        still: deque[tuple[Op, Any, Tensor]] = deque()
        while self._out:
            op, work, kept = self._out.popleft()
            if work.is_completed():
                work.wait()
            else:
                still.append((op, work, kept))
            del work, kept
        self._out = still

    def finish(self) -> None:
        """Wait for the sends.

        Raises:
            RuntimeFault: names one that does not end.
        """
        ends = time.monotonic() + self.timeout_s
        self.release_sent()
        while self._out:
            if time.monotonic() > ends:
                raise RuntimeFault(
                    f"rank {self.rank}: the result of {self._out[0][0]} was not taken within"
                    f" {self.timeout_s:g} s"
                )
            time.sleep(POLL_S)
            self.release_sent()
