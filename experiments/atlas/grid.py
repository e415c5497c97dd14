"""The profiles of the atlas: which models, machines, layouts and cuts, and small ones whose optimum can be found by hand.

Estimates are made once, by `make`, and kept as files with the commit that made them: a later estimate differs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from optpipe_sim.costs import estimate
from optpipe_sim.profile import CostProfile
from optpipe_sim.profile_io import load_profile

PUBLISHED = Path(__file__).parent.parent / "profiles"
SHORT = {"-sxm": "", "-80gb": "", "-megatron": "f"}  # in names: f for fitted

# shapes of a trillion parameters that are not among the named models
GPT_1T = {
    "name": "gpt-1t", "style": "gpt", "layers": 128, "hidden": 25600, "heads": 160, "vocab": 51200, "tied": True,
    "positions": 2048, "source": "Narayanan et al., arXiv 2104.04473, table 1, last row",
}  # fmt: skip
KIMI_K2 = {
    "name": "kimi-k2", "layers": 61, "hidden": 7168, "heads": 64, "ffn": 18432, "vocab": 163840, "context": 131072,
    "q_lora": 1536, "kv_lora": 512, "nope_dim": 128, "rope_dim": 64, "value_dim": 128, "experts": 384,
    "experts_per_token": 8, "expert_ffn": 2048, "shared_ffn": 2048, "dense_layers": 1,
    "source": "moonshotai/Kimi-K2-Base config.json",
}  # fmt: skip
MODELS: dict[str, Any] = {"gpt-1t": GPT_1T, "kimi-k2": KIMI_K2}

# model, machine, layout and length: cuts as "devices cut microbatches freedom". A cut is a number of chunks in a loop, or
# V; a freedom has o where activations may be offloaded, r where they may be recomputed, - where neither.
# Profiles are files that keep the rates they were made at: those of A100s were made while `a100-80gb` had the rates of data
# sheets, and the fitted ones were in `a100-80gb-megatron`, which is now another name of it.
ESTIMATED: list[tuple[str, str, dict[str, Any], list[str]]] = [
    ("llama2-7b", "a100-80gb", {"seq": 4096}, ["4 1 16 -", "8 V 32 -", "8 2 32 r", "4 1 8 or", "4 3 12 o"]),
    ("llama2-7b", "rtx4090", {"seq": 2048}, ["8 1 16 o", "8 V 32 or", "16 1 32 or", "16 2 32 -"]),
    ("llama3-8b", "h100-sxm", {"seq": 8192}, ["4 1 8 or", "8 1 16 -", "8 V 32 or", "8 3 32 o", "16 1 64 -"]),
    ("llama3-8b", "h100-sxm", {"seq": 32768, "tp": 2}, ["4 V 8 or", "8 1 8 r", "8 2 16 o"]),
    ("llama3-8b", "h200-sxm", {"seq": 131072, "tp": 8}, ["4 1 4 or", "4 V 8 or", "8 1 8 r"]),
    ("qwen3-8b", "mi300x", {"seq": 4096}, ["4 V 16 -", "8 1 32 r", "8 2 16 or", "4 4 8 -"]),
    ("llama2-13b", "gh200", {"seq": 16384}, ["8 1 16 o", "8 V 32 or", "8 2 32 o", "4 1 16 or"]),
    ("llama2-13b", "a100-80gb-megatron", {"seq": 4096}, ["8 1 32 -", "8 V 32 -", "4 2 16 r", "16 1 48 or"]),
    ("qwen3-14b", "h100-sxm", {"seq": 8192}, ["8 1 32 r", "8 V 24 or", "16 1 32 -", "4 2 16 or"]),
    ("gemma3-27b", "h200-sxm", {"seq": 8192}, ["8 1 16 -", "8 V 32 r", "16 1 32 or"]),
    ("qwen2.5-32b", "h100-sxm", {"seq": 8192, "tp": 2}, ["8 1 32 or", "8 V 32 -", "16 1 64 o", "16 2 32 r"]),
    ("qwen3-32b", "b200-sxm", {"seq": 16384}, ["8 1 32 or", "8 2 32 r", "16 V 32 -", "4 V 16 o"]),
    ("gpt-42.9b", "a100-80gb", {"seq": 4096, "tp": 2}, ["8 1 32 -", "16 1 64 or", "16 V 32 o"]),
    ("llama3-70b", "h100-sxm", {"seq": 8192, "tp": 8}, ["4 1 16 -", "8 1 32 or", "8 V 32 r", "16 2 64 -", "16 V 48 or"]),
    ("llama3-70b", "b200-sxm", {"seq": 32768, "tp": 4}, ["8 1 16 or", "8 V 16 r", "16 1 32 o"]),
    ("llama3-70b", "h100-sxm", {"seq": 131072, "tp": 8, "cp": 4}, ["4 1 8 or", "8 V 8 or", "8 1 16 -"]),
    ("qwen2.5-72b", "mi300x", {"seq": 4096, "tp": 4}, ["8 1 32 -", "8 2 32 or", "16 V 64 -"]),
    ("llama2-70b", "gh200", {"seq": 4096, "tp": 4}, ["16 1 64 o", "8 V 32 or"]),
    ("gpt-98.5b", "a100-80gb", {"seq": 4096, "tp": 8}, ["8 1 32 r", "16 V 48 -", "32 1 64 -"]),
    ("gpt3-175b", "a100-80gb", {"seq": 2048, "tp": 8}, ["8 1 64 r", "16 1 64 -", "16 V 64 or", "32 1 64 -", "48 1 96 -", "96 1 96 -"]),
    ("gpt3-175b", "gb200", {"seq": 2048, "tp": 4}, ["12 V 48 or", "24 1 48 o"]),
    ("llama3-405b", "h100-sxm", {"seq": 8192, "tp": 8}, ["16 1 32 or", "16 V 32 -", "16 4 32 -", "32 1 64 r", "64 1 64 -"]),
    ("llama3-405b", "gb200", {"seq": 8192, "tp": 8}, ["16 V 64 or", "8 1 32 r", "32 2 64 -"]),
    ("gpt-1t", "a100-80gb", {"seq": 2048, "tp": 8}, ["32 V 64 or", "64 1 64 -", "64 V 64 -", "128 1 128 -", "128 1 128 r"]),
    ("gpt-1t", "b200-sxm", {"seq": 2048, "tp": 8}, ["16 1 64 or", "32 2 64 -", "128 1 256 -"]),
    ("mixtral-8x7b", "h100-sxm", {"seq": 4096, "dp": 8, "ep": 8}, ["4 1 16 -", "4 V 16 or", "8 1 32 r", "8 2 32 -"]),
    ("mixtral-8x22b", "h100-sxm", {"seq": 4096, "tp": 2, "dp": 4, "ep": 8}, ["8 1 32 or", "8 V 32 -", "14 1 56 o"]),
    ("qwen3-30b-a3b", "h100-sxm", {"seq": 4096, "dp": 8, "ep": 8}, ["4 1 16 or", "4 V 16 -", "8 1 16 r", "8 2 32 o"]),
    ("qwen3-235b-a22b", "h100-sxm", {"seq": 4096, "tp": 2, "dp": 4, "ep": 8, "zero": 1}, ["8 1 32 or", "16 1 64 -", "16 V 64 r", "32 1 64 o"]),
    ("qwen2-57b-a14b", "a100-80gb", {"seq": 4096, "dp": 8, "ep": 8}, ["4 1 16 r", "7 V 28 -"]),
    ("deepseek-v2-lite", "a100-80gb", {"seq": 4096, "dp": 8, "ep": 8}, ["4 1 16 -", "4 V 16 or", "8 1 24 o"]),
    ("deepseek-v3", "h100-sxm", {"seq": 4096, "dp": 64, "ep": 64, "zero": 1}, ["8 V 32 -", "16 1 64 or", "16 V 60 -", "16 2 32 r", "32 1 64 -"]),
    ("deepseek-v3", "gb200", {"seq": 4096, "dp": 64, "ep": 64, "zero": 1}, ["8 1 32 or", "8 V 64 -", "16 1 16 o"]),
    ("gpt-oss-20b", "h100-sxm", {"seq": 8192, "dp": 4, "ep": 4}, ["4 1 16 r", "4 V 8 or"]),
    ("gpt-oss-120b", "b200-sxm", {"seq": 8192, "dp": 8, "ep": 8}, ["4 V 32 -", "6 1 24 or", "12 1 48 -"]),
    ("llama4-scout", "h100-sxm", {"seq": 8192, "tp": 4, "dp": 4, "ep": 16}, ["8 1 32 or", "12 V 48 -"]),
    ("llama4-maverick", "gb200", {"seq": 8192, "tp": 4, "dp": 8, "ep": 32}, ["8 2 32 r", "12 1 48 -", "6 V 24 or"]),
    ("kimi-k2", "h100-sxm", {"seq": 4096, "dp": 32, "ep": 32, "zero": 1}, ["16 1 64 or", "16 V 64 -", "8 V 32 or", "32 1 64 -"]),
]  # fmt: skip
# the same, in slices of the sequence, and with other links between devices
VARIED: list[tuple[str, str, dict[str, Any], str, dict[str, Any]]] = [
    ("llama3-8b", "h100-sxm", {"seq": 65536, "tp": 4, "slices": 4}, "4 1 4 -", {}),
    ("llama3-8b", "h100-sxm", {"seq": 65536, "tp": 4, "slices": 4}, "8 1 4 o", {}),
    ("qwen3-14b", "h200-sxm", {"seq": 131072, "tp": 8, "slices": 8}, "4 1 2 -", {}),
    ("llama3-70b", "b200-sxm", {"seq": 65536, "tp": 8, "slices": 4}, "8 1 8 -", {}),
    ("llama2-13b", "a100-80gb", {"seq": 4096}, "8 1 32 -", {"links": "blocking"}),
    ("llama2-13b", "a100-80gb", {"seq": 4096}, "8 2 32 o", {"links": "blocking"}),
    ("llama3-8b", "rtx4090", {"seq": 4096, "tp": 2}, "8 1 32 or", {"links": "serial"}),
    ("llama3-8b", "rtx4090", {"seq": 4096, "tp": 2}, "8 V 16 -", {"links": "serial"}),
    ("qwen3-8b", "rtx4090", {"seq": 4096, "tp": 2}, "16 1 32 r", {"links": "blocking"}),
]  # fmt: skip
# devices, cut, microbatches, limits in activations of a stage, (F, B, W) and the message in us, (act, w) in GiB; a list:
# per stage. Small enough for an exhaustive search.
SMALL: list[tuple[int, str, int, list[float], Any, int, tuple[int, int]]] = [
    (2, "1", 3, [2, 1], (10, 11, 9), 1, (2, 1)),
    (2, "1", 5, [3, 2], (10, 10, 10), 0, (2, 1)),
    (3, "1", 3, [3, 2, 1], (10, 12, 8), 2, (2, 1)),
    (3, "1", 4, [2, 1.5], (7, 9, 6), 1, (2, 1)),
    (4, "1", 2, [2, 1], (10, 11, 9), 1, (2, 1)),
    (4, "1", 3, [3, 2, 1.5], (10, 10, 10), 0, (2, 1)),
    (4, "1", 4, [3, 2], (6, 7, 5), 1, (2, 1)),
    (3, "1", 3, [3, 2], [(10, 10, 8), (14, 15, 11), (9, 9, 7)], 1, (2, 1)),
    (4, "1", 3, [2, 1.5], [(8, 9, 7), (12, 12, 10), (8, 9, 7), (15, 14, 12)], 1, (2, 1)),
    (2, "V", 3, [4, 3, 2], (5, 6, 4), 1, (2, 1)),
    (2, "2", 3, [4, 3], (5, 6, 4), 1, (2, 1)),
    (3, "V", 2, [4, 3], (5, 5, 5), 1, (2, 1)),
]  # fmt: skip


@dataclass(frozen=True)
class Setting:
    """A profile of the atlas: its name and what it is of, its microbatches, and its limits: `shares` of what
    1F1B's activations take on the fullest device, or limits in bytes."""

    name: str
    model: str
    source: str
    microbatches: int
    shares: tuple[float, ...] = ()
    limits: tuple[int, ...] = ()
    file: Path | None = None
    estimate: tuple[Any, str, tuple[tuple[str, Any], ...]] | None = None
    change: tuple[tuple[str, Any], ...] = ()
    data: Any = None

    def profile(self) -> CostProfile:
        """Make the profile: read it, or estimate it with the rates of today."""
        if self.file is not None:
            made = load_profile(self.file)
        elif self.estimate is not None:
            model, machine, options = self.estimate
            made = replace(
                estimate(model, machine, execution="ideal", **dict(options)), **dict(self.change)
            )
        else:
            made = load_profile(self.data)
        return replace(made, name=self.name, items=())


def settings() -> Iterator[Setting]:
    """Yield every profile of the atlas: small ones, published ones, estimates."""
    yield from map(_small, SMALL)
    for path in sorted(PUBLISHED.glob("*.yaml")):
        yield _published(path)
    for model, machine, layout, cuts in ESTIMATED:
        for cut in cuts:
            yield _estimated(model, machine, layout, cut, {})
    for row in VARIED:
        yield _estimated(*row)


def _estimated(
    model: str, machine: str, layout: dict[str, Any], text: str, change: dict[str, Any]
) -> Setting:
    devices, cut, microbatches, freedom = text.split()
    chunks, placement = (2, "vee") if cut == "V" else (int(cut), "loop")
    share = layout.get("tp", 1) * layout.get("cp", 1)
    options = {
        **layout, "devices": int(devices) * share, "chunks": chunks, "placement": placement,
        "offload": None if "o" in freedom else False, "levels": "r" in freedom,
    }  # fmt: skip
    where = machine
    for long, short in SHORT.items():
        where = where.replace(long, short)
    parts = [
        model, where, f"p{devices}", *([] if cut == "1" else ["vee" if cut == "V" else f"v{cut}"]),
        f"{layout['seq'] // 1024}k", *([f"n{layout['slices']}"] if "slices" in layout else []),
        *change.values(), f"m{microbatches}", *([] if freedom == "-" else [freedom]),
    ]  # fmt: skip
    said = ", ".join(f"{key} {value}" for key, value in {**layout, **change}.items())
    return Setting(
        name="-".join(parts),
        model=model,
        source=f"optpipe-sim estimate: {model} on {machine}, {said}",
        microbatches=int(microbatches),
        shares=(2.0, 1.0, 0.6) if freedom == "-" else (1.0, 0.5, 0.25),
        estimate=(MODELS.get(model, model), machine, tuple(options.items())),
        change=tuple(change.items()),
    )


def _published(path: Path) -> Setting:
    profile = load_profile(path)
    moves = profile.offload is not None
    return Setting(
        name=f"{profile.name}-o"
        if moves and not profile.name.endswith("offload")
        else profile.name,
        model=f"gpt-{profile.meta['model']['parameters'].lower()}",
        source=profile.meta["source"],
        microbatches=profile.meta["microbatches"],
        shares=(1.0, 0.5, 0.25) if moves else (2.0, 1.0, 0.6),
        file=path,
    )


def _small(row: tuple[int, str, int, list[float], Any, int, tuple[int, int]]) -> Setting:
    devices, cut, microbatches, limits, times, message_us, (act, held) = row
    chunks, placement = (2, "vee") if cut == "V" else (int(cut), "loop")
    every = times if isinstance(times, list) else [times] * devices * chunks
    uneven = "uneven-" if isinstance(times, list) else ""
    shape = "" if cut == "1" else "-vee" if cut == "V" else f"-v{cut}"
    return Setting(
        name=f"small-{uneven}p{devices}{shape}-m{microbatches}",
        model="small",
        source="made up: small enough for an exhaustive search",
        microbatches=microbatches,
        limits=tuple(int(size * act * 2**30) for size in limits),
        data={
            "devices": devices,
            "chunks": chunks,
            "placement": placement,
            "stages": [
                {"t_f_us": f, "t_b_us": b, "t_w_us": w, "act_gib": act, "w_gib": held}
                for f, b, w in every
            ],
            "t_comm_us": message_us,
        },
    )
