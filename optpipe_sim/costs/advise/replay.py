"""The replay of one choice: its profile under the question's limit, and a named schedule on it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ...errors import OutOfMemory
from ...names import build, parse_name
from ...profile import CostProfile
from ...schedule import Schedule
from ...schedules import REGISTRY, those, with_option
from ...sim import simulate
from ...solvers.starts.published import LOOP
from ...solvers.treatments import require_alike, restrict
from ...trace import Trace
from ...units import size_text
from ..estimating import estimated
from ..provenance import STEP
from .space import IN_FLIGHT, KEEPING, Choice, Question

# these take longer to build than to bound; in the order in which they are tried
PLANNED = tuple(sorted(those(lambda entry: entry.slow > 0), key=lambda name: REGISTRY[name].slow))
AT_LIMIT = those(lambda entry: entry.at_limit)
# their programs rely on the limit being kept
UNDER_LIMIT = (*those(lambda entry: entry.ours), "optpipe")


def profile_of(
    question: Question,
    choice: Choice,
    levels: bool | None = False,
    items: bool = True,
    layers: Sequence[int | str] | None = None,
) -> CostProfile:
    """Return the estimated profile of a choice, under the question's limit and with the treatments that
    it allows; with or without levels of recomputation (None: as `estimate` has them), with what each layer
    costs (`items`), by which other numbers of chunks are dealt, and with the model's `layers` per stage, or
    balanced.

    Raises:
        OptPipeError: for a choice that the model or the machine does not admit.
    """
    layout, work = question.layout(choice, layers), question.work_of(choice)
    made = estimated(
        question.model,
        question.machine,
        layout,
        work,
        levels,
        items,
        execution=question.execution,
        limit_bytes=question.limit_bytes,
    )
    return restrict(made, question.treatments)


def may_fit(
    names: tuple[str, ...], profile: CostProfile, microbatches: int, limit_bytes: int
) -> tuple[tuple[str, ...], int]:
    """Return the schedules that what they hold for certain does not rule out, and the most that decides it."""
    held = kept_whole(profile)
    if held > limit_bytes:
        return tuple(name for name in names if name not in KEEPING), held
    held = max(held, kept_in_flight(profile, microbatches)) if profile.chunks == 1 else held
    if held > limit_bytes:
        return tuple(name for name in names if name not in IN_FLIGHT), held
    return names, held


def kept_whole(profile: CostProfile) -> int:
    """Return what the fullest device holds at least where nothing is offloaded: one microbatch, all of its
    slices on all of the device's stages."""
    held = list(profile.static_bytes)
    for cost, device in zip(profile.stages, profile.placement, strict=True):
        held[device] += cost.act_bytes
    return max(held)


def kept_in_flight(profile: CostProfile, microbatches: int) -> int:
    """Return what the fullest device holds at least in the schedules of `space.IN_FLIGHT`: with one chunk, n
    slices and p devices, n + p - 1 - r slices have their forwards on device r before its first backward."""
    held = list(profile.static_bytes)
    for cost, device in zip(profile.stages, profile.placement, strict=True):
        acts = [part.act_bytes for part in cost.slices or (cost,)]
        units = min(microbatches * len(acts), len(acts) + profile.devices - 1 - device)
        whole, rest = divmod(units, len(acts))
        held[device] += whole * sum(acts) + sum(acts[:rest])
    return max(held)


def replayed(
    profile: CostProfile, microbatches: int, name: str, per_stage: bool = False
) -> tuple[str, Trace]:
    """Return a named schedule's replay on a profile with a limit, and the name with its options.

    Schedules that are not built for a limit are replayed without one and fit if their peak does, since
    waiting for memory would change them. Long ones are first tried with a few microbatches:
    those that do not fit with few do not fit with more. With `per_stage` a schedule that does not treat all
    activations of a stage alike is refused.

    Raises:
        OptPipeError: where the schedule does not admit the profile, or nothing keeps the limit.
    """
    base, options = parse_name(name)
    limit = min(profile.limits() or (0,))
    if base in LOOP:
        options["chunks"] = profile.chunks
        if profile.slices > 1 and "slices" not in options:
            name = with_option(name, "slices", profile.slices)
            options["slices"] = profile.slices
    elif base in AT_LIMIT and "limit" not in options:
        name = with_option(name, "limit", size_text(limit))
        options["limit"] = limit
    few = 2 * profile.devices
    if base not in PLANNED and microbatches >= 2 * few and profile.devices > 1:
        trace = trace_of(build(base, profile, few, **options), profile, enforce=False)
        if not trace.fits:
            raise OutOfMemory(f"{name}: does not fit with {few} microbatches")
    schedule = build(base, profile, microbatches, **options)
    if per_stage:
        require_alike(schedule)
    return name, trace_of(schedule, profile, base in UNDER_LIMIT)


def replayed_freely(profile: CostProfile, microbatches: int, name: str) -> Trace:
    """Replay a named schedule without enforcing the profile's limit, unless the schedule plans for it; the trace's
    `fits` says whether it keeps the limit.

    Raises:
        OptPipeError: where the schedule does not admit the profile, or nothing keeps the limit.
    """
    base, options = parse_name(name)
    if base in LOOP:
        options["chunks"] = profile.chunks
    schedule = build(base, profile, microbatches, **options)
    return trace_of(schedule, profile, base in UNDER_LIMIT)


def trace_of(schedule: Schedule, profile: CostProfile, enforce: bool) -> Trace:
    """Return the replay of a schedule; its `fits` says whether it keeps the limits, the host's included.

    Raises:
        OptPipeError: where it does not go through with the limit enforced.
    """
    trace = simulate(schedule, profile, enforce=enforce)
    host = profile.offload.pinned_limit_bytes if profile.offload else None
    over = peak_of(trace) > min(profile.limits() or (0,))
    return replace(trace, fits=not (over or (host is not None and trace.host_peak_bytes > host)))


def peak_of(trace: Trace) -> int:
    """Return the most that a device holds, in the replay or in the optimizer's step after it."""
    stepping: list[int] = trace.profile.meta.get(STEP, [])
    return max([*trace.peak_bytes, *stepping])
