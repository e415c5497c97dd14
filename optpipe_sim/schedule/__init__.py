"""Schedule: the order of ops, without times."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import chain, pairwise
from typing import Any

import numpy as np

from ..errors import InvalidSchedule, OptPipeError
from ..files import read_mapping, write_text
from ..ops import (
    ALL_RULES,
    BW,
    TRANSFERS,
    B,
    C,
    F,
    O,
    Op,
    OpKind,
    Pair,
    R,
    SliceOp,
    W,
    flattened,
    parse_entry,
    parse_op,
)
from ..units import counted, html_table
from .file_format import FORMAT, VERSION, read_fields
from .levels import Levels as Levels
from .levels import levels_by_stage as levels_by_stage
from .levels import read_levels
from .shape import Shape as Shape

_KINDS = tuple(OpKind)


class Schedule:
    """One program per device: its ops in issue order; optionally the order on shared links.

    Args:
        shape: devices, chunks, microbatches and placement.
        programs: per device, its ops, as `Op` or in notation (``"F0.3"``); a forward and a backward that
            run as one op are one entry, a `Pair` or ``"F2.7+BW2.4"``.
        link_order: transfers in the order a shared link serves them, keyed by host-link group and
            direction (``"0/O"``, ``"0/R"``, or ``"0/OR"`` where one link serves both).
        meta: notes to keep with the schedule (plain data); not part of its identity.
        recompute: the level of recomputation of a stage (``"3"``) or of one of its activations
            (``"3.7"``, or ``"3.7/1"`` where there are slices; the narrower takes precedence):
            ``{"3": "full", "3.7": "selective"}``; all others are kept whole. A ``C3.7`` in the
            program recomputes it apart; without it the backward does.

    Raises:
        InvalidSchedule: for what is not an op, or an op outside the shape. `validate` checks
            that the schedule is complete.
    """

    def __init__(
        self,
        shape: Shape,
        programs: Sequence[Iterable[Op | Pair | str]],
        link_order: Mapping[str, Iterable[Op | str]] | None = None,
        meta: Mapping[str, Any] | None = None,
        recompute: Mapping[str, str] | Levels | None = None,
    ) -> None:
        if len(programs) != shape.devices:
            raise InvalidSchedule(
                f"programs: {len(programs)} programs for {shape.devices} devices; give one per device"
            )
        self.shape = shape
        entries = [list(map(_as_entry, program)) for program in programs]
        rows = [flattened(program) for program in entries]
        pairs = [_pairs(program) for program in entries]
        for device, program in enumerate(rows):
            self._check_slices(f"device {device}", program)
        flat: list[tuple[int, ...]] = [op for program in rows for op in program]
        if shape.slices > 1:
            flat = [(op.kind, op.stage, shape.unit(op)) for program in rows for op in program]
        numbers = np.fromiter(chain.from_iterable(flat), np.int64, 3 * len(flat))
        offsets = np.cumsum([0, *map(len, rows)])
        paired = np.array([one for program in pairs for one in program], bool)
        self._fill(numbers.reshape(-1, 3), offsets, paired, link_order, meta, recompute)

    def _fill(
        self,
        table: np.ndarray,
        offsets: np.ndarray,
        paired: np.ndarray,
        link_order: Mapping[str, Iterable[Op | str]] | None,
        meta: Mapping[str, Any] | None,
        recompute: Mapping[str, str] | Levels | None,
    ) -> None:
        """Set all attributes but the shape; the table may have wider numbers than it will have."""
        self.table: np.ndarray = table
        self.offsets: np.ndarray = offsets
        self.paired: np.ndarray = paired
        self.link_order = {
            key: tuple(map(_as_op, ops)) for key, ops in sorted((link_order or {}).items())
        }
        self.meta = dict(meta or {})
        self.levels = (
            recompute if isinstance(recompute, Levels) else read_levels(self.shape, recompute or {})
        )
        self._check_range()
        self.table = np.ascontiguousarray(table, dtype=np.int32)

    @classmethod
    def from_table(
        cls,
        shape: Shape,
        table: np.ndarray,
        offsets: np.ndarray,
        link_order: Mapping[str, Iterable[Op | str]] | None = None,
        meta: Mapping[str, Any] | None = None,
        recompute: Mapping[str, str] | Levels | None = None,
        paired: np.ndarray | None = None,
    ) -> Schedule:
        """Make a schedule from arrays: `table` (ops, 3) of kind, stage, unit (see `Shape`); device d's
        program is the rows ``offsets[d]:offsets[d+1]``; `paired` (ops,) says which F's are one op with the
        backward in the row after (default: none)."""
        schedule = cls.__new__(cls)
        schedule.shape = shape
        joined = np.zeros(len(table), bool) if paired is None else np.asarray(paired, bool)
        rows = np.asarray(table).reshape(-1, 3)
        schedule._fill(rows, np.asarray(offsets), joined, link_order, meta, recompute)
        return schedule

    @classmethod
    def from_tables(
        cls, shape: Shape, tables: Sequence[np.ndarray], paired: np.ndarray | None = None
    ) -> Schedule:
        """Make a schedule from one table per device; see `from_table`."""
        offsets = np.cumsum([0, *map(len, tables)])
        return cls.from_table(shape, np.concatenate(tables), offsets, paired=paired)

    def _check_slices(self, where: str, ops: Sequence[Op]) -> None:
        """Whether ops name a slice exactly where sequences are cut, and one that there is."""
        slices = self.shape.slices
        if slices == 1:
            wrong = next((op for op in ops if len(op) != 3), None)
        else:
            wrong = next((op for op in ops if len(op) != 4 or op[3] >= slices), None)
        if wrong is not None:
            like = Op(*wrong[:3]) if slices == 1 else SliceOp(*wrong[:3], 0)
            raise InvalidSchedule(
                f"{where}: {wrong}: sequences are cut into {counted(slices, 'slice')}: write {like}"
            )

    def _check_range(self) -> None:
        limits = (len(_KINDS), self.shape.stages, self.shape.units)
        wrong = (self.table < 0) | (self.table >= limits)
        if wrong.any():
            row = int(wrong.any(axis=1).argmax())
            raise InvalidSchedule(
                f"device {self.device_of_row(row)}: {self.op(row)} is outside the shape:"
                f" stages are 0 to {limits[1] - 1}, microbatches 0 to {self.shape.microbatches - 1}"
            )
        for key, ops in self.link_order.items():
            self._check_slices(f"link_order {key}", ops)
            for op in ops:
                if (
                    op.kind not in TRANSFERS
                    or op.stage >= limits[1]
                    or op.microbatch >= self.shape.microbatches
                ):
                    raise InvalidSchedule(f"link_order {key}: {op} is no transfer of this shape")

    # -- views ------------------------------------------------------------------------------------

    @cached_property
    def recompute(self) -> dict[str, str]:
        """The levels of recomputation as in a file: by stage where all its activations have the
        same level, else one by one; activations kept whole are left out."""
        found: dict[str, str] = {}
        for stage, row in enumerate(self.levels.table.tolist()):
            if row[0] and row.count(row[0]) == len(row):
                found[str(stage)] = self.levels.names[row[0] - 1]
                continue
            for unit, level in enumerate(row):
                if level:
                    key = str(self.shape.op(F, stage, unit)).removeprefix(F.name)
                    found[key] = self.levels.names[level - 1]
        return found

    @cached_property
    def is_transfer(self) -> np.ndarray:
        """(ops,) whether each op is an O or an R."""
        return self.table[:, 0] >= O

    @property
    def issued_split(self) -> bool:
        """Whether it is run by the part of a trainer that splits backwards into B and W: its ``meta`` says so (``issued``, of
        `execution.FAMILIES`: of a plan that was free to, or of a few W's in a trainer that splits none), or else it has a W."""
        said = str(self.meta.get("issued", ""))
        return said.startswith("split") if said else bool((self.table[:, 0] == W).any())

    @property
    def has_pairs(self) -> bool:
        """Whether any forward and backward run as one op."""
        return bool(self.paired.any())

    @cached_property
    def second(self) -> np.ndarray:
        """(ops,) whether an op is the backward of a pair, which starts and ends with the F in the row before."""
        return np.concatenate(([False], self.paired[:-1]))

    @cached_property
    def programs(self) -> tuple[tuple[Op | Pair, ...], ...]:
        """Per device, its entries in issue order: ops, and pairs of a forward and a backward that run as one."""
        if not self.has_pairs:
            return self.flat_programs
        found, row = [], 0
        for program in self.flat_programs:
            entries: list[Op | Pair] = []
            for op in program:
                if row and self.paired[row - 1]:
                    entries[-1] = Pair(entries[-1], op)  # type: ignore[arg-type]
                else:
                    entries.append(op)
                row += 1
            found.append(tuple(entries))
        return tuple(found)

    @cached_property
    def flat_programs(self) -> tuple[tuple[Op, ...], ...]:
        """Per device, its ops in issue order, those of pairs one by one, as in `table`."""
        make = self.shape.op if self.shape.slices > 1 else Op
        ops = [make(_KINDS[kind], stage, unit) for kind, stage, unit in self.table.tolist()]
        bounds = self.offsets.tolist()
        return tuple(tuple(ops[first:last]) for first, last in pairwise(bounds))

    @cached_property
    def codes(self) -> np.ndarray:
        """One integer per op, unique to it: ``(kind * S + stage) * units + unit``."""
        codes: np.ndarray = encode(self.shape, *self.table.T.astype(np.int64))
        return codes

    @cached_property
    def devices(self) -> np.ndarray:
        """The device of each op."""
        return np.repeat(np.arange(self.shape.devices), np.diff(self.offsets))

    @cached_property
    def rows(self) -> np.ndarray:
        """The row of each op by its code, -1 where the schedule does not have it."""
        rows = np.full(len(_KINDS) * self.shape.stages * self.shape.units, -1, np.int64)
        rows[self.codes] = np.arange(len(self.table))
        return rows

    @cached_property
    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """The data dependencies: rows of the ops that wait, and of those they wait for."""
        kinds, stages, units = self.table.T.astype(np.int64)
        used = np.flatnonzero(np.bincount(kinds)).tolist()
        of_kind = {kind: np.flatnonzero(kinds == kind) for kind in used}
        waiting, needed = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
        for op, needs, step, slices in ALL_RULES:
            if op not in of_kind or needs not in of_kind or (slices and self.shape.slices == 1):
                continue
            rows = of_kind[op]
            other = stages[rows] + step
            if step:
                there = (other >= 0) & (other < self.shape.stages)
                rows, other = rows[there], other[there]
            if slices:  # to another slice of the same microbatch
                part = units[rows] % self.shape.slices + slices
                there = (part >= 0) & (part < self.shape.slices)
                rows, other = rows[there], other[there]
            found = self.rows[encode(self.shape, needs, other, units[rows] + slices)]
            waiting.append(rows[found >= 0])
            needed.append(found[found >= 0])
        return np.concatenate(waiting), np.concatenate(needed)

    def row(self, op: Op) -> int:
        """Return the row of `op` in `table`, -1 where the schedule does not have it."""
        shape = self.shape
        if op.stage >= shape.stages or op.microbatch >= shape.microbatches:
            return -1
        if (op.slice is None) != (shape.slices == 1) or (op.slice or 0) >= shape.slices:
            return -1
        return int(self.rows[encode(shape, op.kind, op.stage, shape.unit(op))])

    def require(self, op: Op) -> int:
        """Return the row of `op` in `table`.

        Raises:
            OptPipeError: where the schedule does not have it; names a backward with W in its place, or
                the other way round.
        """
        row = self.row(op)
        if row < 0:
            other = op._replace(kind={B: BW, W: BW, BW: B}.get(op.kind, op.kind))
            has = f"; it has {other}" if other != op and self.row(other) >= 0 else ""
            if op.stage >= self.shape.stages or op.microbatch >= self.shape.microbatches:
                most = self.shape.stages - 1, self.shape.microbatches - 1
                has = f", whose stages are 0 to {most[0]} and microbatches 0 to {most[1]}"
            raise OptPipeError(f"{op} is not in this schedule{has}")
        return row

    def op(self, row: int) -> Op:
        """Return the op in a row of `table`."""
        kind, stage, unit = self.table[row].tolist()
        return self.shape.op(_KINDS[kind] if 0 <= kind < len(_KINDS) else kind, stage, unit)

    def device_of_row(self, row: int) -> int:
        return int(np.searchsorted(self.offsets, row, side="right")) - 1

    def __len__(self) -> int:
        return len(self.table)

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Schedule)
            and self.shape == other.shape
            and np.array_equal(self.offsets, other.offsets)
            and np.array_equal(self.table, other.table)
            and np.array_equal(self.paired, other.paired)
            and self.link_order == other.link_order
            and self.recompute == other.recompute
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def name(self) -> str:
        """Its name in `meta`, for people; ``schedule`` where it has none."""
        return str(self.meta.get("name", "schedule"))

    def __repr__(self) -> str:
        shape = self.shape
        slices = f" slices={shape.slices}" if shape.slices > 1 else ""
        return (
            f"<Schedule {self.name}: p={shape.devices} v={shape.chunks} m={shape.microbatches}{slices},"
            f" {len(self)} ops>"
        )

    def _repr_html_(self) -> str:
        """Return a small table for notebooks; only a trace has the times for a picture."""
        shape = self.shape
        kinds, counts = np.unique(self.table[:, 0], return_counts=True)
        ops = zip((_KINDS[kind].name for kind in kinds), counts.tolist(), strict=True)
        rows = {
            "schedule": self.name,
            "devices": shape.devices,
            "chunks per device": shape.chunks,
            "microbatches": shape.microbatches,
            "ops": ", ".join(f"{count} {kind}" for kind, count in ops),
        }
        return html_table(rows)

    def replace(self, **changes: Any) -> Schedule:
        """Return a copy with other `programs` (or `table` and `offsets`), `link_order`, `meta` or `recompute`."""
        parts: dict[str, Any] = {
            "link_order": self.link_order,
            "meta": self.meta,
            "recompute": self.levels,
            **changes,
        }
        if "programs" in changes:
            return Schedule(self.shape, **parts)
        rows: dict[str, Any] = {
            "table": self.table,
            "offsets": self.offsets,
            "paired": self.paired,
        }
        if len(changes.get("table", self.table)) != len(self.table):
            if self.has_pairs and "paired" not in changes:
                raise InvalidSchedule("table: say which ops are pairs, as the schedule has some")
            rows["paired"] = None
        return Schedule.from_table(self.shape, **{**rows, **parts})

    def only(self, kept: np.ndarray, **changes: Any) -> Schedule:
        """Return a copy with the rows of the table that are `kept` (a mask), and with the `changes` of
        `replace`."""
        lengths = np.bincount(self.devices[kept], minlength=self.shape.devices)
        rows = {
            "table": self.table[kept],
            "offsets": np.cumsum([0, *lengths]),
            "paired": self.paired[kept],
        }
        return self.replace(**{**rows, **changes})

    def fused(self, whole: np.ndarray, **changes: Any) -> Schedule:
        """Return a copy in which those rows of the table that are `whole` (a mask) have a BW in the place of each
        B, and no W; with the `changes` of `replace`."""
        kinds, table = self.table[:, 0], self.table.copy()
        table[whole & (kinds == B), 0] = BW
        kept = ~(whole & (kinds == W))
        return self.only(kept, table=table[kept], **changes)

    def parted(self) -> Schedule:
        """Return the schedule with the halves of each pair as two ops, the forward first; how many pairs
        there were is noted in ``meta["parted"]``.

        It runs under every limit under which this one does: each half waits for part of what the pair
        waits for, and what the two need is what the pair needs less what the forward releases. What
        pairs hide is lost.
        """
        if not self.has_pairs:
            return self
        pairs = int(self.paired.sum())
        return self.replace(paired=np.zeros(len(self), bool), meta={**self.meta, "parted": pairs})

    def without_offloads(self, chosen: np.ndarray, **changes: Any) -> Schedule:
        """Return a copy without the O's and R's of the `chosen` (stages, units) activations, in
        `link_order` too, and with further `changes` of `replace`."""
        _, stages, units = self.table.T
        links = {
            key: tuple(op for op in ops if not chosen[op.stage, self.shape.unit(op)])
            for key, ops in self.link_order.items()
        }
        kept = ~(self.is_transfer & chosen[stages, units])
        return self.only(kept, link_order=links, **changes)

    # -- files and text ---------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "shape": self.shape.to_json(),
            "programs": [[str(op) for op in program] for program in self.programs],
            "link_order": {key: [str(op) for op in ops] for key, ops in self.link_order.items()},
            **({"recompute": self.recompute} if self.recompute else {}),
            "meta": self.meta,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], source: str = "schedule") -> Schedule:
        """Read a schedule from a mapping of the file format.

        Raises:
            InvalidSchedule: one line that names `source`, the key and what is expected.
        """
        try:
            return cls(**read_fields(data))
        except InvalidSchedule as error:
            raise InvalidSchedule(f"{source}: {error}") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the schedule as JSON, whole or not at all."""
        write_text(path, json.dumps(self.to_json()) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Schedule:
        """Read a schedule file.

        Raises:
            OptPipeError: one line that names the file, the key and what is wrong.
        """
        return cls.from_json(read_mapping(path, "a schedule"), str(path))

    def to_text(self) -> str:
        """Return one line per device: ``0: F0.0 F0.1 BW0.0 ...``; links as ``0/O: O0.0 ...``; levels of
        recomputation as ``recompute: {"3": "full"}``."""
        lines = [f"{device}: {' '.join(map(str, ops))}" for device, ops in enumerate(self.programs)]
        lines += [f"{key}: {' '.join(map(str, ops))}" for key, ops in self.link_order.items()]
        if self.recompute:
            lines.append(f"recompute: {json.dumps(self.recompute)}")
        return "\n".join(lines) + "\n"

    @classmethod
    def from_text(cls, shape: Shape, text: str) -> Schedule:
        """Read the text of `to_text`, for a shape.

        Raises:
            InvalidSchedule: for lines of another form.
        """
        programs: list[list[str]] = [[] for _ in range(shape.devices)]
        links: dict[str, list[str]] = {}
        recompute: dict[str, str] = {}
        for line in filter(None, map(str.strip, text.splitlines())):
            head, colon, ops = line.partition(":")
            if head == "recompute":
                recompute = json.loads(ops)
            elif colon and "/" in head:
                links[head] = ops.split()
            elif colon and head.isdigit() and int(head) < shape.devices:
                programs[int(head)] = ops.split()
            else:
                raise InvalidSchedule(f"{line[:40]!r}: expected 'DEVICE: OP OP ...'")
        return cls(shape, programs, links, recompute=recompute)


def _pairs(program: Iterable[Op | Pair]) -> list[bool]:
    """Return which of these ops are an F that is one op with the next."""
    return [
        first for one in program for first in ((True, False) if isinstance(one, Pair) else (False,))
    ]


def require_no_pairs(schedule: Schedule, what: str) -> None:
    """Refuse pairs where `what` does not know them.

    Raises:
        InvalidSchedule: names the first pair.
    """
    if schedule.has_pairs:
        row = int(schedule.paired.argmax())
        raise InvalidSchedule(
            f"{Pair(schedule.op(row), schedule.op(row + 1))} is a pair, which {what} cannot run as one op"
        )


def rows_of(kind: OpKind, stages: Any, units: Any) -> np.ndarray:
    """Return rows of a table (ops, 3): ops of one kind, of stages and units of which one may be a number."""
    stages, units = np.broadcast_arrays(stages, units)
    return np.column_stack((np.full(len(units), kind), stages, units))


def encode(shape: Shape, kind: Any, stage: Any, unit: Any) -> Any:
    """Return the code of an op (or, with arrays, of many); see `Schedule.codes`."""
    return (kind * shape.stages + stage) * shape.units + unit


def validate(schedule: Schedule) -> None:
    """Refuse a schedule whose ops are not exactly those of its shape.

    Each (stage, unit) has one F and either B and W or BW, on the device of its stage; an offload has its
    reload, and the other way round; what a C recomputes has a level. The order is not checked; a bad one
    deadlocks.

    Raises:
        InvalidSchedule: names the first op at fault.
    """
    shape = schedule.shape
    placed = np.asarray(shape.placement)[schedule.table[:, 1]]
    astray = np.flatnonzero(placed != schedule.devices)
    if len(astray):
        row = astray[0]
        raise InvalidSchedule(
            f"device {schedule.devices[row]}: {schedule.op(row)} belongs on device {placed[row]}"
        )
    size = len(_KINDS) * shape.stages * shape.units
    counts = np.bincount(schedule.codes, minlength=size).reshape(len(_KINDS), shape.stages, -1)

    def complain(where: np.ndarray, kind: OpKind, problem: str) -> None:
        if where.any():
            stage, unit = map(int, np.argwhere(where)[0])
            device = shape.placement[stage]
            raise InvalidSchedule(f"device {device}: {shape.op(kind, stage, unit)} {problem}")

    for kind in OpKind:
        complain(counts[kind] > 1, kind, "is in the program more than once")
    fused = counts[BW] == 1
    complain(counts[F] == 0, F, "is missing")
    kept = schedule.levels.table == 0
    complain(
        kept & (counts[C] == 1), C, "recomputes what is kept whole: give its level in recompute"
    )
    complain(fused & (counts[B] == 1), B, "is there as well as its BW; give B and W, or BW")
    complain(fused & (counts[W] == 1), W, "is there as well as its BW; give B and W, or BW")
    complain(~fused & (counts[B] == 0), B, "is missing (and there is no BW for it)")
    complain(~fused & (counts[W] == 0), W, "is missing (and there is no BW for it)")
    complain(counts[R] > counts[O], R, "reloads what no O offloads")
    complain(counts[O] > counts[R], O, "offloads what no R reloads")


def _as_op(op: Op | str) -> Op:
    return op if isinstance(op, Op) else parse_op(op)


def _as_entry(entry: Op | Pair | str) -> Op | Pair:
    if isinstance(entry, Op):
        return entry
    if isinstance(entry, Pair):
        return parse_entry(str(entry))  # checks the kinds
    return parse_entry(entry)
