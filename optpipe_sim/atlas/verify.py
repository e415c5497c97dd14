"""Check an instance with the checker alone: no simulator, no solver and no bound is involved."""

from __future__ import annotations

from ..checker.check import timed
from ..errors import OptPipeError
from ..profile import CostProfile
from ..schedule import Schedule, Shape
from ..units import format_times
from .instances import Instance


def makespan(
    instance: Instance, schedule: Schedule, profile: CostProfile | None = None
) -> tuple[list[str], int]:
    """Return what is wrong with a schedule for an instance, one sentence each, and its makespan in ns; 0
    where something is.

    Args:
        profile: the instance's, if it has been loaded.
    """
    profile = profile or instance.load_profile()
    wanted = profile.shape(instance.microbatches)
    if schedule.shape != wanted:
        return [f"the schedule is for {_text(schedule.shape)}, the instance for {_text(wanted)}"], 0
    return timed(schedule, profile)


def problems(instance: Instance) -> list[str]:
    """Return what is wrong with an instance, one sentence each: that its files cannot be read or
    contradict each other, that its schedule is not valid or takes another time than is said, or that a
    schedule beats the bound."""
    try:
        profile = instance.load_profile()
        found = _contradictions(instance, profile)
        if instance.best is None:
            return found
        schedule = instance.load_schedule(profile)
    except OptPipeError as error:
        return [str(error)]
    wrong, took = makespan(instance, schedule, profile)
    found += wrong
    if not wrong and took != instance.best.ns:
        said, is_so = format_times(instance.best.ns, took)
        found.append(f"the schedule takes {is_so}, the record says {said}")
    if not wrong and instance.bound is not None and took < instance.bound.ns:
        bound, is_so = format_times(instance.bound.ns, took)
        found.append(
            f"the schedule takes {is_so}, less than the bound of {bound} ({instance.bound.how}), which is therefore wrong"
        )
    return found


def _contradictions(instance: Instance, profile: CostProfile) -> list[str]:
    return [
        f"the records say {said} {what}, the profile {is_so}"
        for what, said, is_so in (
            ("devices", instance.devices, profile.devices),
            ("chunks", instance.chunks, profile.chunks),
        )
        if said != is_so
    ]


def _text(shape: Shape) -> str:
    slices = f", {shape.slices} slices" if shape.slices > 1 else ""
    return (
        f"{shape.devices} devices, {shape.chunks} chunks each, placement {shape.placement_name}{slices},"
        f" {shape.microbatches} microbatches"
    )
