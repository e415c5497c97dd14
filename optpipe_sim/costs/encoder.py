"""An encoder of images or sounds in front of a language model, as one pipeline of both."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..errors import OptPipeError
from ..profile import CostProfile
from ..profile.items import ENCODER, Item
from .doubt import Doubt, widest
from .provenance import ONCE

UNKNOWN = "no published run with an encoder in front was compared"
ALIKE = ("tp", "cp", "dp", "zero")  # what layers of one pipeline share


def with_encoder(profile: CostProfile, encoder: CostProfile) -> CostProfile:
    """Return the profile of both, the encoder's layers behind the embedding on the first stage, where trainers put them.

    Its layers are items like the others, so that another layout may spread them over stages or give them some of their
    own. The encoder's own embedding and head, and what projects its output, are not counted; messages between its
    layers are taken to be as large as the language model's.

    Args:
        encoder: an estimate on the same parallelism, on what one microbatch of the language model shows it.

    Raises:
        OptPipeError: for a profile that is no such estimate, or slices of sequences.
    """
    for one in (profile, encoder):
        if not one.items:
            raise OptPipeError(
                f"encoder: {one.name} lacks the costs of its layers (items), which estimates of whole sequences have"
            )
    mine, theirs = (_spread(one) for one in (profile, encoder))
    if mine != theirs:
        raise OptPipeError(
            f"encoder: estimated on {_told(theirs)}, the language model on {_told(mine)}; estimate both alike"
        )
    layers = [_named(item) for item in encoder.items if item.decoder]
    counts = [cost.layers or 0 for cost in profile.stages]
    first, *rest = profile.items
    counts[0] += len(layers)
    meta = {key: value for key, value in profile.meta.items() if key != "time_spent"}
    model = {"name": f"{_model(profile)} behind {_model(encoder)}"}
    meta |= {
        "model": model,
        "doubt": _doubt(profile, encoder).to_json(),
        "encoder": {
            "model": encoder.meta.get("model"),
            "work": encoder.meta.get("work"),
            "layers": len(layers),
        },
        "iteration": _together(
            profile.meta.get("iteration", {}), encoder.meta.get("iteration", {})
        ),
    }
    name = f"{profile.name}-behind-{_model(encoder)}"
    return replace(profile, name=name, items=(first, *layers, *rest), meta=meta).with_layout(counts)


def _doubt(profile: CostProfile, encoder: CostProfile) -> Doubt:
    """Return the doubt of both: what no run had makes a time no surer than those of the two are alone."""
    said = [one.meta.get("doubt") for one in (profile, encoder)]
    interval, offloading = (
        widest(one.get(key) or None for one in said if isinstance(one, Mapping))
        for key in ("interval", "interval_offloading")
    )
    return Doubt(None, None, None, 0, UNKNOWN, ("an encoder",), interval, offloading)


def _named(item: Item) -> Item:
    return replace(item, name=f"{ENCODER}{item.name}")


def _model(profile: CostProfile) -> str:
    said = profile.meta.get("model")
    return str(said.get("name")) if isinstance(said, Mapping) else profile.name


def _spread(profile: CostProfile) -> dict[str, Any]:
    said = profile.meta.get("parallel")
    return {key: said.get(key) for key in ALIKE} if isinstance(said, Mapping) else {}


def _told(spread: Mapping[str, Any]) -> str:
    return ", ".join(f"{key} {value}" for key, value in spread.items()) or "nothing that it says"


def _together(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of an iteration of both: what each adds to it, added up."""
    added = {key: mine[key] + theirs[key] for key in ONCE if key in mine and key in theirs}
    return {**mine, **added}
