"""Operations, their notation, and the only copy of the dependency rules.

An op is written ``KIND stage . microbatch``: ``F3.7`` is the forward of stage 3, microbatch 7.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from . import codes
from .errors import InvalidSchedule


class OpKind(IntEnum):
    """What an op does (values are the column codes of `Schedule.table`)."""

    F = codes.F  # forward
    B = codes.B  # backward, input gradient
    W = codes.W  # backward, weight gradient
    BW = codes.BW  # B and W fused
    C = codes.C  # recompute what was dropped of the activation
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

    def __str__(self) -> str:
        return f"{self.kind.name}{self.stage}.{self.microbatch}"


_NOTATION = re.compile(r"(BW|[FBWCOR])([0-9]{1,18})\.([0-9]{1,18})")  # int64


def parse_op(text: str) -> Op:
    """The op that `text` (``"F3.7"``) stands for.

    Raises:
        InvalidSchedule: where the text is not of the form KIND stage . microbatch.
    """
    found = _NOTATION.fullmatch(text) if isinstance(text, str) else None
    if not found:
        raise InvalidSchedule(
            f"{text!r} is not an op: write KIND stage . microbatch, as in F3.7 (kinds: F B W BW C O R)"
        )
    return Op(OpKind[found[1]], int(found[2]), int(found[3]))


class Rule(NamedTuple):
    """`op` of stage s needs `needs` of stage s + `step` (same microbatch) to have ended."""

    op: OpKind
    needs: OpKind
    step: int


# BW stands for B: what needs the B of a stage takes its BW where the two are fused. A rule whose
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
)


def rules() -> Iterator[Rule]:
    """Every rule, those of B spelt out for BW on either side as well."""
    for rule in RULES:
        for op in (B, BW) if rule.op is B else (rule.op,):
            for needs in (B, BW) if rule.needs is B else (rule.needs,):
                if not (op is W and needs is BW):
                    yield Rule(op, needs, rule.step)


_RULES_OF = {kind: tuple(rule for rule in rules() if rule.op is kind) for kind in OpKind}


def dependencies(op: Op) -> Iterator[Op]:
    """The ops that `op` may wait for; those that a schedule does not contain do not bind.

    Stage numbers below 0 never occur in the result; those past the last stage may.
    """
    for _, needs, step in _RULES_OF[op.kind]:
        if op.stage + step >= 0:
            yield Op(needs, op.stage + step, op.microbatch)
