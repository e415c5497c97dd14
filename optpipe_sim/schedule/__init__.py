"""Schedule: order, and no time."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np

from ..errors import InvalidSchedule
from ..files import read_mapping, write_text
from ..ops import BW, TRANSFERS, B, C, F, O, Op, OpKind, R, W, parse_op, rules
from .levels import Levels as Levels
from .levels import read_levels
from .shape import Shape as Shape

FORMAT, VERSION = "optpipe-schedule", 1
_KINDS = tuple(OpKind)


class Schedule:
    """One program per device: its ops in issue order; and, if wanted, the order on shared links.

    Args:
        shape: devices, chunks, microbatches and placement.
        programs: per device, its ops, as `Op` or in notation (``"F0.3"``).
        link_order: transfers in the order a shared link serves them, keyed by host-link group and
            direction (``"0/O"``, ``"0/R"``, or ``"0/OR"`` where one link serves both).
        meta: anything worth keeping with the schedule (plain data); no part of its identity.
        recompute: the level of recomputation of a stage (``"3"``) or of one of its activations
            (``"3.7"``, which goes before): ``{"3": "full", "3.7": "selective"}``; what is absent is
            kept whole. A ``C3.7`` in the program recomputes it apart, else the backward does.

    Raises:
        InvalidSchedule: for what is not an op, or an op outside the shape. Whether the ops make a
            complete schedule is `validate`'s question.
    """

    def __init__(
        self,
        shape: Shape,
        programs: Sequence[Iterable[Op | str]],
        link_order: Mapping[str, Iterable[Op | str]] | None = None,
        meta: Mapping[str, Any] | None = None,
        recompute: Mapping[str, str] | Levels | None = None,
    ) -> None:
        if len(programs) != shape.devices:
            raise InvalidSchedule(
                f"programs: {len(programs)} programs for {shape.devices} devices; give one per device"
            )
        rows = [list(map(_as_op, program)) for program in programs]
        self.shape = shape
        self.offsets = np.cumsum([0, *map(len, rows)])
        flat = [op for program in rows for op in program]
        # wide until the range is checked
        self.table: np.ndarray = np.array(flat, dtype=np.int64).reshape(-1, 3)
        self.link_order = {
            key: tuple(map(_as_op, ops)) for key, ops in sorted((link_order or {}).items())
        }
        self.meta = dict(meta or {})
        self.levels = (
            recompute if isinstance(recompute, Levels) else read_levels(shape, recompute or {})
        )
        self._check_range()
        self.table = self.table.astype(np.int32)

    @classmethod
    def from_table(
        cls,
        shape: Shape,
        table: np.ndarray,
        offsets: np.ndarray,
        link_order: Mapping[str, Iterable[Op | str]] | None = None,
        meta: Mapping[str, Any] | None = None,
        recompute: Mapping[str, str] | Levels | None = None,
    ) -> Schedule:
        """A schedule from arrays: `table` (ops, 3) of kind, stage, microbatch; device d's program
        is the rows ``offsets[d]:offsets[d+1]``."""
        schedule = cls(shape, [()] * shape.devices, link_order, meta, recompute)
        schedule.table = np.ascontiguousarray(table, dtype=np.int32).reshape(-1, 3)
        schedule.offsets = np.asarray(offsets)
        schedule._check_range()
        return schedule

    def _check_range(self) -> None:
        limits = (len(_KINDS), self.shape.stages, self.shape.microbatches)
        wrong = ((self.table < 0) | (self.table >= limits)).any(axis=1)
        if wrong.any():
            row = int(wrong.argmax())
            raise InvalidSchedule(
                f"device {self.device_of_row(row)}: {_op(self.table[row])} is outside the shape:"
                f" stages are 0 to {limits[1] - 1}, microbatches 0 to {limits[2] - 1}"
            )
        for key, ops in self.link_order.items():
            for op in ops:
                if op.kind not in TRANSFERS or op.stage >= limits[1] or op.microbatch >= limits[2]:
                    raise InvalidSchedule(f"link_order {key}: {op} is no transfer of this shape")

    # -- views ------------------------------------------------------------------------------------

    @cached_property
    def recompute(self) -> dict[str, str]:
        """The levels of recomputation as in a file: by stage where all its activations have the
        same one, else one by one; nothing for what is kept whole."""
        found: dict[str, str] = {}
        for stage, row in enumerate(self.levels.table.tolist()):
            if row[0] and row.count(row[0]) == len(row):
                found[str(stage)] = self.levels.names[row[0] - 1]
                continue
            for microbatch, level in enumerate(row):
                if level:
                    found[f"{stage}.{microbatch}"] = self.levels.names[level - 1]
        return found

    @cached_property
    def is_transfer(self) -> np.ndarray:
        """(ops,) whether each op is an O or an R."""
        return np.isin(self.table[:, 0], TRANSFERS)

    @cached_property
    def programs(self) -> tuple[tuple[Op, ...], ...]:
        """Per device, its ops in issue order."""
        rows = self.table.tolist()
        ops = [Op(_KINDS[kind], stage, microbatch) for kind, stage, microbatch in rows]
        bounds = self.offsets.tolist()
        return tuple(tuple(ops[first:last]) for first, last in pairwise(bounds))

    @cached_property
    def codes(self) -> np.ndarray:
        """One integer per op, unique to it: ``(kind * S + stage) * m + microbatch``."""
        codes: np.ndarray = encode(self.shape, *self.table.T.astype(np.int64))
        return codes

    @cached_property
    def devices(self) -> np.ndarray:
        """The device whose program each op stands in."""
        return np.repeat(np.arange(self.shape.devices), np.diff(self.offsets))

    @cached_property
    def rows(self) -> np.ndarray:
        """The row of each op by its code, -1 where the schedule does not have it."""
        rows = np.full(len(_KINDS) * self.shape.stages * self.shape.microbatches, -1, np.int64)
        rows[self.codes] = np.arange(len(self.table))
        return rows

    @cached_property
    def edges(self) -> tuple[np.ndarray, np.ndarray]:
        """The data dependencies: rows of the ops that wait, and of those they wait for."""
        kinds, stages, microbatches = self.table.T.astype(np.int64)
        waiting, needed = [], []
        for op, needs, step in rules():
            rows = np.flatnonzero(kinds == op)
            other = stages[rows] + step
            rows = rows[(other >= 0) & (other < self.shape.stages)]
            found = self.rows[encode(self.shape, needs, stages[rows] + step, microbatches[rows])]
            waiting.append(rows[found >= 0])
            needed.append(found[found >= 0])
        return np.concatenate(waiting), np.concatenate(needed)

    def row(self, op: Op) -> int:
        """The row of `op` in `table`, -1 where the schedule does not have it."""
        if op.stage >= self.shape.stages or op.microbatch >= self.shape.microbatches:
            return -1
        return int(self.rows[encode(self.shape, *op)])

    def op(self, row: int) -> Op:
        """The op in a row of `table`."""
        return _op(self.table[row])

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
            and self.link_order == other.link_order
            and self.recompute == other.recompute
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        name = self.meta.get("name", "schedule")
        shape = self.shape
        return f"<Schedule {name}: p={shape.devices} v={shape.chunks} m={shape.microbatches}, {len(self)} ops>"

    def replace(self, **changes: Any) -> Schedule:
        """A copy with other `programs`, `link_order`, `meta` or `recompute`."""
        parts = {
            "programs": self.programs,
            "link_order": self.link_order,
            "meta": self.meta,
            "recompute": self.levels,
        }
        return Schedule(self.shape, **{**parts, **changes})

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
        """The schedule in a mapping of the file format.

        Raises:
            InvalidSchedule: one line that names `source`, the key and what would be right.
        """
        try:
            return cls._from_json(data)
        except InvalidSchedule as error:
            raise InvalidSchedule(f"{source}: {error}") from None

    @classmethod
    def _from_json(cls, data: Mapping[str, Any]) -> Schedule:
        if data.get("format") != FORMAT:
            raise InvalidSchedule(f"format: expected {FORMAT!r}, got {data.get('format')!r}")
        if data.get("version") != VERSION:
            raise InvalidSchedule(
                f"version: this program reads version {VERSION}, the file has {data.get('version')!r}"
            )
        known = {"format", "version", "shape", "programs", "link_order", "recompute", "meta"}
        for key in data:
            if key not in known:
                raise InvalidSchedule(f"{key}: unknown key; known are {', '.join(sorted(known))}")
        shape = data.get("shape")
        if not isinstance(shape, Mapping):
            raise InvalidSchedule(
                "shape: expected a mapping of devices, chunks, microbatches, placement"
            )
        fields = ("devices", "chunks", "microbatches", "placement")
        for key in shape:
            if key not in fields:
                raise InvalidSchedule(f"shape.{key}: unknown key; known are {', '.join(fields)}")
        for key in ("devices", "microbatches"):
            if key not in shape:
                raise InvalidSchedule(f"shape.{key}: missing")
        programs, link_order = data.get("programs"), data.get("link_order") or {}
        if not isinstance(programs, list) or not all(isinstance(ops, list) for ops in programs):
            raise InvalidSchedule("programs: expected a list with one list of ops per device")
        if not isinstance(link_order, Mapping) or not all(
            isinstance(ops, list) for ops in link_order.values()
        ):
            raise InvalidSchedule('link_order: expected a mapping such as {"0/O": ["O0.0", ...]}')
        if not isinstance(data.get("meta") or {}, Mapping):
            raise InvalidSchedule("meta: expected a mapping")
        if not isinstance(data.get("recompute") or {}, Mapping):
            raise InvalidSchedule('recompute: expected a mapping such as {"3": "full"}')
        return cls(
            Shape(
                shape["devices"],
                shape.get("chunks", 1),
                shape["microbatches"],
                shape.get("placement", "loop"),
            ),
            programs,
            link_order,
            data.get("meta"),
            data.get("recompute"),
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the schedule as JSON, whole or not at all."""
        write_text(path, json.dumps(self.to_json()) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Schedule:
        """Read a schedule file.

        Raises:
            OptPipeError: one line that names the file, the key and what is wrong.
        """
        return cls.from_json(read_mapping(path), str(path))

    def to_text(self) -> str:
        """One line per device: ``0: F0.0 F0.1 BW0.0 ...``; links as ``0/O: O0.0 ...``; levels of
        recomputation as ``recompute: {"3": "full"}``."""
        lines = [f"{device}: {' '.join(map(str, ops))}" for device, ops in enumerate(self.programs)]
        lines += [f"{key}: {' '.join(map(str, ops))}" for key, ops in self.link_order.items()]
        if self.recompute:
            lines.append(f"recompute: {json.dumps(self.recompute)}")
        return "\n".join(lines) + "\n"

    @classmethod
    def from_text(cls, shape: Shape, text: str) -> Schedule:
        """The schedule that `to_text` wrote, for a shape.

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


def encode(shape: Shape, kind: Any, stage: Any, microbatch: Any) -> Any:
    """The code of an op (or, with arrays, of many); see `Schedule.codes`."""
    return (kind * shape.stages + stage) * shape.microbatches + microbatch


def validate(schedule: Schedule) -> None:
    """Refuse a schedule whose ops are not exactly those its shape asks for.

    Each (stage, microbatch) has one F and either B and W or BW, on the device of its stage; an
    offload has its reload, and the other way round; what a C recomputes has a level. Order is not looked at: a bad one deadlocks.

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
    size = len(_KINDS) * shape.stages * shape.microbatches
    counts = np.bincount(schedule.codes, minlength=size).reshape(len(_KINDS), shape.stages, -1)

    def complain(where: np.ndarray, kind: OpKind, problem: str) -> None:
        if where.any():
            stage, microbatch = map(int, np.argwhere(where)[0])
            device = shape.placement[stage]
            raise InvalidSchedule(f"device {device}: {Op(kind, stage, microbatch)} {problem}")

    for kind in OpKind:
        complain(counts[kind] > 1, kind, "stands in the program more than once")
    fused = counts[BW] == 1
    complain(counts[F] == 0, F, "is missing")
    kept = schedule.levels.table == 0
    complain(
        kept & (counts[C] == 1), C, "recomputes what is kept whole: give its level in recompute"
    )
    complain(fused & (counts[B] == 1), B, "is there as well as its BW; give B and W, or BW")
    complain(fused & (counts[W] == 1), W, "is there as well as its BW; give B and W, or BW")
    complain(~fused & (counts[B] == 0), B, "is missing (and no BW stands for it)")
    complain(~fused & (counts[W] == 0), W, "is missing (and no BW stands for it)")
    complain(counts[R] > counts[O], R, "reloads what no O offloads")
    complain(counts[O] > counts[R], O, "offloads what no R reloads")


def _as_op(op: Op | str) -> Op:
    return op if isinstance(op, Op) else parse_op(op)


def _op(row: np.ndarray) -> Op:
    kind, stage, microbatch = row.tolist()
    return Op(_KINDS[kind] if 0 <= kind < len(_KINDS) else kind, stage, microbatch)
