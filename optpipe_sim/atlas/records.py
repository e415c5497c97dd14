"""Accept what is better than what is known: schedules that the checker confirms, bounds that can be
computed again."""

from __future__ import annotations

from dataclasses import replace

from ..errors import OptPipeError
from ..schedule import Schedule
from ..units import format_times
from .instances import Instance, Record
from .proofs import PROOFS, proven
from .verify import makespan


class Refused(OptPipeError):
    """What was submitted is not valid, or not better than what is known."""


def with_schedule(instance: Instance, schedule: Schedule, record: Record) -> Instance:
    """Return the instance with a better schedule.

    Args:
        record: where the schedule comes from; its time is the checker's, whatever it says.

    Raises:
        Refused: one line that says why it is not accepted: the checker's first problem, no better than
            the best known, or faster than the bound (then one of the two is wrong, and that is to be
            found out first).
    """
    problems, took = makespan(instance, schedule)
    if problems:
        more = f" (and {len(problems) - 1} more)" if len(problems) > 1 else ""
        raise Refused(f"{instance.name}: the schedule is not valid: {problems[0]}{more}")
    if instance.best is not None and took >= instance.best.ns:
        new, old = format_times(took, instance.best.ns)
        raise Refused(
            f"{instance.name}: it takes {new}, no less than the {old} of the best known ({instance.best.how})"
        )
    if instance.bound is not None and took < instance.bound.ns:
        new, old = format_times(took, instance.bound.ns)
        raise Refused(
            f"{instance.name}: it is valid and takes {new}, less than the proven bound of {old} ({instance.bound.how});"
            " so that proof is wrong: please report it with this schedule"
        )
    return replace(instance, best=replace(record, ns=took))


def with_bound(instance: Instance, record: Record) -> Instance:
    """Return the instance with a better bound, one that is computed again here.

    Raises:
        Refused: one line that says why it is not accepted.
        OptPipeError: for a proof that cannot be computed again.
    """
    if record.how not in PROOFS:
        raise OptPipeError(
            f"proof: {record.how!r} cannot be computed again here; expected one of {', '.join(PROOFS)}"
        )
    if instance.bound is not None and record.ns <= instance.bound.ns:
        new, old = format_times(record.ns, instance.bound.ns)
        raise Refused(
            f"{instance.name}: {new} is no more than the bound of {old} that is known ({instance.bound.how})"
        )
    if instance.best is not None and record.ns > instance.best.ns:
        new, old = format_times(record.ns, instance.best.ns)
        raise Refused(
            f"{instance.name}: {new} is no bound: a schedule takes {old} ({instance.best.how})"
        )
    found = proven(instance, instance.load_profile(), record.how)
    if found < record.ns:
        new, old = format_times(record.ns, found)
        raise Refused(f"{instance.name}: {new} is not confirmed: {record.how} proves {old}")
    return replace(instance, bound=record)
