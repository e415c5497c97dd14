"""What results/README.md says of long_sequences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from statistics import median

from experiments.published import published
from results.claims import Row, Tables, percent, span

NEAR = 0.01  # ways that take so much longer than the fastest count as fast
SMALL = 40  # GiB, the smaller limit


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("long_sequences")
    yield _fastest([row for row in rows if row["devices"] == 64])
    yield _longest([row for row in rows if row["devices"] == 64])
    yield _equal(rows)
    yield _drives(rows)
    yield _sppo([row for row in rows if row["machine"].startswith("a100")])
    yield _slimpipe([row for row in rows if row["devices"] == 256])


def _length(tokens: int) -> str:
    return f"{tokens // 1024}k"


def _size(model: str) -> str:
    return model.rpartition("-")[2].upper()


def _sizes(rows: list[Row]) -> str:
    return ", ".join(dict.fromkeys(_size(row["model"]) for row in rows))


def _best(rows: list[Row], key: str = "ms") -> Row:
    return min((row for row in rows if row[key] is not None), key=lambda row: row[key])


def _settings(rows: list[Row]) -> dict[tuple[str, int], list[Row]]:
    """The rows by how the devices, the model and the length go together; keyed by model and devices, and length."""
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((f"{row['model']} {row['devices']}", row["seq"]), []).append(row)
    return found


def _family(way: str) -> str:
    """What it bears long sequences with, whether or not it recomputes or offloads beside it."""
    parts = way.split("+")
    return "both" if {"slices", "context"} <= set(parts) else parts[0]


def _fastest(rows: list[Row]) -> str:
    """Which family of ways is fastest, under either limit; families within 1 % of it count as well."""
    settings = _settings(rows)
    names = {
        "nothing": "none of them",
        "context": "context parallelism without slices",
        "both": "slices with context parallelism",
        "recompute": "recomputation",
    }

    def won(key: str) -> str:
        wins: Counter[str] = Counter()
        for group in settings.values():
            fitting = [row for row in group if row[key] is not None]
            near = {"nothing that fits"} if not fitting else {
                _family(row["way"])
                for row in fitting
                if row[key] <= (1 + NEAR) * min(one[key] for one in fitting)
            }  # fmt: skip
            wins.update(near)
        return ", ".join(f"{names.get(way, way)} in {count}" for way, count in wins.most_common())

    lengths = [seq for _, seq in settings]
    return (
        f"In {len(settings)} settings (LLaMA {_sizes(rows)}, {_length(min(lengths))} to"
        f" {_length(max(lengths))} tokens, {rows[0]['devices']} H100s) the fastest named schedule that fits (families within {percent(NEAR, 0)} of it"
        f" count too) has {won('ms')}; in {SMALL} GiB per device {won('ms_40')}."
    )


def _longest(rows: list[Row]) -> str:
    """The longest sequence of each way, of each model."""
    names = {
        "nothing": "none of them", "recompute": "recomputation", "offload": "offloading", "slices": "slices",
        "context": "context parallelism", "slices+recompute": "slices with recomputation",
        "slices+offload": "slices with offloading", "context+recompute": "context parallelism with recomputation",
        "slices+context": "slices with context parallelism", "slices+context+recompute": "these with recomputation",
    }  # fmt: skip

    def longest(way: str, model: str) -> str:
        found = [
            row["seq"] for row in rows if (row["model"], row["way"]) == (model, way) and row["ms"]
        ]
        return _length(max(found)) if found else "none"

    models = list(dict.fromkeys(row["model"] for row in rows))
    each = ", ".join(
        f"{name} {' / '.join(longest(way, model) for model in models)}"
        for way, name in names.items()
    )
    return f"The longest of these sequences that fit ({' / '.join(_size(model) for model in models)}): {each}."


def _equal(rows: list[Row]) -> str:
    """Which slices the fastest schedules over slices have."""
    fastest = [row["schedule"] for row in rows if "slices" in row["way"] and row["ms"] is not None]
    timed, levelled = (sum(word in one for one in fastest) for word in ("equal time", "levelled"))
    return (
        f"Of the {len(fastest)} ways over slices that fit, the fastest schedule has slices of equal time in {timed},"
        f" SlimPipe's exchange between slices of equal length in {levelled}, and slices of equal length without it in"
        f" {len(fastest) - timed - levelled}."
    )


def _drives(rows: list[Row]) -> str:
    """Drives in the place of the host's memory; where the host's is too small for its part."""
    pairs, only, host_alone = [], [], 0
    for (_, seq), group in _settings(rows).items():
        by_way = {row["way"]: row for row in group}
        host, drives = by_way["slices+offload"], by_way["slices+drives"]
        if drives["ms"] is not None and host["ms"] is not None:
            pairs.append((drives["ms"] / host["ms"] - 1, drives))
        elif drives["ms"] is not None:
            only.append((seq, by_way))
        elif host["ms"] is not None:
            host_alone += 1
    slower = [one for one, _ in pairs]
    years = [row["years"] for _, row in pairs if row["devices"] == rows[0]["devices"]]
    ((seq, by_way),) = only
    drives = by_way["slices+drives"]

    def mfu(way: str) -> str:
        return percent(by_way[way]["mfu"], 0)

    return (
        f"Slices that are offloaded to drives instead of the host take {percent(median(slower))} longer in the median of the {len(pairs)} settings where both fit, {percent(max(slower))} at worst; in {host_alone} others only the host's memory holds them."
        f" Eight drives rated for one write a day are worn out after {median(years):.2f} years in the median on {rows[0]['devices']} H100s,"
        f" {span(years, lambda one: f'{one:.2f}')} in all."
        f" Without context parallelism, slices of a {_size(drives['model'])} model with {_length(seq)} tokens on {drives['devices']} H100s need more than the"
        f" host's memory: drives give {mfu('slices+drives')} MFU, recomputation {mfu('slices+recompute')}; with it the host holds them at {mfu('slices+context+offload')},"
        f" and recomputation gives {mfu('slices+context+recompute')}."
    )


def _sppo(rows: list[Row]) -> str:
    claim = published("long_context")["sppo"]
    longest = claim["longest"]
    at = [row for row in rows if row["seq"] == longest["tokens"]]
    ours = _best([row for row in at if _offloads_slices(row)])
    (alone,) = (row for row in at if row["way"] == "slices+offload")
    size = _size(ours["model"])

    def ratios(*others: str) -> list[float]:
        found = []
        for group in _settings(rows).values():
            ran = [row for row in group if row["way"] in others and row["ms"] is not None]
            sliced = [row for row in group if _offloads_slices(row) and row["ms"] is not None]
            if sliced and ran:
                found.append(_best(ran)["ms"] / _best(sliced)["ms"])
        return found

    keeping = ratios("recompute", "context", "context+recompute")
    every = ratios("recompute", "context", "context+recompute", "context+offload")
    return (
        f"SPPO's abstract: a {size} model with {longest['tokens']:,} tokens on {longest['devices']} A100s. Here slices with offloading"
        f" and context parallelism over {_shared(ours)} hold it in {ours['peak_gib']:.0f} GiB per device and {ours['host_gib']:.0f} GiB of the host's memory for each, at an MFU of"
        f" {percent(ours['mfu'], 0)}; without context parallelism they need {alone['least_gib']:.0f} GiB. Up to {claim['faster']} times the throughput of Megatron-LM and DeepSpeed: here"
        f" {span(keeping, lambda one: f'{one:.2f}')} times that of the best recomputation or context parallelism at {len(keeping)} lengths, and at most"
        f" {max(every):.2f} times where context parallelism may offload, too."
    )


def _offloads_slices(row: Row) -> bool:
    return row["way"] in ("slices+offload", "slices+context+offload")


def _shared(row: Row) -> int:
    """The devices that share a sequence."""
    (part,) = (one for one in row["schedule"].split(", ") if one.startswith("cp "))
    return int(part.removeprefix("cp "))


def _slimpipe(rows: list[Row]) -> str:
    claims = published("long_context")["slimpipe"]

    def best(seq: int, sliced: bool) -> Row:
        found = [
            row
            for row in rows
            if row["seq"] == seq and ("slices" in row["way"]) == sliced and row["ms"]
        ]
        return _best(found)

    short, long = claims["mfu_ratio"], claims["mfu"]
    ours, other = best(short["tokens"], True), best(short["tokens"], False)
    far, rest = best(long["tokens"], True), best(long["tokens"], False)
    assert far["way"] == "slices+context+offload"
    own = _best(
        [
            row
            for row in rows
            if row["seq"] == long["tokens"] and row["ms"] and "slimpipe" in row["schedule"]
        ]
    )
    return (
        f"SlimPipe's abstract: up to {short['value']} times the MFU of others for {short['model']} at {_length(short['tokens'])}; here on"
        f" {rows[0]['devices']} H100s {percent(ours['mfu'], 0)} with slices and {percent(other['mfu'], 0)} without. Above {percent(long['value'], 0)} at"
        f" {_length(long['tokens'])} on {long['devices']} Hopper devices; here {percent(far['mfu'], 0)} with context parallelism and slices that"
        f" are offloaded, {percent(own['mfu'], 0)} with SlimPipe's order and {percent(rest['mfu'], 0)} without slices."
    )
