"""Activation checkpointing of the parts of a stage: dropped in F, recomputed before they are used.

A model marks its parts with `part`; a level says which of them are recomputed. Of such a part F keeps
the inputs, and handles in the place of the tensors that autograd saves. Recomputing runs the part
again with the random numbers and the autocast mode of F; its saved tensors fill the handles in
order, and its graph is discarded. So one graph serves B however it came about: C fills all handles
before B; where they are empty, B fills those of each part as it reaches it. (torch's non-reentrant
`checkpoint` works the same way, inside of the backward alone.)
"""

from __future__ import annotations

import re
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks
from torch.utils import _pytree as pytree

from ...errors import RuntimeFault
from .current import current, running
from .split import WeightQueue
from .stash import Handle, Slot, storage_key

STAGE, LAYER = "stage", "layer"
Place = tuple[int, int] | None
WITHIN = ("norms", "qkv", "attention", "mlp", "experts")  # parts of a layer, by `costs.recompute`
LEVELS = (
    f"{', '.join(WITHIN)} (or some of them, joined by +), full, full-50% (of the layers), stage"
)


@dataclass(frozen=True)
class Level:
    """Which parts of a stage are recomputed.

    Attributes:
        parts: their names. percent: of the layers, where whole layers are: the first ones.
    """

    name: str
    parts: frozenset[str]
    percent: int = 100

    def drops(self, part: str, place: Place) -> bool:
        """Whether it drops that part, the n-th of so many of its kind; one that does not know its
        place is dropped where all of its kind are."""
        if place is None:
            return part in self.parts and self.percent == 100
        at, count = place
        return part in self.parts and at < -(-self.percent * count // 100)

    def whole_layers(self, count: int) -> int | None:
        """Return how many of so many layers it drops whole; None where it drops parts of them."""
        return sum(self.drops(LAYER, (at, count)) for at in range(count)) or None


def level_of(name: str) -> Level:
    """Return the level of that name.

    ``stage``: the stage at once, its input is kept. ``full``: each layer, its input is kept;
    ``full-25%``: so many of the layers. Else parts within layers, as in ``norms+mlp``: norms and
    activation functions; queries, keys and values; the core of the attention; the up-projection and
    the activation function of the MLP or of the experts. Of these the outputs are dropped as well.

    Raises:
        RuntimeFault: where the runtime has no such level.
    """
    if name == STAGE:
        return Level(name, frozenset([STAGE]))
    if found := re.fullmatch(r"full(?:-(\d{1,2}|100)%)?", name):
        return Level(name, frozenset([LAYER]), int(found[1] or 100))
    parts = name.split("+")
    if set(parts) <= set(WITHIN):
        return Level(name, frozenset(parts))
    raise RuntimeFault(f"recomputation level {name!r}: the runtime has {LEVELS}")


def part(name: str, run: Callable[..., Any], *inputs: Any, place: Place = (0, 1)) -> Any:
    """Return ``run(*inputs)``, a part of a stage that a level may recompute.

    Args:
        run: draws the same numbers again with the same random state, and edits nothing in place
            but what it has made itself. Tensors that it finds elsewhere than in `inputs` stay alive.
        place: which of how many parts of that name in the stage; None: unknown.
    """
    dropping = current("dropping")
    return run(*inputs) if dropping is None else dropping.part(name, run, inputs, place)


def mark_layers(layers: Sequence[nn.Module]) -> None:
    """Make each of these modules of a stage a layer, which the levels ``full`` and ``full-50%``
    recompute; in place."""
    for at, layer in enumerate(layers):
        layer.forward = _Marked(layer.forward, (at, len(layers)))


def checkpoint(function: Callable[..., Any], *inputs: Any, **options: Any) -> Any:
    """Return ``function(*inputs)``, a layer that the level ``full`` recomputes: to be called in the
    place of ``torch.utils.checkpoint.checkpoint``, where the schedule is to decide. Keywords but those
    of torch's function go to `function`."""
    for own in ("use_reentrant", "preserve_rng_state", "determinism_check", "debug", "context_fn"):
        options.pop(own, None)
    return _layer(function, inputs, options, None)


class _Marked:
    """The forward of a layer, as a part."""

    def __init__(self, run: Callable[..., Any], place: Place) -> None:
        self.run, self.place = run, place

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        return _layer(self.run, inputs, options, self.place)


def _layer(
    run: Callable[..., Any], inputs: Sequence[Any], options: dict[str, Any], place: Place
) -> Any:
    """Run a layer as a part; tensors anywhere in its arguments are inputs."""
    leaves, spec = pytree.tree_flatten((tuple(inputs), options))
    return part(LAYER, partial(_called, run, spec), *leaves, place=place)


def _called(run: Callable[..., Any], spec: Any, *leaves: Any) -> Any:
    inputs, options = pytree.tree_unflatten(leaves, spec)
    return run(*inputs, **options)


class Dropping:
    """Runs the parts of one microbatch's F, and drops those that a level recomputes.

    Attributes:
        regions: the parts that were dropped.
    """

    def __init__(self, level: Level, slot: Slot, queue: WeightQueue, device: torch.device) -> None:
        self.level, self.slot, self.queue, self.device = level, slot, queue, device
        self.regions: list[Region] = []

    def part(self, name: str, run: Callable[..., Any], inputs: Sequence[Any], place: Place) -> Any:
        """Run a part; remember how to, where it is dropped. What is inside of it goes with it."""
        slot = self.slot
        if slot.region is not None or not self.level.drops(name, place):
            return run(*inputs)
        region = Region(slot, self.queue, run, inputs, self.device)
        self.regions.append(region)
        slot.region = region
        try:
            found = run(*inputs)
        finally:
            slot.region = None
        if name in WITHIN:
            region.drop_outputs(found, inputs)
        return found


class Region:
    """A part of a stage, in one microbatch, of which the inputs are kept.

    Args:
        slot: of the microbatch; its inputs are entries there like other saved tensors, and so can be
            offloaded.
        queue: where its linears put their weight gradients.
    """

    def __init__(
        self,
        slot: Slot,
        queue: WeightQueue,
        run: Callable[..., Any],
        inputs: Sequence[Any],
        device: torch.device,
    ) -> None:
        self.slot, self.queue, self.run = slot, queue, run
        self.inputs = [_Input(one, slot) for one in inputs]
        self.mode = _Mode(device)
        self.saved: list[tuple[weakref.ref[Handle] | None, torch.Size]] = []
        self.outputs: list[tuple[int, weakref.ref[Handle]]] = []
        self.last = -1  # of `saved`, that has a handle
        self.filled = 0
        self.done = False

    # -- in F ----------------------------------------------------------------------------------------

    def save(self, tensor: Tensor) -> Handle | Tensor:
        """Return a handle in place of a tensor that the part saves."""
        if storage_key(tensor) in self.slot.left_out:
            self.saved.append((None, tensor.shape))
            return tensor.detach()
        if self.slot.stays(storage_key(tensor)):
            self.saved.append((None, tensor.shape))
            return self.slot.keep(tensor)
        handle = Handle(tensor, None, self)
        self.last = len(self.saved)
        self.saved.append((weakref.ref(handle), tensor.shape))
        self.slot.handles.append(weakref.ref(handle))
        return handle

    def drop_outputs(self, found: Any, inputs: Sequence[Any]) -> None:
        """Drop the outputs as well: ops that save them get handles."""
        there = {storage_key(one) for one in inputs if isinstance(one, Tensor)}
        for at, tensor in enumerate(found if isinstance(found, tuple) else (found,)):
            if storage_key(tensor) not in there | set(self.slot.left_out):
                self.slot.drop_output(tensor, partial(self._save_output, at))

    def _save_output(self, at: int, tensor: Tensor) -> Handle:
        handle = Handle(tensor, None, self)
        self.outputs.append((at, weakref.ref(handle)))
        self.slot.handles.append(weakref.ref(handle))
        return handle

    # -- before B, or inside of it -------------------------------------------------------------------

    def recompute(self) -> None:
        """Run the part again and fill its handles; its inputs are released.

        It ends with the last tensor that is needed: what the part would do after that is left out.

        Raises:
            RuntimeFault: where it saves other tensors than in F.
        """
        if self.done:
            return
        self.done = True
        inputs, self.inputs = self.inputs, []
        found: Any = ()
        with (
            self.mode.again(),
            torch.enable_grad(),
            running(queue=self.queue),
            saved_tensors_hooks(self._fill, _unused),
        ):
            arguments = [one.again(self.slot) for one in inputs]
            inputs.clear()
            try:
                found = self.run(*arguments)
            except _Enough:
                return
        self._fill_outputs(found if isinstance(found, tuple) else (found,))
        if self.filled != len(self.saved):
            raise self._other(f"it saves {self.filled} tensors, F saved {len(self.saved)}")

    def _fill(self, tensor: Tensor) -> None:
        at, self.filled = self.filled, self.filled + 1
        ref, shape = self.saved[at] if at < len(self.saved) else (None, None)
        if shape != tensor.shape:
            raise self._other(f"it saves a tensor {tuple(tensor.shape)} where F saved {shape}")
        handle = None if ref is None else ref()
        if handle is not None:
            handle.fill(tensor, self.slot.entry(tensor))
        if at == self.last and not self.outputs:
            raise _Enough

    def _fill_outputs(self, found: Sequence[Tensor]) -> None:
        for at, ref in self.outputs:
            handle = ref()
            if handle is not None:
                offset, shape, stride, _ = handle.layout
                again = found[at].detach().as_strided(shape, stride, offset)
                handle.fill(again, self.slot.entry(again))

    def _other(self, problem: str) -> RuntimeFault:
        return self.slot.fault("recomputing ", f"{problem}; a stage has to repeat its F exactly")


class _Input:
    """An argument of a part: a tensor that is kept as any saved tensor is, or something else."""

    def __init__(self, value: Any, slot: Slot) -> None:
        self.tensor = isinstance(value, Tensor)
        self.needs_grad = self.tensor and value.requires_grad
        self.kept = slot.pack(value) if self.tensor else value

    def again(self, slot: Slot) -> Any:
        """Return the argument; a tensor is a leaf of the graph that is built now."""
        if not self.tensor:
            return self.kept
        return slot.unpack(self.kept).detach().requires_grad_(self.needs_grad)


class _Mode:
    """The state of the random generators, and the autocast mode, when it was made."""

    def __init__(self, device: torch.device) -> None:
        self.gpus = [device] if device.type == "cuda" else []
        self.random = torch.get_rng_state()
        self.on_gpus = [torch.cuda.get_rng_state(gpu) for gpu in self.gpus]
        self.cache = torch.is_autocast_cache_enabled()
        self.cast = [
            (kind, torch.is_autocast_enabled(kind), torch.get_autocast_dtype(kind))
            for kind in dict.fromkeys(("cpu", device.type))
        ]

    @contextmanager
    def again(self) -> Iterator[None]:
        """Inside the block, use the random state and autocast mode of F; restore the present ones afterwards."""
        with torch.random.fork_rng(self.gpus), ExitStack() as stack:
            for kind, enabled, dtype in self.cast:
                stack.enter_context(
                    torch.autocast(kind, dtype, enabled=enabled, cache_enabled=self.cache)
                )
            torch.set_rng_state(self.random)
            for gpu, state in zip(self.gpus, self.on_gpus, strict=True):
                torch.cuda.set_rng_state(state, gpu)
            yield


class NoSuchPart(RuntimeFault):
    """A stage has nothing that the level drops."""


class _Enough(Exception):
    """Ends a recomputation once all that was dropped is there again."""


def _unused(_: Any) -> Tensor:
    raise AssertionError("the graph of a recomputation is never used")
