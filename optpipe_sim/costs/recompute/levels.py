"""Levels of recomputation from a model's shapes: the bytes that a stage can drop, and the time to recompute them.

Per layer there are a few *parts* that can be dropped after F and recomputed from the rest: norms
with activation functions and dropout, the scores of unfused attention (Korthikanti et al., arXiv
2205.05198, section 5: "selective"), queries, keys and values, the up-projection of the MLP or of
the experts. Dropped one after the other, the cheapest per byte first, they make a chain of levels.
Whole layers, of which only the input stays, continue it: a quarter, a half, three quarters and all
of the layers of a stage ("block" and "full" in Megatron-LM).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...profile.items import PARTIAL
from ...stage_cost import RecomputeLevel
from ..layer import Layer
from ..machines import Machine
from ..models import Model
from ..roofline import op_time, rerun, unpaired
from ..work import Work
from .regions import PARTS

WHOLE = {f"full-{name}": share for name, share in PARTIAL.items()} | {"full": 1.0}  # of the layers


class Part(NamedTuple):
    """A part that one layer can drop: bytes, and the seconds to recompute it."""

    size: int
    seconds: float


class Dropped(NamedTuple):
    """What a level drops of one stage: bytes, seconds to recompute them, the most bytes that one of
    its layers drops, and how many layers it drops whole (None: parts of all of them)."""

    size: float
    seconds: float
    most: float
    layers: int | None = None


def parts_of(layer: Layer, model: Model, machine: Machine, work: Work) -> dict[str, Part]:
    """Return the parts that a layer can drop, by name."""
    found = {}
    for name, region in PARTS.items():
        again = rerun(layer, region)
        if again is not None:
            size = sum(kept.size for kept in layer.kept if kept.name in region.drops)
            found[name] = Part(size, op_time(again, "F", machine, model, work).total)
    return found


class LayerDrops(NamedTuple):
    """What one layer can drop: its parts by name, and all of it but its input."""

    parts: dict[str, Part]
    whole: Part


def layer_drops(layer: Layer, model: Model, machine: Machine, work: Work) -> LayerDrops:
    """Return what a layer can drop, and the time to recompute it."""
    again = op_time(unpaired(layer), "F", machine, model, work).total
    whole = Part(layer.kept_bytes() - layer.input_bytes, again)
    return LayerDrops(parts_of(layer, model, machine, work), whole)


def stage_levels(
    layers: Sequence[tuple[LayerDrops, int]], act_bytes: int, w_bytes: int, factor: float
) -> tuple[RecomputeLevel, ...]:
    """Return the levels of a stage, from the fewest bytes dropped to the most.

    Args:
        layers: what each kind of layer of the stage can drop, and how many of it there are.
        act_bytes, w_bytes: of the stage, embedding and head included. `factor`: bytes in use per byte dropped.

    Levels that drop less than another one and take longer are left out. Layers are recomputed one
    after the other, so the working memory is that of one layer; a split backward ends holding what
    W needs of all of them.
    """
    count = sum(number for _, number in layers)
    dropping = _pareto(_drops(layers))
    levels = []
    for name, dropped in dropping.items():
        keep = max(0, act_bytes - round(dropped.size * factor))
        most = round(dropped.most * factor)
        after = max(0, w_bytes - keep) + max(0, act_bytes - w_bytes) // max(1, count)
        levels.append(
            RecomputeLevel(
                name,
                max(1, round(dropped.seconds * 1e9)),
                keep,
                min(most, act_bytes - keep),
                min(max(most, after), act_bytes - keep),
                dropped.layers,
            )
        )
    return tuple(levels)


def _drops(layers: Sequence[tuple[LayerDrops, int]]) -> dict[str, Dropped]:
    """Return what each level drops, by name."""
    found: dict[str, Dropped] = {}
    totals: dict[str, Part] = {}
    for own, number in layers:
        for name, part in own.parts.items():
            size, seconds = totals.get(name, Part(0, 0.0))
            totals[name] = Part(size + number * part.size, seconds + number * part.seconds)
    chain: list[str] = []
    for name in sorted(totals, key=lambda name: totals[name].seconds / totals[name].size):
        chain.append(name)
        most = max(
            sum(own.parts[one].size for one in chain if one in own.parts) for own, _ in layers
        )
        found["+".join(chain)] = Dropped(
            sum(totals[one].size for one in chain), sum(totals[one].seconds for one in chain), most
        )
    whole = [own.whole for own, number in layers for _ in range(number)]
    whole.sort(key=lambda part: part.seconds / max(part.size, 1))
    for name, share in WHOLE.items():
        some = whole[: -int(-share * len(whole) // 1)]
        if some:
            found[name] = Dropped(
                sum(size for size, _ in some),
                sum(seconds for _, seconds in some),
                max(size for size, _ in some),
                len(some),
            )
    return found


def _pareto(drops: Mapping[str, Dropped]) -> dict[str, Dropped]:
    """Return the Pareto-optimal ones in bytes and seconds, from the fewest bytes dropped to the most."""
    order = sorted(drops, key=lambda name: (drops[name].size, -drops[name].seconds))
    chosen: list[str] = []
    for name in order:
        while chosen and drops[chosen[-1]].seconds >= drops[name].seconds:
            chosen.pop()
        chosen.append(name)
    return {name: drops[name] for name in chosen}
