"""Whether linear programs are sound: a check of the programs alone, independent of how they were made."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from optpipe_sim.errors import InvalidSchedule
from optpipe_sim.ops import BW, B, C, F, O, Op, R, SliceOp, W
from optpipe_sim.runtime.program.program import Event, Program, Step, inputs_of
from optpipe_sim.schedule import Schedule

Clock = dict[str, int]  # half steps that each engine has surely done

_POINTS = {
    "run": ("start", "end"),
    "offload": ("start", "end"),
    "reload": ("start", "end"),
    "grant": ("granted",),
    "drop": ("dropped",),
}
_ARRIVES = {"recv": "send", "turn": "pass"}


def check_programs(programs: Sequence[Program], schedule: Schedule) -> None:
    """Refuse programs that would hang, lose a message, or touch memory that is not there.

    For any durations and any interleaving of the engines: each op runs once, after all its inputs; each
    message is sent, posted and received once, in one order for both ranks; an activation is on the host before
    its memory is dropped, memory is allocated before a reload, and its uses wait for it. Last, all programs
    are walked through at once, engine by engine, each as far as it can go; steps that remain wait for events
    that never happen.

    Raises:
        InvalidSchedule: names the rank, the step and what is wrong.
    """
    inputs = inputs_of(schedule)
    for program in programs:
        _check_steps(program, schedule, inputs)
    _check_messages(programs)
    _check_turns(programs)
    _check_progress(programs)


def clocks(program: Program) -> Iterator[tuple[Step, Clock, dict[Event, tuple[str, int]]]]:
    """Yield each step with the vector clock at its begin, and the position of each event so far.

    An event at ``(engine, half step)`` has surely happened where the clock of that engine is at
    least the half step. A clock that an event carries is that of the step that makes it.
    """
    at: dict[Event, tuple[str, int]] = {}
    carried: dict[Event, Clock] = {}
    ahead: dict[str, Clock] = defaultdict(dict)  # of each engine, after its last step
    for step in program.steps:
        own = ahead[step.engine]
        for event in step.after:
            for engine, done in carried.get(event, {}).items():
                own[engine] = max(own.get(engine, 0), done)
        yield step, own, at
        done = own.get(step.engine, 0) & ~1
        for point in _POINTS.get(step.do, ()):
            half = done + (1 if point == "start" else 2)
            event = Event(point, step.op)
            at[event] = step.engine, half
            carried[event] = {**own, step.engine: half}
        own[step.engine] = done + 2


def surely(event: Event, clock: Clock, at: Mapping[Event, tuple[str, int]]) -> bool:
    """Whether an event has happened at a clock, whatever the durations."""
    engine, half = at.get(event, ("", 1))
    return clock.get(engine, 0) >= half


def _check_steps(program: Program, schedule: Schedule, inputs: Mapping[Op, Op]) -> None:
    rank, seen = program.rank, set()
    expected = set(schedule.flat_programs[rank])
    received: set[Op] = set()
    for step, clock, at in clocks(program):
        where = f"rank {rank}: {step.do} {step.op}"
        for event in step.after:
            if event not in at:
                raise InvalidSchedule(f"{where}: the {event} has to come before")
        if step.do in ("run", "offload", "reload"):
            if step.op in seen:
                raise InvalidSchedule(f"{where}: it is done twice")
            if step.op not in expected:
                raise InvalidSchedule(f"{where}: it does not belong here")
            seen.add(step.op)
        if step.do == "recv":
            received.add(step.op)
        for event in _needs(step, expected, inputs, schedule.shape.slices - 1):
            if event.op not in expected:
                if event.op not in received:
                    raise InvalidSchedule(f"{where}: the result of {event.op} was not received")
            elif not surely(event, clock, at):
                raise InvalidSchedule(f"{where}: it does not wait for the {event}")
    if expected - seen:
        raise InvalidSchedule(f"rank {rank}: {min(expected - seen)} is missing")


def _needs(step: Step, expected: set[Op], inputs: Mapping[Op, Op], last: int) -> Iterator[Event]:
    """Yield what has to have happened before a step; the end of an op elsewhere is its message. `last`: the
    slice that reads all keys and values."""
    op = step.op
    if step.do == "send":
        yield Event("end", op)
    elif step.do == "offload":
        yield Event("end", op._replace(kind=F))
        if step.keys and isinstance(op, SliceOp):
            yield Event("end", op._replace(kind=F, slice=last))
    elif step.do == "drop":
        yield Event("end", op)
    elif step.do == "reload":
        yield Event("granted", op)
        yield Event("dropped", op._replace(kind=O))
    elif step.do == "run":
        if op in inputs:
            yield Event("end", inputs[op])
        if op.kind in (B, BW, C):
            yield Event("end", op._replace(kind=F))
            for kind in (R, C):
                if op.kind is not kind and (before := op._replace(kind=kind)) in expected:
                    yield Event("end", before)
        elif op.kind is W:
            yield Event("end", op._replace(kind=B))
        if isinstance(op, SliceOp):
            yield from (Event("end", before) for before in _neighbours(op, expected))


def _neighbours(op: SliceOp, expected: set[Op]) -> Iterator[Op]:
    """Yield the op of another slice that has to come before: F's in the order of the slices, backwards
    in reverse."""
    if op.kind is F and op.slice:
        yield op._replace(slice=op.slice - 1)
    elif op.kind in (B, BW):
        for kind in (B, BW):
            if (behind := op._replace(kind=kind, slice=op.slice + 1)) in expected:
                yield behind


def _check_messages(programs: Sequence[Program]) -> None:
    sent: dict[tuple[int, int], list[Op]] = defaultdict(list)
    posted: dict[tuple[int, int], list[Op]] = defaultdict(list)
    for program in programs:
        waiting: set[tuple[Op, int]] = set()
        for step in program.steps:
            if step.do == "send":
                sent[program.rank, step.peer].append(step.op)
            elif step.do == "post":
                posted[step.peer, program.rank].append(step.op)
                waiting.add((step.op, step.peer))
            elif step.do == "recv":
                if (step.op, step.peer) not in waiting:
                    raise InvalidSchedule(
                        f"rank {program.rank}: {step}: this receive was not posted"
                    )
                waiting.discard((step.op, step.peer))
        if waiting:
            op, peer = min(waiting)
            raise InvalidSchedule(f"rank {program.rank}: {op} from rank {peer} is never taken")
    for source, target in sorted(sent.keys() | posted.keys()):
        pairs = itertools.zip_longest(sent[source, target], posted[source, target])
        for number, (one, other) in enumerate(pairs):
            if one != other:
                raise InvalidSchedule(
                    f"message {number} from rank {source} to rank {target}: {one or 'nothing'} is"
                    f" sent, {other or 'nothing'} is expected"
                )


def _check_turns(programs: Sequence[Program]) -> None:
    given: set[tuple[Op, int, int]] = set()
    taken: set[tuple[Op, int, int]] = set()
    for program in programs:
        copied: set[Op] = set()
        for step in program.steps:
            if step.do in ("offload", "reload"):
                copied.add(step.op)
            elif step.do == "turn" and step.peer != program.rank:
                taken.add((step.op, step.peer, program.rank))
            elif step.do == "pass":
                given.add((step.op, program.rank, step.peer))
                if step.op not in copied:
                    raise InvalidSchedule(f"rank {program.rank}: {step}: it has not run yet")
    for op, source, target in sorted(given ^ taken):
        problem = "waits for" if (op, source, target) in taken else "does not wait for"
        raise InvalidSchedule(
            f"rank {target} {problem} the turn after {op}, which rank {source}"
            f" {'never gives' if (op, source, target) in taken else 'gives'}"
        )


def _check_progress(programs: Sequence[Program]) -> None:
    queues = [
        (program.rank, queue) for program in programs for queue in program.by_engine().values()
    ]
    at = [0] * len(queues)
    done: set[tuple[int, str, Op]] = set()
    going = True
    while going:
        going = False
        for number, (rank, queue) in enumerate(queues):
            while at[number] < len(queue) and _can_go(queue[at[number]], rank, done):
                step = queue[at[number]]
                done |= {(rank, point, step.op) for point in _POINTS.get(step.do, ())}
                if step.do in ("send", "pass"):
                    done.add((step.peer, step.do, step.op))
                at[number] += 1
                going = True
    for number, (rank, queue) in enumerate(queues):
        if at[number] < len(queue):
            raise InvalidSchedule(f"rank {rank} would wait for ever at: {queue[at[number]]}")


def _can_go(step: Step, rank: int, done: set[tuple[int, str, Op]]) -> bool:
    if step.do == "turn" and step.peer == rank:
        return (rank, "end", step.op) in done
    if step.do in _ARRIVES and (rank, _ARRIVES[step.do], step.op) not in done:
        return False
    return all((rank, event.point, event.op) in done for event in step.after)


def without(program: Program, do: str, op: Op) -> Program:
    steps = tuple(step for step in program.steps if not (step.do == do and step.op == op))
    return replace(program, steps=steps)
