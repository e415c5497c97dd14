"""The accelerations of the MILP, each a switch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MilpOptions:
    """Accelerations of the MILP, each a switch; `fifo` apart they cut off no best schedule.

    Attributes:
        in_order: F's, B's and W's of a stage run in microbatch order, as far as that is no loss.
            Microbatches are alike, so where nothing is offloaded or recomputed, sorting the times of each kind
            on each stage and dealing them out in order keeps every rule: the k-th smallest of
            numbers that are each at least so much above their partners is so much above the k-th
            smallest partner; engines and memory do not see who is who. With offloads the pairing
            of F, O, R and B matters (devices with shared copy engines and room for two
            activations exist where last in, first out is better), and microbatches that are
            recomputed at different levels are not alike. Then only two things are free: the names
            (F's in order on stage 0), and the W's, which follow their B's (where no BW may take
            the place of both).
        fifo: all of `in_order` with offloads and levels as well: a restriction that makes good schedules
            easier to find; the solver's bound is then no bound for the problem and is not used.
        fix: no binaries for what precedence decides; time windows fix further ones.
        drop: leave out rows and variables that cannot matter: memory and offloads of a device
            whose limit holds everything, levels of recomputation there, a BW that is neither
            faster nor smaller than B and W, F before B where a chain says so, ends of all but the
            last W, rows that the windows imply.
        triangles: transitivity of order, as rows.
        bounds: the closed-form bound (`bounds.bounds`) as a cut.
        adaoffload: start from AdaOffload where no better warm start is given.
        whole: the cost is a whole number of ticks, the common measure of all durations.
    """

    in_order: bool = True
    fifo: bool = False
    fix: bool = True
    drop: bool = True
    triangles: bool = True
    bounds: bool = True
    adaoffload: bool = True
    whole: bool = True
