"""Trace: start and end of every op, and every measure derived from them."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ..errors import OptPipeError
from ..files import read_mapping, write_text
from ..lazy import drawn
from ..op_costs import edges, kept_costs, moved_bytes, op_costs
from ..ops import O, Op, R
from ..profile import CostProfile
from ..profile.iteration import iteration_flops, iteration_ns, iteration_tokens
from ..profile_io import profile_to_json
from ..schedule import Schedule
from ..units import format_size, format_time, html_table
from .file_format import FORMAT, VERSION, read_fields
from .host import host_memory
from .memory_parts import memory_parts
from .notebook import picture_html
from .steps import Steps, step_function
from .waits import WAITS, waits_before_ops
from .wear import Wear as Wear
from .wear import wear_of

CAUSES = (*WAITS, "drain")
OBJECTIVES = ("flush", "span")


class Span(NamedTuple):
    """One op on one device, in ns; `grant_ns` is when its memory was granted, None for an op that
    allocates none."""

    op: Op
    device: int
    start_ns: int
    end_ns: int
    grant_ns: int | None


class Messages(NamedTuple):
    """Messages between devices: rows of producer and consumer, departure and
    arrival in ns (arrays of equal length)."""

    producer: np.ndarray
    consumer: np.ndarray
    depart_ns: np.ndarray
    arrive_ns: np.ndarray


@dataclass(frozen=True, eq=False)
class Trace:
    """The times of a schedule's ops under a profile.

    Attributes:
        schedule: the order that was replayed.
        profile: the costs, with the schedule's chunks and placement.
        start_ns, end_ns: (ops,) int64, in the order of ``schedule.table``.
        grant_ns: (ops,) int64; when an R's memory was granted; for every other op its start.
        memory_limit: bytes per device that the replay kept, or None.
        objective: ``flush`` (cost is the makespan) or ``span`` (cost is the longest device span).
        fits: False for a trace taken without the limit because the replay under it deadlocks.
        given: the costs before they were issued as their execution says; None: `profile`.
    """

    schedule: Schedule
    profile: CostProfile
    start_ns: np.ndarray
    end_ns: np.ndarray
    grant_ns: np.ndarray
    memory_limit: tuple[int, ...] | None = None
    objective: str = "flush"
    fits: bool = True
    given: CostProfile | None = None

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise OptPipeError(f"objective: expected flush or span, got {self.objective!r}")

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Trace)
            and self.schedule == other.schedule
            and self.profile == other.profile
            and self.memory_limit == other.memory_limit
            and self.objective == other.objective
            and self.fits == other.fits
            and np.array_equal(self.start_ns, other.start_ns)
            and np.array_equal(self.end_ns, other.end_ns)
            and np.array_equal(self.grant_ns, other.grant_ns)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        fits = "" if self.fits else ", does not fit"
        return (
            f"<Trace {self.schedule.name}: {format_time(self.iteration_ns)}, bubble {self.bubble:.4f},"
            f" peak {self.peak_text}{fits}>"
        )

    def _repr_html_(self) -> str:
        """Return a small table with a picture, for notebooks."""
        rows = {
            "schedule": self.schedule.name,
            "profile": self.profile.name,
            "time per iteration": format_time(self.iteration_ns),
            **(
                {"pipeline time": format_time(self.cost_ns)}
                if self.cost_ns != self.iteration_ns
                else {}
            ),
            "bubble": f"{self.bubble:.4f}",
            "peak memory": self.peak_text,
            "offloaded": f"{self.offloaded} activations",
            "recomputed": f"{self.recomputed} activations",
            "fits": "yes" if self.fits else "no",
        }
        return html_table(rows) + picture_html(self)

    def plot(self, start: int | str | None = None, end: int | str | None = None) -> Any:
        """Draw the Gantt chart with the memory curves below it; returns a matplotlib figure.

        Args:
            start, end: the part to draw: ``10%`` of the iteration, ``120ms``, or ns; default: all.

        Raises:
            OptPipeError: for a part outside the iteration.
        """
        return drawn("overview", self, start, end)

    @cached_property
    def spans(self) -> tuple[Span, ...]:
        """Every op with its times, device by device in program order."""
        times = zip(
            (op for program in self.schedule.flat_programs for op in program),
            self.schedule.devices.tolist(),
            self.start_ns.tolist(),
            self.end_ns.tolist(),
            self.grant_ns.tolist(),
            op_costs(self.schedule, self.profile).asks.tolist(),
            strict=True,
        )
        return tuple(
            Span(op, device, start, end, grant if asks else None)
            for op, device, start, end, grant, asks in times
        )

    def span(self, op: Op) -> Span:
        """Return the span of one op.

        Raises:
            OptPipeError: where the schedule does not have this op.
        """
        row = self.schedule.require(op)
        return self.spans[row]

    # -- time -------------------------------------------------------------------------------------

    @cached_property
    def makespan_ns(self) -> int:
        """The last end, counted from 0."""
        return int(self.end_ns.max())

    @cached_property
    def compute_rows(self) -> tuple[np.ndarray, ...]:
        """Per device, the rows of its compute ops in program order; of a pair, that of its F."""
        compute = ~self.schedule.is_transfer & ~self.schedule.second
        bounds = self.schedule.offsets
        return tuple(
            first + np.flatnonzero(compute[first:last]) for first, last in pairwise(bounds)
        )

    @cached_property
    def span_ns(self) -> tuple[int, ...]:
        """Per device, the end of its last compute op minus the start of its first."""
        return tuple(
            int(self.end_ns[rows[-1]] - self.start_ns[rows[0]]) for rows in self.compute_rows
        )

    @cached_property
    def busy_ns(self) -> tuple[int, ...]:
        """Per device, the time it computes."""
        length_ns = self.end_ns - self.start_ns
        return tuple(int(length_ns[rows].sum()) for rows in self.compute_rows)

    @cached_property
    def recompute_ns(self) -> tuple[int, ...]:
        """Per device, the part of `busy_ns` that goes into recomputation, apart (C) or inside
        backwards."""
        return tuple(int(self.recomputing_ns[rows].sum()) for rows in self.compute_rows)

    @cached_property
    def recomputing_ns(self) -> np.ndarray:
        """Per op, as `recompute_ns`: of a backward that takes longer or shorter than planned, the planned share."""
        planned = op_costs(self.schedule, self.profile).duration_ns
        extra = planned - kept_costs(self.schedule, self.profile).duration_ns
        extra[self.schedule.is_transfer] = 0
        length_ns = self.end_ns - self.start_ns
        share = np.divide(extra, planned, out=np.zeros(len(extra)), where=planned > 0)
        rounded = np.rint(length_ns * share).astype(np.int64)
        spent: np.ndarray = np.where(length_ns == planned, extra, rounded)
        return spent

    @property
    def unissued(self) -> CostProfile:
        """The costs before they were issued as their execution says."""
        return self.profile if self.given is None else self.given

    @property
    def given_stages(self) -> CostProfile:
        """The costs of its own stages before they were issued: what other schedules on these stages can be
        replayed with, each as its family is issued."""
        return self.unissued.for_shape(self.schedule.shape)

    @property
    def recomputed(self) -> int:
        """How many activations (stage, unit) are recomputed."""
        return int((self.schedule.levels.table > 0).sum())

    @property
    def cost_ns(self) -> int:
        """The value of the objective: the makespan (flush) or the longest device span (span)."""
        return self.makespan_ns if self.objective == "flush" else max(self.span_ns)

    @property
    def iteration_ns(self) -> int:
        """The time of an iteration, as the trainer's log shows it: the cost, which is the pipeline's
        time, and what the profile knows beside it; see `profile.iteration.iteration_ns`."""
        return round(iteration_ns(self.profile, self.cost_ns))

    @property
    def iteration_interval_ns(self) -> tuple[int, int] | None:
        """The interval that holds the measured time of four iterations in five, see
        `CostProfile.interval_of`."""
        interval = self.profile.interval_of(offloads=bool(self.offloaded))
        if interval is None:
            return None
        low, high = (round(self.iteration_ns * factor) for factor in interval)
        return low, high

    @property
    def expected_text(self) -> str:
        """That interval in words; empty where it is not known."""
        interval = self.iteration_interval_ns
        if interval is None:
            return ""
        low, high = map(format_time, interval)
        return f"{low} to {high} in {self.profile.like_it}"

    @property
    def bubble_rate(self) -> float:
        """(max span - busy) / max span, busy being the busiest device's: the published definition
        (Zero Bubble, table 5)."""
        span = max(self.span_ns)
        return (span - max(self.busy_ns)) / span

    @property
    def bubble_rate_flush(self) -> float:
        """(makespan - busy) / makespan."""
        return (self.makespan_ns - max(self.busy_ns)) / self.makespan_ns

    @property
    def imbalance(self) -> float:
        """The share of the cost in which devices idle because they have less work than the busiest one,
        the mean over the devices: only work moved between devices shortens it."""
        busy = self.busy_ns
        return (max(busy) - sum(busy) / len(busy)) / self.cost_ns

    @property
    def bubble(self) -> float:
        """The share of the cost in which the busiest device idles: another order can shorten it. With
        `imbalance` it adds up to the mean idle share of the devices."""
        return (self.cost_ns - max(self.busy_ns)) / self.cost_ns

    @cached_property
    def messages(self) -> Messages:
        """The messages between devices; see docs/semantics.md for the kinds of links."""
        waiting, needed = edges(self.schedule, self.profile)
        device = self.schedule.devices
        across = device[waiting] != device[needed]
        waiting, needed = waiting[across], needed[across]
        sends = np.zeros(len(self.schedule), bool)
        sends[needed] = True
        # of a pair the backward's message leaves when the F's has been sent
        later = self.schedule.second[needed] & sends[needed - 1]
        ready = self.end_ns[needed] + later * self.profile.sending_ns
        depart = ready.copy()
        if self.profile.serial_links:
            pair = device[needed] * self.profile.devices + device[waiting]
            order = np.lexsort((needed, ready, pair))
            free: dict[int, int] = {}
            for at, link, time in zip(
                order.tolist(), pair[order].tolist(), ready[order].tolist(), strict=True
            ):
                depart[at] = max(time, free.get(link, 0))
                free[link] = int(depart[at]) + self.profile.occupancy_ns
        return Messages(needed, waiting, depart, depart + self.profile.t_comm_ns)

    @cached_property
    def waits_ns(self) -> dict[str, np.ndarray]:
        """By cause, the idle time of the device right before each op, in the order of
        ``schedule.table``; 0 for transfers, which do not make a device wait.

        Before a device's first op all of it is ``fill``. A later wait is divided at the instants when its
        inputs arrived: until the device had sent its own message (``communication``, with blocking
        links), until the neighbour's op ended, then until its message was there, then until
        the reload ended, the rest is memory.
        """
        return waits_before_ops(self)

    @cached_property
    def idle_by_device_ns(self) -> tuple[dict[str, int], ...]:
        """Per device, its idle time within the makespan by cause (see `waits_ns`; ``drain`` is
        what follows its last op); the parts add up to all of it."""
        return tuple(
            {cause: int(wait[rows].sum()) for cause, wait in self.waits_ns.items()}
            | {"drain": self.makespan_ns - int(self.end_ns[rows[-1]])}
            for rows in self.compute_rows
        )

    @property
    def idle_ns(self) -> dict[str, int]:
        """Idle time by cause, the sum over the devices."""
        return {cause: sum(idle[cause] for idle in self.idle_by_device_ns) for cause in CAUSES}

    @cached_property
    def engine_load(self) -> dict[str, tuple[float, ...]]:
        """Per device, the shares of the makespan in which compute, offload and reload engines are busy."""
        length_ns = self.end_ns - self.start_ns
        kinds = self.schedule.table[:, 0]
        load = {"compute": tuple(busy / self.makespan_ns for busy in self.busy_ns)}
        for name, kind in (("offload", O), ("reload", R)):
            total = np.bincount(
                self.schedule.devices[kinds == kind],
                length_ns[kinds == kind],
                self.schedule.shape.devices,
            )
            load[name] = tuple((total / self.makespan_ns).tolist())
        return load

    # -- memory -----------------------------------------------------------------------------------

    @cached_property
    def memory(self) -> tuple[Steps, ...]:
        """Per device, the bytes it holds over time, `static` included."""
        costs = op_costs(self.schedule, self.profile)
        bounds = self.schedule.offsets
        steps = []
        for device, (first, last) in enumerate(pairwise(bounds)):
            rows = slice(first, last)
            steps.append(
                step_function(
                    np.concatenate((self.grant_ns[rows], self.end_ns[rows])),
                    np.concatenate((costs.allocated_bytes[rows], -costs.released_bytes[rows])),
                    self.profile.static_bytes[device],
                )
            )
        return tuple(steps)

    @cached_property
    def peak_bytes(self) -> tuple[int, ...]:
        """Per device, the peak of the bytes it holds."""
        return tuple(steps.peak for steps in self.memory)

    @property
    def memory_parts(self) -> list[dict[str, int]] | None:
        """Per device, what its peak is made of: see `held.memory_parts`."""
        return memory_parts(self.profile, self.peak_bytes)

    @property
    def tokens_per_s(self) -> float | None:
        """Over all replicas; None where the profile does not say what a microbatch is."""
        tokens = iteration_tokens(self.profile, self.schedule.shape.microbatches)
        return None if tokens is None else tokens / (self.iteration_ns * 1e-9)

    @property
    def flops_per_s(self) -> float | None:
        """Model FLOPs per second and GPU, every attention score counted and no recomputation, as
        Megatron-LM logs them; None where the profile does not know them."""
        flops = iteration_flops(self.profile, self.schedule.shape.microbatches)
        return None if flops is None else flops / (self.iteration_ns * 1e-9)

    @property
    def peak_text(self) -> str:
        """The highest peak of a device, for people; ``not known`` where that of the stages is not."""
        return "not known" if self.profile.memory_unknown else format_size(max(self.peak_bytes))

    @cached_property
    def host_memory(self) -> tuple[Steps, ...]:
        """Per node, the pinned host bytes over time: see `host.host_memory`."""
        return host_memory(self.schedule, self.profile, self.start_ns, self.end_ns)

    @property
    def pinned(self) -> tuple[Steps, ...]:
        """`host_memory` where anything is offloaded, else of no node."""
        return self.host_memory if self.offloaded else ()

    @property
    def host_peak_bytes(self) -> int:
        """The peak of pinned host memory over all nodes."""
        return max(steps.peak for steps in self.host_memory)

    @property
    def offloaded(self) -> int:
        """How many activations (stage, unit) are offloaded."""
        return int((self.schedule.table[:, 0] == O).sum())

    @property
    def transferred_bytes(self) -> int:
        """Bytes moved to the host and back, over all devices."""
        return int(moved_bytes(self.schedule, self.profile).sum())

    @cached_property
    def wear(self) -> Wear | None:
        """What offloads write to the drives of a node; None where they go to the host."""
        return wear_of(self.schedule, self.profile, self.start_ns, self.end_ns, self.cost_ns)

    # -- all of it --------------------------------------------------------------------------------

    def measures(self) -> dict[str, Any]:
        """Return the measures as plain data; the keys are those of ``simulate --json``."""
        interval = self.iteration_interval_ns
        return {
            "iteration_ns": self.iteration_ns,
            "iteration_interval_ns": interval and list(interval),
            "makespan_ns": self.makespan_ns,
            "cost_ns": self.cost_ns,
            "bubble_rate": self.bubble_rate,
            "bubble_rate_flush": self.bubble_rate_flush,
            "imbalance": self.imbalance,
            "bubble": self.bubble,
            "idle_ns": self.idle_ns,
            "peak_bytes": None if self.profile.memory_unknown else list(self.peak_bytes),
            "memory_parts": self.memory_parts,
            "host_peak_bytes": self.host_peak_bytes,
            "offloaded": self.offloaded,
            "recomputed": self.recomputed,
            "recompute_ns": list(self.recompute_ns),
            "tokens_per_s": self.tokens_per_s,
            "flops_per_s": self.flops_per_s,
            "fits": self.fits,
            **({"nvme": self.wear._asdict()} if self.wear is not None else {}),
        }

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "version": VERSION,
            "objective": self.objective,
            "fits": self.fits,
            "memory_limit_bytes": self.memory_limit and list(self.memory_limit),
            "start_ns": self.start_ns.tolist(),
            "end_ns": self.end_ns.tolist(),
            "grant_ns": self.grant_ns.tolist(),
            "profile": profile_to_json(self.profile),
            "schedule": self.schedule.to_json(),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any], source: str = "trace") -> Trace:
        """Read a trace from a mapping of the file format.

        Raises:
            OptPipeError: one line that names `source` and what is wrong.
        """
        return cls(**read_fields(data, source))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace as JSON, schedule and profile included, whole or not at all."""
        write_text(path, json.dumps(self.to_json()) + "\n")

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Trace:
        """Read a trace file."""
        return cls.from_json(read_mapping(path), str(path))
