"""What README.md and results/README.md say of confirm_cpu."""

from __future__ import annotations

from collections.abc import Iterator

from results.claims import Tables, percent, span


def sentences(tables: Tables) -> Iterator[str]:
    (runs,) = tables("confirm_cpu")
    off = {name: percent(abs(run["ratio"] - 1)) for name, run in runs.items() if run["timed"]}
    checked = [run["gradients"] for run in runs.values() if run["gradients"]]
    bitwise = sum(found["bitwise"] for found in checked)
    ends = {name: "holds" if runs[name]["holds"] else "does not" for name in off}
    assert runs["synthetic"]["ratio"] > 1
    loop = runs["loop"]
    assert loop["composed_makespan_ns"] == loop["measured_makespan_ns"]
    sweeps = [ns / loop["predicted_makespan_ns"] - 1 for ns in loop["makespans_ns"]]
    replay = runs["replay"]
    single = [ns / replay["predicted_makespan_ns"] - 1 for ns in replay["makespans_ns"]]
    noise = percent(loop["noise_ns"] / loop["predicted_makespan_ns"])
    yield (
        f"real stages with offloading give {bitwise} of {sum(found['parameters'] for found in checked)} gradients of the"
        f" unpipelined model bit by bit in {len(checked)} modes. The program takes {off['synthetic']} longer than predicted"
        f" with ops that sleep (the fastest of {len(runs['synthetic']['makespans_ns'])} iterations); with real ops the replay, composed of medians per op, is {off['replay']} off and"
        f" {ends['replay']} (single iterations {span(single, percent)}), the rank-in-the-loop run is {off['loop']} off (its sweeps {span(sweeps, percent)}, its noise {noise}) and {ends['loop']}."
    )
