from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from optpipe_sim.profile import CostProfile
from optpipe_sim.runtime.execute.launch import Ranks
from optpipe_sim.runtime.measure import copies


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Give torch one thread, as ranks have: kernels add up in the same order, and ops this small are faster. Copies are
    timed without 64 MiB being written before each, for they are of KiB here."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(copies, "CPU_CACHE", 1 << 16)
        yield
    torch.set_num_threads(before)


def ranks_of(count: int) -> Iterator[Ranks]:
    with Ranks(count) as ranks:
        yield ranks


# started by the first test that uses them, and again after a failure
two = pytest.fixture(scope="session", name="two")(lambda: (yield from ranks_of(2)))
four = pytest.fixture(scope="session", name="four")(lambda: (yield from ranks_of(4)))


@pytest.fixture(scope="session")
def with_recompute() -> CostProfile:
    """The profile of the model that `train_cases` trains, measured here, with levels of recomputation."""
    from train_cases import measured_costs

    return measured_costs()


@pytest.fixture(scope="session")
def profile(with_recompute: CostProfile) -> CostProfile:
    """The same without levels; test files with a model of their own have another of this name."""
    from train_cases import without_levels

    return without_levels(with_recompute)
