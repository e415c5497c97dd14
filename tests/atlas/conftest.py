from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from optpipe_sim import build, load_profile
from optpipe_sim.atlas.instances import PROFILE, Instance, Record, write_instance
from optpipe_sim.atlas.records import with_schedule
from optpipe_sim.profile_io import save_profile

STAGES = {"t_f_us": 10, "t_b_us": 11, "t_w_us": 9, "act_gib": 2, "w_gib": 1}
M = 6  # microbatches


@pytest.fixture
def make(tmp_path: Path) -> Callable[..., Instance]:
    """Write an instance of 3 devices and 6 GiB into the library `lib`, with a schedule by name as the best known."""

    def made(schedule: str | None = "1f1b", name: str = "toy", **keys: object) -> Instance:
        profile = load_profile(
            {"devices": 3, "stages": STAGES, "t_comm_us": 1, "name": name, **keys}
        )
        folder = tmp_path / "lib" / name
        save_profile(profile, folder / PROFILE)
        instance = Instance(f"{name}@6GiB", folder, "toy", "made up", 3, 1, M, 6 * 2**30)
        if schedule is None:
            return instance
        best = build(schedule, instance.load_profile(), M)
        instance = with_schedule(instance, best, Record(0, schedule, "a test", seed=0))
        write_instance(instance, best)
        return instance

    return made
