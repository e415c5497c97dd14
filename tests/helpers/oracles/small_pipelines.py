"""Whether a small pipeline can be faster than a time: an exhaustive search that shares nothing with the package.

It is for whole microbatches that are all alike, without offloads and without recomputation. Then it loses nothing to take
the i-th forward (B, W) of a stage to be that of microbatch i: whatever the order, sorting the times of each stage keeps
every dependency, and memory counts activations only. Nor does it to split every backward, as B and W one after the other
release memory no later than both as one.

Ops are placed one after the other, no op before the one placed last; so every schedule is found in the order of its
starts. Of two states with the same numbers of ops done, one that is later nowhere makes the other superfluous.
"""

from __future__ import annotations

from dataclasses import dataclass

F, B, W = range(3)


@dataclass(frozen=True)
class Pipeline:
    """Times of F, B and W and bytes held (until B; from B until W) per stage, the device of each stage, what a message
    takes, the microbatches, and the bytes that a device has for activations."""

    times: tuple[tuple[int, int, int], ...]
    act: tuple[int, ...]
    kept: tuple[int, ...]
    device: tuple[int, ...]
    message: int
    microbatches: int
    room: tuple[int, ...]


def can_take(pipeline: Pipeline, most: int) -> bool:
    """Whether any schedule takes at most `most`."""
    return _Search(pipeline, most).run()


class _Search:
    def __init__(self, pipeline: Pipeline, most: int) -> None:
        self.one, self.most = pipeline, most
        self.stages = range(len(pipeline.times))
        self.devices = range(len(pipeline.room))
        self.lowest = [min(s for s in self.stages if pipeline.device[s] == d) for d in self.devices]
        # from the end of the last B of a stage: the same microbatch goes down to stage 0, whose W comes last
        self.after = [
            sum(self.hop(at) + pipeline.times[at][B] for at in range(s)) + pipeline.times[0][W]
            for s in self.stages
        ]
        self.seen: dict[tuple[int, ...], list[tuple[int, ...]]] = {}

    def hop(self, below: int) -> int:
        """What a message between a stage and the next takes."""
        device = self.one.device
        return self.one.message if device[below] != device[below + 1] else 0

    def run(self) -> bool:
        done = (0,) * (3 * len(self.stages))
        ends: tuple[tuple[int, ...], ...] = ((),) * (3 * len(self.stages))
        return self.visit(done, ends, (0,) * len(self.devices), self.one.room, 0)

    def visit(
        self,
        done: tuple[int, ...],
        ends: tuple[tuple[int, ...], ...],
        free: tuple[int, ...],
        room: tuple[int, ...],
        last: int,
    ) -> bool:
        """`done`: ops per stage and kind; `ends`: when they have ended; `free`: when each device has; `last`: when the op
        placed last starts."""
        free = tuple(max(last, at) for at in free)
        if not self.in_time(done, free) or self.known(done, ends, free, last):
            return False
        if all(count == self.one.microbatches for count in done):
            return max(free) <= self.most
        for start, stage, kind in sorted(self.next_ops(done, ends, free, room)):
            at, device = 3 * stage + kind, self.one.device[stage]
            end = start + self.one.times[stage][kind]
            held = (
                -self.one.act[stage],
                self.one.act[stage] - self.one.kept[stage],
                self.one.kept[stage],
            )[kind]
            if self.visit(
                _set(done, at, done[at] + 1),
                _set(ends, at, (*ends[at], end)),
                _set(free, device, end),
                _set(room, device, room[device] + held),
                start,
            ):
                return True
        return False

    def next_ops(self, done, ends, free, room):  # type: ignore[no-untyped-def]
        """Yield the ops that may come next on any device, with their starts."""
        for stage in self.stages:
            device = self.one.device[stage]
            for kind in (F, B, W):
                turn = done[3 * stage + kind]
                if turn == self.one.microbatches:
                    continue
                needs = []
                if kind == F and stage > 0:
                    needs.append((stage - 1, F, self.hop(stage - 1)))
                if kind == B:
                    needs.append((stage, F, 0))
                    if stage + 1 < len(self.stages):
                        needs.append((stage + 1, B, self.hop(stage)))
                if kind == W:
                    needs.append((stage, B, 0))
                if any(done[3 * s + k] <= turn for s, k, _ in needs):
                    continue
                if kind == F and self.one.act[stage] > room[device]:
                    continue
                there = [ends[3 * s + k][turn] + hop for s, k, hop in needs]
                yield max([free[device], *there]), stage, kind

    def in_time(self, done: tuple[int, ...], free: tuple[int, ...]) -> bool:
        """Whether each device can still do its work in time, and pass the last backward on."""
        for device in self.devices:
            direct = weights = 0
            for stage in self.stages:
                if self.one.device[stage] == device:
                    left = [self.one.microbatches - done[3 * stage + kind] for kind in (F, B, W)]
                    times = self.one.times[stage]
                    direct += left[F] * times[F] + left[B] * times[B]
                    weights += left[W] * times[W]
            lowest = self.lowest[device]
            passes = done[3 * lowest + B] < self.one.microbatches
            tail = max(weights, self.after[lowest]) if passes else weights
            if free[device] + direct + tail > self.most:
                return False
        return True

    def known(self, done, ends, free, last) -> bool:  # type: ignore[no-untyped-def]
        """Whether a state with the same ops done was nowhere later; if not, remember this one."""
        pending = [
            max(last, end)
            for stage in self.stages
            for kind in (F, B)
            for end in ends[3 * stage + kind][self.waited_for(done, stage, kind) :]
        ]
        state = (*free, *pending)
        others = self.seen.setdefault(done, [])
        if any(all(map(int.__le__, other, state)) for other in others):
            return True
        others[:] = [one for one in others if not all(map(int.__le__, state, one))]
        others.append(state)
        return False

    def waited_for(self, done: tuple[int, ...], stage: int, kind: int) -> int:
        """From which op of a kind on the ends still matter to an op that is to come."""
        users = [(stage, B), (stage + 1, F)] if kind == F else [(stage, W), (stage - 1, B)]
        return min(done[3 * s + k] for s, k in users if 0 <= s < len(self.stages))


def _set(values, at, value):  # type: ignore[no-untyped-def]
    return (*values[:at], value, *values[at + 1 :])
