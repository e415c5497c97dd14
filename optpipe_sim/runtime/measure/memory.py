"""Measure the live bytes on a device: on CPU (and on fake tensors) by watching every storage from its creation
to its release, on CUDA by the allocator's own statistics (not confirmed on a GPU yet)."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

COUNTS = ("requested", "allocated", "reserved")


class Meter:
    """Counts bytes while it is entered, from 0 at the start."""

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *error: object) -> Any:
        return None

    def held(self) -> int:
        """Return the bytes that live now."""
        raise NotImplementedError

    def peak(self) -> int:
        """Return the most since `reset_peak`, as far as it was seen."""
        return self.held()

    def reset_peak(self) -> None:
        """Start a new peak at what is held now."""

    def add(self, storage: torch.UntypedStorage) -> None:
        """Count a storage that another thread has made, where nothing else counts it."""

    def taken(self) -> dict[str, int]:
        """Return the allocator's own peaks, by `COUNTS`; empty where there is no allocator."""
        return {}


def meter(device: str | torch.device, room_bytes: int | None = None) -> Meter:
    """Return the meter for that device; on a GPU with a cap (see `CudaBytes`)."""
    return CudaBytes(device, room_bytes) if torch.device(device).type == "cuda" else LiveBytes()


class LiveBytes(TorchDispatchMode, Meter):
    """Counts the storages that the ops of this thread make, until they are released.

    What a kernel allocates and frees within itself is not seen. Storages that existed before do not count, nor
    do views of them. Every op becomes some 20 us slower: do not measure times with it.
    """

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # nothing here is compiled: torch's wrapper would load its compiler, 2 s, with the first op

    def __init__(self) -> None:
        super().__init__()
        self._held = self._peak = 0
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}
        self._lock = threading.RLock()

    def held(self) -> int:
        return self._held

    def peak(self) -> int:
        return self._peak

    def reset_peak(self) -> None:
        self._peak = self._held

    def add(self, storage: torch.UntypedStorage) -> None:
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
        """Run the op; unknown inputs existed before, unknown outputs are new."""
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


class CudaBytes(Meter):
    """Counts the bytes that this process has requested from torch's allocator on one GPU, less those at the
    start.

    Requested bytes do not depend on rounding, fragmentation and caching in the allocator: those are in `taken`.

    Args:
        room_bytes: let the allocator reserve no more beyond what it has reserved for what is there at the start.
            The cap applies to the segments that are reserved from CUDA, so rounding and fragmentation have to fit
            as well. None: no cap.

    Attributes:
        cap_bytes: the cap.
        most: what was `taken`, after the end.
    """

    def __init__(self, device: str | torch.device, room_bytes: int | None = None) -> None:
        self.device, self.room_bytes = indexed(device), room_bytes
        self.cap_bytes: int | None = None
        self._start: dict[str, int] = dict.fromkeys(COUNTS, 0)
        self.most = dict(self._start)

    def __enter__(self) -> CudaBytes:
        torch.cuda.empty_cache()  # so that what is reserved from here on belongs to what follows
        self._start = self._count("current")
        self.reset_peak()
        if self.room_bytes is not None:
            total = torch.cuda.get_device_properties(self.device).total_memory
            self.cap_bytes = min(total, self._start["reserved"] + self.room_bytes)
            torch.cuda.set_per_process_memory_fraction(self.cap_bytes / total, self.device)
        return self

    def __exit__(self, *error: object) -> None:
        self.most = self.taken()
        if self.room_bytes is not None:
            torch.cuda.set_per_process_memory_fraction(1.0, self.device)

    def held(self) -> int:
        return self._count("current")["requested"] - self._start["requested"]

    def peak(self) -> int:
        return self._count("peak")["requested"] - self._start["requested"]

    def reset_peak(self) -> None:
        torch.cuda.reset_peak_memory_stats(self.device)

    def taken(self) -> dict[str, int]:
        """Return the most since `reset_peak` that was ``requested``, ``allocated`` for it (in blocks) and
        ``reserved`` (from CUDA), beyond what was at the start."""
        peaks = self._count("peak")
        return {key: peaks[key] - self._start[key] for key in COUNTS}

    def _count(self, what: str) -> dict[str, int]:
        stats = torch.cuda.memory_stats_as_nested_dict(self.device)
        return {key: int(stats[f"{key}_bytes"]["all"][what]) for key in COUNTS}


def indexed(device: str | torch.device) -> torch.device:
    """Return the device with its index, which some of torch's functions ask for."""
    place = torch.device(device)
    if place.type == "cuda" and place.index is None:
        return torch.device("cuda", torch.cuda.current_device())
    return place
