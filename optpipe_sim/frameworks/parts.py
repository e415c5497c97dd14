"""The parts of a model on each stage: embedding, decoder layers, loss; and the names of modules."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

from ..costs.parallelism import decoder_counts, mtp_stage
from ..errors import OptPipeError, ProfileError
from ..profile import CostProfile
from ..profile.items import EMBEDDING, HEAD, MTP

UNKNOWN_LENGTHS = "microbatches of the plan differ, but the profile does not say their lengths: the options are those of the usual one"


def said(profile: CostProfile, of: str) -> dict[str, Any]:
    """Return what an estimated profile says ``of`` its model, its work, how it is parallel, ...; nothing where it does not."""
    found = profile.meta.get(of)
    return found if isinstance(found, dict) else {}


class Part(NamedTuple):
    """The part of a model that one stage holds.

    Attributes:
        first: the number of its first decoder layer, from 0.
        layers: how many decoder layers it has.
        embedding, loss: whether it has the embedding, or the last norm, the head and the loss.
        mtp: how many layers it has that predict further tokens.
    """

    first: int
    layers: int
    embedding: bool = False
    loss: bool = False
    mtp: int = 0

    def module_names(self) -> list[str]:
        """Return the modules of this part, as torchtitan's decoders call them."""
        names = [f"layers.{layer}" for layer in range(self.first, self.first + self.layers)]
        return ["tok_embeddings"] * self.embedding + names + ["norm", "lm_head"] * self.loss


def parts_with(counts: Sequence[int]) -> tuple[Part, ...]:
    """Make parts with the given numbers of decoder layers, the embedding on the first and the loss
    on the last."""
    last = len(counts) - 1
    return tuple(
        Part(sum(counts[:at]), count, at == 0, at == last) for at, count in enumerate(counts)
    )


def parts_of(profile: CostProfile, layers: Sequence[int] | None = None) -> tuple[Part, ...]:
    """Return the part of each stage of `profile`, which already has the chunks of the schedule.

    Args:
        layers: decoder layers per stage; None: those of the profile's stages. If the profile gives
            the layers of the whole model (as `estimate` does), embedding and loss may count as one
            each.

    Raises:
        ProfileError: for a stage without a number of layers.
        OptPipeError: for `layers` that are not one number per stage.
    """
    if "encoder" in profile.meta:
        raise OptPipeError(
            f"{profile.name} has an encoder in front, which these options cannot say: give frameworks the language"
            " model's profile, and the number of layers that solve --layers any leaves each stage"
        )
    if layers is not None:
        if len(layers) != len(profile.stages) or min(layers) < 0 or sum(layers) < 1:
            raise OptPipeError(
                f"layers: expected {len(profile.stages)} numbers, the decoder layers of each stage,"
                f" got {','.join(map(str, layers))}"
            )
        return parts_with(layers)
    stated = [cost.layers for cost in profile.stages]
    if profile.items and sum(filter(None, stated)) == len(profile.items):
        return _parts_of_items(profile)
    if None in stated and "layers_per_stage" not in profile.meta:
        raise ProfileError(
            f"stages[{stated.index(None)}].layers: missing in the profile {profile.name}: frameworks"
            " need the number of layers of each stage; write it there, or give all of them, as in --layers 4,4,4,3"
        )
    counts = [count or 0 for count in stated]
    further, known = said(profile, "model").get("mtp", 0), profile.meta.get("layers_per_stage")
    at = mtp_stage(known) if isinstance(known, Sequence) and len(known) == len(counts) else -1
    if _ends_count(profile, sum(counts) - further):
        counts[0] -= 1
        counts[-1] -= 1
        counts[at] -= further
    parts = list(parts_with(counts))
    parts[at] = parts[at]._replace(mtp=further)
    return tuple(parts)


def _parts_of_items(profile: CostProfile) -> tuple[Part, ...]:
    """Return the parts of a profile whose stages have so many of its items."""
    borders = list(accumulate((cost.layers or 0 for cost in profile.stages), initial=0))
    first, parts = 0, []
    for start, end in pairwise(borders):
        run = profile.items[start:end]
        names = [item.name for item in run]
        count = sum(item.decoder for item in run)
        parts.append(Part(first, count, EMBEDDING in names, HEAD in names, names.count(MTP)))
        first += count
    return tuple(parts)


def _ends_count(profile: CostProfile, total: int) -> bool:
    """Whether embedding and loss count among the layers of the stages, given the model's `total`."""
    known = profile.meta.get("layers_per_stage")
    if isinstance(known, Sequence) and known:
        return bool(sum(decoder_counts(known)) == total - 2)
    return bool(said(profile, "model").get("layers") == total - 2)
