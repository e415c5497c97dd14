"""A GPU in the place of a real one, for tests: streams and events with vector clocks, torch's caching
allocator, NCCL's messages; all memory that torch ops touch is checked for races.

What an op on a stream has surely seen of the others is a vector clock. The model is adversarial:
the host knows that something has ended only where it asked just that, and otherwise nothing has
ended before a wait says so. Two accesses to the same bytes, one of them a write, that neither order nor
host puts one after the other are a race. A storage that dies goes back to the stream that
allocated it, whose next allocation may have it: whoever uses it still, uses it too late.
"""

from __future__ import annotations

import itertools
import math
import weakref
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_iter

from optpipe_sim.runtime.execute import streams, transport

Clock = dict[int, int]
Span = tuple[int, float]
FIRST_TAG = 1 << 20  # of messages over gloo; what ranks agree on has others


def join(clock: Clock, other: Clock) -> None:
    """`clock` has seen what `other` has."""
    for stream, count in other.items():
        clock[stream] = max(clock.get(stream, 0), count)


class Stream:
    """Work in order; `clock` is what its tail has surely seen of every stream."""

    def __init__(self, gpu: VirtualGpu, name: str) -> None:
        self.gpu, self.name = gpu, name
        self.number = len(gpu.streams)
        self.cuda_stream = self.number
        self.clock: Clock = {self.number: 0}
        gpu.streams.append(self)

    def wait_event(self, event: Event) -> None:
        assert event.clock is not None, "waits for an event that was not recorded"
        join(self.clock, event.clock)

    def synchronize(self) -> None:
        join(self.gpu.host, self.clock)

    def advance(self) -> tuple[int, int]:
        """One more op, issued by a host that knows what it knows."""
        join(self.clock, self.gpu.host)
        self.clock[self.number] += 1
        return self.number, self.clock[self.number]


class Event:
    """A point of a stream."""

    gpu: VirtualGpu

    def __init__(self, enable_timing: bool = False) -> None:
        self.clock: Clock | None = None
        self.at = 0

    def record(self, stream: Stream | None = None) -> None:
        stream = stream or self.gpu.current
        stream.advance()
        self.clock, self.at = dict(stream.clock), next(self.gpu.ticks)

    def query(self) -> bool:
        """It has ended by the time that somebody asks, and nothing else has."""
        assert self.clock is not None
        join(self.gpu.host, self.clock)
        return True

    def synchronize(self) -> None:
        self.query()

    def elapsed_time(self, later: Event) -> float:
        return (later.at - self.at) / 1e3


class Block:
    """A storage: who allocated it, and its accesses since: by range of bytes the last write and the last read
    of each stream."""

    def __init__(self, name: str, owner: Stream | None) -> None:
        self.name, self.owner = name, owner
        self.accesses: dict[Span, tuple[Clock, Clock]] = {}

    def at(self, span: Span) -> tuple[Clock, Clock]:
        return self.accesses.setdefault(span, ({}, {}))


def span_of(tensor: torch.Tensor) -> Span:
    """The bytes from the first to the last element of a tensor, in its storage."""
    if not tensor.numel():
        return 0, 0
    first = tensor.storage_offset()
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last = first + sum((size - 1) * step for size, step in steps)
    return first * tensor.itemsize, (last + 1) * tensor.itemsize


class VirtualGpu(TorchDispatchMode):
    """While it is entered, ops of this thread run on the CPU and count as ops of the current stream.

    `faults` are in the order in which they were met; `left_alive` is the most bytes that the
    allocator had handed out at once since `reset`.
    """

    def __init__(self) -> None:
        super().__init__()
        self.host: Clock = {}
        self.streams: list[Stream] = []
        self.compute = self.current = Stream(self, "compute")
        self.ticks = itertools.count(1)
        self.blocks: dict[int, tuple[Any, Block]] = {}
        self.faults: list[str] = []
        self.groups: dict[tuple[int, ...], Stream] = {}
        self.pool_streams = 0

    # -- torch.cuda ------------------------------------------------------------------------------

    def new_stream(self, device: Any = None) -> Stream:
        self.pool_streams += 1
        return Stream(self, f"pool {self.pool_streams}")

    @contextmanager
    def on(self, stream: Stream) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def synchronize(self, device: Any = None) -> None:
        for stream in self.streams:
            stream.synchronize()

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have `torch.cuda` and the driver be this."""
        kind = type("Event", (Event,), {"gpu": self})
        for name, stand_in in {
            "Stream": self.new_stream,
            "Event": kind,
            "current_stream": lambda device=None: self.current,
            "current_device": lambda: 0,
            "stream": self.on,
            "synchronize": self.synchronize,
            "is_available": lambda: True,
            "is_initialized": lambda: True,
            "mem_get_info": lambda device=None: (1 << 30, 1 << 31),
        }.items():
            monkeypatch.setattr(torch.cuda, name, stand_in)
        monkeypatch.setattr(transport, "pinned_zeros", lambda n: torch.zeros(n, dtype=torch.int32))
        monkeypatch.setattr(transport, "driver", Driver)
        streams.copy_stream.cache_clear()

    # -- memory ----------------------------------------------------------------------------------

    def block(self, storage: torch.UntypedStorage, made: bool = False) -> Block:
        """The block of a storage; one that the allocator of the current stream has just handed out
        where an op `made` it, else one that was there before."""
        key = storage._cdata
        if key in self.blocks:
            return self.blocks[key][1]
        block = Block(f"storage {next(self.ticks)}", self.current if made else None)
        if made:  # its last owner was this stream's, up to here
            join(self.current.clock, self.host)
            clock = self.current.clock[self.current.number]
            block.at((0, math.inf))[0][self.current.number] = clock
        self.blocks[key] = weakref.ref(storage, self._freed(key)), block
        return block

    def _freed(self, key: int) -> Any:
        def freed(_: Any) -> None:
            block = self.blocks.pop(key)[1]
            if block.owner is None:
                return
            join(block.owner.clock, self.host)
            for accesses in block.accesses.values():
                for kind, clock in zip(("written", "read"), accesses, strict=True):
                    for stream, count in clock.items():
                        if block.owner.clock.get(stream, 0) < count:
                            self.faults.append(
                                f"early reuse: {block.name}, {kind} on {self.streams[stream].name}"
                            )

        return freed

    def touch(self, tensor: torch.Tensor, stream: Stream, write: bool, what: str) -> None:
        """An access on a stream; the op has advanced it already."""
        block, mine = self.block(tensor.untyped_storage()), span_of(tensor)
        for span, (writes, reads) in block.accesses.items():
            if span[0] >= mine[1] or mine[0] >= span[1]:
                continue
            for other, count in (*writes.items(), *(reads.items() if write else ())):
                if stream.clock.get(other, 0) < count:
                    self.faults.append(
                        f"race: {what} on {stream.name} {'writes' if write else 'reads'}"
                        f" {block.name} of {self.streams[other].name}"
                    )
        block.at(mine)[0 if write else 1][stream.number] = stream.clock[stream.number]

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        for value in tree_iter((args, kwargs)):
            if isinstance(value, torch.Tensor):
                self.block(value.untyped_storage())
            elif isinstance(value, torch.UntypedStorage):
                self.block(value)
        found = func(*args, **kwargs)
        made = [value for value in tree_iter(found) if isinstance(value, torch.Tensor)]
        for value in made:
            self.block(value.untyped_storage(), made=True)
        if func.is_view or func is torch.ops.aten.set_.source_Storage_storage_offset:
            return found
        if func in ALLOCATING:
            return found
        self.current.advance()
        for argument, value in self._arguments(func, args, kwargs):
            write = argument.alias_info is not None and argument.alias_info.is_write
            for one in tree_iter(value):
                if isinstance(one, torch.Tensor):
                    self.touch(one, self.current, write, str(func))
        for value in made:
            self.touch(value, self.current, True, str(func))
        return found

    def _arguments(self, func: Any, args: Any, kwargs: Any) -> Iterator[tuple[Any, Any]]:
        schema = func._schema.arguments
        yield from zip(schema, args, strict=False)
        by_name = {argument.name: argument for argument in schema}
        yield from ((by_name[name], value) for name, value in kwargs.items())


ALLOCATING = {
    torch.ops.aten.empty.memory_format,
    torch.ops.aten.empty_strided.default,
    torch.ops.aten.new_empty.default,
    torch.ops.aten.detach.default,
}


class Driver:
    """libcuda, as far as gates go."""

    def cuStreamWaitValue32_v2(self, stream: Any, address: Any, value: Any, how: Any) -> int:
        return 0


class Group:
    """A NCCL communicator of two ranks, on a stream of its own."""

    def __init__(self, gpu: VirtualGpu, ranks: tuple[int, ...]) -> None:
        self.gpu, self.stream = gpu, Stream(gpu, f"nccl {len(gpu.streams)} of {ranks}")


class Work:
    """A send or a receive under way: it has begun when the stream of its communicator has come to
    it, and `done` says whether the host is notified of its end. torch keeps the tensor until
    `wait`, as it does on a GPU."""

    def __init__(self, group: Group, tensor: torch.Tensor, write: bool) -> None:
        self.group, self.stashed, self.done = group, [tensor], False
        self.came: Any = None
        group.stream.wait_event(self._here(group.gpu))
        group.stream.advance()
        group.gpu.touch(tensor, group.stream, write, "NCCL")
        self.end = Event()
        self.end.gpu = group.gpu
        self.end.record(group.stream)

    def _here(self, gpu: VirtualGpu) -> Event:
        mark = Event()
        mark.gpu = gpu
        mark.record(gpu.current)
        return mark

    def wait(self) -> None:
        if self.came is not None:
            with _disable_current_modes():
                self.came.wait()
        self.group.gpu.current.wait_event(self.end)
        self.stashed.clear()

    def is_completed(self) -> bool:
        return self.done and self.end.query()


class _Mail:
    """Contents of messages, over gloo: from each rank to each other one in order, as NCCL has them."""

    def __init__(self) -> None:
        self.real, self.count = (dist.isend, dist.irecv), Counter[tuple[str, int]]()
        self.under_way: list[tuple[Any, torch.Tensor]] = []

    def send(self, tensor: torch.Tensor, peer: int) -> None:
        self.count["to", peer] += 1
        with _disable_current_modes():
            kept = tensor.detach().clone()
            work = self.real[0](kept, peer, tag=FIRST_TAG + self.count["to", peer])
        self.under_way = [one for one in self.under_way if not one[0].is_completed()]
        self.under_way.append((work, kept))

    def expect(self, tensor: torch.Tensor, peer: int) -> Any:
        self.count["from", peer] += 1
        with _disable_current_modes():
            return self.real[1](tensor, peer, tag=FIRST_TAG + self.count["from", peer])


class OnHost(TorchFunctionMode):
    """Has tensors that are wanted on ``cuda`` made in host memory, where the virtual GPU is."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.device:
            return func(*args, **kwargs)
        if func is torch.Tensor.pin_memory:
            return args[0]
        kwargs.pop("pin_memory", None)
        if str(kwargs.get("device", "")).startswith("cuda"):
            kwargs["device"] = "cpu"
        args = tuple("cpu" if _is_cuda(value) else value for value in args)
        return func(*args, **kwargs)


def _is_cuda(value: Any) -> bool:
    return isinstance(value, str | torch.device) and str(value).startswith("cuda")


@contextmanager
def nccl(gpu: VirtualGpu, done: bool = True, carried: bool = False) -> Iterator[list[Work]]:
    """`torch.distributed` with NCCL on the virtual GPU; yields the sends.

    `done`: whether the host is notified of the end of each send; else a test sets it. `carried`: whether
    messages have content: then each process of the default group is a rank, and gloo carries them.
    """
    sends: list[Work] = []
    mail = _Mail() if carried else None
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())

        def isend(tensor: torch.Tensor, peer: int, group: Group) -> Work:
            sends.append(Work(group, tensor, write=False))
            sends[-1].done = done
            if mail is not None:
                mail.send(tensor, peer)
            return sends[-1]

        def irecv(tensor: torch.Tensor, src: int, group: Group) -> Work:
            work = Work(group, tensor, write=True)
            work.came = None if mail is None else mail.expect(tensor, src)
            return work

        patch.setattr(dist, "new_group", lambda ranks, **_: Group(gpu, tuple(ranks)))
        patch.setattr(dist, "isend", isend)
        patch.setattr(dist, "irecv", irecv)
        for name in ("zeros", "empty"):
            real = getattr(torch, name)
            patch.setattr(
                torch, name, lambda *a, real=real, device=None, **k: real(*a, **k)
            )  # "cuda" is here
        yield sends
