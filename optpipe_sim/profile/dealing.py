"""How many layers each stage gets, by what the layers cost."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ..errors import ProfileError


@lru_cache(maxsize=512)
def deal_layers(
    costs: tuple[float, ...],
    first: float,
    last: float,
    placement: tuple[int, ...],
    name: str = "the model",
) -> tuple[int, ...]:
    """Return the layers per stage, in model order, that give devices work as equal as whole layers allow.

    The busiest device comes first, then the longest stage, then how alike devices are. With one stage
    per device that is the best split there is; with several, what moves of single layers make of the split
    whose longest stage is shortest.

    Args:
        costs: the time of each layer. `first` and `last`: those of the embedding and of the head, which
            stay on the first and the last stage; these may have no layer at all.
        placement: the device of each stage.

    Raises:
        ProfileError: if there are more stages than layers, embedding and head.
    """
    counts = _shortest(costs, first, last, len(placement), name)
    if len(set(placement)) < len(placement):
        counts = _even_devices(counts, costs, first, last, placement)
    return tuple(counts)


def _even_devices(
    counts: Sequence[int],
    costs: Sequence[float],
    first: float,
    last: float,
    placement: Sequence[int],
) -> list[int]:
    """Move single layers between stages while that improves the layout; see `deal_layers`."""
    stages = len(placement)
    ends = np.concatenate([[0.0], np.cumsum(np.asarray(costs, float))])
    whole = (ends[-1] + first + last) or 1.0
    least = np.ones(stages, int)
    least[[0, -1]] = 0
    on = np.eye(max(placement) + 1)[list(placement)]  # (stages, devices)
    moves = np.array([(a, b) for a in range(stages) for b in range(stages) if a != b])

    def keys(layouts: np.ndarray) -> np.ndarray:
        """What is compared, to 1e-9 of the whole: (layouts, 3)."""
        until = np.cumsum(layouts, axis=1)
        times = ends[until] - ends[until - layouts]
        times[:, 0] += first
        times[:, -1] += last
        devices = times @ on
        squares = (devices**2).sum(axis=1) / whole
        found = np.stack([devices.max(axis=1), times.max(axis=1), squares], axis=1)
        return np.asarray(np.round(found / whole, 9))

    best = np.asarray(counts)
    value = tuple(keys(best[None])[0])
    while True:
        able = moves[best[moves[:, 0]] > least[moves[:, 0]]]
        if not len(able):
            break
        others = np.repeat(best[None], len(able), axis=0)
        rows = np.arange(len(able))
        others[rows, able[:, 0]] -= 1
        others[rows, able[:, 1]] += 1
        found = keys(others)
        at = int(np.lexsort(found.T[::-1])[0])
        if tuple(found[at]) >= value:
            break
        best, value = others[at], tuple(found[at])
    return [int(count) for count in best]


def _shortest(
    costs: Sequence[float], first: float, last: float, stages: int, name: str
) -> list[int]:
    """Return the layers per stage that make the longest stage as short as possible; among the best splits the
    one whose other stages are most alike."""
    layers = len(costs)
    if stages > layers + 2 or (stages > layers and stages < 3):
        raise ProfileError(
            f"stages: {stages} (devices along the pipeline x chunks), but {name} has {layers} layers;"
            f" at most {layers + 2} stages, the embedding and the head on their own"
        )
    if stages > 2 and max(costs) == min(costs):
        return _equal_layers(layers, costs[0], first, last, stages)
    ends = np.concatenate([[0.0], np.cumsum(np.asarray(costs, float))])
    reach = np.full(layers + 1, np.inf)  # best (slowest stage) for the layers up to here
    square = np.full(layers + 1, np.inf)
    choices = []
    scale = (ends[-1] + first + last) or 1.0
    for stage in range(stages):
        load = ends[None, :] - ends[:, None]  # [from, to]
        load = load + (first if stage == 0 else 0.0) + (last if stage == stages - 1 else 0.0)
        empty_ok = stage in (0, stages - 1)
        allowed = np.triu(np.ones_like(load, bool), 0 if empty_ok else 1)
        load = np.where(allowed, load, np.inf)
        if stage == 0:
            worst, squares = load[:1], load[:1] ** 2
        else:
            worst = np.maximum(reach[:, None], load)
            squares = square[:, None] + load**2
        # slowest stage first, to 1e-9 of the whole; then the spread
        key = np.where(np.isfinite(worst), np.round(worst / scale, 9), np.inf)
        best = key.min(axis=0)
        ranked = np.where(key == best[None, :], squares, np.inf)
        choice = ranked.argmin(axis=0)
        columns = np.arange(layers + 1)
        reach, square = worst[choice, columns], squares[choice, columns]
        choices.append(choice)
    counts, at = [], layers
    for choice in reversed(choices):
        counts.append(at - int(choice[at]))
        at = int(choice[at])
    return counts[::-1]


def _equal_layers(layers: int, each: float, first: float, last: float, stages: int) -> list[int]:
    """`_shortest` for layers that all cost the same: both ends tried, the middle spread evenly."""
    middle = stages - 2
    most = min(layers, -(-layers // middle))
    heads, tails = np.divmod(np.arange((most + 1) ** 2), most + 1)
    lows, mores = np.divmod(layers - heads - tails, middle)
    ends = first + heads * each, last + tails * each
    slowest = np.maximum(np.maximum(*ends), (lows + (mores > 0)) * each)
    squares = ends[0] ** 2 + ends[1] ** 2
    squares = squares + (mores * (lows + 1) ** 2 + (middle - mores) * lows**2) * each * each
    # no stage in the middle is without a layer
    key = np.where(lows > 0, np.round(slowest / each, 9), np.inf)
    at = int(np.where(key == key.min(), squares, np.inf).argmin())
    head, tail = int(heads[at]), int(tails[at])
    low, more = divmod(layers - head - tail, middle)
    # earlier stages hold more microbatches, so the stages with more layers come last
    return [head] + [low] * (middle - more) + [low + 1] * more + [tail]
