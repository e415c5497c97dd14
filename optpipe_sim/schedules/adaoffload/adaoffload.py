"""AdaOffload: the greedy that fills memory and copy engines before the first backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain

from ...bounds.bounds import naive
from ...errors import InvalidSchedule, NoSolution
from ...profile import CostProfile
from ...schedule import Schedule
from ...sim import require_limit, simulate
from ...stage_cost import StageCost
from ...trace import OBJECTIVES
from ...units import Size
from . import progress
from .runs import UNBOUNDED, Greedy, Problem, Setting
from .waves import WAVES, Wave, play

# In the order of their marginal gain, found by a greedy cover of 400 random settings over 170
# instances (uniform and uneven stages, 1 to 3 chunks, 2 to 16 devices, scarce and ample memory,
# cheap and expensive copies). The first two are enough for ample memory.
SETTINGS = tuple(
    Setting(*values)
    for values in (
        (0, 1000, UNBOUNDED, 1, 1500, 2, 0, 0, 1, 0),
        (0, 300, UNBOUNDED, 1, 3000, 2, 0, 1, 0, 0),
        (1, 0, UNBOUNDED, 0, 1000, 1, 0, 0, 0, 0),
        (1, 0, 4, -1, 1000, 1, 0, 0, 0, 1000),
        (1, 300, UNBOUNDED, 1, 3000, 1, 0, 0, 0, 0),
        (0, 1000, UNBOUNDED, 0, 1000, 3, 0, 1, 0, 0),
        (0, 1000, 1, 1, 3000, 1, 0, 0, 0, 1500),
        (2, 700, UNBOUNDED, 1, 3000, 1, 0, 1, 0, 0),
        (1, 700, 4, -1, 2000, 3, 0, 0, 0, 0),
        (1, 1000, UNBOUNDED, 1, 1000, 3, 1, 0, 0, 1500),
        (0, 700, UNBOUNDED, 0, 1500, 3, 0, 1, 0, 2000),
        (1, 300, 4, 0, 1500, 1, 0, 0, 0, 1500),
        (2, 0, 4, 1, 1000, 2, 1, 0, 1, 0),
        (1, 1000, UNBOUNDED, 0, 500, 1, 1, 0, 0, 2000),
        (0, 0, 4, -1, 3000, 1, 0, 1, 0, 1500),
        (2, 700, 4, 1, 5000, 1, 1, 0, 0, 0),
        (0, 1000, UNBOUNDED, 1, 2000, 2, 0, 0, 0, 0),
        (0, 1000, 4, -1, 1000, 1, 0, 1, 1, 2000),
        (2, 300, 2, 1, 1500, 1, 0, 0, 0, 1000),
        (2, 1000, 4, -1, 1500, 2, 0, 1, 0, 0),
        (2, 300, UNBOUNDED, 1, 5000, 0, 0, 0, 0, 1000),
        (0, 1000, 2, -1, 3000, 1, 0, 0, 1, 2000),
        (2, 700, 4, 1, 8000, 3, 1, 0, 0, 0),
        (0, 0, UNBOUNDED, -1, 2000, 2, 0, 0, 1, 1500),
        (0, 500, UNBOUNDED, 1, 1500, 3, 0, 1, 1, 1500),
        (0, 0, UNBOUNDED, 1, 2000, 2, 0, 0, 1, 2000),
        (1, 1000, 4, 0, 3000, 2, 0, 1, 1, 0),
        (2, 700, UNBOUNDED, 1, 2000, 1, 1, 0, 0, 2000),
    )
)
# The same for several chunks per device, from 450 settings and 124 instances.
_CHUNKED = tuple(
    Setting(*values)
    for values in (
        (0, 300, UNBOUNDED, 1, 1000, 1, 0, 0, 1, 1500),
        (1, 300, UNBOUNDED, 1, 3000, 1, 0, 0, 0, 700),
        (1, 1000, UNBOUNDED, 1, 3000, 2, 1, 0, 1, 0),
        (1, 0, UNBOUNDED, 1, 2000, 3, 0, 0, 1, 1000),
        (0, 500, UNBOUNDED, -1, 8000, 3, 0, 0, 0, 2000),
        (2, 700, 1, -1, 1500, 2, 1, 0, 0, 0),
        (2, 700, UNBOUNDED, 1, 8000, 2, 0, 0, 0, 850),
        (1, 300, UNBOUNDED, 0, 1000, 0, 1, 1, 0, 0),
        (2, 500, UNBOUNDED, 1, 8000, 3, 0, 1, 1, 1200),
        (2, 500, UNBOUNDED, 1, 3000, 3, 1, 1, 1, 700),
        (0, 500, UNBOUNDED, 1, 1500, 2, 1, 0, 0, 0),
        (1, 1000, 4, 1, 2000, 3, 0, 0, 0, 850),
        (0, 700, UNBOUNDED, -1, 8000, 3, 0, 1, 0, 0),
        (1, 700, 4, 1, 1000, 2, 0, 0, 1, 850),
        (0, 300, 1, 1, 3000, 2, 0, 0, 1, 0),
        (2, 500, UNBOUNDED, -1, 5000, 3, 0, 1, 1, 0),
        (0, 500, 2, -1, 1000, 3, 1, 0, 1, 2000),
        (2, 300, 2, -1, 1500, 1, 0, 0, 0, 1200),
        (1, 700, 4, 0, 2000, 3, 0, 1, 1, 0),
        (1, 0, 4, 1, 1000, 1, 1, 1, 1, 850),
        (1, 1000, UNBOUNDED, 1, 3000, 2, 0, 0, 1, 1000),
        (2, 700, 1, 1, 2000, 1, 1, 0, 1, 2000),
        (2, 300, UNBOUNDED, 1, 5000, 0, 0, 0, 0, 1000),
        (1, 300, 1, 1, 1000, 3, 1, 1, 0, 700),
    )
)
# With several chunks waves are mostly better: two of them after each setting.
CHUNKED: tuple[Setting | Wave, ...] = tuple(
    chain.from_iterable((way, *WAVES[2 * at : 2 * at + 2]) for at, way in enumerate(_CHUNKED))
)
# The setting that needs the least memory, tried last: one microbatch on a device at a time.
LAST_RESORT = Setting(depth=1)
MOST_WORK = (
    2**14
)  # stages x microbatches x runs; larger problems get fewer runs, but at least LEAST_RUNS
LEAST_RUNS = 8
PLACEMENTS = ("loop", "vee")


def adaoffload(
    profile: CostProfile,
    microbatches: int,
    limit: Size | Sequence[Size] | None = None,
    chunks: int | None = None,
    objective: str = "flush",
    placement: str | None = None,
    over: Callable[[], bool] = lambda: False,
    **parameters: int,
) -> Schedule:
    """Run as many forwards as memory and copy engines permit before the first backward.

        Event by event, each device starts the forwards that fit, B's as their gradients arrive, and W's when it would idle. If memory is short it offloads an activation (usually the newest, which is needed last) and reloads it shortly before its B. A few dozen settings of the parameters are tried and the best run is kept. It supports any profile, any m, and any limit that some schedule can keep. At p = 4, m = 5, room for three activations, copies as long as F::

            0 F0 F1 F2 F3 F4 .  .  B0 W0 .  B1 B2 W1 B3 W2 B4 W3 W4
                O1 O2 O3 O4    R1 R2    R3    R4
        1 .  F0 F1 F2 F3 F4 B0 W0 .  B1 B2 W1 B3 W2 B4 W3 W4 .
                   O1 O2 O3 O4 R2 R3       R4
        2 .  .  F0 F1 F2 B0 W0 F3 B1 B2 F4 B3 W1 B4 W2 W3 W4 .
        3 .  .  .  F0 B0 F1 B1 F2 B2 F3 B3 F4 B4 W0 W1 W2 W3 W4

    (R1 of devices 0 and 1 runs beside an O.)

        **Why it cannot deadlock.** Per device, let the oldest microbatch be the first whose B's are not
        all done. A forward or reload of any other microbatch is admitted only if the limit would still hold after offloading all others as far as possible, running their W's, and granting the oldest the memory of one microbatch at a time. So if nothing else can proceed, the oldest microbatch of all can: offloading the others frees the memory that it needs.

        Args:
            profile: with its own chunks and placement, unless `chunks` is given.
            microbatches: m.
            limit: bytes per device, static included: one number, or one per device. None: the
                profile's own; without a limit nothing is offloaded.
            chunks, placement: re-chunk the profile, see `rechunked`. objective: the criterion for
                the best run: ``flush`` (makespan) or ``span``. over: asked after every run; tells
                whether the time is up. parameters: run a single setting, with these parameters; see
                `runs.Setting`.

        Raises:
            OutOfMemory: if the limit is below what one microbatch needs; names the least limit.
                NoSolution: if the pinned host memory cannot hold the offloads that the limit
                requires, the limit admits one microbatch only if that is recomputed, or the time
                is up first.
            InvalidSchedule: for an unknown objective or parameter.

        Source: the greedy of OptPipe (arXiv 2510.05186), reconstructed as a list scheduler.
    """
    if objective not in OBJECTIVES:
        raise InvalidSchedule(f"objective: expected {' or '.join(OBJECTIVES)}, got {objective!r}")
    for key in parameters:
        if key not in Setting._fields:
            known = ", ".join(Setting._fields)
            raise InvalidSchedule(f"adaoffload: unknown parameter {key!r}; known are {known}")
    profile = rechunked(profile, chunks, placement)
    limits = profile.limits(limit, "limit")
    if limits is not None:
        require_limit(profile, limits)
    settings: Sequence[Setting | Wave] = SETTINGS if profile.chunks == 1 else CHUNKED
    if parameters:
        settings = (Setting()._replace(**parameters),)
    shape = profile.shape(microbatches)
    runs = max(LEAST_RUNS, MOST_WORK // (shape.stages * microbatches))
    for problem, some in _attempts(profile, microbatches, limits, settings[:runs]):
        best = best_run(problem, some, objective, over)
        if best is None:
            if over():
                break
            continue
        schedule = best.schedule(microbatches)
        if best.offloads and not host_holds(schedule, profile, limits):
            continue
        schedule.meta["setting"] = best.setting._asdict()
        return schedule
    if profile.offload is None or profile.offload.pinned_limit_bytes is None:
        raise NoSolution(
            "adaoffload: no run of the greedy, which recomputes nothing, keeps the memory limit;"
            " raise it, or take adaoffload-r"
        )
    raise NoSolution("adaoffload: no run of the greedy keeps the host limit; raise it")


def rechunked(profile: CostProfile, chunks: int | None, placement: str | None) -> CostProfile:
    """Return the profile with `chunks` per device, in a ``loop`` or a ``vee``. Without a placement
    in a loop; with one only, ``vee`` has two chunks, ``loop`` as many as the profile; with
    neither, the profile itself.

    Raises:
        InvalidSchedule: for an unknown placement.
        ProfileError: if the profile cannot be cut or placed so.
    """
    if placement not in (None, *PLACEMENTS):
        raise InvalidSchedule(f"placement: expected {' or '.join(PLACEMENTS)}, got {placement!r}")
    if chunks is None and placement is None:
        return profile
    default = 2 if placement == "vee" else profile.chunks
    return profile.rechunk(default if chunks is None else chunks, placement or "loop")


def best_run(
    problem: Problem,
    settings: Sequence[Setting | Wave] = SETTINGS,
    objective: str = "flush",
    over: Callable[[], bool] = lambda: False,
) -> Greedy | None:
    """Return the run with the least cost; of equal ones, the one with the fewest offloads. `over`:
    asked after every run; tells whether the time is up."""
    least = naive(problem.profile, problem.microbatches, objective)
    best: Greedy | None = None
    best_key = (progress.FOREVER, 0)
    for number, setting in enumerate(settings):
        if number and over():
            break
        stop = best_key[0] if objective == "flush" else progress.FOREVER
        found = play(problem, setting, stop)
        if found is None:
            continue
        key = (found.cost_ns(objective), found.offloads)
        if key < best_key:
            best, best_key = found, key
        if key == (least, 0):
            break
    return best


def _attempts(
    profile: CostProfile,
    microbatches: int,
    limits: Sequence[int] | None,
    settings: Sequence[Setting | Wave],
) -> Iterator[tuple[Problem, Sequence[Setting | Wave]]]:
    """Yield runs to try until the replay also keeps the host limit: it may start copies earlier
    than the greedy did, as ops in a program do not wait for host memory."""
    yield Problem(profile, microbatches, limits), settings
    if profile.offload is not None and profile.offload.writes_behind:
        yield Problem(_streaming(profile), microbatches, limits), settings
        return
    for host in (750, 500, 250):
        yield Problem(profile, microbatches, limits, host), settings
    yield Problem(profile, microbatches, limits, 0), (*settings, LAST_RESORT)
    yield Problem(profile, microbatches, limits, 0), (LAST_RESORT,)


def _streaming(profile: CostProfile) -> CostProfile:
    """Return the profile with copies that take as long as the drives take to write them, at an even share
    for each link: a plan for these leaves few in the staging buffer."""
    offload = profile.offload
    assert offload is not None
    assert offload.nvme is not None
    drives, share = offload.nvme, max(map(len, offload.links_by_node(profile.devices)))

    def slower(_: int, cost: StageCost) -> StageCost:
        least = share * drives.write_ns(cost.offloadable)
        return replace(cost, t_offload_ns=max(cost.t_offload_ns or 0, least))

    return profile.map_stages(slower)


def host_holds(schedule: Schedule, profile: CostProfile, limits: Sequence[int] | None) -> bool:
    """Whether the replay stays within the pinned host memory."""
    most = profile.offload.pinned_limit_bytes if profile.offload else None
    if most is None:
        return True
    return simulate(schedule, profile, limits).host_peak_bytes <= most
