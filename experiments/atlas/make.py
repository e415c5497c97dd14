"""Make the atlas's library, or improve it.

    python -m experiments.atlas.make [--again [--wider SHARE]] [--seconds 5] [--seed 0] [--within MINUTES] [NAME ...]

Instances that are there are left alone; after Ctrl-C the same command goes on where it was. With `--again` those that
are not proven optimal (with `--wider 0.2`: whose gap is above 20 %) are searched once more, from the best schedule known,
and what is better is kept. Profiles are made once and kept as files: the next run reads them. NAME: only profiles whose
name has it.
"""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from optpipe_sim.atlas.instances import (
    LIBRARY,
    PROFILE,
    Instance,
    Record,
    read_library,
    write_instance,
)
from optpipe_sim.atlas.records import with_schedule
from optpipe_sim.bounds.bounds import lower_bound
from optpipe_sim.errors import Infeasible, NoSolution, OptPipeError, OutOfMemory
from optpipe_sim.names import build
from optpipe_sim.profile import CostProfile
from optpipe_sim.profile_io import load_profile, save_profile
from optpipe_sim.schedule import Schedule
from optpipe_sim.sim import simulate_or_report
from optpipe_sim.solvers.result import SolveResult
from optpipe_sim.solvers.solve import solve
from optpipe_sim.study.versions import commit
from optpipe_sim.version import __version__

from .grid import Setting, settings

STEP = 2**27  # limits are multiples of 1/8 GiB
LARGE, HUGE = 4_000, 20_000  # ops: from here on twice, and four times the seconds


def limits_of(setting: Setting, profile: CostProfile) -> list[int]:
    """Return the limits of a profile's instances, in bytes, the largest first."""
    if setting.limits:
        return list(setting.limits)
    whole = replace(profile, memory_limit=None)
    merged = whole.with_slices(1).rechunk(1) if profile.slices > 1 or profile.chunks > 1 else whole
    trace, _ = simulate_or_report(build("1f1b", merged, setting.microbatches), merged)
    static = merged.static_bytes
    found = []
    for share in setting.shares:
        most = max(
            least + share * (peak - least)
            for least, peak in zip(static, trace.peak_bytes, strict=True)
        )
        found.append(-(-int(most) // STEP) * STEP)
    own = None if profile.memory_limit is None else profile.memory_limit[0] // STEP * STEP
    if own is not None:  # no more than the machine has
        found = [limit for limit in found if limit <= own] or [own]
        if "or" in setting.name.split("-")[-1] and own > max(found):
            found[0] = own
    return sorted(set(found), reverse=True)


def new_instances(setting: Setting, library: Path) -> list[Instance]:
    """Return the instances of a profile without what is known, its file written if it is not there."""
    folder = library / setting.name
    if not (folder / PROFILE).exists():
        made = setting.profile()
        how = {"made_by": f"optpipe_sim {__version__}", "commit": commit() or "", "date": today()}
        save_profile(replace(made, meta={**made.meta, "atlas": how}), folder / PROFILE)
    profile = load_profile(folder / PROFILE)
    return [
        Instance(
            f"{setting.name}@{limit / 2**30:g}GiB", folder, setting.model, setting.source,
            profile.devices, profile.chunks, setting.microbatches, limit,
        )
        for limit in limits_of(setting, profile)
    ]  # fmt: skip


def today() -> str:
    return datetime.date.today().isoformat()


def improve(
    instance: Instance, seconds: float, seed: int
) -> tuple[Instance, Schedule | None] | None:
    """Search an instance, from the best schedule known; return it with what is better, and the schedule if that is. None where
    nothing can be or is known to be in its limit."""
    profile = instance.load_profile()
    size = instance.microbatches * len(profile.stages) * 3 * profile.slices
    seconds *= 4 if size >= HUGE else 2 if size >= LARGE else 1
    start = instance.load_schedule(profile) if instance.best is not None else None
    by, of = f"optpipe_sim {__version__}", commit() or ""
    began = time.monotonic()

    def record(ns: int, how: str) -> Record:
        return Record(ns, how, by, of, today(), round(time.monotonic() - began, 1), seed)

    found: SolveResult | None = None
    try:
        found = solve(
            profile, instance.microbatches, time_limit=seconds, seed=seed, workers=1, chunks="own",
            objective="flush", warm_start=start,
        )  # fmt: skip
    except (OutOfMemory, Infeasible):
        return None
    except NoSolution:
        pass
    if found is not None and found.info.get("interrupted"):  # `solve` itself keeps what it has
        raise KeyboardInterrupt
    schedule = None
    if found is not None and found.schedule is not None:
        how = str(found.info.get("found_by", found.engine))
        if instance.best is None or found.objective_ns < instance.best.ns:
            schedule = found.schedule
            bare = replace(instance, bound=None)  # this run's own bound is checked below
            instance = replace(with_schedule(bare, schedule, record(0, how)), bound=instance.bound)
    bound = record(*lower_bound(profile, instance.microbatches, "flush"))
    if found is not None and found.lower_bound_ns >= bound.ns:
        bound = record(found.lower_bound_ns, found.bound_name)
    if instance.bound is None or bound.ns > instance.bound.ns:
        instance = replace(instance, bound=bound)
    assert instance.best is None or instance.bound is None or instance.bound.ns <= instance.best.ns
    return instance, schedule


def _open(instance: Instance, wider: float) -> bool:
    """Whether the gap is wider than a share, or no schedule is known."""
    return instance.gap is None or instance.gap > wider


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("names", metavar="NAME", nargs="*")
    parser.add_argument("--again", action="store_true")
    parser.add_argument("--wider", type=float, default=0.0, help="again: than this, as 0.2")
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--within", type=float, default=float("inf"), help="minutes for all")
    parser.add_argument("--library", type=Path, default=LIBRARY)
    arguments = parser.parse_args(argv)
    try:
        return _make(arguments, time.monotonic() + 60 * arguments.within)
    except KeyboardInterrupt:
        print("stopped; the same command goes on from here", file=sys.stderr)
        return 1


def _make(arguments: argparse.Namespace, until: float) -> int:
    arguments.library.mkdir(parents=True, exist_ok=True)
    known = {one.name: one for one in read_library(arguments.library)}
    for setting in settings():
        if arguments.names and not any(name in setting.name for name in arguments.names):
            continue
        try:
            instances = new_instances(setting, arguments.library)
        except OptPipeError as error:
            print(f"{setting.name}: {error}", file=sys.stderr, flush=True)
            continue
        for one in instances:
            there = known.get(one.name)
            if there is not None and not (arguments.again and _open(there, arguments.wider)):
                continue
            if there is None and arguments.again:
                continue
            if time.monotonic() >= until:
                print("the time is over; the same command goes on from here", file=sys.stderr)
                return 0
            better = improve(there or one, arguments.seconds, arguments.seed)
            if better is None:
                print(f"{one.name}: no schedule keeps this limit", flush=True)
                continue
            write_instance(*better)
            gap, best = better[0].gap, better[0].best
            said = "no schedule" if gap is None or best is None else f"{best.how}, gap {gap:.2%}"
            print(f"{one.name}: {said}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
