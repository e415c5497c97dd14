"""DualPipe-V: two chunks per device on the vee placement, forwards and backwards in pairs."""

from __future__ import annotations

from collections import deque

from ..errors import InvalidSchedule
from ..ops import BW, B, F, Op, OpKind, Pair, W
from ..profile import CostProfile
from ..schedule import Schedule


class _Device:
    """The program of one device under construction: microbatches are counted per chunk and kind."""

    def __init__(self, stages: tuple[int, ...]) -> None:
        self.stages = stages
        self.ops: list[Op | Pair] = []
        self.forwards, self.backwards = [0, 0], [0, 0]
        self.put_off: deque[Op] = deque()

    def forward(self, chunk: int) -> None:
        self.ops.append(Op(F, self.stages[chunk], self.forwards[chunk]))
        self.forwards[chunk] += 1

    def backward(self, chunk: int, kind: OpKind = BW) -> None:
        """Append the next backward of a chunk; a plain B defers its W."""
        op = Op(kind, self.stages[chunk], self.backwards[chunk])
        self.ops.append(op)
        self.backwards[chunk] += 1
        if kind is B:
            self.put_off.append(op._replace(kind=W))

    def pair(self, chunk: int) -> None:
        """Append the next forward of a chunk and the next backward of the other as one op."""
        self.forward(chunk)
        self.backward(1 - chunk)
        backward, forward = self.ops.pop(), self.ops.pop()
        assert isinstance(forward, Op)
        assert isinstance(backward, Op)
        self.ops.append(Pair(forward, backward))

    def weights(self) -> None:
        """Append the oldest deferred W."""
        self.ops.append(self.put_off.popleft())


def dualpipe_v(profile: CostProfile, microbatches: int, pairs: bool | None = None) -> Schedule:
    """Build DualPipe-V: eight phases per device; chunk 0 runs down the devices, chunk 1 back up.

    A forward and its paired backward, which the authors overlap on the GPU, are one op with `pairs` (default: where the profile says what
    pairs hide), else two, F first. If every op takes one unit (BW two), the bubble is p - 1 units without pairs; with them it is
    (p - 1)(F&B + BW - 3W), F&B being what a pair takes. At most 2p + 1 chunk activations are held. Needs m >= 2p.

    At p = 4, m = 8, one cell per unit::

        0 F0  F1  F2  F3  F4  F5  F6  f0  b0  w0  f1  b1  w1  f2  b2  w2  f3  F7  bw3     f4  BW0     bw4     f5  .   BW1     bw5     f6  .   BW2     bw6     f7  .   BW3     bw7     B4  W4  B5  W5  B6  W6  B7  W7
    1 .   F0  F1  F2  F3  F4  f0  F5  f1  b0  w0  f2  b1  w1  f3  F6  bw2     f4  BW0     F7  bw3     f5  BW1     bw4     f6  .   BW2     bw5     f7  .   BW3     bw6     BW4     b7  B5  w7  B6  W5  B7  W6  W7
    2 .   .   F0  F1  F2  f0  F3  f1  F4  f2  b0  w0  f3  F5  bw1     f4  BW0     F6  bw2     f5  BW1     F7  bw3     f6  BW2     bw4     f7  .   BW3     bw5     BW4     bw6     B5  b7  B6  W5  B7  w7  W6  W7
    3 .   .   .   F0  f0  F1  f1  F2  f2  F3  f3  F4  bw0     f4  BW0     F5  bw1     f5  BW1     F6  bw2     f6  BW2     F7  bw3     f7  BW3     bw4     BW4     bw5     BW5     b6  B6  b7  B7  w6  W6  w7  W7

    Source: DeepSeek-AI, DualPipe ("DualPipeV"), after the cut-in-half schedule of Sea AI Lab; the
    order is that of torch's ScheduleDualPipeV.

    Raises:
        InvalidSchedule: for fewer than 2p microbatches.
    """
    costs = profile.rechunk(2, "vee")
    p, m = costs.devices, microbatches
    if m < 2 * p:
        raise InvalidSchedule(
            f"dualpipe-v: needs at least 2 microbatches per device, {2 * p} for {p} devices, got {m}"
        )
    shape = costs.shape(m)
    pairs = bool(costs.pair_hidden) if pairs is None else pairs
    programs = [_program(_Device(shape.stages_of(rank)), rank, p, m, pairs) for rank in range(p)]
    return Schedule(shape, programs)


def _program(device: _Device, rank: int, p: int, m: int, pairs: bool) -> list[Op | Pair]:
    def both(chunk: int) -> None:
        if pairs:
            device.pair(chunk)
        else:
            device.forward(chunk)
            device.backward(1 - chunk)

    after = p - rank - 1  # the devices between this one and the turn of the vee
    for _ in range(2 * after):  # 1: F0
        device.forward(0)
    for _ in range(rank + 1):  # 2: F0 F1
        device.forward(0)
        device.forward(1)
    for _ in range(after):  # 3: B1 W1 F1
        device.backward(1, B)
        device.weights()
        device.forward(1)
    for at in range(m - 2 * p + rank + 1):  # 4: F0 & BW1, F1 & BW0
        if (
            at == 0 and rank == p - 1 and pairs
        ):  # the turn of the vee: this backward needs that forward
            device.forward(0)
            device.backward(1)
        else:
            both(0)
        both(1)
    for _ in range(after):  # 5: BW1, F1 & BW0
        device.backward(1)
        both(1)
    # 6: backwards of both chunks in turn, the later half with W deferred
    fused = rank + 1
    for at in range(2 * (rank + 1)):
        device.backward(1 - at % 2, BW if at < fused else B)
    for _ in range(after):  # 7: W, B0
        device.weights()
        device.backward(0, B)
    while device.put_off:  # 8: the remaining W
        device.weights()
    return device.ops
