"""NCCL as far as it can hang: a host per rank that issues in order, streams that work in order, and
messages that take place when both sides have come to them.

Pessimistic where NCCL is not bound: no message is buffered, a send ends with its receive. As torch
does it, a communicator is made at its first use, which blocks the hosts of both ranks until both
are there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from optpipe_sim.ops import Op
from optpipe_sim.runtime.execute.streams import AHEAD
from optpipe_sim.runtime.program.issue import Issue, issue_order
from optpipe_sim.runtime.program.program import COMPUTE_ENGINE, Event, Program

Pair = tuple[int, int]  # sender, receiver
Mark = tuple[str, int, Op] | tuple[str, int, Event]  # something that has happened on a rank


@dataclass
class Item:
    """Work in a stream: what it waits for, what has happened when it is over."""

    name: str
    waits: list[Mark]
    makes: list[Mark]


@dataclass
class Rank:
    """Host and device of one rank."""

    number: int
    todo: deque[tuple[str, object]]
    streams: dict[str, deque[Item]] = field(default_factory=dict)
    messages: dict[Pair, deque[Item]] = field(default_factory=dict)
    issued: list[Mark] = field(default_factory=list)  # the ends of its compute ops
    received: list[Mark] = field(default_factory=list)  # what the compute stream has to wait for
    posted: int = 0


def hang(
    programs: Sequence[Program], first: Sequence[Pair] = (), backwards: Sequence[int] = ()
) -> str | None:
    """Who waits for whom where these programs stop; None where they come to their end.

    Args:
        first: pairs that every rank takes part in before its program, in that order.
        backwards: ranks that do so in the opposite order.
    """
    ranks = [
        Rank(p.rank, deque(_host(p, first[::-1] if p.rank in backwards else first)))
        for p in programs
    ]
    made: set[Pair] = set()
    at_door: dict[Pair, set[int]] = {}
    over: set[Mark] = set()
    while True:
        moved = False
        for rank in ranks:
            while _host_step(rank, made, at_door, over):
                moved = True
            for stream in rank.streams.values():
                while stream and over.issuperset(stream[0].waits):
                    over.update(stream.popleft().makes)
                    moved = True
        for pair in made:
            sends, receives = (ranks[end].messages.get(pair, deque()) for end in pair)
            while (
                sends
                and receives
                and over.issuperset(sends[0].waits)
                and over.issuperset(receives[0].waits)
            ):
                assert sends[0].name == receives[0].name, "a message is taken for another"
                over.update((*sends.popleft().makes, *receives.popleft().makes))
                moved = True
        if not moved:
            break
    stuck = [f"rank {r.number} at {r.todo[0]}" for r in ranks if r.todo]
    return "; ".join(stuck) or None


def _host(program: Program, first: Sequence[Pair]) -> Iterator[tuple[str, object]]:
    for pair in first:
        if program.rank in pair:
            yield "meet", pair
    for issue in issue_order(program):
        yield "issue", issue
    yield "finish", None


def _host_step(rank: Rank, made: set[Pair], at_door: dict[Pair, set[int]], over: set[Mark]) -> bool:
    """Do the host's next thing, if it can go on."""
    if not rank.todo:
        return False
    kind, what = rank.todo[0]
    if kind == "meet":
        if not _meet(what, rank, made, at_door):
            return False
    elif kind == "finish":
        if any(rank.streams.values()) or any(rank.messages.values()):
            return False
    elif not _issue(what, rank, made, at_door, over):
        return False
    rank.todo.popleft()
    return True


def _meet(pair: Pair, rank: Rank, made: set[Pair], at_door: dict[Pair, set[int]]) -> bool:
    """Whether the communicator of a pair is there; else one side of it waits now."""
    if pair not in made:
        there = at_door.setdefault(pair, set())
        there.add(rank.number)
        if len(there) == 2:
            made.add(pair)
    return pair in made


def _issue(
    issue: Issue, rank: Rank, made: set[Pair], at_door: dict[Pair, set[int]], over: set[Mark]
) -> bool:
    step, here = issue.step, rank.number
    if step.do in ("post", "send"):
        pair = (step.peer, here) if step.do == "post" else (here, step.peer)
        if not _meet(pair, rank, made, at_door):
            return False
        # it begins when the compute stream has come to where it was issued
        rank.posted += 1
        mark = ("posted", here, rank.posted)
        _put(rank, COMPUTE_ENGINE, Item("mark", [], [mark]))
        done = [("received", here, step.op)] if step.do == "post" else []
        rank.messages.setdefault(pair, deque()).append(Item(str(step.op), [mark], done))
        return True
    if step.do == "recv":
        _put(rank, COMPUTE_ENGINE, Item("recv", [("received", here, step.op)], []))
        return True
    if step.do == "run":
        if sum(mark not in over for mark in rank.issued) > AHEAD:
            return False
        rank.issued = [mark for mark in rank.issued if mark not in over]
        rank.issued.append(("event", here, Event("end", step.op)))
    waits = [("event", here, event) for event in issue.waits]
    makes = [("event", here, event) for event in issue.makes]
    _put(rank, issue.stream, Item(str(step), waits, makes))
    return True


def _put(rank: Rank, stream: str, item: Item) -> None:
    rank.streams.setdefault(stream, deque()).append(item)
