"""What docs/how-much-is-left.md and results/README.md say of headroom: published schedules beside bounds on anything in their memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from experiments.headroom.task import _profile
from results.claims import Row, Tables, percent, span

WITHIN = 0.01


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("headroom")
    plain = [row for row in rows if row["copy"] is None]
    yield _settings(plain)
    yield from _in_a_v(plain)
    yield from _others(plain)
    yield from _copies(rows)


def _settings(plain: Sequence[Row]) -> str:
    devices, each = ([row[key] for row in plain] for key in ("devices", "per_device"))
    times = sorted({tuple(row["times"]) for row in plain})
    one = _profile(devices[0], list(times[0]), None)
    ops = " or ".join(", ".join(map(str, own)) for own in times)
    return (
        f"A *setting* is a pipeline of {span(devices)} devices, equal stages with F, B, W = {ops}, and {span(each)} microbatches per device; a message takes"
        f" {percent(one.t_comm_ns / one.stages[0].t_f_ns, 0)} of F"
    )


def _of(rows: Sequence[Row], schedule: str) -> list[Row]:
    return [row for row in rows if row["schedule"] == schedule]


def _close(rows: Sequence[Row], gap: str) -> list[Row]:
    return [row for row in rows if row[gap] <= WITHIN]


def _even(row: Row) -> bool:
    return bool(row["times"][0] == row["times"][1])


def _in_a_v(plain: Sequence[Row]) -> Iterator[str]:
    every = _of(plain, "zb-v")
    own = _close(every, "own_gap")
    few = min(row["per_device"] for row in every if _even(row) and row["own_gap"] <= WITHIN)
    even = [row for row in every if _even(row) and row["per_device"] >= few]
    assert len(_close(even, "own_gap")) == len(even)
    yield (
        f"ZB-V is within **{percent(WITHIN, 0)}** of anything that two chunks per device in a V can do in its memory, which is 1F1B's, in {len(own)} of"
        f" {len(every)} settings without copies: in all {len(even)} with at least {few} microbatches per device and F = B"
    )
    fewest = min(row["per_device"] for row in every)
    least = [row for row in every if row["per_device"] == fewest]
    long = [row for row in every if not _even(row) and row["per_device"] >= few]
    yield (
        f"With {fewest} microbatch per device it is {span((row['own_gap'] for row in least), percent)} above the bound, and where the"
        f" backward takes longer (B = {long[0]['times'][1] / long[0]['times'][0]} F) {span((row['own_gap'] for row in long), percent)} with at least {few}: within"
        f" {percent(WITHIN, 0)} in {len(_close(long, 'own_gap'))} of {len(long)}"
    )
    any_cut = _close(every, "any_gap")
    rest = [row for row in every if row["any_gap"] > WITHIN]
    yield (
        f"Of other cuts ({every[0]['covers']}) the bounds leave more open: ZB-V is within {percent(WITHIN, 0)} of all of them in {len(any_cut)} of"
        f" {len(every)} settings, each with at least {min(row['per_device'] for row in any_cut)} microbatches per device, and"
        f" {span((row['any_gap'] for row in rest), percent)} above in the others"
    )


def _others(plain: Sequence[Row]) -> Iterator[str]:
    one = _of(plain, "zb-h1")
    shut = [row for row in one if row["own_gap"] == 0]
    beside = zip(one, _of(plain, "zb-v"), strict=True)
    faster = sum(other["makespan_ns"] < row["makespan_ns"] for row, other in beside)
    yield (
        f"ZB-H1 is proven optimal among schedules of one chunk in its memory in {len(shut)} of {len(one)} settings, but"
        f" {span((row['any_gap'] for row in one), percent)} above the bound of all cuts; ZB-V, in the same memory, is faster in {faster}"
    )
    yield f"| schedule | peak, of 1F1B's activations | above the bound of its own cut | of all cuts | within {percent(WITHIN, 0)} |"
    for schedule, label in (
        ("1f1b", "1F1B"), ("v-min", "V-Min"), ("v-half", "V-Half"),
        ("zb-h1", "ZB-H1"), ("zb-h2", "ZB-H2"), ("zb-v", "ZB-V"), ("dualpipe-v", "DualPipe-V"), ("gis", "GIS"),
        ("1f1b-i:chunks=2", "1F1B-I, two chunks"), ("1f1b-i:chunks=4", "1F1B-I, four chunks"),
    ):  # fmt: skip
        every = _of(plain, schedule)
        yield (
            f"| {label} | {span((row['peak'] for row in every), '{:.2f}'.format)} |"
            f" {span((row['own_gap'] for row in every), percent)} | {span((row['any_gap'] for row in every), percent)} |"
            f" {len(_close(every, 'own_gap'))} and {len(_close(every, 'any_gap'))} of {len(every)} |"
        )


def _copies(rows: Sequence[Row]) -> Iterator[str]:
    def key(row: Row) -> tuple[Any, ...]:
        return row["devices"], row["per_device"], tuple(row["times"])

    before = {key(row): row for row in _of(rows, "zb-v") if row["copy"] is None}
    after = [row for row in _of(rows, "zb-v") if row["copy"] is not None]
    gains = [before[key(row)]["own_bound_ns"] / row["own_bound_ns"] - 1 for row in after]
    rates = span({row["copy"] for row in after}, "{:g}".format)
    yield (
        f"Where activations can be offloaded, at {rates} F for a copy, anything in a V could be at most"
        f" {span((row['own_gap'] for row in after), percent)} faster than ZB-V in its memory; the copies lower that bound by"
        f" {span(gains, percent)}"
    )
    moves = [
        row for name in ("po:chunks=2", "po:chunks=4") for row in _of(rows, name) if row["copy"]
    ]
    yield (
        f"PipeOffload, in {span((row['peak'] for row in moves), '{:.2f}'.format)} of 1F1B's activations, is"
        f" {span((row['own_gap'] for row in moves), percent)} above the bound in its own cut"
    )
