"""What results/README.md says of long_sequences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from optpipe_sim.costs.published import published
from optpipe_sim.study.claims import Row, Tables, percent, span


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("long_sequences")
    yield _fastest([row for row in rows if row["devices"] == 64])
    yield _longest([row for row in rows if row["devices"] == 64])
    yield _drives(rows)
    yield _sppo([row for row in rows if row["machine"].startswith("a100")])
    yield _slimpipe([row for row in rows if row["devices"] == 256])


def _length(tokens: int) -> str:
    return f"{tokens // 1024}k"


def _best(rows: list[Row], key: str = "ms") -> Row:
    return min((row for row in rows if row[key] is not None), key=lambda row: row[key])


def _settings(rows: list[Row]) -> dict[tuple[str, int], list[Row]]:
    found: dict[tuple[str, int], list[Row]] = {}
    for row in rows:
        found.setdefault((row["model"], row["seq"]), []).append(row)
    return found


def _fastest(rows: list[Row]) -> str:
    """Which way is fastest, under either limit; ways within 1 % of it count as well."""
    settings = _settings(rows)

    def won(key: str) -> str:
        wins: Counter[str] = Counter()
        for group in settings.values():
            least = _best(group, key)[key]
            near = {
                row["way"].split("+")[0]
                for row in group
                if row[key] is not None and row[key] <= 1.01 * least
            }
            wins.update(near)
        return ", ".join(f"{way} {count}" for way, count in wins.most_common())

    return (
        f"In {len(settings)} settings (LLaMA-2 of 7, 13 and 70 billion parameters, {_length(min(s for _, s in settings))} to"
        f" {_length(max(s for _, s in settings))} tokens, 64 H100s) the fastest named schedule that fits, ties within 1 %"
        f" counted for each, is of: {won('ms')}; in 40 GiB per device: {won('ms_40')}."
    )


def _longest(rows: list[Row]) -> str:
    """The longest sequence of each way, of each model."""
    ways = ("nothing", "recompute", "offload", "context", "slices", "slices+recompute", "slices+offload")

    def longest(way: str) -> str:
        return "/".join(
            _length(max((row["seq"] for row in rows if (row["model"], row["way"]) == (model, way)
                         and row["ms"] is not None), default=0))
            for model in dict.fromkeys(row["model"] for row in rows)
        )  # fmt: skip

    return f"The longest sequences that fit (7B/13B/70B): {', '.join(f'{way} {longest(way)}' for way in ways)}."


def _drives(rows: list[Row]) -> str:
    pairs = []
    for group in _settings([row for row in rows if row["devices"] == 64]).values():
        by_way = {row["way"]: row for row in group}
        host, drives = by_way["slices+offload"], by_way["slices+drives"]
        if host["ms"] is not None and drives["ms"] is not None:
            pairs.append((drives["ms"] / host["ms"] - 1, drives["years"]))
    near = sum(slower <= 0.01 for slower, _ in pairs)
    years = [one for _, one in pairs if one is not None]
    return (
        f"Where slices are offloaded to drives instead of the host, {near} of {len(pairs)} settings are within 1 % of the"
        f" host's time, the others up to {percent(max(slower for slower, _ in pairs), 0)} longer; eight drives rated for one write a"
        f" day are worn out after {span(years, lambda one: f'{one:.2f}')} years."
    )


def _sppo(rows: list[Row]) -> str:
    claim = published("long_context")["sppo"]
    longest = claim["longest"]
    at = {row["way"]: row for row in rows if row["seq"] == longest["tokens"]}
    ours = at["slices+offload"]
    ratios = []
    for group in _settings(rows).values():
        by_way = {row["way"]: row for row in group}
        sliced = by_way["slices+offload"]
        others = [by_way[way] for way in ("recompute", "context", "context+recompute")]
        ran = [row for row in others if row["ms"] is not None]
        if sliced["ms"] is not None and ran:
            ratios.append(_best(ran)["ms"] / sliced["ms"])
    return (
        f"SPPO's abstract: a 7B model with {longest['tokens']:,} tokens on {longest['devices']} A100s. Here slices with offloading"
        f" hold it in {ours['peak_gib']:.0f} GiB per device and {ours['host_gib']:.0f} GiB of host memory per tensor-parallel rank at an MFU of"
        f" {percent(ours['mfu'], 0)}. Up to {claim['faster']} times the throughput of Megatron-LM and DeepSpeed: here"
        f" {span(ratios, lambda one: f'{one:.2f}')} times that of the best recomputation or context parallelism."
    )


def _slimpipe(rows: list[Row]) -> str:
    claims = published("long_context")["slimpipe"]

    def best(seq: int, sliced: bool) -> Row | None:
        found = [row for row in rows if row["seq"] == seq and ("slices" in row["way"]) == sliced and row["ms"]]
        return _best(found) if found else None

    short, long = claims["mfu_ratio"], claims["mfu"]
    ours, other = best(short["tokens"], True), best(short["tokens"], False)
    far, rest = best(long["tokens"], True), best(long["tokens"], False)
    assert ours and other and far and rest
    return (
        f"SlimPipe's abstract: up to {short['value']} times the MFU of others for Llama 70B at {_length(short['tokens'])}; here on"
        f" 256 H100s {percent(ours['mfu'], 0)} with slices and {percent(other['mfu'], 0)} without. Above {percent(long['value'], 0)} at"
        f" {_length(long['tokens'])} on {long['devices']} Hopper devices; here {percent(far['mfu'], 0)} with slices and"
        f" {percent(rest['mfu'], 0)} without."
    )
