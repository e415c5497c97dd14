"""A model layer by layer: its items, and the stages made of contiguous runs of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from ..errors import ProfileError
from ..stage_cost import AMOUNTS, MAX_BYTES, RecomputeLevel, StageCost
from .dealing import deal_layers
from .parts import evenly, merge
from .streams import Line, Streams, exchange_ns, hidden_ns

EMBEDDING, HEAD, MTP = "embedding", "head", "mtp"  # every other name is that of a decoder layer
ENCODER = "encoder "  # or, where it begins so, of a layer of an encoder in front
PARTIAL = {"25%": 0.25, "50%": 0.5, "75%": 0.75}  # of the layers that a level recomputes whole
MOST_ITEMS = 4096
ROUNDING = 1e-4  # of an amount, where each item of a stage was rounded


@dataclass(frozen=True)
class Item:
    """One layer of a model; stages begin and end between items.

    Attributes:
        name: `EMBEDDING`, `HEAD` (with the last norm and the loss), `MTP`, or any other for a decoder
            layer.
        cost: of the item alone, as a stage of one layer.
        reserve_bytes: working memory that a stage needs once, whatever its number of such items.
        streams: what it does on the two streams of a pair, for pairs that hide its exchange; None: it
            only computes.
    """

    name: str
    cost: StageCost
    reserve_bytes: int = 0
    streams: Streams | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ProfileError(f"name: expected a text that names the layer, got {self.name!r}")
        if not 0 <= self.reserve_bytes <= MAX_BYTES:
            raise ProfileError(f"reserve_bytes: must be from 0 to 2^50, got {self.reserve_bytes}")
        if self.cost.slices:
            raise ProfileError(f"{self.name}: layers have the costs of whole sequences")
        if self.cost.layers != 1:
            object.__setattr__(self, "cost", replace(self.cost, layers=1))

    def costing(self, cost: StageCost) -> Item:
        """Return the same item with another cost."""
        return replace(self, cost=cost)

    @property
    def last(self) -> bool:
        """Whether it comes behind the layers of its stage."""
        return self.name == HEAD

    @property
    def paired_ns(self) -> int:
        """What it adds to the work of a device whose forwards and backwards run as one op: its work,
        less what these two hide of each other."""
        if self.streams is None:
            return self.cost.work_ns
        line = Line(0, 0, (self.streams,))
        return self.cost.work_ns - hidden_ns(line, line)

    @property
    def computing(self) -> Item:
        """The item without its exchange: pairs hide no more than that of both ops."""
        if self.streams is None:
            return self
        line = Line(0, 0, (self.streams,))
        cost, sent, returned = self.cost, exchange_ns(line, None), exchange_ns(None, line)
        return replace(
            self,
            cost=replace(
                cost,
                t_f_ns=max(1, cost.t_f_ns - sent),
                t_b_ns=max(1, cost.t_b_ns - returned),
                t_bw_ns=None if cost.t_bw_ns is None else max(1, cost.t_bw_ns - returned),
            ),
        )

    @property
    def decoder(self) -> bool:
        """Whether it is a decoder layer."""
        return self.name not in (EMBEDDING, HEAD, MTP)


class StageMaker:
    """Makes stages of runs of `items` for devices with `chunks` chunks; equal runs are cached."""

    def __init__(self, items: Sequence[Item], chunks: int) -> None:
        self.items, self.chunks = tuple(items), chunks
        kinds = {item: at for at, item in enumerate(dict.fromkeys(self.items))}
        self._kinds = [kinds[item] for item in self.items]
        self._made: dict[tuple[int, ...], StageCost] = {}

    def stage(self, first: int, last: int) -> StageCost:
        """Return the stage of the items from `first` on, before `last`."""
        key = tuple(self._kinds[first:last])
        if key not in self._made:
            self._made[key] = _stage(self.items[first:last], self.chunks)
        return self._made[key]


def _stage(items: Sequence[Item], chunks: int) -> StageCost:
    """Merge items into one stage. A device works on one stage at a time, so each of its `chunks` has a part of
    the reserve."""
    whole = merge([item.cost for item in items])
    return replace(
        whole,
        static_bytes=whole.static_bytes + max(item.reserve_bytes for item in items) // chunks,
        recompute=_levels([item.cost for item in items], whole),
    )


def _levels(costs: Sequence[StageCost], whole: StageCost) -> tuple[RecomputeLevel, ...]:
    """Return the levels of a stage: those of its layers, on all that have them; and of a level that
    recomputes whole layers, a quarter, half and three quarters of these, the first ones."""
    found: list[RecomputeLevel] = []
    for level in whole.recompute:
        having = [(cost, one) for cost in costs if (one := cost.level(level.name)) is not None]
        found.append(_ending(level, having, whole))
        if len(having) < 2 or any(one.layers != 1 for _, one in having):
            continue
        for share, part in PARTIAL.items():
            some = having[: -int(-part * len(having) // 1)]
            if len(some) == len(having):
                continue
            dropped = sum(cost.act_bytes - one.keep_bytes for cost, one in some)
            partial = replace(
                level,
                name=f"{level.name}-{share}",
                t_ns=sum(one.t_ns for _, one in some),
                keep_bytes=whole.act_bytes - dropped,
                layers=len(some),
            )
            found.append(_ending(partial, some, whole))
    return tuple(pareto(found))


def _ending(
    level: RecomputeLevel, having: Sequence[tuple[StageCost, RecomputeLevel]], whole: StageCost
) -> RecomputeLevel:
    """Return a level with the working memory of a split B, which ends holding what the W's of its layers need."""
    if level.b_work_bytes is None:
        return level
    last = max(cost.act_bytes - cost.w_bytes for cost, _ in having)
    after = max(0, whole.w_bytes - level.keep_bytes) + last
    most = max(level.b_work_bytes, after)
    return replace(level, b_work_bytes=min(most, whole.act_bytes - level.keep_bytes))


def adds_up(stage: StageCost, made: StageCost) -> bool:
    """Whether a stage is what its items make, but for the rounding of each of them."""
    if bool(stage.recompute) != bool(made.recompute):
        return False
    for key in AMOUNTS:
        one, other = getattr(stage, key), getattr(made, key)
        if (one is None) != (other is None):
            return False
        if one is not None and abs(one - other) > ROUNDING * other + 2 * (made.layers or 1):
            return False
    return True


def pareto(levels: Sequence[RecomputeLevel]) -> list[RecomputeLevel]:
    """Return the levels that no other one beats in both bytes and time, from the one that drops least to the one
    that drops most."""
    chosen: list[RecomputeLevel] = []
    for level in sorted(levels, key=lambda one: (-one.keep_bytes, -one.t_ns)):
        while chosen and chosen[-1].t_ns >= level.t_ns:
            chosen.pop()
        chosen.append(level)
    return chosen


def even_counts(items: int, stages: int) -> list[int]:
    """Distribute items evenly over stages; the first ones get one more.

    Raises:
        ProfileError: for more stages than items.
    """
    if stages > items:
        raise ProfileError(f"items: {items} layers cannot make {stages} stages")
    return evenly(items, stages)


def most_stages(items: Sequence[Item]) -> int:
    """Return how many stages `deal_items` can make: layers that predict further tokens stay with the head."""
    return len(items) - sum(item.name == MTP for item in items)


def deal_items(
    items: Sequence[Item], placement: Sequence[int], name: str = "the model", pairs: bool = False
) -> list[int]:
    """Return how many items each stage of `placement` gets, so that devices have work as equal as items allow;
    see `deal_layers`. Layers that predict further tokens stay with the head. With `pairs` work is what
    items take as one op (`Item.paired_ns`).

    Raises:
        ProfileError: for more stages than items.
    """
    end = most_stages(items) - 1  # of what stays on the last stage
    if len(placement) == 1:
        return [len(items)]
    work = [item.paired_ns if pairs else item.cost.work_ns for item in items]
    costs, last = tuple(work[1:end]), sum(work[end:])
    counts = deal_layers(costs, work[0], last, tuple(placement), name)
    return [counts[0] + 1, *counts[1:-1], counts[-1] + len(items) - end]


def decoder_layers(items: Sequence[Item], counts: Sequence[int]) -> list[int]:
    """Return how many decoder layers each stage of a layout has."""
    borders = [0, *accumulate(counts)]
    return [sum(item.decoder for item in items[a:b]) for a, b in pairwise(borders)]


def layout_words(items: Sequence[Item], counts: Sequence[int]) -> list[str]:
    """Describe what each stage of a layout holds, as in ``embedding + 3``."""
    words = []
    for first, last in pairwise([0, *accumulate(counts)]):
        names = [item.name for item in items[first:last] if not item.decoder]
        encoder = sum(item.name.startswith(ENCODER) for item in items[first:last])
        number = last - first - len(names) - encoder
        front = [name for name in names if name == EMBEDDING]
        front += [f"{encoder} of the encoder"] if encoder else []
        back = [name for name in names if name != EMBEDDING]
        words.append(" + ".join([*front, *([str(number)] if number else []), *back]))
    return words
