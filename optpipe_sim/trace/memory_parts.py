"""What the memory of each device holds at its peak: weights, gradients, optimizer, activations, and the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..profile import CostProfile

STATIC = ("weights", "gradients", "optimizer")
PARTS = (*STATIC, "activations", "reserve")


def memory_parts(profile: CostProfile, peak_bytes: tuple[int, ...]) -> list[dict[str, int]] | None:
    """Return the `PARTS` of each device's peak, in bytes, which add up to it.

    *Reserve* is what else is static: working memory of kernels, buffers, and with ZeRO 3 gathered
    weights. *Activations* are what the schedule holds at the peak. None where the profile does not say
    what its stages' static bytes are made of (``static_by_stage`` of its `meta`, which `estimate`
    writes), or says it of other stages.
    """
    by_stage: Any = profile.meta.get("static_by_stage")
    if profile.memory_unknown or not by_stage or len(by_stage) != len(profile.stages):
        return None
    found = []
    for device, peak in enumerate(peak_bytes):
        own = [at for at, place in enumerate(profile.placement) if place == device]
        sums = [sum(by_stage[at][part] for at in own) for part in range(len(STATIC))]
        static = profile.static_bytes[device]
        if sum(sums) > static:  # the stages are others by now
            return None
        rest = {"activations": peak - static, "reserve": static - sum(sums)}
        found.append(dict(zip(STATIC, sums, strict=True)) | rest)
    return found
