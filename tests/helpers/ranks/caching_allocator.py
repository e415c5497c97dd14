"""torch's caching allocator on a GPU, as a model: blocks, segments, a cap, and the workspace of cuBLAS.

It follows every storage that ops of this thread make, as `LiveBytes` does, and answers for
`torch.cuda`'s statistics. Sizes are torch's: blocks of 512 bytes; segments of 2 MiB for blocks up to
1 MiB, of 20 MiB up to 10 MiB, else as large as the block, rounded to 2 MiB; a rest of up to 1 MiB of a
large block is not split off.
"""

from __future__ import annotations

import itertools
import weakref
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from optpipe_sim.runtime.measure.memory import COUNTS, LiveBytes

KIB, MIB = 2**10, 2**20
WORKSPACE = 32 * MIB
GEMMS = {torch.ops.aten.mm.default, torch.ops.aten.addmm.default, torch.ops.aten.bmm.default}


@dataclass(eq=False)
class Block:
    """A part of a segment."""

    size: int
    small: bool
    segment: int
    free: bool = True
    requested: int = 0
    after: Block | None = None
    before: Block | None = None


class CachingAllocator(LiveBytes):
    """While it is entered, storages made by ops live on a GPU of `total` bytes."""

    def __init__(self, total: int = 1 << 40, workspace: int = WORKSPACE) -> None:
        super().__init__()
        self.total = self.allowed = total
        self.workspace: int = workspace
        self.kept: list[Block] = []
        self.blocks: list[Block] = []
        self.segments = itertools.count()
        self.current = dict.fromkeys(COUNTS, 0)
        self.peak_of = dict.fromkeys(COUNTS, 0)

    # -- what torch asks -------------------------------------------------------------------------

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Have `torch.cuda` ask this allocator; its Python code stays torch's own."""
        facts = type("Properties", (), {"total_memory": self.total, "name": "model"})()
        for at, name, stand_in in (
            (torch.cuda.memory, "_lazy_init", lambda: None),
            (torch.cuda.memory, "is_initialized", lambda: True),
            (torch.cuda, "current_device", lambda: 0),
            (torch.cuda, "get_device_properties", lambda device=None: facts),
            (torch._C, "_cuda_memoryStats", self.stats),
            (torch._C, "_cuda_resetPeakMemoryStats", self.reset),
            (torch._C, "_cuda_setMemoryFraction", self.cap),
            (torch._C, "_cuda_emptyCache", self.empty_cache),
        ):
            monkeypatch.setattr(at, name, stand_in, raising=False)

    def stats(self, device: int) -> dict[str, Any]:
        assert isinstance(device, int)
        return {
            f"{key}_bytes": {"all": {"current": self.current[key], "peak": self.peak_of[key]}}
            for key in COUNTS
        }

    def reset(self, device: int) -> None:
        assert isinstance(device, int)
        self.peak_of = dict(self.current)

    def cap(self, fraction: float, device: int) -> None:
        assert isinstance(device, int)
        self.allowed = int(fraction * self.total)

    def empty_cache(self) -> None:
        for block in [b for b in self.blocks if b.free and not (b.before or b.after)]:
            self.blocks.remove(block)
            self._count("reserved", -block.size)

    # -- what ops do -----------------------------------------------------------------------------

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in GEMMS and not self.kept:
            self.kept.append(self.malloc(self.workspace))
        return super().__torch_dispatch__(func, types, args, kwargs)

    def _watch(self, storage: torch.UntypedStorage, size: int) -> None:
        key = storage._cdata
        if key in self._known:
            return
        block = self.malloc(size) if size else None
        self._known[key] = weakref.ref(storage, self._forget(key)), block  # type: ignore

    def _forget(self, key: int) -> Any:
        def forget(_: Any) -> None:
            block: Any = self._known.pop(key)[1]
            if block is not None:
                self.release(block)

        return forget

    def malloc(self, requested: int) -> Block:
        size = max(512, -(-requested // 512) * 512)
        small = size <= MIB
        fits = [b for b in self.blocks if b.free and b.small is small and b.size >= size]
        block = min(fits, key=lambda b: b.size) if fits else self._segment(size, small)
        rest = block.size - size
        if rest >= 512 if small else rest > MIB:
            other = Block(rest, small, block.segment, after=block.after, before=block)
            if block.after:
                block.after.before = other
            block.after, block.size = other, size
            self.blocks.append(other)
        block.free, block.requested = False, requested
        self._count("requested", requested)
        self._count("allocated", block.size)
        return block

    def _segment(self, size: int, small: bool) -> Block:
        large = 20 * MIB if size < 10 * MIB else -(-size // (2 * MIB)) * 2 * MIB
        room = 2 * MIB if small else large
        if self.current["reserved"] + room > self.allowed:
            self.empty_cache()
        if self.current["reserved"] + room > self.allowed:
            raise torch.OutOfMemoryError(f"CUDA out of memory: {room} bytes")
        self._count("reserved", room)
        self.blocks.append(Block(room, small, next(self.segments)))
        return self.blocks[-1]

    def release(self, block: Block) -> None:
        self._count("requested", -block.requested)
        self._count("allocated", -block.size)
        block.free = True
        if block.before is not None and block.before.free:
            block = self._merge(block.before)
        if block.after is not None and block.after.free:
            self._merge(block)

    def _merge(self, one: Block) -> Block:
        """A free block and the free one after it."""
        two = one.after
        assert two is not None
        one.size += two.size
        one.after = two.after
        if two.after is not None:
            two.after.before = one
        self.blocks.remove(two)
        return one

    def _count(self, key: str, size: int) -> None:
        self.current[key] += size
        self.peak_of[key] = max(self.peak_of[key], self.current[key])
