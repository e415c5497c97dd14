"""What `estimate` says of the memory of Seq1F1B's runs with softmax attention, whose logs have the reserved memory of every stage."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from experiments.published import published
from optpipe_sim.costs import estimate
from optpipe_sim.names import build
from optpipe_sim.sim import simulate

# layers, hidden, heads; the vocabulary is not said: GPT-2's, padded
SHAPES = {"1.3B": (24, 2048, 16), "2.7B": (32, 2560, 32)}
VOCABULARY = 50304


class Reserved(NamedTuple):
    """A run: its slices, and per stage estimated over reserved memory."""

    sequence: int
    slices: int
    ratios: tuple[float, ...]


def reserved() -> Iterator[Reserved]:
    """Yield each run that did not run out of memory."""
    for log in published("seq1f1b")["logs"]:
        if log["attention"] != "softmax" or "oom" in log:
            continue
        layers, hidden, heads = SHAPES[log["model"]]
        shape = {"layers": layers, "hidden": hidden, "heads": heads, "vocab": VOCABULARY}
        model = {"name": log["model"], "style": "gpt", "positions": log["seq"], **shape}
        p = log["pp"]
        profile = estimate(
            model, "a100", p, dp=log["dp"], zero=1, seq=log["seq"], slices=log["s"], layers=[layers // p] * p,
            levels=False, offload=False, execution="ideal",
        )  # fmt: skip
        name = "seq1f1b" if log["s"] > 1 else "1f1b"
        trace = simulate(build(name, profile, log["m"]), profile, enforce=False)
        measured = log["reserved_gib"]
        ratios = (peak / 2**30 / gib for peak, gib in zip(trace.peak_bytes, measured, strict=True))
        yield Reserved(log["seq"], log["s"], tuple(ratios))
