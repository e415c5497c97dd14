"""The annealing of a plan. All times ns, all memory bytes, int64."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from ...codes import F, O
from ...compiled import compiled, copy, entry, part
from .evaluate import Goal, evaluate, longest, update
from .host import exceeds
from .linked import evaluate_links
from .marks import mark_move
from .moves import change
from .tails import begin_tails, mark_tails, renew_tails
from .times import FAILED, LOGGED, NEVER, begin, fill_slots, undo

FAR = 3.0  # where tails are not valid, a plan is rejected at this multiple of the current score


class Aim(NamedTuple):
    """What is minimised: the cost plus `mean_weight` times the sum of all ends."""

    span_counts: bool  # whether the cost is the longest span of a device, not the makespan
    mean_weight: float
    goal: int  # a cost that is not to be improved on


class Cooling(NamedTuple):
    """A number of evaluations, and the temperatures at which they begin and end, ns."""

    steps: int
    hot: float
    cold: float


@compiled
def seed_random(seed):
    """Seed the random generator of the compiled code."""
    np.random.seed(seed)


@entry
def critical(plan, costs, t, path):
    """Collect the ops on one critical path from the last end back; returns their number."""
    last = -1
    for d in range(len(plan.length)):
        for at in range(plan.length[d] - 1, -1, -1):
            code = plan.prog[d, at]
            if code >> costs.high < O:
                if last < 0 or t.end[code] > t.end[last]:
                    last = code
                break
    count = 0
    while last >= 0 and count < len(path):
        path[count] = last
        count += 1
        last = t.cause[last]
    return count


@compiled
def anneal(plan, saved, best_plan, best, costs, links, host, t, chances, aim, cooling):
    """Anneal a plan in place.

    Args:
        saved: the plan once more, with the same array of modes (those before a move stand in `t.touched`).
        best_plan, best: the best so far and its cost; the plan is kept up to date.
        links: None unless several queues share a link.
        chances: of each operator (see `moves.change`).

    Returns:
        (best cost, evaluations done).
    """
    steps, hot, cold = cooling
    path = np.empty(8 * len(costs.place) * costs.microbatches, np.int64)
    ahead = costs.lag + costs.durations[F].min()
    if links is None:
        makespan, span, total = evaluate(plan, costs, t)
    else:
        makespan, span, total = evaluate_links(plan, costs, links, t)
        fill_slots(plan, t)
    if makespan == NEVER:
        return best, steps
    cost = span if aim.span_counts else makespan
    score = cost + aim.mean_weight * total
    if cost < best and not exceeds(plan, costs, host, t):
        best = cost
        _keep(best_plan, plan)
    begun = 0
    if links is None:
        begun = begin_tails(plan, costs, t, aim.span_counts)
    stale_tails = True
    # ops on the critical path, and ops evaluated since then in accepted moves
    on_path, since_path = 0, 1
    for trial in range(steps):
        if best <= aim.goal:
            return best, trial
        # 1. the tails and the critical path, if accepted moves have outdated them
        if links is None and stale_tails:
            renew_tails(plan, costs, t)
            stale_tails = False
        if since_path > on_path:
            on_path = critical(plan, costs, t, path)
            since_path = 0
        # 2. a random move, and the highest score that is accepted at this temperature
        temperature = hot * (cold / hot) ** (trial / steps)
        t.filled[0] = 0
        first, last = change(plan, costs, t, path[:on_path], chances)
        if first < 0:
            continue
        most = score - temperature * np.log(1 - np.random.random())
        begin(t)
        soonest, gone, shorter = mark_move(plan, saved, first, last, costs, t)
        if soonest == NEVER:
            continue
        # 3. evaluate what it changes, or all of it; tails to the longest span are valid once all devices have begun
        valid = soonest >= begun
        if links is None:
            goal = Goal(FAR * score, 0.0, begun)
            if valid:
                goal = Goal(most + shorter, aim.mean_weight, begun)
            new_total = update(plan, costs, t, total - gone, goal, ahead, True)
            fits = new_total != FAILED
            if fits:
                makespan, span = longest(plan, costs, t)
        else:
            makespan, span, new_total = evaluate_links(plan, costs, links, t)
            fits = makespan < NEVER
        new = span if aim.span_counts else makespan
        fits = fits and new + aim.mean_weight * new_total <= most
        # 4. reject it: restore the times and the plan
        if not fits or exceeds(plan, costs, host, t):
            if links is None:
                undo(t)
            _restore(plan, saved, t)
            continue
        # 5. or accept it, perhaps as the best so far
        since_path += t.tally[LOGGED] if links is None else on_path + 1
        stale_tails = True
        if links is None and valid:
            mark_tails(plan, saved, costs, t)
        elif links is None:
            begun = begin_tails(plan, costs, t, aim.span_counts)
        _keep_changed(saved, plan, first, last, t)
        cost, total = new, new_total
        score = cost + aim.mean_weight * total
        if cost < best:
            since_path = on_path + 1
            best = cost
            _keep(best_plan, plan)
    return best, steps


@part
def _keep(kept, plan):
    """Copy a plan."""
    copy(kept.prog, plan.prog)
    copy(kept.length, plan.length)
    copy(kept.mode, plan.mode)


@part
def _keep_changed(saved, plan, first, last, t):
    """Copy the programs of devices `first` to `last`, from where they have changed on."""
    for d in range(first, last + 1):
        since = t.changed[d, 0]
        if since >= 0:
            copy(saved.prog[d, since : plan.length[d]], plan.prog[d, since : plan.length[d]])
            saved.length[d] = plan.length[d]


@part
def _restore(plan, saved, t):
    """Restore the programs of devices and the modes of units."""
    for d in range(len(plan.length)):
        first = t.changed[d, 0]
        if first < 0:
            continue
        for at in range(first, plan.length[d]):
            t.slot[plan.prog[d, at]] = -1
        for at in range(first, saved.length[d]):
            plan.prog[d, at] = saved.prog[d, at]
            t.slot[plan.prog[d, at]] = at
        plan.length[d] = saved.length[d]
    for which in range(t.filled[0] - 1, -1, -1):
        plan.mode[t.touched[which, 0]] = t.touched[which, 1]
