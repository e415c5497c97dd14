"""What a pair hides: its two ops layer by layer on two streams, one that computes and one that exchanges
experts' tokens.

A trainer that runs a forward and a backward as one op (Megatron-LM's combined 1F1B, DualPipe) runs layer
i of the forward beside layer L - 1 - i of the backward: while the tokens of one are on their way, the
other computes. Layers that are left over, where one of the two stages has more of them, have no partner,
and neither have forwards and backwards outside of pairs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from ..errors import ProfileError

COMPUTE, EXCHANGE = STREAMS = "compute", "exchange"
FORWARD = "before", "dispatch", "experts", "combine"  # the parts of a layer, as a forward has them
BACKWARD = FORWARD[::-1]
WEIGHTS = "experts", "before"
MOST_SLOWER = 2.0  # beyond it two streams take longer than one after the other

_STREAM = dict(zip(FORWARD, (COMPUTE, EXCHANGE) * 2, strict=True))


@dataclass(frozen=True)
class Streams:
    """What one layer does on the two streams, each part in ns.

    Attributes:
        forward: what it computes before its tokens leave (attention, norms, router, shared experts; all
            of a layer without experts), their way to the experts, what these compute, and the way back.
        backward: the same of its backward, in that order: combine, experts, dispatch, before.
        weights: gradients of weights that are apart from it, those of the experts and the rest: delayed,
            as with Megatron-LM's ``--delay-wgrad-compute``. Else they are in `backward`.
        again: a forward that the backward starts with (full recomputation), as `forward`.
        host: what the host takes to issue the forward, and the backward, beside what of both is in no
            kernel: a pair takes no less than that of all its layers.
        slower: how many times as long compute, and exchange, takes while the other stream works, from 1 to 2.

    Raises:
        ProfileError: names the part that is wrong.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    weights: tuple[int, ...] = (0, 0)
    again: tuple[int, ...] = (0, 0, 0, 0)
    host: tuple[int, ...] = (0, 0)
    slower: tuple[float, ...] = (1.0, 1.0)

    def __post_init__(self) -> None:
        for key, parts in PARTS.items():
            given = tuple(getattr(self, key))
            object.__setattr__(self, key, given)
            kinds = (int, float) if key == "slower" else int
            if len(given) != len(parts) or any(
                isinstance(one, bool) or not isinstance(one, kinds) for one in given
            ):
                raise ProfileError(f"{key}: expected {len(parts)} numbers: {', '.join(parts)}")
            if key == "slower":
                if not all(1 <= one <= MOST_SLOWER for one in given):
                    raise ProfileError(f"slower: must be from 1 to {MOST_SLOWER:g}, got {given}")
            elif min(given) < 0:
                raise ProfileError(f"{key}: must be at least 0, got {min(given)}")


PARTS = {
    "forward": FORWARD,
    "backward": BACKWARD,
    "weights": WEIGHTS,
    "again": FORWARD,
    "host": ("forward", "backward"),
    "slower": STREAMS,
}


class Part(NamedTuple):
    """A part of an op that runs on one stream.

    Attributes:
        name: what a picture calls it, op first: ``F0 dispatch``.
        ns: how long it takes alone. `slower`: how many times as long while the other stream works.
        after: the parts, by their place in the order of issue, that it waits for.
    """

    name: str
    stream: str
    ns: int
    after: tuple[int, ...] = ()
    slower: float = 1.0


class PartSpan(NamedTuple):
    """When a part ran, in ns from the start of its pair."""

    part: Part
    start_ns: float
    end_ns: float


def two_streams(parts: Sequence[Part]) -> list[PartSpan]:
    """Replay parts on the two streams, each in the order of issue: a part starts once its stream is free
    and what it waits for has ended. While both streams work, either takes `slower` times as long."""
    waiting = {
        stream: deque(at for at, part in enumerate(parts) if part.stream == stream)
        for stream in STREAMS
    }
    starts, ends = [0.0] * len(parts), [-1.0] * len(parts)
    running: dict[str, tuple[int, float]] = {}  # the part, and what is left of it alone
    now, ended = 0.0, 0
    while ended < len(parts):
        for stream, queue in waiting.items():
            ready = queue and all(ends[one] >= 0 for one in parts[queue[0]].after)
            if stream not in running and ready:
                at = queue.popleft()
                starts[at] = now
                running[stream] = at, float(parts[at].ns)
        if not running:
            raise ValueError("two_streams: parts wait for parts that are issued behind them")
        pace = {
            stream: parts[at].slower if len(running) > 1 else 1.0
            for stream, (at, _) in running.items()
        }
        step = min(left * pace[stream] for stream, (_, left) in running.items())
        now += step
        for stream, (at, left) in list(running.items()):
            if left * pace[stream] <= step:
                ends[at] = now
                ended += 1
                del running[stream]
            else:
                running[stream] = at, left - step / pace[stream]
    return [PartSpan(*one) for one in zip(parts, starts, ends, strict=True)]


class Line(NamedTuple):
    """An op of a stage: what it computes before its layers and after them (embedding, head), in ns, and
    its layers.

    A forward meets its layers in this order, a backward from the last one on.
    """

    first_ns: int
    last_ns: int
    layers: tuple[Streams, ...]


class _Issue:
    """Parts in the order in which a trainer issues them, and the last one of either op."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.last: dict[str, tuple[int, ...]] = {"F": (), "B": ()}

    def add(
        self, op: str, name: str, stream: str, ns: int, slower: Sequence[float] = (1, 1)
    ) -> None:
        """Issue the next part of an op; nothing for a part that takes no time."""
        if ns:
            self.apart(op, name, stream, ns, slower)
            self.last[op] = (len(self.parts) - 1,)

    def apart(
        self, op: str, name: str, stream: str, ns: int, slower: Sequence[float] = (1, 1)
    ) -> None:
        """Issue a part that waits for its op, but nothing of the op for it."""
        if ns:
            own = slower[STREAMS.index(stream)]
            self.parts.append(Part(f"{op}{name}", stream, ns, self.last[op], own))


def issued(forward: Line | None, backward: Line | None) -> list[Part]:
    """Return the parts of a pair, or of one op alone, in the order in which Megatron-LM issues them.

    Source: megatron/core/models/common/model_chunk_schedule_plan.py, commit d98e8a6 (both methods
    ``run``); a forward that runs again, branch dev, commit d48bd6b.
    """
    issue = _Issue()
    if forward is not None:
        issue.add("F", " embedding", COMPUTE, forward.first_ns)
    if backward is not None:
        issue.add("B", " head", COMPUTE, backward.last_ns)
    layers = forward.layers if forward is not None else ()
    others = backward.layers[::-1] if backward is not None else ()
    for at in range(max(len(layers), len(others))):
        mine = layers[at] if at < len(layers) else None
        other = others[at] if at < len(others) else None
        _layer(issue, at, mine, len(others) - 1 - at, other)
    if forward is not None:
        issue.add("F", " head", COMPUTE, forward.last_ns)
    if backward is not None:
        issue.add("B", " embedding", COMPUTE, backward.first_ns)
    return issue.parts


def _layer(issue: _Issue, at: int, f: Streams | None, behind: int, b: Streams | None) -> None:
    """Issue layer `at` of the forward, and layer `behind` of the backward."""

    def ahead(part: str) -> None:
        if f is not None:
            own = f.forward[FORWARD.index(part)]
            issue.add("F", f"{at} {part}", _STREAM[part], own, f.slower)

    def back(part: str) -> None:
        if b is not None:
            own = b.backward[BACKWARD.index(part)]
            issue.add("B", f"{behind} {part}", _STREAM[part], own, b.slower)

    def weights(part: str) -> None:
        if b is not None:
            own = b.weights[WEIGHTS.index(part)]
            issue.apart("B", f"{behind} weights of {part}", COMPUTE, own, b.slower)

    for part, ns in zip(FORWARD, b.again if b is not None else (), strict=False):
        assert b is not None
        issue.add("B", f"{behind} {part} again", _STREAM[part], ns, b.slower)
    back("combine")
    ahead("before")
    back("experts")
    ahead("dispatch")
    weights("experts")
    back("dispatch")
    ahead("experts")
    ahead("combine")
    back("before")
    weights("before")


class PairTimes(NamedTuple):
    """How long a pair takes, without what is in no kernel, in ns.

    Attributes:
        kernels: its kernels on the two streams. `alone`: those of its two ops one after the other, exchange and all.
        host: what the host takes to issue them; a pair takes no less.
    """

    kernels: float
    alone: int
    host: int

    @property
    def hidden(self) -> int:
        """What the pair takes less than the two ops one after the other."""
        return max(0, round(self.alone - max(self.kernels, self.host)))

    @property
    def host_is_late(self) -> bool:
        """Whether the host bounds the pair from below: its kernels wait to be issued."""
        return self.host > self.kernels


@lru_cache(maxsize=65536)
def pair_times(forward: Line, backward: Line) -> PairTimes:
    """Return how long the pair of two ops takes."""
    spans = two_streams(issued(forward, backward))
    lines = forward, backward
    return PairTimes(
        kernels=max((span.end_ns for span in spans), default=0.0),
        alone=sum(span.part.ns for span in spans),
        host=sum(one.host[at] for at, line in enumerate(lines) for one in line.layers),
    )


def hidden_ns(forward: Line, backward: Line) -> int:
    """Return what the pair of two ops takes less than the two one after the other; see `PairTimes`."""
    return pair_times(forward, backward).hidden


def exchange_ns(forward: Line | None, backward: Line | None) -> int:
    """Return how long tokens are on their way in a forward and a backward, or in one of the two."""
    return sum(part.ns for part in issued(forward, backward) if part.stream == EXCHANGE)


def lines_of(profile: Any, forward: int, backward: int | None = None) -> tuple[Line, Line]:
    """Return the forward of a stage, and the backward of another (None: of the same), as pairs run them.

    Raises:
        ProfileError: for a profile whose layers do not say what they do on two streams.
    """
    counts = [cost.layers or 0 for cost in profile.stages]
    if sum(counts) != len(profile.items) or not any(item.streams for item in profile.items):
        raise ProfileError(
            f"items: the layers of {profile.name} do not say what they do on the two streams of a pair; estimate with --pairs"
            " writes it"
        )
    runs = _runs(profile.items, counts)
    return _line(runs[forward], 0), _line(runs[forward if backward is None else backward], 1)


def _runs(items: Sequence[Any], counts: Iterable[int]) -> list[Sequence[Any]]:
    return [items[first:last] for first, last in pairwise(accumulate(counts, initial=0))]


def pair_hidden(items: Sequence[Any], counts: Iterable[int]) -> int | tuple[tuple[int, ...], ...]:
    """Return what pairs hide, by the stage of the forward and that of the backward, of stages of so many
    `items.Item` each; 0 where no layer says what it does on two streams."""
    if not any(item.streams for item in items):
        return 0
    forwards, backwards = ([_line(run, at) for run in _runs(items, counts)] for at in (0, 1))
    rows = tuple(tuple(hidden_ns(one, other) for other in backwards) for one in forwards)
    return rows if any(map(any, rows)) else 0


def _line(run: Sequence[Any], backward: int) -> Line:
    """Return an op of a stage. What has no streams computes before the layers where it comes before
    them, else behind."""
    found, ends = [], [0, 0]
    for item in run:
        if item.streams is not None:
            found.append(item.streams)
        else:
            cost = item.cost
            ends[bool(found) or item.last] += cost.fused_ns if backward else cost.t_f_ns
    return Line(ends[0], ends[1], tuple(found))
