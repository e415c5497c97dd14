"""Compute orders in the CSV format of torch.distributed.pipelining, and back.

One row per rank, one cell per action, ``<stage><TYPE><microbatch>``: torch's ``F`` is our F, its ``I``
(backward, input) our B, its ``W`` our W and its ``B`` (full backward) our BW; a pair is
``(0F3;7B1)OVERLAP_F_B``. Torch has no notation for O and R: a schedule with offloads is refused, unless
they are left out (`losses`). Messages are left out, as torch adds them itself.
"""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Collection

from ..errors import InvalidSchedule
from ..files import read_text
from ..ops import BW, B, F, Op, Pair, W, flattened
from ..schedule import Schedule, Shape
from .losses import leave_out

_TO_TORCH = {F: "F", B: "I", W: "W", BW: "B"}
_FROM_TORCH = {name: kind for kind, name in _TO_TORCH.items()}
_ACTION = re.compile(r"(\d+)([FIWB])(\d+)")
# Actions that torch adds to a lowered schedule (format "compute_comms"); they follow from the
# order.
_LOWERED = re.compile(r"\d+(SEND_F|RECV_F|SEND_B|RECV_B|UNSHARD|RESHARD|REDUCE_GRAD)\d*")
_OVERLAPPED = re.compile(r"\((.*)\)OVERLAP_F_B")


def torch_csv(schedule: Schedule, without: Collection[str] = ()) -> str:
    """Write the compute order of `schedule` as a CSV that torch loads with format ``compute_only``.

    Args:
        without: the features to leave out, which torch cannot express: ``offloads`` (with their
            reloads and their order on links), ``recomputation`` (C's and levels). `losses.cost_of`
            gives the cost of that.

    Raises:
        InvalidSchedule: if the schedule has features that torch cannot express and that are not
            left out.
    """
    rows = [
        ",".join(map(_action, program))
        for program in leave_out(schedule, "torch-csv", without).programs
    ]
    return "\n".join(rows) + "\n"


def _action(op: Op | Pair) -> str:
    if isinstance(op, Pair):
        return f"({_action(op.forward)};{_action(op.backward)})OVERLAP_F_B"
    if op.kind not in _TO_TORCH:
        raise InvalidSchedule(f"torch-csv cannot express {op}")
    return f"{op.stage}{_TO_TORCH[op.kind]}{op.microbatch}"


def from_torch_csv(text: str, source: str = "torch csv") -> Schedule:
    """Read the schedule from a CSV of torch; its shape follows from the actions.

    Empty cells (idle steps) and what torch adds when it lowers a schedule (SEND, RECV, UNSHARD, RESHARD,
    REDUCE_GRAD) are skipped; ``(0F3;7B1)OVERLAP_F_B`` becomes a pair, and what else torch overlaps its
    ops, one after the other.

    Args:
        text: one row per rank.
        source: what to call it in errors.

    Raises:
        InvalidSchedule: names the row and the cell that is not an action, or why the rows are not a
            schedule (a stage on two ranks, stages that do not divide over the ranks).
    """
    rows = [row for row in csv.reader(io.StringIO(text)) if row]  # empty lines are no ranks
    entries = [
        [op for cell in row for op in _ops(cell.strip(), f"{source}: rank {rank}")]
        for rank, row in enumerate(rows)
    ]
    programs = [flattened(program) for program in entries]
    ranks: dict[int, int] = {}
    for rank, program in enumerate(programs):
        for op in program:
            if ranks.setdefault(op.stage, rank) != rank:
                raise InvalidSchedule(
                    f"{source}: stage {op.stage} is on rank {ranks[op.stage]} and on rank {rank}"
                )
    if not ranks:
        raise InvalidSchedule(f"{source}: no actions; expected one row per rank, such as 0F0,0B0")
    stages = 1 + max(ranks)
    missing = next((stage for stage in range(stages) if stage not in ranks), None)
    if missing is not None:
        raise InvalidSchedule(f"{source}: stage {missing} has no actions")
    if stages % len(rows):
        raise InvalidSchedule(
            f"{source}: {stages} stages on {len(rows)} ranks; every rank needs as many stages"
        )
    microbatches = 1 + max(op.microbatch for program in programs for op in program)
    placement = tuple(ranks[stage] for stage in range(stages))
    return Schedule(Shape(len(rows), stages // len(rows), microbatches, placement), entries)


def load_torch_csv(path: str | os.PathLike[str]) -> Schedule:
    """`from_torch_csv` of a file; errors name it."""
    return from_torch_csv(read_text(path), str(path))


def load_schedule(path: str | os.PathLike[str]) -> Schedule:
    """Read a schedule file: torch's CSV where its name ends in ``.csv``, else our own format.

    Raises:
        OptPipeError: one line that names the file and what is wrong.
    """
    return load_torch_csv(path) if str(path).endswith(".csv") else Schedule.load(path)


def _ops(cell: str, where: str) -> list[Op | Pair]:
    """Return the entries of a cell: none, an op, a pair, or the ops of what else is overlapped."""
    if not cell or _LOWERED.fullmatch(cell):
        return []
    if found := _ACTION.fullmatch(cell):
        return [Op(_FROM_TORCH[found[2]], int(found[1]), int(found[3]))]
    if found := _OVERLAPPED.fullmatch(cell):
        parts = [op for part in found[1].split(";") for op in _ops(part.strip(), where)]
        ops = [op for op in parts if isinstance(op, Op)]
        if [op.kind for op in ops] in ([F, B], [F, BW]):
            return [Pair(*ops)]
        return parts
    raise InvalidSchedule(
        f"{where}: {cell!r} is not an action; expected STAGE, one of F I W B, MICROBATCH, as in 2F0"
    )
