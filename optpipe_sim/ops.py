"""Operations, their notation, and the only copy of the dependency rules.

An op is written ``KIND stage . microbatch``: ``F3.7`` is the forward of stage 3, microbatch 7.
Where sequences are cut into slices, ``F3.7/2`` is that of slice 2 of the microbatch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import Any, NamedTuple

from . import codes
from .errors import InvalidSchedule


class OpKind(IntEnum):
    """What an op does (values are the column codes of `Schedule.table`)."""

    F = codes.F  # forward
    B = codes.B  # backward, input gradient
    W = codes.W  # backward, weight gradient
    BW = codes.BW  # B and W fused
    C = codes.C  # recompute the dropped part of the activation
    O = codes.O  # noqa: E741  offload the activation, device to host
    R = codes.R  # reload it, host to device


F, B, W, BW, C, O, R = OpKind  # noqa: E741
COMPUTE = (F, B, W, BW, C)
TRANSFERS = (O, R)


class Op(NamedTuple):
    """One operation of one stage on one microbatch; `str(op)` is its notation."""

    kind: OpKind
    stage: int
    microbatch: int

    @property
    def slice(self) -> int | None:
        """The slice of the microbatch's sequence that it works on; None where sequences are whole."""
        return None

    def __str__(self) -> str:
        return f"{self.kind.name}{self.stage}.{self.microbatch}"


class SliceOp(Op):
    """One operation of one stage on one slice of a microbatch's sequence: an `Op` with a fourth
    entry, the slice."""

    def __new__(cls, kind: OpKind, stage: int, microbatch: int, slice: int) -> SliceOp:
        return tuple.__new__(cls, (kind, stage, microbatch, slice))

    @property
    def slice(self) -> int:
        return self[3]  # type: ignore[misc, no-any-return]

    def _replace(self, **changes: Any) -> SliceOp:
        parts = {"kind": self.kind, "stage": self.stage, "microbatch": self.microbatch}
        return SliceOp(**{**parts, "slice": self.slice, **changes})

    def __repr__(self) -> str:
        return f"SliceOp({self})"

    def __str__(self) -> str:
        return f"{super().__str__()}/{self.slice}"


class Pair(NamedTuple):
    """A forward and a backward that run as one op; `str(pair)` is its notation, ``F2.7+BW2.4``."""

    forward: Op
    backward: Op

    def __str__(self) -> str:
        return f"{self.forward}+{self.backward}"


def flattened(program: Iterable[Op | Pair]) -> list[Op]:
    """Return the ops of a program, those of pairs one by one."""
    return [op for one in program for op in (one if isinstance(one, Pair) else (one,))]


_NOTATION = re.compile(r"(BW|[FBWCOR])([0-9]{1,18})\.([0-9]{1,18})(?:/([0-9]{1,18}))?")  # int64


def parse_op(text: str) -> Op:
    """Parse the notation of an op (``"F3.7"``).

    Raises:
        InvalidSchedule: where the text is not of the form KIND stage . microbatch, followed by
            / slice where there are slices.
    """
    found = _NOTATION.fullmatch(text) if isinstance(text, str) else None
    if not found:
        raise InvalidSchedule(
            f"{text!r} is not an op: write KIND stage . microbatch, as in F3.7 (kinds: F B W BW C O R)"
        )
    op = Op(OpKind[found[1]], int(found[2]), int(found[3]))
    return op if found[4] is None else SliceOp(*op, int(found[4]))


def parse_entry(text: str) -> Op | Pair:
    """Parse the notation of an entry of a program: an op, or a pair (``"F2.7+B2.4"``).

    Raises:
        InvalidSchedule: where the text is neither.
    """
    if not isinstance(text, str) or "+" not in text:
        return parse_op(text)
    ops = [parse_op(part) for part in text.split("+")]
    if len(ops) != 2 or ops[0].kind is not F or ops[1].kind not in (B, BW):
        raise InvalidSchedule(
            f"{text!r} is not a pair: write a forward and a backward, as in F2.7+B2.4 or F2.7+BW2.4"
        )
    return Pair(*ops)


class Rule(NamedTuple):
    """`op` of stage s and slice k needs `needs` of stage s + `step` and slice k + `slices` (same
    microbatch) to have ended."""

    op: OpKind
    needs: OpKind
    step: int
    slices: int = 0


# A rule for B holds for BW as well, where the two are fused. A rule whose
# producer does not exist in a schedule (no stage s-1, an activation never offloaded or recomputed) does not bind.
RULES = (
    Rule(F, F, -1),
    Rule(B, F, 0),
    Rule(B, B, +1),
    Rule(B, R, 0),
    Rule(B, C, 0),
    Rule(W, B, 0),
    Rule(C, F, 0),
    Rule(C, R, 0),
    Rule(O, F, 0),
    Rule(R, O, 0),
    Rule(F, F, 0, -1),  # the keys and values of the slice before
    Rule(B, B, 0, +1),  # what the next slice adds to their gradients
)


def _all_rules() -> Iterator[Rule]:
    for rule in RULES:
        for op in (B, BW) if rule.op is B else (rule.op,):
            for needs in (B, BW) if rule.needs is B else (rule.needs,):
                if not (op is W and needs is BW):
                    yield rule._replace(op=op, needs=needs)


# every rule, those of B repeated for BW on either side
ALL_RULES = tuple(_all_rules())

_RULES_OF = {kind: tuple(rule for rule in ALL_RULES if rule.op is kind) for kind in OpKind}

# The rules by kind, for compiled loops: the step to the stage whose message an op waits for (0: none), and the kinds of
# the ops of its own activation that it waits for (-1: none): a compute op (C's aside, which are behind their F), and one in
# another engine.
MESSAGES = tuple(
    next((rule.step for rule in rules if rule.step), 0) for rules in _RULES_OF.values()
)
OWN = tuple(
    next((int(rule.needs) for rule in rules if rule[2:] == (0, 0) and rule.needs in COMPUTE), -1)
    for rules in _RULES_OF.values()
)
INPUTS = tuple(
    next((int(rule.needs) for rule in rules if {rule.op, rule.needs} & {*TRANSFERS}), -1)
    for rules in _RULES_OF.values()
)


def dependencies(op: Op) -> Iterator[Op]:
    """Yield the ops that `op` may wait for; those that a schedule does not contain do not bind.

    Numbers of stages and slices below 0 never occur in the result; those past the last one may.
    """
    part = op.slice
    for _, needs, step, slices in _RULES_OF[op.kind]:
        stage = op.stage + step
        if part is None and not slices and stage >= 0:
            yield Op(needs, stage, op.microbatch)
        elif part is not None and part + slices >= 0 and stage >= 0:
            yield SliceOp(needs, stage, op.microbatch, part + slices)
