"""What docs/which-link.md and results/README.md say of which_link: where offloading pays over the rate of copies and memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from experiments.which_link.figure import CLOSE, ENOUGH, NOTHING, OPEN, PAYS, Cell, cells, flips
from experiments.which_link.task import ENGINES
from results.claims import Tables, percent, span

Row = Mapping[str, Any]
NAMES = {
    ("llama2-7b", 4096): "LLaMA-2-7B, 4k tokens",
    ("mixtral-8x7b", 4096): "Mixtral-8x7B, 4k",
    ("llama3-70b", 8192): "LLaMA-3-70B, 8k",
    ("llama3-70b", 131072): "LLaMA-3-70B, 128k",
}


LONG = 131072  # tokens
FAST, PCIE, EASY = 80, 40, 20  # GB/s
MACHINE = "h100-sxm"  # its file has about the copies of EASY


def sentences(tables: Tables) -> Iterator[str]:
    every = cells(tables("which_link"))
    full = [one for one in every if one.share == 1]
    less = [one for one in every if one.share < 1]
    long = [one for one in every if one.setting[1] == LONG]
    yield from _answer(full, less, long)
    yield from _row(full, less, long)
    yield from _against(full, less, every)
    yield _too_large(tables("which_link"))
    yield from _table(less)


def _of(found: Sequence[Cell], *verdicts: str) -> list[Cell]:
    return [one for one in found if one.verdict in verdicts]


def _gains(found: Sequence[Cell]) -> str:
    return span((one.gain for one in found), percent)


def _answer(full: Sequence[Cell], less: Sequence[Cell], long: Sequence[Cell]) -> Iterator[str]:
    short = [one for one in less if one.setting[1] < LONG]
    fast = [one for one in short if one.rate >= FAST]
    slow = [one for one in short if one.rate < FAST]
    assert {one.verdict for one in (*full, *long)} == {NOTHING}
    rates = [one.rate for one in full]
    yield (
        f"In half or a quarter of the memory that 1F1B's activations take, sequences of {span((one.setting[1] // 1024 for one in short), '{}k'.format)} tokens and copies of {FAST} GB/s or more on an"
        f" H100, the best schedules found with offloading are **{_gains(fast)}** faster than the best without: in {len(_of(fast, PAYS))} of {len(fast)} cells nothing without it can be as fast in"
        f" the two cuts that were tried (two chunks per device in a V, or four in a loop), in {len(_of(fast, ENOUGH))} more nothing at all is {percent(CLOSE, 0)} faster than offloading alone, and"
        f" {len(_of(fast, OPEN))} are open"
    )
    yield (
        f"With all of that memory no link up to {max(rates):g} GB/s gains more than {percent(max(one.most for one in full))}, and with {LONG // 1024}k tokens none gains more than"
        f" {percent(max(one.most for one in long))} in any memory: proven for these cuts in all {len(full)} and all {len(long)} cells, within the {percent(full[0].toss_up)} by which a replayed difference"
        " may be off"
    )
    at = [one.copy_over_work for one in long if one.rate == EASY]
    yield (
        f"Long sequences are where copies hide most easily, at {EASY} GB/s in {span(at, '{:.1f}'.format)} times the time of compute. With less memory and {FAST} GB/s or more they pay least there"
        f" ({_gains([one for one in long if one.share < 1 and one.rate >= FAST])}, shorter ones {_gains(fast)}); with all of that memory they gain the most ({_gains([one for one in long if one.share == 1])}, shorter ones"
        f" {_gains([one for one in full if one.setting[1] < LONG])})"
    )
    yield (
        f"With {span({one.rate for one in slow}, '{:g}'.format)} GB/s {len(_of(slow, PAYS, ENOUGH))} of {len(slow)} of the shorter cells are proven to pay, and the best found gain"
        f" {_gains(slow)}; at {PCIE} GB/s on two engines, about what a GPU alone gets from PCIe 5, {_gains(_at_link(short, PCIE, ENGINES[1]))}; at"
        f" {EASY} GB/s on one engine, about as in the machine file `{MACHINE}`, {_gains(_at_link(short, EASY, ENGINES[0]))}"
    )


def _row(full: Sequence[Cell], less: Sequence[Cell], long: Sequence[Cell]) -> Iterator[str]:
    fast = [one for one in less if one.setting[1] < LONG and one.rate >= FAST]
    short = [one for one in less if one.setting[1] < LONG]
    at_pcie = _at_link(short, PCIE, ENGINES[1])
    yield (
        f"by **{_gains(at_pcie)}** at {PCIE} GB/s each way, about what a GPU alone gets from PCIe 5 ({len(at_pcie)} cells: half or a quarter of 1F1B's memory,"
        f" {span((one.setting[1] // 1024 for one in short), '{}k'.format)} tokens)"
    )
    assert not _of(at_pcie, PAYS)
    yield f"proven in none of these {len(at_pcie)}; at {EASY} GB/s on one engine, about what the contest's H100s have, {_gains(_at_link(short, EASY, ENGINES[0]))}"
    yield (
        f"at {FAST} GB/s or more {_gains(fast)} ({len(fast)} cells), and in {len(_of(fast, PAYS))} of these it is proven, for the two cuts that were tried, that no plan without offloading is as"
        " fast"
    )
    yield f"with all of 1F1B's memory it gains at most {percent(max(one.most for one in full))}, with {LONG // 1024}k tokens at most {percent(max(one.most for one in long))}, both proven for these cuts"
    yield f"nothing is {percent(CLOSE, 0)} faster than offloading alone (which need not mean that it pays)"


def _at_link(found: Sequence[Cell], rate: float, engines: str) -> list[Cell]:
    return [one for one in found if (one.rate, one.engines) == (rate, engines)]


def _against(full: Sequence[Cell], less: Sequence[Cell], every: Sequence[Cell]) -> Iterator[str]:
    unproven = _of(less, OPEN)
    fast = [one for one in unproven if one.rate >= FAST]
    yield (
        f"{len(unproven)} of {len(less)} cells with less memory are open, {len(fast)} of them with {FAST} GB/s or more, LLaMA-3-70B in a quarter of the memory among them: there the best found gain"
        f" {_gains(unproven)}, and the bounds leave from nothing to {percent(max(one.most for one in unproven))}"
    )
    turned = [one for one in every if flips(one, every)]
    yield (
        f"In {len(turned)} of {len(every)} cells the error of estimated times ({min(one.interval[0] for one in every):.2f} to"
        f" {max(one.interval[1] for one in every):.2f} times as long, in four cases of five) moves the gain from one side of a toss-up to the other; in all of them copies take"
        f" {span((one.copy_over_work for one in turned), '{:.1f}'.format)} times the time of compute"
    )
    alone = [one for one in less if one.best["recompute"] < one.bound["offload"]]
    yield (
        f"Recomputing alone is proven faster than offloading alone in {len(alone)} cells, where copies take {span((one.copy_over_work for one in alone), '{:.1f}'.format)} times the time of compute;"
        f" offloading alone is proven faster than recomputing alone in {sum(one.best['offload'] < one.bound['recompute'] for one in less)}"
    )
    lost = [one.best["keep"] / one.best["all"] - 1 for one in full]
    unfit = sum(one.best["keep"] == float("inf") for one in less)
    yield (
        f"Keeping everything takes {span(lost, percent)} longer than the best found where 1F1B's memory is there, and finds no schedule in {unfit} of the {len(less)} cells with less"
    )


def _too_large(rows: Sequence[Row]) -> str:
    """Return which limits are more than the machine has."""
    over = [row for row in rows if row["limit_bytes"] > row["machine_bytes"]]
    (setting,) = {(row["model"], row["seq"]) for row in over}
    assert {row["share"] for row in over} == {1, 0.5}
    most = max(row["limit_bytes"] / row["machine_bytes"] for row in over)
    return f"With {setting[1] // 1024}k tokens all of 1F1B's memory, and half of it, is more than an H100 has (up to {most:.1f} times as much): only the cells in a quarter of it could be run on one"


def _link(one: Cell) -> str:
    return f"{one.rate:g} GB/s on {'one engine' if one.engines == ENGINES[0] else 'two engines'}"


def _table(less: Sequence[Cell]) -> Iterator[str]:
    yield f"gains at {PCIE} GB/s on two engines, about what a GPU alone gets from PCIe 5"
    for setting, name in NAMES.items():
        own = [one for one in less if one.setting == setting]
        yield f"| {name} | {_first(own, 0.5)} | {_first(own, 0.25)} | {_at_pcie(own, 0.5)} | {_at_pcie(own, 0.25)} |"


def _first(own: Sequence[Cell], share: float) -> str:
    """Return the least rate, with one engine and with two, from which on all cells are proven to pay, or to need nothing else."""
    found = []
    for engines in ENGINES:
        line = sorted(
            (one for one in own if (one.share, one.engines) == (share, engines)),
            key=lambda one: -one.rate,
        )
        least = None
        for one in line:
            if one.verdict not in (PAYS, ENOUGH):
                break
            least = one.rate
        found.append("none" if least is None else f"{least:g}")
    return " and ".join(found)


def _at_pcie(own: Sequence[Cell], share: float) -> str:
    """Return the gain at what PCIe 5 gives a GPU alone, with two engines."""
    (one,) = (one for one in own if (one.share, one.engines, one.rate) == (share, ENGINES[1], PCIE))
    return percent(one.gain)
