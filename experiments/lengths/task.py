"""Microbatches of public lengths: how sequences are packed, and in which order microbatches come."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import islice, repeat
from math import exp, log
from random import Random
from typing import Literal

from optpipe_sim.bounds.bounds import lower_bound
from optpipe_sim.costs import load_machine, load_model
from optpipe_sim.costs.estimating import estimated
from optpipe_sim.costs.layout import Layout
from optpipe_sim.costs.lengths import with_lengths
from optpipe_sim.costs.work import Work
from optpipe_sim.names import build
from optpipe_sim.profile import CostProfile
from optpipe_sim.schedule import Schedule
from optpipe_sim.solvers.microbatch_order import best_order
from optpipe_sim.solvers.problem import make_problem
from optpipe_sim.study.tasks import Count, Row

VERSION = 1
Packed = list[list[int]]  # the lengths of the sequences of each microbatch
REPLAYS = 1000  # so many orders are tried at most
MODEL, MACHINE, DEVICES = "llama3-8b", "h100-sxm", 8


def lognormal(random: Random, least: int, most: int, mean: int, sigma: float) -> int:
    """Draw a length from a lognormal distribution of this mean, clipped."""
    drawn = random.lognormvariate(log(mean) - sigma**2 / 2, sigma)
    return int(min(max(drawn, least), most))


def log_uniform(random: Random, least: int, most: int) -> int:
    """Draw a length evenly over its logarithm."""
    return int(exp(random.uniform(log(least), log(most))))


# how a length is drawn, and the tokens that a microbatch may hold: the longest
DATA: dict[str, tuple[Callable[[Random], int], int]] = {
    "megatron-mock": (
        partial(lognormal, least=1024, most=8192, mean=4096, sigma=1.1),
        8192,
    ),
    "longalign": (partial(log_uniform, least=8192, most=65536), 65536),
}


def run(
    data: Literal["megatron-mock", "longalign"],
    packing: Literal["one each", "as drawn", "best fit", "by time"],
    schedule: str,
    seed: int = 0,
    sequences: Count = 64,
) -> Row:
    """The time of an iteration over `sequences` drawn ones, with the microbatches in the order in which they were filled (`given_ns`) and in the best
    order found (`searched_ns`).

    Args:
        packing: ``one each``: a sequence per microbatch; ``as drawn``: the next sequence goes into the last microbatch, if it fits; ``best fit``: the
            longest first, into the fullest microbatch with room; ``by time``: as many microbatches, the longest sequence first into the one that takes
            the least time. A full microbatch has as many tokens as the longest sequence may have.
    """
    draw, capacity = DATA[data]
    random = Random(seed)
    lengths = [draw(random) for _ in range(sequences)]
    filled = packed(lengths, capacity, packing)
    profile = of_lengths(capacity, filled)
    plan = build(schedule, profile, len(filled))
    problem = make_problem(profile.for_shape(plan.shape), len(filled))
    given = problem.replay(plan)
    tried = islice(repeat(False), REPLAYS)

    def cost_ns(order: Schedule) -> float:
        return problem.replay(order).cost_ns

    found = best_order(problem.profile, plan, cost_ns, lambda: next(tried, True), seed)
    best = problem.replay(found)
    times = [time for time, _ in profile.factors]
    return {
        "sequences": sequences,
        "microbatches": len(filled),
        "tokens": sum(lengths),
        "longest": float(max(times)),
        "shortest": float(min(times)),
        "given_ns": given.makespan_ns,
        "searched_ns": best.makespan_ns,
        "lower_bound_ns": lower_bound(problem.profile, len(filled)).ns,
        "peak_bytes": max(given.peak_bytes),
    }


def packed(lengths: Sequence[int], capacity: int, packing: str) -> Packed:
    """Return sequences packed into microbatches of at most `capacity` tokens."""
    if packing == "one each":
        return [[one] for one in lengths]
    if packing == "as drawn":
        filled: Packed = []
        for one in lengths:
            if filled and sum(filled[-1]) + one <= capacity:
                filled[-1].append(one)
            else:
                filled.append([one])
        return filled
    filled = []
    for one in sorted(lengths, reverse=True):
        room = [each for each in filled if sum(each) + one <= capacity]
        if room:
            max(room, key=sum).append(one)
        else:
            filled.append([one])
    if packing == "best fit":
        return filled
    return by_time(lengths, capacity, len(filled))


def by_time(lengths: Sequence[int], capacity: int, least: int) -> Packed:
    """Return sequences packed into `least` microbatches, or into as few more as this greedy rule needs, of nearly the same time each."""
    alone = sorted(set(lengths))
    factors = of_lengths(capacity, [[one] for one in alone]).factors
    time = {one: float(factor) for one, (factor, _) in zip(alone, factors, strict=True)}
    for count in range(least, len(lengths) + 1):
        filled: Packed = [[] for _ in range(count)]
        for one in sorted(lengths, reverse=True):
            room = [each for each in filled if sum(each) + one <= capacity]
            if not room:
                break
            min(room, key=lambda each: sum(time[other] for other in each)).append(one)
        else:
            return filled
    raise AssertionError("a microbatch for each sequence is enough")


@cache
def _usual(capacity: int) -> CostProfile:
    return _made(_LAYOUT, Work(seq=capacity))


_LAYOUT = Layout(devices=DEVICES)
_made = partial(
    estimated,
    load_model(MODEL),
    load_machine(MACHINE),
    levels=False,
    offload=False,
    execution="ideal",
)


def of_lengths(capacity: int, filled: Packed) -> CostProfile:
    """Return the profile of microbatches packed like this, without a memory limit."""
    work, model = Work(seq=capacity), load_model(MODEL)
    found = with_lengths(_usual(capacity), model, _LAYOUT, work, filled, _made)
    return replace(found, memory_limit=None)
