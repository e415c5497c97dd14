"""What README.md and results/README.md say of schedules_sweep."""

from __future__ import annotations

from collections.abc import Iterator

from results.claims import Tables


def sentences(tables: Tables) -> Iterator[str]:
    rows = tables("schedules_sweep")
    times: dict[str, dict[float, float]] = {}
    for row in rows:
        times.setdefault(row["schedule"], {})[row["profile.t_comm_ms"]] = row["makespan_ns"] / 1e6
    longest = max(times["1f1b"])
    slopes = {name: (at[longest] - at[0]) / longest for name, at in times.items()}
    order = sorted(slopes, key=slopes.__getitem__)
    assert order[-1] == "v-min"
    assert slopes["zb-h2"] == min(slopes.values())
    (profile,) = {row["profile"] for row in rows}
    first = [min(times, key=lambda name: times[name][at]) for at in times["1f1b"]]
    others = [name for at, name in zip(times["1f1b"], first, strict=True) if name != "zb-v"]
    yield (
        f"From no P2P latency to {longest:g} ms an iteration of `{profile}`, whose devices have no memory limit, takes {slopes['zb-h2']:.0f} ms (ZB-H2) to"
        f" {slopes['v-min']:.0f} ms (V-Min) longer per ms; ZB-V is the fastest of the {len(times)} schedules at"
        f" {first.count('zb-v')} of {len(first)} latencies, {' and '.join(f'`{name}`' for name in dict.fromkeys(others))} at the others."
    )
