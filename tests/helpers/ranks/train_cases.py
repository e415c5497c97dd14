"""Training runs of a tiny model on two ranks, and a planner that follows a script."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from runtime_cases import measured

from optpipe_sim import simulate
from optpipe_sim.costs.models import Model
from optpipe_sim.errors import OptPipeError
from optpipe_sim.ops import B, F, O, Op, R, W
from optpipe_sim.profile import CostProfile
from optpipe_sim.runtime.model.plan import Plan
from optpipe_sim.runtime.model.tokens import Tokens
from optpipe_sim.runtime.settings import Online
from optpipe_sim.runtime.train.observed import Sample, sample
from optpipe_sim.runtime.train.planner import Proposal
from optpipe_sim.runtime.train.task import TrainTask
from optpipe_sim.runtime.train.trainer import Prepared
from optpipe_sim.schedule import Schedule
from optpipe_sim.schedule.shape import Shape

M = 4
LEVELS = ("norms", "full")
STEPS = 5000  # more than a loaded machine needs; a test ends its run once it has seen enough
MODEL = Model("tiny", layers=2, hidden=32, heads=4, kv_heads=2, ffn=64, vocab=24)
PLAN = Plan(MODEL, 2, seq=16, microbatch=2)
QUICK = Online(warmup=2, min_gain=0.01, drift=1e9, solver_s=1.0, settle_s=0.2)


@cache
def measured_costs() -> CostProfile:
    """The model's profile, measured here, with levels of recomputation."""
    return measured(PLAN, 2, 1, LEVELS)


def without_levels(profile: CostProfile) -> CostProfile:
    return profile.map_stages(lambda _, cost: replace(cost, recompute=()))


def one_by_one(offload: bool = True) -> Schedule:
    """Each microbatch on its own, all of stage 0 offloaded: nothing overlaps."""
    kinds = (F, O, R, B, W) if offload else (F, B, W)
    first = [Op(kind, 0, j) for j in range(M) for kind in kinds]
    second = [Op(kind, 1, j) for j in range(M) for kind in (F, B, W)]
    return Schedule(Shape(2, 1, M, (0, 1)), [first, second])


def task(profile: CostProfile, steps: int = 10, **changes: Any) -> TrainTask:
    return TrainTask(one_by_one(), profile, PLAN, Tokens(24), steps, **changes)


@dataclass
class Script:
    """In the place of the planner: proposes given schedules at given steps."""

    profile: CostProfile
    schedules: dict[int, Schedule]
    events: list[dict[str, Any]] = field(default_factory=list)
    step: int = 0

    def take(self) -> Proposal | None:
        found = self.schedules.pop(self.step, None)
        self.step += 1
        return None if found is None else Proposal(found, self.profile, 80, 100)

    def committed(self, proposal: Proposal) -> None:
        self.events.append({"step": self.step, "event": "committed"})

    def rejected(self, proposal: Proposal) -> None:
        self.events.append({"step": self.step, "event": "rejected"})

    def observe(self, step: int, epoch: int, measured: Sample) -> None: ...

    def start(self) -> None: ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class Scripted(TrainTask):
    """Ranks in `stubborn` refuse what is proposed."""

    script: tuple[tuple[int, Schedule], ...] = ()
    stubborn: tuple[int, ...] = ()

    def planner(self, schedule: Schedule, step: int, epoch: int) -> Any:
        return Script(self.profile, dict(self.script))

    def prepare(self, rank: int, schedule: Schedule, profile: CostProfile) -> Prepared:
        if rank in self.stubborn and schedule != self.schedule:
            raise OptPipeError(f"rank {rank} would rather not")
        return super().prepare(rank, schedule, profile)


def scripted(profile: CostProfile, steps: int, script: Any, **changes: Any) -> Scripted:
    return Scripted(one_by_one(), profile, PLAN, Tokens(24), steps, script=tuple(script), **changes)


def until(wanted: Callable[[list[dict[str, Any]]], bool]) -> Callable[[dict[str, Any]], bool]:
    seen: list[dict[str, Any]] = []

    def news(row: dict[str, Any]) -> bool:
        seen.append(row)
        return wanted(seen)

    return news


def rows_after(seen: list[dict[str, Any]], event: str, nth: int = 1) -> int:
    """Iterations since the event came for the nth time; 0 before."""
    times = [at for at, row in enumerate(seen) if row.get("event") == event]
    return sum("loss" in row for row in seen[times[nth - 1] :]) if len(times) >= nth else 0


def losses(result: Any) -> list[float]:
    return [row["loss"] for row in result.rows]


def kinds(result: Any) -> list[str]:
    return [event["event"] for event in result.events]


def timed(schedule: Schedule, profile: CostProfile) -> Sample:
    trace = simulate(schedule, profile)
    return sample(trace.schedule, trace.start_ns, trace.end_ns)
