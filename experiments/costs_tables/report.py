"""The Markdown page of `costs_tables`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from experiments.published import published
from optpipe_sim.costs.machines import Machine, Rates

Medians = Mapping[tuple[str, str], tuple[int, float, float]]


@dataclass(frozen=True)
class Split:
    """One way to spread a model over 32 devices, and its predictions."""

    model: str
    seq: int
    name: str
    schedule: str
    seconds: float
    mfu: float
    peak_gib: float
    bubble: float
    messages: float
    gemm_rate: float
    faster: float  # than 1F1B-I with tensor parallelism


def report(
    errors: Mapping[str, Medians],
    issued: Sequence[str],
    splits: Sequence[Split],
    machine: Machine,
    rates: Rates,
) -> str:
    """Markdown: errors, rates, tensor parallelism."""
    lines = [
        "# Costs: estimated against published",
        "",
        "Regenerate with `python -m experiments.costs_tables.run`. Every number is in `costs_cells.csv`"
        " and `costs_tp.csv`; who runs out of memory in PipeOffload's figure 15 is the experiment"
        " `pipeoffload_models`. Rates are fitted to three models (1.5B and 14.6B of Zero"
        " Bubble, 10.5B of PipeOffload); what is called a check was not seen by the fit (6.2B, 28.3B,"
        " both also in the table of ZB-V; 18.1B, 42.9B).",
        "",
        "## Median error",
        "",
        "| source | quantity | checks | before | **after** | fitted rows | before | after |",
        "|---|---|--:|--:|--:|--:|--:|--:|",
    ]
    for key in sorted({*errors["check"], *errors["fit"]}):
        cells = []
        for role in ("check", "fit"):
            count, before, after = errors[role].get(key, (0, 0.0, 0.0))
            strong = f"**{after:.1%}**" if role == "check" else f"{after:.1%}"
            cells += [str(count), f"{before:.1%}", strong] if count else ["0", "", ""]
        lines.append(f"| {key[0]} | {key[1]} | {' | '.join(cells)} |")
    lines += [
        "",
        "Times are of replays as the trainers issue their work (executions `zero-bubble-a100` and `pipeoffload-a100`), before and after the fit. The"
        " settings of the fitted models alone give the former as it is; the latter is fitted to all of figure 15, and adds next to nothing.",
        "",
        "## The same rates, issued otherwise",
        "",
        "Median (worst) error of the times of iterations that the fit did not see.",
        "",
        "| source | checks | its trainer's execution | ideal | `megatron-lm` |",
        "|---|--:|--:|--:|--:|",
        *issued,
        "",
        *_rates(machine, rates),
    ]
    return "\n".join([*lines, "", *_splits(splits)]) + "\n"


def _rates(machine: Machine, rates: Rates) -> list[str]:
    names = ("gemm", "attention", "bandwidth", "p2p", "overhead", "workspace_mib")
    lines = ["## Rates of the A100", "", "| rate | data sheet | fitted |", "|---|--:|--:|"]
    lines += [
        f"| {name} | {getattr(machine.rates, name):.3f} | {getattr(rates, name):.3f} |"
        for name in (*names, "context_gib")
    ]
    return [
        *lines,
        "",
        "`overhead` is the part of an iteration in no op: the papers' own op times, replayed, are"
        " faster than their measured throughput. One p2p rate cannot give every T_comm: it is a mean over"
        " messages within a node and between nodes, whose number and placement are not published."
        " `workspace_mib` is the constant by which Zero Bubble's peaks exceed gradients of 2 bytes per weight (their"
        " script has `--fp16` without `--accumulate-allreduce-grads-in-fp32`) with activations; what holds it is not said, and the machine file leaves it out."
        " `context_gib` is what the runs that ran out of memory leave of the 80 GiB.",
    ]


def _splits(splits: Sequence[Split]) -> list[str]:
    low, high = published("pipeoffload")["faster_percent"]
    lines = [
        "## Tensor parallelism against pure pipeline parallelism (32 A100)",
        "",
        f"Published: pure PP with offloading is {low} to {high} % faster than 1F1B-I with TP 8 x PP 4.",
        "",
        "| model | sequence | split | schedule | iteration s | MFU | faster | bubble"
        " | collectives, of busy time | GEMM TFLOP/s | peak GiB |",
        "|---|--:|---|---|--:|--:|--:|--:|--:|--:|--:|",
    ]
    lines += [
        f"| {one.model} | {one.seq} | {one.name} | {one.schedule} | {one.seconds:.1f} | {one.mfu:.1%}"
        f" | {one.faster:+.1%} | {one.bubble:.1%} | {one.messages:.1%} | {one.gemm_rate:.0f}"
        f" | {one.peak_gib:.1f} |"
        for one in splits
    ]
    return [
        *lines,
        "",
        "Why: with TP 8 every layer waits for four collectives in F and as many in B, which nothing"
        " hides, for an eighth of the products between them; against that stands the larger bubble of 32"
        " stages. The rate of collectives is the machine file's, which goes by another paper's figure and"
        " not by this one. The 83.8B model has 78 layers, 2.5 per device with embedding and head: as whole"
        " layers the fullest of 32 devices has 3, a sixth of the time is lost, and pure PP is predicted to be"
        " slower; how the authors placed these layers is not published.",
    ]
