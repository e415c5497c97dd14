"""What F saves for B, storage by storage: offloaded, dropped and reloaded where a schedule says so.

Autograd's saved tensors pass through `Slot.saving`, one slot per stage and microbatch. Each storage
is one entry however many tensors view it; parameters, buffers and the batch are left out by their
storage. Autograd's nodes own the entries, a slot only knows them: so B frees them one by one as a
plain backward pass does.

The order of streams and events on CUDA follows from the rules of its caching allocator; no GPU has
confirmed it yet.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from ...errors import RuntimeFault

SLAB_BYTES = 1 << 28  # pinned allocations round up to powers of two: this is one
ALIGNMENT = 512


class Entry:
    """One storage: on the device, on the host, or both. `stays`: keys and values that later slices read,
    never dropped, and moved only by an offload that says so."""

    def __init__(self, storage: torch.UntypedStorage, device: torch.device) -> None:
        self.storage: torch.UntypedStorage | None = storage
        self.device = device
        self.size = storage.nbytes()
        self.host: Tensor | None = None
        self.stays = False


class Dropped(Protocol):
    """A part of a stage of which F keeps the inputs alone; see `recompute.Region`."""

    def save(self, tensor: Tensor) -> Handle | Tensor:
        """Return what stands for a tensor that the part saves, in F."""

    def recompute(self) -> None:
        """Run the part again and fill its handles."""


class Handle:
    """What autograd keeps of one saved tensor: how it views its entry.

    `witness` is the saved tensor without its graph; it shares the version counter, which shows edits in place.
    After it is released, `layout` stays. A handle of a `region` has no entry until the region is recomputed.
    """

    __slots__ = ("__weakref__", "entry", "layout", "region", "version", "witness")

    def __init__(self, tensor: Tensor, entry: Entry | None, region: Dropped | None = None) -> None:
        self.region = region
        self.layout: tuple[Any, ...] = _layout(tensor)
        self.entry: Entry | None = None
        self.witness: Tensor | None = None
        self.version = 0
        if entry is not None:
            self.fill(tensor, entry)

    def fill(self, tensor: Tensor, entry: Entry) -> None:
        """Set the tensor."""
        self.entry, self.witness, self.version = entry, tensor.detach(), tensor._version


class HostSlab:
    """Host memory in large slabs, allocated storage by storage; pinned for CUDA, pageable otherwise.

    A reload may still read a piece that is released: `release` is passed the event at which it ends, and the
    stream that next uses the piece waits for that event. The rest of a slab is kept for smaller pieces.

    Attributes:
        reserved: bytes of all slabs.
    """

    def __init__(self, pinned: bool) -> None:
        self.pinned = pinned
        self.reserved = 0
        self._rests: list[Tensor] = []
        self._free: dict[int, list[tuple[Tensor, Any]]] = {}
        self._lock = threading.Lock()

    def reserve(self, sizes: Iterable[int]) -> None:
        """Allocate pieces of these sizes in advance: pinning host memory takes long and should not happen in a
        timed step."""
        for piece in [self.allocate(size) for size in sorted(sizes, reverse=True)]:
            self.release(piece)

    def allocate(self, size: int) -> Tensor:
        """Return `size` bytes of host memory, contiguous."""
        room = max(1, -(-size // ALIGNMENT)) * ALIGNMENT
        with self._lock:
            free = self._free.get(room)
            if free:
                # one that is no longer read, if there is one
                at = next((i for i, (_, end) in enumerate(free) if end is None or end.query()), 0)
                piece, end = free.pop(at)
                if end is not None:
                    torch.cuda.current_stream().wait_event(end)
                return piece[:size]
            return self._cut(room)[:size]

    def _cut(self, room: int) -> Tensor:
        """Cut a piece from the first slab with enough left, or from a new one."""
        at = next((i for i, rest in enumerate(self._rests) if rest.numel() >= room), None)
        if at is None:
            slab = max(SLAB_BYTES, 1 << (room - 1).bit_length()) if self.pinned else room
            self.reserved += slab
            rest = _host_memory(slab, self.pinned)
        else:
            rest = self._rests.pop(at)
        piece, rest = rest[:room], rest[room:]
        if rest.numel():
            self._rests.append(rest)
            self._rests.sort(key=Tensor.numel)  # the tightest fit first
        return piece

    def release(self, piece: Tensor, end: Any = None) -> None:
        """Release a piece; it is free once the event `end` has passed."""
        room = max(1, -(-piece.numel() // ALIGNMENT)) * ALIGNMENT
        whole = piece.as_strided((room,), (1,))
        with self._lock:
            self._free.setdefault(room, []).append((whole, end))


class Slot:
    """The saved tensors of one stage and microbatch.

    Its `state` goes one way: ``kept`` on the device; ``copying`` and ``copied`` in `offload`, with both
    copies; then ``dropped``, with the host's alone; ``allocated``, with device memory that is not filled
    yet; ``back``. A method called in another state raises, so no tensor is used where it is not. Entries
    that stay (keys and values of earlier slices) and parts that are recomputed take no part in this.
    Every piece of host memory is back in the slab after `reload` or `close`.

    Args:
        name: ``"2.5"``, stage and microbatch, for messages. `where`: the device, likewise.
        left_out: keys (`storage_key`) of the storages that are no activations.
        slab: host memory for offloads.
        allocated: called with every storage that a reload allocates.
    """

    def __init__(
        self,
        name: str,
        where: str,
        left_out: Collection[int],
        slab: HostSlab,
        allocated: Callable[[torch.UntypedStorage], None] | None = None,
    ) -> None:
        self.name, self.where = name, where
        self.left_out, self.slab, self.allocated = left_out, slab, allocated
        self.state = "kept"
        self.entries: weakref.WeakValueDictionary[int, Entry] = weakref.WeakValueDictionary()
        self.region: Dropped | None = None  # the part that runs now, if its tensors are dropped
        # what stands for dropped outputs of parts, by their storage, while it lives
        self.outputs: dict[int, Callable[[Tensor], Handle]] = {}
        self.handles: list[weakref.ref[Handle]] = []
        self.pieces: list[Tensor] = []
        # CUDA events: the ends of the copies, and of the last read of what is on the host
        self.offloaded: Any = None
        self.reloaded: Any = None
        self.was_read: Any = None
        self._lock = threading.Lock()  # other slices read while a copy engine's thread moves

    def fault(self, op: str, problem: str) -> RuntimeFault:
        """Return a `RuntimeFault` that names the op and the device."""
        return RuntimeFault(f"{op}{self.name} on {self.where}: {problem}")

    # -- saving and using --------------------------------------------------------------------------

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Inside the block, the tensors that autograd saves go into this slot."""
        with torch.autograd.graph.saved_tensors_hooks(self.pack, self.unpack):
            yield

    def pack(self, tensor: Tensor) -> Handle | Tensor:
        """Return what autograd keeps in the place of a saved tensor."""
        key = storage_key(tensor)
        if self.region is not None:
            return self.region.save(tensor)
        # seeds of a GPU's attention: the host would write a piece that a stream may still read
        seed = self.slab.pinned and tensor.dim() == 0 and tensor.device.type == "cpu"
        if key in self.left_out or seed:
            return tensor.detach()  # with its graph it would hold itself
        if key in self.outputs and not self.stays(key):
            return self.outputs[key](tensor)
        return self.keep(tensor)

    def keep(self, tensor: Tensor, stays: bool = False) -> Handle:
        """Return a handle of a tensor; `stays`: its storage is never dropped, and the next ones to be saved of
        that storage are not either (see `Entry`)."""
        entry = self.entry(tensor)
        entry.stays |= stays
        handle = Handle(tensor, entry)
        self.handles.append(weakref.ref(handle))
        return handle

    def stays(self, key: int) -> bool:
        """Whether a storage is never dropped."""
        entry = self.entries.get(key)
        return entry is not None and entry.stays

    def unpack(self, packed: Handle | Tensor) -> Tensor:
        """Return the saved tensor; what was dropped is recomputed now.

        Raises:
            RuntimeFault: where it is on the host, or was edited in place.
        """
        if isinstance(packed, Tensor):
            return packed
        if packed.entry is None and packed.region is not None:
            packed.region.recompute()
        if packed.witness is not None:
            self._check(packed, "B")
            return packed.witness
        entry = packed.entry
        if entry is None or entry.storage is None or self.state != "back":
            raise self.fault(
                "B", f"its activation is on the host: R{self.name} has to come before (and O, drop)"
            )
        return _view(entry, packed.layout)

    def read(self, handle: Handle) -> Tensor:
        """Return a tensor that stays, for the backward of a later slice: where it is on the host, a copy of
        it, made on the current stream."""
        with self._lock:
            if handle.witness is not None:
                return handle.witness
            entry = handle.entry
            assert entry is not None
            if entry.host is None:
                if self.reloaded is not None:
                    torch.cuda.current_stream().wait_event(self.reloaded)
                return _view(entry, handle.layout)
            again = torch.empty(entry.size, dtype=torch.uint8, device=entry.device)
            again.copy_(entry.host, non_blocking=True)
            self.was_read = _event()
            *view, dtype = handle.layout
            return torch.empty(0, dtype=dtype, device=entry.device).set_(
                again.untyped_storage(), *view
            )

    def entry(self, tensor: Tensor) -> Entry:
        """Return the entry of the storage of a tensor."""
        key = storage_key(tensor)
        entry = self.entries.get(key)
        if entry is None:
            entry = self.entries[key] = Entry(tensor.untyped_storage(), tensor.device)
        return entry

    def drop_output(self, tensor: Tensor, save: Callable[[Tensor], Handle]) -> None:
        """Replace this storage, wherever it is saved from now on, by the handle that `save` returns."""
        key = storage_key(tensor)
        self.outputs[key] = save
        # the next storage may have the same key
        weakref.finalize(tensor.untyped_storage(), self.outputs.pop, key, None).atexit = False

    def _check(self, handle: Handle, op: str) -> None:
        witness = handle.witness
        if witness is not None and witness._version != handle.version:
            raise self.fault(
                op,
                f"a tensor {tuple(witness.shape)} that F{self.name} saved was edited in place"
                f" afterwards (version {witness._version}, saved as {handle.version}); edit a copy"
                " instead",
            )

    def _living(self, op: str) -> list[Handle]:
        found = [handle for ref in self.handles if (handle := ref()) is not None]
        for handle in found:
            self._check(handle, op)
        return found

    def storages(self, stays: bool = True) -> Iterator[tuple[int, int]]:
        """Yield key and bytes of every storage that is on the device; without `stays`, of those that may be
        offloaded at any time."""
        for entry in list(self.entries.values()):
            if entry.storage is not None and (stays or not entry.stays):
                yield entry.storage._cdata, entry.size

    # -- the copies --------------------------------------------------------------------------------

    def offload(self, keys: bool = False) -> None:
        """Copy every entry to the host, on the current stream, keys and values that later slices read
        only where `keys` says so. The memory stays until `drop`."""
        if self.state != "kept":
            raise self.fault("O", f"offloaded twice (its activation is {self.state})")
        self._living("O")
        self.state = "copying"
        for entry in list(self.entries.values()):
            if entry.stays and not keys:
                continue
            entry.host = self.slab.allocate(entry.size)
            self.pieces.append(entry.host)
            entry.host.copy_(_bytes(entry), non_blocking=True)
        self.offloaded = _event()
        self.state = "copied"

    def drop(self, compute: Any = None) -> None:
        """Release the device memory; on CUDA the stream `compute` waits for the copies first."""
        if self.state != "copied":
            problem = {"kept": "its O has not run", "copying": "its O is still copying"}
            raise self.fault("drop ", problem.get(self.state, f"it is {self.state} already"))
        if compute is not None and self.offloaded is not None:
            compute.wait_event(self.offloaded)
        with self._lock:
            for handle in self._living("drop "):
                if handle.entry is None or handle.entry.host is not None:
                    handle.witness = None
            for entry in list(self.entries.values()):
                if entry.host is not None:
                    entry.storage = None
            self.state = "dropped"

    def allocate(self) -> None:
        """Allocate device memory for a reload, on the current stream; device memory rises here."""
        if self.state != "dropped":
            problem = "nothing was dropped" if self.state in ("kept", "copied") else "twice"
            raise self.fault("R", f"{problem} (its activation is {self.state})")
        moved = [(key, entry) for key, entry in self.entries.items() if entry.host is not None]
        for key, _ in moved:
            del self.entries[key]
        for _, entry in moved:
            made = torch.empty(entry.size, dtype=torch.uint8, device=entry.device)
            entry.storage = made.untyped_storage()
            self.entries[entry.storage._cdata] = entry
            if self.allocated is not None:
                self.allocated(entry.storage)
        self.state = "allocated"

    def reload(self) -> None:
        """Copy everything back, on the current stream, into the memory from `allocate`."""
        if self.state != "allocated":
            raise self.fault("R", f"no memory was taken for it (its activation is {self.state})")
        with self._lock:
            if self.was_read is not None:  # the host memory is released below
                torch.cuda.current_stream().wait_event(self.was_read)
            for entry in list(self.entries.values()):
                if entry.host is not None:
                    _bytes(entry).copy_(entry.host, non_blocking=True)
                    entry.host = None
            self.reloaded = _event()
            self._release_pieces(self.reloaded)
            self.state = "back"

    def close(self) -> None:
        """Release everything, after B."""
        self._release_pieces(self.offloaded)
        self.handles.clear()
        self.outputs.clear()

    def _release_pieces(self, end: Any) -> None:
        """Return the host memory to the slab; a copy may use it until the event `end`."""
        for piece in self.pieces:
            self.slab.release(piece, end)
        self.pieces.clear()


def storage_key(tensor: Tensor) -> int:
    """Return the identity of a storage while it is alive."""
    return int(tensor.untyped_storage()._cdata)


def _view(entry: Entry, layout: tuple[Any, ...]) -> Tensor:
    """Return the tensor of that layout in a storage that is on the device."""
    *view, dtype = layout
    return torch.empty(0, dtype=dtype, device=entry.device).set_(entry.storage, *view)


def _layout(tensor: Tensor) -> tuple[Any, ...]:
    return tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype


def _host_memory(size: int, pinned: bool) -> Tensor:
    if pinned:
        return torch.empty(size, dtype=torch.uint8, pin_memory=True)
    # made by no op, so that `memory.LiveBytes`, which watches ops, does not count it as device memory
    return torch.empty(0, dtype=torch.uint8).set_(torch.UntypedStorage(size))


def _bytes(entry: Entry) -> Tensor:
    """Return the device's copy as plain bytes."""
    assert entry.storage is not None
    return _view(entry, (0, (entry.size,), (1,), torch.uint8))


def _event() -> Any:
    """Return an event on the current CUDA stream; None where there is no CUDA."""
    if not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    event = torch.cuda.Event()
    event.record()
    return event
