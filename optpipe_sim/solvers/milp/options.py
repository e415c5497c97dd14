"""The accelerations of the MILP, each a switch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class MilpOptions:
    """Accelerations of the MILP, each a switch; except for `fifo` none of them loses the optimum.

    Attributes:
        in_order: F's, B's and W's of a stage run in microbatch order, as far as that loses nothing.
            Microbatches are alike, so without offloads, sorting the times of each
            kind on each stage and assigning them in order satisfies every constraint: if each
            number exceeds its partner by at least d, the k-th smallest number exceeds the k-th
            smallest partner by at least d; engines and memory do not depend on which microbatch an
            op belongs to. With offloads the pairing of F, O, R and B matters (devices with shared
            copy engines and room for two activations exist where last in, first out is better). Then
            only two restrictions lose nothing: F's in order on stage 0, which only names the
            microbatches, and W's in the order of their B's.
        fifo: all of `in_order` also with offloads: a restriction that makes good
            schedules easier to find; the solver's bound then does not hold for the problem and is
            not used.
        fix: no binaries for orders that precedence decides; time windows fix further ones.
        drop: leave out rows and variables that cannot matter: memory and offloads of a
            device on which all activations fit; F before B if a chain implies it; ends of all but the last W; rows
            that the windows imply.
        triangles: add transitivity of order as rows.
        bounds: the closed-form bound (`bounds.bounds`) as a cut.
        adaoffload: start from AdaOffload if no better warm start is given.
        whole: require the cost to be a whole number of ticks, the common divisor of all durations.
    """

    in_order: bool = True
    fifo: bool = False
    fix: bool = True
    drop: bool = True
    triangles: bool = True
    bounds: bool = True
    adaoffload: bool = True
    whole: bool = True
