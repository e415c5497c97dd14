"""What docs/atlas.md and results/README.md say of atlas: how far the best schedules known are from the best bounds proven."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from statistics import median

from optpipe_sim.schedules import REGISTRY
from results.claims import Row, Tables, percent, span

WITHIN = 0.01
MAY = {
    "neither": "kept",
    "offload": "kept or offloaded",
    "recompute": "kept or recomputed",
    "both": "kept, offloaded or recomputed",
}


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("atlas")
    small = [row for row in rows if row["kind"] == "small"]
    rest = [row for row in rows if row["kind"] != "small"]
    known = [row for row in rest if row["gap"] is not None]
    proven, close = _proven(known), _close(known)
    profiles = len({row["name"].partition("@")[0] for row in rest})
    yield (
        f"Of {len(rest)} instances of {profiles} profiles **{len(close)}** are solved to within {percent(WITHIN, 0)} of the best possible in their cut, {len(proven)} of them"
        f" proven optimal"
    )
    unsolved = len(rest) - len(known)
    none = f"no schedule is known of {unsolved}" if unsolved else "a schedule is known of each"
    yield (
        f"The gap of half of them is at most {percent(median(row['gap'] for row in known))}, the widest {percent(max(row['gap'] for row in known))}"
        f" (`{max(known, key=lambda row: row['gap'])['name']}`), and {none}"
    )
    yield f"all {len(_proven(small))} of the small ones are proven"
    yield (
        f"| activations may be | memory | instances | proven optimal | gap at most {percent(WITHIN, 0)} | half of the gaps are at most | the widest |"
    )
    for may, words in MAY.items():
        for full in (True, False):
            yield _line(
                words, full, [row for row in rest if row["may"] == may and _full(row) == full]
            )
    yield from _findings(known)


def _proven(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["gap"] == 0]


def _close(rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if row["gap"] <= WITHIN]


def _full(row: Row) -> bool:
    return bool(row["share"] >= 1)


def _line(words: str, full: bool, rows: Sequence[Row]) -> str:
    known = [row for row in rows if row["gap"] is not None]
    return (
        f"| {words} | {'as much as that or more' if full else 'less'} | {len(rows)} | {len(_proven(known))} | {len(_close(known))} |"
        f" {percent(median(row['gap'] for row in known))} | {percent(max(row['gap'] for row in known))} |"
    )


def _findings(known: Sequence[Row]) -> Iterator[str]:
    ample = [row for row in known if row["may"] == "neither" and _full(row)]
    one, more = ([row for row in ample if (row["chunks"] == 1) == alone] for alone in (True, False))
    yield (
        f"Where activations are kept and 1F1B's memory is there, nearly all is closed for one chunk per device: {len(_close(one))} of {len(one)} are within"
        f" {percent(WITHIN, 0)}, the others up to {percent(max(row['gap'] for row in one))}; of several chunks {len(_close(more))} of {len(more)}, the others up to"
        f" {percent(max(row['gap'] for row in more))}"
    )
    tight = [row for row in known if not _full(row)]
    free = [row for row in tight if row["may"] in ("recompute", "both")]
    yield (
        f"In less memory, where recomputation is allowed, half of the gaps are at most {percent(median(row['gap'] for row in free))}, and {len(_close(free))} of"
        f" {len(free)} are within {percent(WITHIN, 0)}"
    )
    names = [str(row["found_by"]).partition(":")[0] for row in known]
    ada = sum(name.startswith("adaoffload") for name in names)
    rules = [name for name in names if name in REGISTRY and not name.startswith("adaoffload")]
    yield (
        f"A search found the best schedule known of {len(known) - ada - len(rules)} of {len(known)}, AdaOffload's rules that of {ada}, and other published schedules that"
        f" of {len(rules)} (`{'`, `'.join(sorted(set(rules)))}`)"
    )
    experts, dense = (
        [row for row in known if row["kind"] == kind] for kind in ("experts", "dense")
    )
    if experts:
        yield (
            f"Of models with experts half of the gaps are at most {percent(median(row['gap'] for row in experts))}, of dense ones"
            f" {percent(median(row['gap'] for row in dense))}"
        )
    made = [row for row in known if row["seed"] is not None]  # what was submitted does not say it
    seconds = span({round(row["seconds"]) for row in made}, "{:d}".format)
    yield (
        f"{seconds} s per instance, one process, seed {span({row['seed'] for row in made})}, of all but {len(known) - len(made)} that were submitted since"
    )
