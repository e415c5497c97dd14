"""Tables of a profile's stages and levels of recomputation, as `estimate` and `profile` show them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ...profile import CostProfile
from ...units import counted, format_size, format_time
from .show import Out


def answer_text(profile: CostProfile) -> str:
    """Return the answer of what measures or estimates a profile: a microbatch on the slowest stage, and what the
    fullest device holds before any activation."""
    stages = profile.stages
    slowest = max(range(len(stages)), key=lambda at: stages[at].t_f_ns + stages[at].fused_ns)
    cost = stages[slowest]
    backward = f"B {format_time(cost.t_b_ns)}, W {format_time(cost.t_w_ns)}"
    limit = min(profile.memory_limit) if profile.memory_limit else None
    of = "" if limit is None else f" of {format_size(limit)}"
    return (
        f"F {format_time(cost.t_f_ns)}, {backward} per microbatch on stage {slowest}, the slowest of {len(stages)};"
        f" {format_size(max(profile.static_bytes))}{of} before activations on the fullest device"
    )


def show_factors(out: Out, profile: CostProfile) -> None:
    """Print between what microbatches differ; nothing where they are alike."""
    if profile.alike:
        return
    longer, sizes = ([float(one) for one in row] for row in zip(*profile.factors, strict=True))
    out.text(
        f"{len(longer)} microbatches that differ: {min(longer):.2f} to {max(longer):.2f} times the compute of"
        f" the usual one, {min(sizes):.2f} to {max(sizes):.2f} times its memory; their order matters: solve -m"
        f" {len(longer)}"
    )


def show_stages(
    out: Out,
    profile: CostProfile,
    ops: Sequence[str],
    times: Callable[[int], Sequence[str]],
    more: tuple[str, Callable[[int], str]] | None = None,
) -> None:
    """Print a row for each run of equal stages.

    Args:
        ops, times: headers of the columns of times, and a stage's cells in them.
        more: header of a last column, and a stage's cell in it.
    """
    rows = []
    for first, last in _runs(profile):
        cost = profile.stages[first]
        copies = {"O": cost.t_offload_ns, "R": cost.t_reload_ns}
        rows.append(
            {
                "stages": first if first == last else f"{first}-{last}",
                "layers": _layers_text(profile, first),
                **dict(zip(ops, times(first), strict=True)),
                "kept F to B": format_size(cost.act_bytes),
                "to W": format_size(cost.w_bytes),
                **{op: "-" if t is None else format_time(t) for op, t in copies.items()},
                "static": format_size(cost.static_bytes),
                **({more[0]: more[1](first)} if more else {}),
            }
        )
    out.table(rows)


def show_levels(out: Out, profile: CostProfile) -> None:
    """Print the levels of recomputation of a stage in the middle of the pipeline."""
    stage = len(profile.stages) // 2
    cost = profile.stages[stage]
    if not cost.recompute:
        return
    rows = (
        {
            f"level (stage {stage})": level.name,
            "recomputing": format_time(level.t_ns),
            "of F": f"{level.t_ns / cost.t_f_ns:.0%}",
            "kept F to B": format_size(level.keep_bytes),
            "of all": f"{level.keep_bytes / cost.act_bytes:.0%}",
        }
        for level in cost.recompute
    )
    out.table(rows)
    out.print()


def most_chunks_text(profile: CostProfile) -> str:
    """Say in a sentence into how many chunks the stages can be divided."""
    most = profile.most_chunks
    if most is None:
        return "stages divide anywhere"
    return f"stages divide between layers, into at most {counted(most, 'chunk')} per device"


def _layers_text(profile: CostProfile, stage: int) -> str:
    """Return the layers of an estimated or measured stage: ``7 + embedding``."""
    from ...costs.parallelism import decoder_counts, mtp_stage

    layers = profile.meta["layers_per_stage"]
    ends = ["embedding"] * (stage == 0)
    if stage == mtp_stage(layers):
        ends += ["mtp"] * profile.meta.get("model", {}).get("mtp", 0)
    ends += ["head"] * (stage == len(layers) - 1)
    return " + ".join([str(decoder_counts(layers)[stage]), *ends])


def _runs(profile: CostProfile) -> list[tuple[int, int]]:
    """Yield the first and the last stage of each run of equal ones."""
    found: list[tuple[int, int]] = []
    for at, cost in enumerate(profile.stages):
        if found and profile.stages[found[-1][0]] == cost:
            found[-1] = (found[-1][0], at)
        else:
            found.append((at, at))
    return found
