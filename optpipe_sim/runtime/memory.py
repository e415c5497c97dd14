"""Bytes that live on a device, measured: on CPU (and on fake tensors) by watching every storage that
ops make until it dies, on CUDA by the allocator's own statistics (which no GPU has confirmed yet)."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from types import TracebackType
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class Meter(Protocol):
    """Counts bytes while it is entered, from 0 at the start."""

    def __enter__(self) -> Any: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> Any: ...

    def held(self) -> int:
        """Bytes that live now."""

    def peak(self) -> int:
        """The most since `reset_peak`."""

    def reset_peak(self) -> None:
        """Start a new peak at what is held now."""

    def add(self, storage: torch.UntypedStorage) -> None:
        """A storage that another thread has made."""


def meter(device: str | torch.device) -> Meter:
    """What measures on that device."""
    return CudaBytes(device) if torch.device(device).type == "cuda" else LiveBytes()


class LiveBytes(TorchDispatchMode):
    """Storages that the ops of this thread make, until nothing refers to them any more.

    What a kernel allocates and frees within itself is not seen. Storages that were there before
    do not count, whatever views of them are made. Slows every op down by some 20 us: no time is
    to be measured with it.
    """

    def __init__(self) -> None:
        super().__init__()
        self._held = self._peak = 0
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._lock = threading.RLock()

    def held(self) -> int:
        """Bytes that live now."""
        return self._held

    def peak(self) -> int:
        """The most since `reset_peak`."""
        return self._peak

    def reset_peak(self) -> None:
        """Start a new peak at what is held now."""
        self._peak = self._held

    def add(self, storage: torch.UntypedStorage) -> None:
        """Count a storage, once."""
        self._watch(storage, storage.nbytes())

    def _watch(self, storage: torch.UntypedStorage, size: int) -> None:
        key = storage._cdata
        with self._lock:
            if key in self._known:
                return
            self._known[key] = weakref.ref(storage, self._forget(key)), size
            self._held += size
            self._peak = max(self._peak, self._held)

    def _forget(self, key: int) -> Callable[[Any], None]:
        def forget(_: Any) -> None:
            with self._lock:
                self._held -= self._known.pop(key)[1]

        return forget

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Run the op; what comes in unknown is not ours, what comes out unknown is new."""
        kwargs = kwargs or {}
        for value in tree_iter((args, kwargs)):
            if isinstance(value, torch.Tensor):
                self._watch(value.untyped_storage(), 0)
            elif isinstance(value, torch.UntypedStorage):  # host memory, see `stash.HostSlab`
                self._watch(value, 0)
        found = func(*args, **kwargs)
        for value in tree_iter(found):
            if isinstance(value, torch.Tensor):
                self.add(value.untyped_storage())
        return found


class CudaBytes:
    """Bytes allocated on one GPU by this process, less those at the start."""

    def __init__(self, device: str | torch.device) -> None:
        self.device = torch.device(device)
        self._start = 0

    def __enter__(self) -> CudaBytes:
        self._start = torch.cuda.memory_allocated(self.device)
        self.reset_peak()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        return None

    def held(self) -> int:
        """Bytes that live now."""
        return torch.cuda.memory_allocated(self.device) - self._start

    def peak(self) -> int:
        """The most since `reset_peak`."""
        return torch.cuda.max_memory_allocated(self.device) - self._start

    def reset_peak(self) -> None:
        """Start a new peak at what is held now."""
        torch.cuda.reset_peak_memory_stats(self.device)

    def add(self, storage: torch.UntypedStorage) -> None:
        """The allocator knows already."""


class CappedCudaBytes(CudaBytes):
    """`CudaBytes` that allows no more than `room_bytes` beyond what is allocated at the start.

    Afterwards `inside` and `reserved` are the most that was allocated, and what torch had taken
    for it. Not yet tried on a GPU.
    """

    def __init__(self, device: str | torch.device, room_bytes: int | None = None) -> None:
        super().__init__(device)
        self.room_bytes = room_bytes
        self.inside = self.reserved = 0

    def __enter__(self) -> CappedCudaBytes:
        torch.cuda.empty_cache()
        super().__enter__()
        if self.room_bytes is not None:
            total = torch.cuda.get_device_properties(self.device).total_memory
            share = min(1.0, (self._start + self.room_bytes) / total)
            torch.cuda.set_per_process_memory_fraction(share, self.device)
        return self

    def __exit__(self, *error: Any) -> None:
        self.inside = self.peak()
        self.reserved = torch.cuda.max_memory_reserved(self.device)
        if self.room_bytes is not None:
            torch.cuda.set_per_process_memory_fraction(1.0, self.device)
