"""What README.md and results/README.md say of costs_runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from statistics import mean, median
from typing import Any

from experiments.contest.task import MACHINES
from experiments.costs_runs.report import NEAR_GIB, NEAR_TIME, Arm, arms
from experiments.costs_runs.sweep import Sweep
from optpipe_sim.costs.advise.rows import ROOM
from optpipe_sim.costs.doubt import (
    Compared,
    between_layouts,
    checks,
    compared,
    errors_between_layouts,
    half_width,
    interval,
    left_out,
    pools,
)
from results.claims import Tables, percent

QWEN = (
    "Megatron-Bridge's overlapped exchange of Qwen3-30B",
    "Megatron-Bridge's recomputed attention of Qwen3-30B-A3B",
)
LLAMA = "Megatron-Bridge's recomputed modules and layouts of LLaMA-3-70B SFT"
FITTED = {"a100-80gb": "after_error"}  # columns of costs_cells
GIB = ("peak_gib", "activation_gib")
MAIN = "DeepSeek-V3 of 14 layers, main branch"


def sentences(tables: Tables) -> Iterator[str]:
    rows = list(tables("costs_runs"))

    def told(machine: str, kind: str, source: str | tuple[str, ...]) -> str:
        errors = [
            abs(row["error"])
            for row in rows
            if (row["machine"], row["kind"], row["role"]) == (machine, kind, "check")
            and row["source"].startswith(source)
        ]
        return f"{percent(median(errors))} ({percent(max(errors))}, n = {len(errors)})"

    yield _held_out(rows)
    yield from _h100(rows)
    yield from _kernels(tables("costs_kernels"))
    yield from _sizes(tables("costs_microbatches"))
    yield from _intervals()
    yield from _by_file(tables)
    yield _hiding(rows)
    yield _layouts(rows)
    yield _arms()
    readme = "NVIDIA Megatron-LM's README"
    mosaic, moonlight = "MosaicML", "Megatron-Bridge's recomputed modules of Moonlight"
    yield (
        f"Of whole training runs: {told('h100-sxm', 'dense', 'Meta')} of Llama 3's on H100s,"
        f" {told('h100-sxm', 'dense', readme)} of those in Megatron-LM's README, whose microbatches and chunks are assumed,"
        f" {told('b200-sxm', 'dense', 'SimuMax')} of SimuMax's on B200s and"
        f" {told('b200-sxm', 'experts', 'SimuMax')} of those with experts,"
        f" {told('a100-80gb', 'dense', mosaic)} of MosaicML's on A100s and"
        f" {told('h100-sxm', 'dense', mosaic)} of theirs on H100s,"
        f" {told('h100-sxm', 'experts', 'Megatron-LM')} of a shorter DeepSeek-V3's,"
        f" {told('h100-sxm', 'experts', moonlight)} of Moonlight's and"
        f" {told('h100-sxm', 'experts', QWEN)} of Qwen3-30B's on H100s"
    )
    bridge = "NVIDIA Megatron-Bridge"
    dense, experts = (
        [told(machine, kind, bridge) for machine in ("h100-sxm", "b200-sxm", "gb200")]
        for kind in ("dense", "experts")
    )
    yield (
        f"Megatron-Bridge's in fp8 on H100s, B200s and GB200s: {dense[0]}, {dense[1]} and {dense[2]} of dense models,"
        f" {experts[0]}, {experts[1]} and {experts[2]} of those with experts; {told('h100-sxm', 'dense', LLAMA)} of its"
        " arms of LLaMA-3-70B SFT on H100s"
    )


def _h100(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Dense models on H100s, source by source, at rates that saw none of it."""
    mine = [
        row
        for row in rows
        if (row["machine"], row["kind"], row["role"]) == ("h100-sxm", "dense", "check")
    ]
    mine = [row for row in mine if row["error"] is not None]
    for source in dict.fromkeys(row["source"] for row in mine):
        yield _line(source, [row for row in mine if row["source"] == source])
    older, newer = (
        next(row for row in mine if row["run"].startswith("llama3-8b") and name in row["source"])
        for name in ("NeMo", "NVIDIA Megatron-Bridge")
    )
    yield (
        f"older software: LLaMA-3-8B with the same batch on as many GPUs took {percent(older['measured_ms'] / newer['measured_ms'] - 1, 0)} longer than Megatron-Bridge says"
    )
    own = [row for row in rows if row["role"] == "model left out"]
    (machine,) = {row["machine"] for row in own}
    yield _line(
        f"the same at `{machine}`, each model left out in turn (the source itself is not left out)",
        own,
    )
    formats = (
        f"{percent(median(errors))} in that of the {len(errors)} in {dtype}"
        for dtype in ("bf16", "fp8")
        for errors in [[abs(row["error"]) for row in mine if row["dtype"] == dtype]]
    )
    yield " and ".join(formats)
    whole, piped = (
        [row["error"] for row in mine if "pipeline parallelism" in row["features"] or every]
        for every in (True, False)
    )
    yield (
        f"{percent(median(map(abs, whole)))} off in the median of all {len(whole)}, {percent(median(map(abs, piped)))} in that of the {len(piped)} with a pipeline"
    )


def _line(name: str, rows: list[dict[str, Any]]) -> str:
    errors = [row["error"] for row in rows]
    formats = ", ".join(sorted({row["dtype"] for row in rows}))
    sign = "" if len(errors) == 1 else f" ({percent(max(map(abs, errors)))})"
    return f"| {name} | {formats} | {len(errors)} | {percent(median(map(abs, errors)))}{sign} | {100 * median(errors):+.1f} % |"


def _kernels(rows: list[dict[str, Any]]) -> Iterator[str]:
    """What is different about MosaicML's runs."""
    a100, h100 = rows
    keys = ("gemm", "attention", "bandwidth")
    gemm, attention, moving = (f"{h100[f'{key}_reached']:.2f}" for key in keys)
    others = [f"{a100[f'{key}_reached']:.2f}" for key in keys]
    yield (
        f"fitted to its runs, its GEMMs reach {gemm} of the peak there ({h100['gemm']:.2f} by the machine file), its attention {attention} ({h100['attention']:.2f}), and what"
        f" only moves data {moving} of the bandwidth ({h100['bandwidth']:.2f}); on A100s {others[0]}, {others[1]} and {others[2]}"
    )
    yield (
        f"Fitted to its other models, these three bring the runs of a model from {percent(h100['error'])} to {percent(h100['left_out_error'])} in the median (worst: {percent(-h100['left_out_worst'])}; the source itself is not left out)"
    )


def _sizes(rows: list[dict[str, Any]]) -> Iterator[str]:
    """Which size of microbatches is fastest, and how much longer the one took that was estimated to be."""
    sweeps = [_sweep(name, rows) for name in dict.fromkeys(row["sweep"] for row in rows)]
    for name, key in (
        ("the layout alone is given", "unstated"),
        ("the trainer's launches and sums of gradients, too", "stated"),
    ):
        estimated = [(one, getattr(one, key)) for one in sweeps]
        found = sum(one.best(seconds) == one.best(one.measured) for one, seconds in estimated)
        regrets = [one.regret(seconds) for one, seconds in estimated]
        off = [abs(row[f"{key}_s"] / row["measured_s"] - 1) for row in rows]
        near, count = sum(regret < 0.02 for regret in regrets), len(regrets)
        yield (
            f"| {name} | {found} of {count} | {near} of {count} | {percent(sum(regrets) / count)} | {percent(max(regrets))} | {percent(median(off))} |"
        )
    last = {one.name for one in sweeps if one.name.endswith("2021")}
    yield f"{len(sweeps) - len(last)} sweeps by BigScience on nodes of A100s and {len(last)} read off a figure of Narayanan et al."
    longer = [row["stated_s"] / row["measured_s"] - 1 for row in rows if row["sweep"] in last]
    yield f"{percent(min(longer), 0)} to {percent(max(longer), 0)} too long"


def _sweep(name: str, rows: list[dict[str, Any]]) -> Sweep:
    own = [row for row in rows if row["sweep"] == name]
    keys = ("measured_s", "unstated_s", "stated_s")
    return Sweep(
        name, own[0]["source"], *({row["microbatch"]: row[key] for row in own} for key in keys)
    )


def _change(row: dict[str, Any], base: dict[str, Any]) -> list[str]:
    """How much longer or shorter a run is than another, published and estimated."""
    times = [(one["measured_ms"], one["measured_ms"] * (1 + one["error"])) for one in (row, base)]
    return [percent(abs(own / other - 1)) for own, other in zip(*times, strict=True)]


def _hiding(rows: list[dict[str, Any]]) -> str:
    """What hiding the exchange of tokens gains, where it is all that differs."""

    def chosen(row: dict[str, Any]) -> set[str]:
        return set(row["features"].split(" + "))

    hidden = {"overlapped exchange"}
    told = [
        _change(row, base)
        for row in rows
        for base in rows
        if row["ablation"] and row["ablation"] == base["ablation"] != MAIN
        if chosen(row) - chosen(base) == hidden and chosen(base) < chosen(row)
    ]
    deepseek, plain, once = (f"{one} (estimated: {two})" for one, two in told)
    return (
        f"Hiding the exchange of tokens behind compute shortens iterations of Qwen3-30B by {plain}, or where it goes once per"
        f" node by {once}, and those of a shorter DeepSeek-V3 that is recomputed by {deepseek}"
    )


def _layouts(rows: list[dict[str, Any]]) -> str:
    """Three layouts of one model on the same devices."""
    arms = {row["arm"]: row for row in rows if row["source"] == LLAMA}
    base, deep, wide = (arms["core_attn" + more] for more in ("", ", pp 8", ", tp 8"))
    (deeper, deeper_told), (wider, wider_told) = _change(deep, base), _change(wide, base)
    return (
        f"Fine-tuning of LLaMA-3 70B on the same devices takes {deeper} longer with twice as many stages (estimated: {deeper_told}),"
        f" and {wider} longer with twice the tensor parallelism (estimated: {wider_told})"
    )


def _arms() -> str:
    """What choices change on the same devices: signs, and the order of pairs that lie apart."""
    runs: dict[str, list[Arm]] = {}
    for arm in arms(compared()):
        if "Qwen3-30B, " not in arm.run:  # nothing is recomputed there
            runs.setdefault(arm.run, []).append(arm)
    first = [arm.against(own[0]) for own in runs.values() for arm in own[1:]]
    pairs = [b.against(a) for own in runs.values() for a, b in combinations(own, 2)]

    def right(some: list[Any], what: int, near: float = 0.0) -> str:
        known = [one[what] for one in some if one[what] and abs(one[what].published) >= near]
        return f"{sum(one.agrees for one in known)} of {len(known)}"

    return (
        "Of published arms of what is recomputed (some with another layout, or a hidden exchange) estimates move the time"
        f" of {right(first, 0)} to the right side of their run's first arm, and the peak of {right(first, 1)}; they order"
        f" {right(pairs, 0, NEAR_TIME)} pairs of arms whose times are {NEAR_TIME:.0%} apart, and"
        f" {right(pairs, 1, NEAR_GIB)} pairs whose peaks are {NEAR_GIB} GiB apart"
    ).replace("1% apart", "1 % apart")


def _by_file(tables: Tables) -> Iterator[str]:
    """Held-out runs pooled per machine file: of dense models in half precision, which is what the contest has, of all
    others, and peaks of both; each run once per file."""
    rows = [row for row in tables("costs_runs") if row["role"] == "check"]
    cells = [row for row in tables("costs_cells") if row["role"] == "check"]
    for machine in dict.fromkeys((*MACHINES, *(row["machine"] for row in rows))):
        mine = [row for row in rows if row["machine"] == machine]
        dense = [row for row in mine if _like_the_contest(row)]
        peaks = [row["memory"] for row in mine if row["memory"] is not None]
        key = FITTED.get(machine)
        peaks += [row[key] for row in cells if key and row["quantity"].endswith(GIB)]
        yield (
            f"| `{machine}` | {'yes' if machine in MACHINES else ''} | {_cell(_times(dense))} |"
            f" {_cell(_times([row for row in mine if row not in dense]))} | {_cell(peaks)} |"
        )
    used = [row for row in rows if row["machine"] in MACHINES and _like_the_contest(row)]
    errors = _times(used)
    yield (
        f"{percent(median(map(abs, errors)))} off in the median of {len(errors)} published runs of dense models in half precision, at the rates of the contest's machine files;"
        f" {sum(error < 0 for error in errors)} of these are estimated too fast, and the worst is {percent(max(map(abs, errors)))} off"
    )
    yield f"**{percent(median(map(abs, errors)))}** off (median of {len(errors)} published runs)"
    dense = _times([row for row in used if row["machine"] == "h100-sxm"])
    near = [row for row in used if row["source"].startswith(("PipeOffload", "Zero Bubble"))]
    yield (
        f"{len(near)} of other models of the papers that A100s are fitted to; the {len(dense)} on H100s: {percent(median(map(abs, dense)))}"
    )
    h100, b200 = (
        [abs(row["memory"]) for row in rows if row["machine"] == name and row["memory"] is not None]
        for name in ("h100-sxm", "b200-sxm")
    )
    yield f"**{percent(median(h100))}** off on H100s (median of {len(h100)} published peaks)"
    yield f"at worst {percent(max(h100))}; {percent(median(b200))} in the {len(b200)} runs of one source on B200s"
    none = [machine for machine in MACHINES if machine not in {row["machine"] for row in rows}]
    yield f"Of the contest's machine files {' and '.join(f'`{each}`' for each in none)} have no published run at all"


def _like_the_contest(row: dict[str, Any]) -> bool:
    return bool(row["kind"] == "dense" and row["dtype"] in ("bf16", "fp16"))


def _times(rows: list[dict[str, Any]]) -> list[float]:
    return [row["error"] for row in rows if row["error"] is not None]


def _cell(errors: list[float]) -> str:
    """Median, worst and number of absolute errors; empty without any."""
    if not errors:
        return "none"
    sizes = [abs(error) for error in errors]
    return f"{percent(median(sizes))} ({percent(max(sizes))}) of {len(sizes)}"


def _intervals() -> Iterator[str]:
    """How many runs of each source lie within the intervals that the other sources give: their times, and their peaks."""
    peaks = [
        one._replace(error=one.memory)
        for one in compared()
        if one.role == "check" and one.memory is not None
    ]
    (times, timed), (room, known) = _held(checks()), _held(peaks)
    yield f"each source left out in turn, such intervals hold {percent(times / timed, 0)} of {timed} times"
    elsewhere, judged = _held_elsewhere(checks())
    dense = [one for one in checks() if (one.kind, one.machine) == ("dense", "h100-sxm")]
    fewest, of = _held_elsewhere(checks(), dense)
    yield (
        f"each machine left out in turn, that holds {percent(elsewhere / judged, 0)} of {judged} times, but {fewest} of the {of} of dense models on H100s"
    )
    apart = errors_between_layouts(checks())
    shares = {
        name: sum(error <= half_width({**apart, name: []}) for error in own) / len(own)
        for name, own in apart.items()
    }
    most = max(apart, key=lambda name: len(apart[name]))
    pairs = sum(map(len, apart.values()))
    yield (
        f"Differences between two layouts of a model are at most {percent(between_layouts())} off in four of five of {pairs} pairs of runs, each pair of one source and machine and each of"
        f" {len(apart)} sources counting alike. Each source left out in turn, as much holds {percent(mean(shares.values()), 0)} of a source's pairs in the mean, but {percent(shares[most], 0)} of"
        f" the {len(apart[most])} of {most.split()[0]}'s"
    )
    above = [one for one in peaks if 1 / (1 + (one.error or 0.0)) > 1 / (1 - ROOM)]
    yield (
        f"A peak comes without an interval: made in the same way, intervals would hold {percent(room / known, 0)} of {known} peaks, each source left out in turn, but"
        f" the sources are few. Plans that leave {percent(ROOM, 0)} of the memory free would not have fitted in {len(above)} of the {known}, of"
        f" {len({one.publication for one in above})} of {len({one.publication for one in peaks})} sources"
    )


def _held_elsewhere(
    runs: Sequence[Compared], judged: Sequence[Compared] | None = None
) -> tuple[int, int]:
    """Return how many runs (of those that are judged; default: all) lie in the intervals that all other machines give, and
    how many there are."""
    held, judged = 0, runs if judged is None else judged
    for one in judged:
        found = left_out([of for of in runs if of.kind == one.kind and of.machine != one.machine])
        assert found is not None
        assert one.error is not None
        held += found[0] <= 1 / (1 + one.error) <= found[1]
    return held, len(judged)


def _held(runs: Sequence[Compared]) -> tuple[int, int]:
    """Return how many runs lie in the intervals that all other sources give, and how many there are."""
    held = 0
    for one in runs:
        others = [other for other in runs if other.publication != one.publication]
        found = interval(pools(one.machine, one.kind, one.dtype, others))
        assert found is not None
        assert one.error is not None
        held += found[0] <= 1 / (1 + one.error) <= found[1]
    return held, len(runs)


def _held_out(rows: list[dict[str, Any]]) -> str:
    """Times and peaks of SimuMax's and Megatron-LM's runs that no rate was fitted to."""

    def told(source: str, key: str) -> str:
        return _cell(
            [
                row[key]
                for row in rows
                if row["source"].startswith(source)
                and row["role"] == "check"
                and row["machine"] in ("b200-sxm", "h100-sxm")
                and row[key] not in (None, "")
            ]
        )

    simumax, golden = "SimuMax", "NVIDIA Megatron-LM"
    return (
        f"Held out, median (worst): times of SimuMax's runs on B200s {told(simumax, 'error')}, peaks"
        f" {told(simumax, 'memory')}; peaks of the last rank in Megatron-LM's functional tests on H100s"
        f" {told(golden, 'memory')}"
    )
