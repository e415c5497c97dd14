"""Kineto traces of our own runs: what torch.profiler records, with a range per op."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch.profiler import ProfilerActivity, profile

from ...errors import OptPipeError


@contextmanager
def recorded(folder: str | None, rank: int, device: str = "cpu") -> Iterator[None]:
    """Record everything in between into ``folder/rankN.json``; nothing where `folder` is None.

    Compute ops have a range of their own name each (``F0.3``); see `iteration.Iteration.compute`.
    """
    if folder is None:
        yield
        return
    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(activities=activities, profile_memory=True) as run:
        yield
    path = Path(folder)
    try:
        path.mkdir(parents=True, exist_ok=True)
        run.export_chrome_trace(str(path / f"rank{rank}.json"))
    except (OSError, RuntimeError) as error:
        raise OptPipeError(f"{folder}: cannot be written: {error}") from None
