"""What is to be confirmed: a schedule, its costs, and the model that these were measured on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ...costs import load_model
from ...costs.lengths import one_each
from ...costs.models import Model
from ...costs.slices import slice_lengths
from ...errors import OptPipeError
from ...profile import CostProfile
from ...profile.iteration import lengths_of
from ...schedule import Schedule
from ...sim.lower import Lowered, lower
from ..model.plan import Plan
from ..settings import Tolerances
from .verdict import GRADIENT_TOLERANCE


def plan_of(
    profile: CostProfile,
    model: Model | None = None,
    *,
    seq: int | None = None,
    microbatch: int | None = None,
    dtype: str | None = None,
    layers: Sequence[int] | None = None,
    slices: int | None = None,
) -> Plan:
    """Return the model that a profile was measured on, and how it was cut; what is given takes precedence.
    `slices`: as many as the schedule has; default: as the profile.

    Raises:
        OptPipeError: where neither says it.
    """
    meta = profile.meta
    parts: list[dict[str, Any]] = [
        part if isinstance(part := meta.get(key), dict) else {} for key in ("work", "model")
    ]
    work, known = parts
    if model is None:
        if not known.get("shape"):
            raise OptPipeError(
                f"profile {profile.name}: does not say which model it is of (`optpipe-sim profile`"
                " writes that); give --model"
            )
        model = load_model({**known["shape"], "name": known.get("name", "model")})
        layers = layers or meta.get("layers_per_stage")
    tokens = _tokens(profile)
    sizes = {
        "seq": seq or max(tokens, default=work.get("seq", 0)),
        "microbatch": microbatch or work.get("microbatch", 0),
    }
    for key, value in sizes.items():
        if not value:
            raise OptPipeError(f"profile {profile.name}: does not say its {key}; give --{key}")
    return Plan(
        model,
        profile.devices,
        profile.chunks,
        int(sizes["seq"]),
        int(sizes["microbatch"]),
        dtype or work.get("dtype") or "fp32",
        None if layers is None else tuple(map(int, layers)),
        slices=_lengths(work.get("slices"), int(sizes["seq"]), slices or profile.slices),
        tokens=tokens,
    )


def _tokens(profile: CostProfile) -> tuple[int, ...]:
    """Return the tokens of the sequence of each microbatch where these differ; nothing where they are alike."""
    if profile.alike:
        return ()
    lengths = lengths_of(profile)
    if lengths is None:
        raise OptPipeError(
            f"profile {profile.name}: its microbatches differ, but it does not say how long their sequences"
            " are (`estimate --lengths` and `profile --lengths` write that)"
        )
    return one_each(lengths, f"profile {profile.name}")


def _lengths(said: Any, seq: int, slices: int) -> tuple[int, ...]:
    """Return the tokens of each slice: those in the profile where they fit, else equal ones."""
    if slices == 1:
        return ()
    if isinstance(said, list) and len(said) == slices and sum(said) == seq:
        return tuple(map(int, said))
    return slice_lengths(seq, slices)


@dataclass(frozen=True)
class Case:
    """What is to be confirmed, and how hard.

    Attributes:
        schedule: the halves of its pairs run one after the other, and are predicted so.
        plan: the model of the stages; ``synthetic`` needs none.
        device: ``cpu`` or ``cuda``.
        iterations: of ``synthetic`` (the fastest counts), ``replay`` (medians), and of ``gradient`` where
            `kineto` records it: the first one warms up.
        sweeps: of ``loop``, at most.
        cap_memory: on CUDA, let ``loop`` reserve no more than the limit.
        cap_limits: the limit of each device for that, where it is not the schedule's own.
        kineto: of ``synthetic`` and ``gradient``, the folder for torch.profiler's traces.
    """

    schedule: Schedule
    profile: CostProfile
    memory_limit: int | Sequence[int] | None = None
    plan: Plan | None = None
    device: str = "cpu"
    iterations: int = 5
    sweeps: int = 6
    tolerances: Tolerances = field(default_factory=Tolerances)
    cap_memory: bool = False
    seed: int = 0
    cap_limits: tuple[int, ...] | None = None
    kineto: str | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "schedule", self.schedule.parted())
        if self.device not in ("cpu", "cuda"):
            raise OptPipeError(f"device: expected cpu or cuda, got {self.device!r}")
        if self.iterations < 1 or self.sweeps < 1:
            raise OptPipeError(
                f"iterations, sweeps: must be at least 1, got {self.iterations}, {self.sweeps}"
            )

    @cached_property
    def lowered(self) -> Lowered:
        """The lowered schedule that is executed; its replay predicts time and memory under the limit."""
        return lower(self.schedule, self.profile, self.memory_limit)

    @property
    def stages(self) -> Plan:
        """The model of the stages, in modes that need one."""
        assert self.plan is not None
        return self.plan

    @cached_property
    def predicted_peaks(self) -> list[int]:
        """The predicted peak of each rank, beyond what is static, in bytes."""
        peaks = self.lowered.replay().peak_bytes
        static = self.lowered.profile.static_bytes
        return [peak - fixed for peak, fixed in zip(peaks, static, strict=True)]

    def tolerated(self) -> Tolerances:
        """Return the tolerances; that of gradients by the dtype, where none was given."""
        if self.tolerances.gradient is not None:
            return self.tolerances
        return replace(self.tolerances, gradient=GRADIENT_TOLERANCE[self.stages.dtype])


def free_bytes(case: Case, rank: int) -> int:
    """Return what a rank may allocate in a step under the limit: all but the static part, whose reserve is
    for what ops need for a moment.

    Raises:
        OptPipeError: where there is no limit.
    """
    profile, limits = case.lowered.profile, case.cap_limits or case.lowered.memory_limit
    if limits is None:
        raise OptPipeError("--memory-fraction: needs a --memory-limit")
    stages: Any = case.profile.meta.get("stages") or []
    reserve = sum(
        entry.get("static_bytes", {}).get("reserve", 0)
        for entry, place in zip(stages, case.profile.placement, strict=False)
        if place == rank
    )
    return limits[rank] - profile.static_bytes[rank] + int(reserve)
