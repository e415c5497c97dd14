"""The page of `costs_tables` for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ..costs.free_lunch import free_lunch_ratio
from ..costs.machines import Machine, Rates
from .costs_published import published

if TYPE_CHECKING:
    from .costs_tables import Split, Unshared, Verdict

Medians = Mapping[tuple[str, str], tuple[int, float, float]]


def report(
    errors: Mapping[str, Medians],
    outcomes: Sequence[Verdict],
    offloading: Sequence[Unshared],
    splits: Sequence[Split],
    order: tuple[int, int],
    machine: Machine,
    rates: Rates,
) -> str:
    """Markdown: errors, rates, out of memory, order of schedules, tensor parallelism, free lunch."""
    lines = [
        "# Costs: estimated against published",
        "",
        "Regenerate with `python -m optpipe_sim.study.costs_tables`. Every number is in `costs_cells.csv`,"
        " `costs_oom.csv` and `costs_tp.csv`. Rates are fitted to three models (1.5B and 14.6B of Zero"
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
        *_rates(machine, rates),
        "",
        *_outcomes(outcomes, order, machine.host_memory_gib or 0.0),
        "",
        *_offloading(offloading),
    ]
    lines += ["", *_splits(splits)]
    return "\n".join([*lines, "", *_free_lunch()]) + "\n"


def _rates(machine: Machine, rates: Rates) -> list[str]:
    names = ("gemm", "attention", "bandwidth", "p2p", "overhead", "memory_factor", "working_set")
    lines = ["## Rates of the A100", "", "| rate | data sheet | fitted |", "|---|--:|--:|"]
    lines += [
        f"| {name} | {getattr(machine.rates, name):.3f} | {getattr(rates, name):.3f} |"
        for name in (*names, "context_gib")
    ]
    return [
        *lines,
        "",
        "`overhead` is the part of an iteration in no op: the papers' own op times, replayed, are 5 to"
        " 10 % faster than their measured throughput. One p2p rate cannot give every T_comm: it is a mean over"
        " hops of a node and between nodes, whose number and placement are not published.",
    ]


def _outcomes(outcomes: Sequence[Verdict], order: tuple[int, int], room: float) -> list[str]:
    checks = [one for one in outcomes if one.role == "check"]
    right = sum(one.agrees for one in checks)
    every = sum(one.agrees for one in outcomes)
    lines = [
        "## Out of memory (PipeOffload, figure 15)",
        "",
        f"**{every} of {len(outcomes)} cells as published; {right} of the {len(checks)} checks.** The limit is"
        f" {outcomes[0].limit_gib:.1f} GiB, from the 10.5B model's cells.",
        "",
    ]
    wrong = [one for one in outcomes if not one.agrees]
    ran = max(one.host_gib for one in outcomes if one.published == "ran")
    failed = max(one.host_gib for one in outcomes if one.published == "host")
    if wrong:
        lines += [
            "| model | sequence | schedule | published | predicted | peak GiB | host GiB per node |",
            "|---|--:|---|---|---|--:|--:|",
        ]
        lines += [
            f"| {one.model} | {one.seq} | {one.schedule} | {one.published} | {one.predicted}"
            f" | {one.peak_gib:.1f} | {one.host_gib:.0f} |"
            for one in wrong
        ]
        lines.append("")
    lines += [
        f"`host`: out of host memory. The authors do not state theirs: of the cells that ran, the one with most"
        f" needs {ran:.0f} GiB per node here, the one that did not {failed:.0f} GiB, and the machine file's"
        f" {room:.0f} GiB (a DGX) would hold both.",
        "",
        f"Order of schedules by MFU in the checks: {order[0]} of {order[1]} pairs with different published MFU"
        " come in the published order.",
    ]
    return lines


def _offloading(cells: Sequence[Unshared]) -> list[str]:
    lines = [
        "## Activation GiB of the offloading schedules",
        "",
        "| model | sequence | schedule | published | estimated | switches not shared |",
        "|---|--:|---|--:|--:|--:|",
    ]
    lines += [
        f"| {one.model} | {one.seq} | {one.schedule} | {one.published:.0f} | {one.shared:.1f}"
        f" | {one.apart:.1f} |"
        for one in cells
    ]
    return [
        *lines,
        "",
        "PO-F holds up to about twice as much as published where pairs of devices share a switch: the copies"
        " planned here then wait for one another more than the authors' do. The last column, the same costs"
        " with a link per device, tells this from an error of the costs.",
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


def _free_lunch() -> list[str]:
    data = published("pipeoffload")["figure_1"]
    lines = [
        "## k of PipeOffload's equation 1 (figure 1, left): formula / published",
        "",
        "| hidden | " + " | ".join(f"s = {s}" for s in data["sequence"]) + " |",
        "|--:|" + "--:|" * len(data["sequence"]),
    ]
    for hidden, row in data["k"].items():
        cells = [
            f"{free_lunch_ratio(int(hidden), s, data['compute_tflops'], data['offload_gb_per_s']):.2f} / {k:.2f}"
            for s, k in zip(data["sequence"], row, strict=True)
        ]
        lines.append(f"| {hidden} | {' | '.join(cells)} |")
    return [
        *lines,
        "",
        "The first column agrees to .01, the second to .035. The rest is a factor of the column alone (.997, .982,"
        " .965, .940), the same for every hidden size to the rounding: the rates behind the figure changed with"
        " the sequence, not the formula.",
    ]
