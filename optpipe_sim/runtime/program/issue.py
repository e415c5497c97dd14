"""The order in which one host thread issues work to the streams of a GPU, and the waits between them.

A pure function of a linear program. The host runs ahead of the device, so device memory depends on this order
alone: memory that is freed at one place may be reused at the next, as the compute stream has waited for the
end of all its uses, and all device memory is allocated and freed on the compute stream.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ...ops import O, Op, R
from .program import COMPUTE_ENGINE, DROP, GRANT, Event, Program, Step

SKIPPED = ("turn", "pass")


@dataclass(frozen=True)
class Issue:
    """One step that the host issues.

    Attributes:
        step: what; ``turn`` and ``pass`` are left out: on a GPU the link itself takes turns.
        stream: where: ``compute``, ``offload``, ``reload`` or ``copies``. A drop and a grant belong
            to the compute stream, whose memory it is.
        waits: events on other streams that this one has to wait for.
        makes: events that are recorded on the stream afterwards (and before: the start of an op).
    """

    step: Step
    stream: str
    waits: tuple[Event, ...] = ()
    makes: tuple[Event, ...] = ()

    def __str__(self) -> str:
        waits = f" after {', '.join(map(str, self.waits))}" if self.waits else ""
        return f"{self.stream}: {self.step.do} {self.step.op}{waits}"


def issue_order(program: Program) -> tuple[Issue, ...]:
    """Return the steps that the host issues, first to last.

    The program's order, but for grants. A reload may start with the compute op before it (its
    anchor); what is issued behind the anchor on the compute stream would come only after it. So a
    grant is moved in front of its anchor, where everything else that it waits for stands there
    already. A grant that precedes the end of its own O has no memory to allocate yet: it is moved behind the
    drop.
    """
    steps = [step for step in program.steps if step.do not in SKIPPED]
    return tuple(_issue(step) for step in _delayed(list(_hoisted(steps))))


def _hoisted(steps: list[Step]) -> Iterator[Step]:
    """Yield the steps with grants in front of their anchors, where everything that they wait for stands there."""
    runs = [at for at, step in enumerate(steps) if step.do == "run"]
    made_at: dict[Event, int] = {}
    for at, step in enumerate(steps):
        if step.do == "run":
            made_at[Event("end", step.op)] = at
        elif step.do == "drop":
            made_at[Event("dropped", step.op)] = at
    early: dict[int, list[Step]] = {}
    moved: set[int] = set()
    for at, step in enumerate(steps):
        if step.do != "grant":
            continue
        anchor = max((run for run in runs if run < at), default=-1)
        needed = [event for event in step.after if event.point != "start"]
        own = Event("dropped", step.op._replace(kind=O))
        # grants keep their order: one that stays keeps those behind it
        stays = any(
            steps[other].do == "grant" and other not in moved for other in range(anchor + 1, at)
        )
        if anchor >= 0 and not stays and all(made_at[e] < anchor for e in (*needed, own)):
            early.setdefault(anchor, []).append(step)
            moved.add(at)
    for at, step in enumerate(steps):
        yield from early.get(at, ())
        if at not in moved:
            yield step


def _delayed(steps: list[Step]) -> Iterator[Step]:
    """Yield the steps with each grant behind the drop of its own O."""
    dropped: set[Op] = set()
    waiting: dict[Op, Step] = {}
    for step in steps:
        if step.do == "grant" and (own := step.op._replace(kind=O)) not in dropped:
            waiting[own] = step
            continue
        yield step
        if step.do == "drop":
            dropped.add(step.op)
            if step.op in waiting:
                yield waiting.pop(step.op)


def _issue(step: Step) -> Issue:
    op = step.op
    if step.do == "run":
        # what else it waits for (grants, drops) is on its own stream, and stands before it
        back = tuple(e for e in step.after if e.point == "end" and e.op.kind is R)
        return Issue(step, COMPUTE_ENGINE, back, (Event("start", op), Event("end", op)))
    if step.do == "offload":
        return Issue(step, step.engine, step.after, (Event("start", op), Event("end", op)))
    if step.do == "reload":
        granted = (Event("granted", op),)
        return Issue(step, step.engine, granted, (Event("start", op), Event("end", op)))
    if step.engine == DROP:
        return Issue(step, COMPUTE_ENGINE, step.after, (Event("dropped", op),))
    if step.engine == GRANT:
        return Issue(step, COMPUTE_ENGINE, (), (Event("granted", op),))
    return Issue(step, COMPUTE_ENGINE)
