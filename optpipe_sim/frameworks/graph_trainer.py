"""A plan in the options of torchtitan's experiment graph_trainer: an order, and one memory policy for all stages.

Names and rules as of torchtitan b5bcd76:
torchtitan/experiments/graph_trainer/{configs,memory_policy,passes}.py, its graph_pp/pipeline.py and
README. It traces one microbatch of each stage, so that all microbatches are alike.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..errors import InvalidSchedule, OptPipeError
from ..profile import CostProfile
from ..schedule import Schedule
from . import torchtitan
from .nearest import Nearest
from .parts import said

# Levels of a profile, and the policy that recomputes about as much; it has none that saves everything.
POLICIES: Mapping[str | None, str] = {"norms": "default", "selective": "default", "full": "full"}
DEFAULT = (
    "memory_policy default saves the results of matrix products and attention and recomputes the rest; compare the bytes of"
    " its listing with the level's (import --from torchtitan-activations)"
)


def nearest(schedule: Schedule, profile: CostProfile) -> Nearest:
    """Find the schedule that graph_trainer runs instead of a schedule: the same order if it can, every
    stage under the same policy.

    Raises:
        InvalidSchedule: for one chunk per device, and for a profile without a level that it has a policy for.
    """
    if schedule.shape.chunks == 1:
        raise InvalidSchedule(
            "graph_trainer: its pipelines need schedules of several stages per rank, such as Interleaved1F1B"
        )
    levels = _levels(profile)
    found = torchtitan.nearest(schedule, profile, levels)
    policy = levels[_level(found.schedule, levels)]
    return replace(found, notes=(DEFAULT,) if policy == "default" else ())


def _level(schedule: Schedule, levels: Mapping[str | None, str]) -> str | None:
    return None if None in levels else next(iter(schedule.recompute.values()))


def _levels(profile: CostProfile) -> Mapping[str | None, str]:
    """Return the levels to choose from: none but what every stage already recomputes, or those of the profile."""
    inside = said(profile, "work").get("recompute", "none")
    return {None: POLICIES[inside]} if inside in POLICIES else POLICIES


def options(
    schedule: Schedule, profile: CostProfile, csv: str | None, layers: Sequence[int] | None = None
) -> dict[str, Any]:
    """Return the options for a schedule that `nearest` returned, by section; see `torchtitan.options`.

    Raises:
        OptPipeError: for what its pipelines exclude.
    """
    levels = _levels(profile)
    told = torchtitan.options(schedule.replace(recompute={}), profile, csv, layers, levels)
    if told["parallelism"].get("fsdp_reshard_after_forward") == "always":
        raise OptPipeError(
            f"profile {profile.name}: its costs shard weights (ZeRO 3), which graph_trainer's pipelines exclude; estimate"
            " with --zero 1 or 2"
        )
    del told["activation_checkpoint"]
    return {
        **told,
        "compile": {"mode": "aot_fx_trace", "memory_policy": levels[_level(schedule, levels)]},
    }


def command(options: Mapping[str, Any]) -> str:
    """Return the options as words of a command line; see `torchtitan.command`."""
    words = [
        f"--compile.{key} {shlex.quote(str(value))}" for key, value in options["compile"].items()
    ]
    return " ".join([*words, torchtitan.sections(options)])
