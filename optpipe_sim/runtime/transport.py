"""How results get from rank to rank: gloo; gloo with the delay of a profile; a gated loop-back.

A message is known by the op that makes it. Receives are posted before they are needed; sends never
block, and let go of their tensor once it is out.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from ..errors import RuntimeFault
from ..ops import Op
from ..profile import CostProfile
from ..schedule import Schedule
from .worker import EMPTY, sleep_until

Layout = tuple[tuple[int, ...], torch.dtype]


class Transport(Protocol):
    """What an executor needs of it; `peer` is the other rank."""

    def post(self, op: Op, peer: int, layout: Layout) -> None: ...

    def recv(self, op: Op, peer: int) -> Tensor: ...

    def send(self, op: Op, tensor: Tensor, peer: int) -> None: ...

    def give_turn(self, op: Op, peer: int) -> None: ...

    def take_turn(self, op: Op, peer: int) -> None: ...

    def finish(self) -> None: ...


class Gloo:
    """torch.distributed with gloo: messages by tags, so that any order of receives will do.

    Args:
        rank: of this process; the default process group has to be there.
        schedule: gives every op its tag.
        timeout_s: how long a message may let one wait.
    """

    def __init__(self, rank: int, schedule: Schedule, timeout_s: float = 60.0) -> None:
        self.rank, self.schedule, self.timeout = rank, schedule, timedelta(seconds=timeout_s)
        self._posted: dict[Op, tuple[Any, Tensor]] = {}
        self._sender = ThreadPoolExecutor(1, "send")
        self._sent: list[Future[None]] = []

    def post(self, op: Op, peer: int, layout: Layout) -> None:
        """Take memory for a message, and let it come."""
        buffer = torch.empty(layout[0], dtype=layout[1])
        self._posted[op] = dist.irecv(buffer, src=peer, tag=self._tag(op)), buffer

    def recv(self, op: Op, peer: int) -> Tensor:
        """The content of a posted message, once it is there."""
        work, buffer = self._posted.pop(op)
        try:
            work.wait(self.timeout)
        except RuntimeError as error:
            raise self._lost(f"waiting for the result of {op} from rank {peer}", error) from error
        return buffer

    def send(self, op: Op, tensor: Tensor, peer: int) -> None:
        """Send in the background, in order; the tensor is let go of when it is out."""
        self._sent = [future for future in self._sent if not self._over(future)]
        self._sent.append(self._sender.submit(self._send, op, [tensor], peer))

    def give_turn(self, op: Op, peer: int) -> None:
        """Tell `peer` that the transfer `op` on their common host link has ended."""
        self._dispatch(f"giving the turn after {op} to rank {peer}", dist.send, op, peer)

    def take_turn(self, op: Op, peer: int) -> None:
        """Wait until `peer` has told so."""
        self._dispatch(f"waiting for the turn after {op} of rank {peer}", dist.recv, op, peer)

    def finish(self) -> None:
        """Wait for the sends."""
        for future in self._sent:
            future.result()
        self._sent = []

    def _send(self, op: Op, box: list[Tensor], peer: int) -> None:
        try:
            dist.send(box.pop().contiguous(), peer, tag=self._tag(op))
        except RuntimeError as error:
            raise self._lost(f"sending the result of {op} to rank {peer}", error) from error

    def _dispatch(self, doing: str, function: Any, op: Op, peer: int) -> None:
        try:
            function(
                torch.zeros(1, dtype=torch.uint8), peer, tag=len(self.schedule) + self._tag(op)
            )
        except RuntimeError as error:
            raise self._lost(doing, error) from error

    def _tag(self, op: Op) -> int:
        return self.schedule.row(op)

    def _over(self, future: Future[None]) -> bool:
        if future.done():
            future.result()  # an error shows here
        return future.done()

    def _lost(self, doing: str, error: RuntimeError) -> RuntimeFault:
        why = str(error).split("\n")[0]
        return RuntimeFault(f"rank {self.rank}: {doing}: {why}")


class DelayedGloo(Gloo):
    """Messages that carry no result but arrive when the profile's links say.

    A message says when it arrives: `t_comm` after it was sent, and where links are serial, after
    those before it. What gloo itself takes shows only as far as it takes longer.
    """

    def __init__(
        self, rank: int, schedule: Schedule, profile: CostProfile, timeout_s: float = 60.0
    ) -> None:
        super().__init__(rank, schedule, timeout_s)
        self.profile = profile
        self._free_ns: dict[int, int] = {}

    def recv(self, op: Op, peer: int) -> Tensor:
        """Wait for the message, and until it is said to arrive."""
        sleep_until(int(super().recv(op, peer).item()))
        return EMPTY

    def send(self, op: Op, tensor: Tensor, peer: int) -> None:
        """Send when it arrives instead of `tensor`."""
        depart = time.monotonic_ns()
        if self.profile.links == "serial":
            depart = max(depart, self._free_ns.get(peer, 0))
            self._free_ns[peer] = depart + self.profile.occupancy_ns
        super().send(op, torch.tensor([depart + self.profile.t_comm_ns]), peer)


class Loopback:
    """One rank alone: what others would have sent is there already, and let in when its time comes.

    Args:
        contents: by the op that makes it, what a message holds.
        arrive_ns: by op, when it may be taken, in ns after `start_ns`; default: at once.
        start_ns: the zero of these times, on `time.monotonic_ns`.

    What is sent is kept in `sent`, by op, with the time since `start_ns`.
    """

    def __init__(
        self, contents: Mapping[Op, Tensor], arrive_ns: Mapping[Op, int] | None = None
    ) -> None:
        self.contents, self.arrive_ns, self.start_ns = contents, arrive_ns or {}, 0
        self.sent: dict[Op, tuple[int, Tensor]] = {}
        self.turns_ns: dict[Op, int] = {}

    def post(self, op: Op, peer: int, layout: Layout) -> None:
        """Nothing to do: it is here."""

    def recv(self, op: Op, peer: int) -> Tensor:
        """A copy of the content, when its time has come."""
        sleep_until(self.start_ns + self.arrive_ns.get(op, 0))
        return self.contents[op].clone()

    def send(self, op: Op, tensor: Tensor, peer: int) -> None:
        """Note when, and what."""
        self.sent[op] = (time.monotonic_ns() - self.start_ns, tensor.clone())

    def give_turn(self, op: Op, peer: int) -> None:
        """Note when."""
        self.turns_ns[op] = time.monotonic_ns() - self.start_ns

    def take_turn(self, op: Op, peer: int) -> None:
        """Wait until its time has come."""
        sleep_until(self.start_ns + self.arrive_ns.get(op, 0))

    def finish(self) -> None:
        """Nothing is under way."""
