"""What a backward pass can run again of a layer, what that drops, and what it takes.

Choices for whole layers: ``none``; ``norms`` (norm outputs, activation functions, dropout); ``full`` (only
the layer's input is kept). Or modules by Megatron-LM's names, joined by a plus, as it drops and reruns them with
TransformerEngine (commit d98e8a6: transformer_layer.py, attention.py, multi_latent_attention.py and moe/ in
megatron/core/transformer). It fuses a norm into the GEMM behind it where that is a linear of plain attention or
a plain MLP; such a norm belongs to that linear.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import NamedTuple

from ...errors import OptPipeError
from ..models import Model

RECOMPUTE = ("none", "norms", "full")
SELECTIVE = "core_attn"  # what Megatron-LM recomputes at --recompute-granularity selective


class Region(NamedTuple):
    """A part of a layer that is run again.

    Attributes:
        drops: the kept tensors that go with it, by name.
        gemms: those that run again. Every dropped tensor is written once more, from an input of about its size.
        attention: whether the kernel of fused attention runs again.
        sends: groups whose messages of F are sent again; of ``tp`` those around the MLP or the experts.
    """

    drops: tuple[str, ...]
    gemms: tuple[str, ...] = ()
    attention: bool = False
    sends: tuple[str, ...] = ()


_SCORES = ("score dropout mask", "dropped scores")
_SHARED = ("shared activation input", "shared activation output")
# Parts that levels drop one after the other; `levels` counts dropout of scores with the attention.
PARTS: Mapping[str, Region] = {
    "norms": Region(
        (
            "attention norm output",
            "fused attention norm output",
            "latent norms",
            "mlp norm output",
            "fused mlp norm output",
            "projection input",
            "attention dropout mask",
            "mlp dropout mask",
            "activation output",
            "shared activation output",
            "expert activation output",
        )
    ),
    "attention": Region(("softmax output", *_SCORES), ("scores", "values")),
    "qkv": Region(("queries, keys, values", "query and key norm inputs"), ("qkv",)),
    "mlp": Region(("activation input", _SHARED[0]), ("mlp in", "shared in")),
    "experts": Region(("expert activation input",), ("experts in",)),
}
# core_attn, mlp, shared_experts and moe are checkpoints of all that lies within, the others drop only what they give.
MODULES: Mapping[str, Region] = {
    "core_attn": Region(
        (*PARTS["attention"].drops, "log-sum-exp", "attention output by heads"),
        PARTS["attention"].gemms,
        True,
        ("cp",),
    ),
    "mla_up_proj": Region(("queries", "keys and values"), ("q", "q up", "kv up")),
    "layernorm": Region(("attention norm output", "mlp norm output")),
    "mlp": Region(
        ("fused mlp norm output", "activation input", "activation output"),
        ("mlp in", "mlp out"),
        sends=("tp",),
    ),
    "moe_act": Region(("expert activation output",)),
    "shared_experts": Region(_SHARED, ("shared in", "shared out"), sends=("tp",)),
    "moe": Region(
        (
            "router probabilities",
            "expert inputs",
            "expert activation input",
            "expert activation output",
            *_SHARED,
        ),
        ("router", "experts in", "experts out", "shared in", "shared out"),
        sends=("ep", "tp"),
    ),
}


def choice_of(given: str | Iterable[str]) -> str:
    """Return a choice as `Work` has it: one of `RECOMPUTE`, or modules in the order of `MODULES`, joined
    by a plus.

    Args:
        given: one name, several, or a text of several with commas or pluses between them; ``selective`` is
            Megatron-LM's word for `SELECTIVE`.

    Raises:
        OptPipeError: for a name that is none, or modules beside another choice.
    """
    texts = [given] if isinstance(given, str) else list(given)
    names = [name for text in texts for name in str(text).replace("+", ",").split(",")]
    names = [name.strip() for name in names if name.strip()]
    if len(names) == 1 and names[0] in RECOMPUTE:
        return names[0]
    names = [SELECTIVE if name == "selective" else name for name in names]
    wrong = [name for name in names if name not in MODULES]
    if wrong and wrong[0] in RECOMPUTE:
        raise OptPipeError(f"recompute: {wrong[0]} goes with nothing else, got {given!r}")
    if wrong or not names:
        raise OptPipeError(
            f"recompute: expected {', '.join(RECOMPUTE)}, or some of {', '.join(MODULES)};"
            f" got {wrong[0] if wrong else given!r}"
        )
    return "+".join(name for name in MODULES if name in names)


def modules_of(choice: str) -> tuple[str, ...]:
    """Return the modules of a choice; none of them for one of `RECOMPUTE`."""
    return () if choice in RECOMPUTE else tuple(choice.split("+"))


@cache
def dropped(choice: str) -> frozenset[str]:
    """Return the names of the kept tensors that a choice other than ``full`` drops."""
    if choice == "norms":
        return frozenset((*PARTS["norms"].drops, *_SCORES))
    return frozenset(name for module in modules_of(choice) for name in MODULES[module].drops)


def require_modules(choice: str, model: Model, exchange: str) -> None:
    """Raise for a choice that is none, or that Megatron-LM refuses for this model and exchange of tokens.

    Raises:
        OptPipeError: one line with the module and the reason.
    """
    names = modules_of(choice_of(choice))
    for name in names:
        if name == "mla_up_proj" and not model.latent:
            raise OptPipeError(f"recompute: {name}: {model.name} has no latent attention")
        if name in ("moe", "moe_act", "shared_experts") and not model.experts:
            raise OptPipeError(f"recompute: {name}: {model.name} has no experts")
    if "moe" in names and exchange.endswith("overlapped"):
        raise OptPipeError("recompute: moe excludes an overlapped exchange; leave out one of them")
