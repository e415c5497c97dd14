"""One calibration with one measurement and one with two, judged by three runs that neither has seen."""

from __future__ import annotations

import random
from dataclasses import replace
from functools import cache
from math import log
from statistics import mean

from optpipe_sim.costs import load_machine
from optpipe_sim.costs.calibrate import Measurement, Replays, Setup, calibrate
from optpipe_sim.costs.calibrate import run as measurements_of
from optpipe_sim.costs.machines import Rates
from optpipe_sim.study.tasks import Row

VERSION = 1
MACHINE = "h100-sxm"
SETUPS = (
    Setup("llama3-8b", 4, {"seq": 8192}, "1f1b", 8),
    Setup("llama3-8b", 4, {"seq": 8192}, "1f1b", 32),
    Setup("llama3-8b", 2, {"seq": 4096, "microbatch": 4}, "1f1b", 8),
    Setup("llama3-8b", 8, {"seq": 4096, "chunks": 2}, "1f1b-i", 16),
    Setup("qwen3-8b", 4, {"seq": 4096, "microbatch": 2, "tp": 2}, "1f1b", 4),
)


def run(seed: int, first: int, second: int) -> Row:
    """Return how far off the other runs' times are, the logarithm of their ratio, with the first measurement and with both.

    The drawn machine has other shares of its peak, bandwidth and attention, and perhaps a time per iteration or per op that
    its file does not have.
    """
    measured = [replace(each, value=each.predict(_drawn(seed))) for each in _runs()]
    seen = [measured[first], measured[second]]
    machine = load_machine(MACHINE)
    one, both = (calibrate(seen[:number], machine, "drawn") for number in (1, 2))
    others = [each for at, each in enumerate(measured) if at not in (first, second)]

    def off(rates: Rates) -> list[float]:
        return [abs(log(each.predict(rates) / each.value)) for each in others]

    before, after = off(one.rates), off(both.rates)
    return {
        "rates": " ".join(both.names),
        "one_mean": mean(before),
        "both_mean": mean(after),
        "one_worst": max(before),
        "both_worst": max(after),
    }


@cache
def _runs() -> tuple[Measurement, ...]:
    machine = load_machine(MACHINE)
    return tuple(
        measurements_of(setup, machine, iteration_ms=1.0, replays=Replays(setup, machine))[0]
        for setup in SETUPS
    )


def _drawn(seed: int) -> Rates:
    """Return the true rates."""
    drawn = random.Random(seed)
    return replace(
        load_machine(MACHINE).rates,
        gemm=drawn.uniform(0.4, 0.8),
        bandwidth=drawn.uniform(0.5, 0.9),
        attention=drawn.uniform(0.3, 0.6),
        overhead=drawn.uniform(0.0, 0.12),
        fixed_ms=drawn.choice((0.0, 0.0, drawn.uniform(5.0, 200.0))),
        op_us=drawn.choice((0.0, 0.0, drawn.uniform(100.0, 3000.0))),
    )
