"""Decoder-only transformers as shapes: what a layer is made of, and how many parameters it has."""

from __future__ import annotations

from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from typing import Any

from ..errors import OptPipeError

STYLES = ("gpt", "llama")
HEADS = ("vocab", "sequence", "token", "none")
NEEDED = ("layers", "hidden", "heads", "vocab")  # of a short config
SAID = (
    "source",
    "left_out",
    "published_parameters",
    "published_active",
)  # of a model, beside its shape
MOST_LAYERS = 10_000  # the deepest models have a few hundred


class ModelError(OptPipeError):
    """An invalid model; names the model, the key, and what would be right."""


@dataclass(frozen=True)
class Model:
    """The shape of a decoder-only transformer.

    Attributes:
        style: ``gpt`` (LayerNorm, biases, GeLU, dropout, learned positions) or ``llama`` (RMSNorm,
            no biases, a gated MLP, rotary positions).
        ffn: width of the MLP (of the dense layers, where the others have experts).
        kv_heads: heads of keys and values (GQA); equal to `heads` without grouping.
        head: what comes after the last norm: ``vocab`` (a language model's logits), ``sequence`` (`labels` of a
            sequence, as of a reward model), ``token`` (`labels` of each token, with a bias) or ``none``.
        bidirectional: tokens attend to all others, as in encoders, not to earlier ones alone.
        tied: the head shares the embedding's weights. Across stages both keep a copy.
        qk_norm, qk_norm_whole: norms of queries and keys, of each head alike or over all heads together.
        experts, experts_per_token, expert_ffn: routed experts; `shared_ffn` is the summed width of
            the shared ones; the first `dense_layers` layers have an MLP of width `ffn` instead, and
            so have all but every `experts_every`-th layer.
        mtp: layers that predict further tokens (multi-token prediction), each a decoder layer like the last
            one behind a projection; they lie beside the head.
        q_lora, kv_lora, nope_dim, rope_dim, value_dim: multi-head latent attention (DeepSeek);
            all 0 without it.
        positions: rows of the learned position table (gpt).
        context: tokens of the longest sequence that the model is made for; 0: unknown.
        rotary_base: of the rotary positions, which no cost depends on; 0: unknown.
        activation: of a gated MLP, which no cost depends on: silu, gelu, ...
        published_parameters, published_active: as its authors state; 0: not stated.
        source: the source of the shape.
        left_out: what of the model changes costs and is not in its shape, in sentences joined by "; "; estimates
            warn of it.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    vocab: int
    style: str = "llama"
    kv_heads: int = 0
    head_dim: int = 0
    ffn: int = 0
    tied: bool = False
    qkv_bias: bool = False
    qk_norm: bool = False
    qk_norm_whole: bool = False
    head: str = "vocab"
    labels: int = 0
    bidirectional: bool = False
    positions: int = 0
    context: int = 0
    rotary_base: int = 0
    activation: str = "silu"
    experts: int = 0
    experts_per_token: int = 0
    expert_ffn: int = 0
    shared_ffn: int = 0
    dense_layers: int = 0
    experts_every: int = 1
    mtp: int = 0
    q_lora: int = 0
    kv_lora: int = 0
    nope_dim: int = 0
    rope_dim: int = 0
    value_dim: int = 0
    published_parameters: float = 0.0
    published_active: float = 0.0
    source: str = ""
    left_out: str = ""

    def __post_init__(self) -> None:
        self._check_types()
        split = self.heads and not self.head_dim and not self.kv_lora
        if split and self.hidden % self.heads:
            raise self._fail(
                "head_dim", f"missing: {self.heads} heads do not divide hidden {self.hidden}"
            )
        for key, default in (
            ("kv_heads", self.heads),
            ("head_dim", self.hidden // self.heads if self.heads else 0),
            ("ffn", 4 * self.hidden if self.style == "gpt" else self.expert_ffn),
        ):
            if not getattr(self, key):
                object.__setattr__(self, key, default)
        if self.head != "vocab":
            object.__setattr__(self, "tied", False)
        self._check()

    @property
    def warnings(self) -> list[str]:
        """What estimates warn of: the sentences of `left_out`."""
        return self.left_out.split("; ") if self.left_out else []

    def _check_types(self) -> None:
        if self.style not in STYLES:
            raise self._fail("style", f"expected gpt or llama, got {self.style!r}")
        if self.head not in HEADS:
            raise self._fail("head", f"expected {', '.join(HEADS)}, got {self.head!r}")
        for entry in fields(self):
            value = getattr(self, entry.name)
            if entry.type == "int" and (isinstance(value, bool) or not isinstance(value, int)):
                raise self._fail(entry.name, f"expected a whole number, got {value!r}")
            if entry.type == "bool" and not isinstance(value, bool):
                raise self._fail(entry.name, f"expected true or false, got {value!r}")
            if entry.type == "str" and not isinstance(value, str):
                raise self._fail(entry.name, f"expected a text, got {value!r}")
            if entry.type == "int" and not 0 <= value <= 10**9:
                raise self._fail(entry.name, f"must be from 0 to 10^9, got {value}")

    def _check(self) -> None:
        for key in ("layers", "hidden", "heads", "vocab", "kv_heads", "head_dim", "experts_every"):
            if getattr(self, key) < 1:
                raise self._fail(key, f"must be at least 1, got {getattr(self, key)}")
        for key in ("layers", "mtp"):
            if getattr(self, key) > MOST_LAYERS:
                raise self._fail(key, f"must be at most {MOST_LAYERS}, got {getattr(self, key)}")
        if (self.labels > 0) != (self.head in ("sequence", "token")):
            raise self._fail("labels", f"a head {self.head} has {self.labels or 'no'} labels")
        if self.heads % self.kv_heads:
            raise self._fail("kv_heads", f"{self.kv_heads} does not divide the {self.heads} heads")
        if self.experts and not 1 <= self.experts_per_token <= self.experts:
            raise self._fail(
                "experts_per_token",
                f"must be from 1 to {self.experts} (experts), got {self.experts_per_token}",
            )
        if self.experts and not self.expert_ffn:
            raise self._fail("expert_ffn", "missing: the width of an expert")
        if not self.experts and (self.experts_per_token or self.expert_ffn or self.shared_ffn):
            raise self._fail("experts", "missing: how many routed experts a layer has")
        if self.ffn < 1:
            raise self._fail("ffn", "missing: the width of the MLP")
        if self.dense_layers > self.layers:
            raise self._fail("dense_layers", f"{self.dense_layers} of {self.layers} layers")
        if self.kv_lora and not (self.nope_dim and self.rope_dim and self.value_dim):
            raise self._fail("kv_lora", "latent attention needs nope_dim, rope_dim and value_dim")

    def _fail(self, key: str, problem: str) -> ModelError:
        return ModelError(f"model {self.name}: {key}: {problem}")

    def shape(self) -> dict[str, Any]:
        """Return the fields that differ from their defaults, without what is said of the model: a short config."""
        usual = {one.name: one.default for one in fields(self) if one.default is not MISSING}
        told = {one.name: getattr(self, one.name) for one in fields(self)}
        return {
            key: value
            for key, value in told.items()
            if key not in SAID and usual.get(key, MISSING) != value
        }

    def to_json(self) -> dict[str, Any]:
        """Return a short config: the shape, and what is said of the model where anything is."""
        said = {key: getattr(self, key) for key in SAID}
        return {**self.shape(), **{key: value for key, value in said.items() if value}}

    @property
    def normed(self) -> bool:
        """Norms of queries and keys?"""
        return self.qk_norm or self.qk_norm_whole

    @property
    def outputs(self) -> int:
        """How many numbers the head makes of a token: logits of the vocabulary, labels, or none."""
        return self.vocab if self.head == "vocab" else self.labels

    # -- shapes that several costs need -----------------------------------------------------------

    @property
    def gpt(self) -> bool:
        """LayerNorm, biases, GeLU, dropout?"""
        return self.style == "gpt"

    @property
    def gated(self) -> bool:
        """A gated MLP: two matrices in, one out."""
        return not self.gpt

    @property
    def latent(self) -> bool:
        """Multi-head latent attention?"""
        return self.kv_lora > 0

    @property
    def qk_dim(self) -> int:
        """Width of one head of queries and keys."""
        return self.nope_dim + self.rope_dim if self.latent else self.head_dim

    @property
    def v_dim(self) -> int:
        """Width of one head of values."""
        return self.value_dim if self.latent else self.head_dim

    @cached_property
    def dense(self) -> tuple[bool, ...]:
        """Of each layer whether it has a plain MLP rather than experts."""
        return tuple(
            not self.experts or layer < self.dense_layers or (layer + 1) % self.experts_every > 0
            for layer in range(self.layers)
        )


def beyond_context(model: Model, seq: int) -> str | None:
    """Return a sentence where sequences are longer than the model is made for; None where they are not, or
    nothing is known."""
    longest = model.context or model.positions
    if not longest or seq <= longest:
        return None
    return (
        f"sequences of {seq} tokens are beyond the context of {model.name}, {longest} tokens: the costs"
        " hold, whether the model learns from so long ones is another question"
    )


def attention_parameters(model: Model) -> int:
    """Weights of one layer's attention, biases and inner norms included."""
    h, a, kv, d = model.hidden, model.heads, model.kv_heads, model.head_dim
    if model.latent:
        query = (
            h * model.q_lora + model.q_lora * a * model.qk_dim + model.q_lora
            if model.q_lora
            else h * a * model.qk_dim
        )
        keys = h * (model.kv_lora + model.rope_dim) + model.kv_lora
        return (
            query + keys + model.kv_lora * a * (model.nope_dim + model.v_dim) + a * model.v_dim * h
        )
    weights = h * (a + 2 * kv) * d + a * d * h
    bias = (a + 2 * kv) * d if model.gpt or model.qkv_bias else 0
    return weights + bias + (h if model.gpt else 0) + _qk_norm(model)


def _qk_norm(model: Model) -> int:
    """Weights of the norms of queries and keys."""
    if model.qk_norm_whole:
        return (model.heads + model.kv_heads) * model.head_dim
    return 2 * model.head_dim if model.qk_norm else 0


def mlp_parameters(model: Model, width: int) -> int:
    """Weights of one MLP of that width, biases included."""
    if model.gated:
        return 3 * model.hidden * width
    return 2 * model.hidden * width + width + model.hidden


def expert_parameters(model: Model) -> int:
    """Weights of one routed expert."""
    return mlp_parameters(model, model.expert_ffn)


def norm_parameters(model: Model) -> int:
    """Weights of one norm over the hidden width."""
    return 2 * model.hidden if model.gpt else model.hidden


def layer_parameters(model: Model, dense: bool, active: bool = False) -> int:
    """Weights of one layer; with `active` only those used for one token."""
    total = attention_parameters(model) + 2 * norm_parameters(model)
    if dense:
        return total + mlp_parameters(model, model.ffn)
    routed = model.experts_per_token if active else model.experts
    shared = mlp_parameters(model, model.shared_ffn) if model.shared_ffn else 0
    return total + routed * expert_parameters(model) + shared + model.hidden * model.experts


def embedding_parameters(model: Model) -> int:
    """Weights of the token and position tables."""
    return (model.vocab + model.positions) * model.hidden


def head_parameters(model: Model) -> int:
    """Weights of the last norm and the head, as the stage that holds them stores them."""
    bias = model.labels if model.head == "token" else 0
    return norm_parameters(model) + model.outputs * model.hidden + bias


def projection_parameters(model: Model) -> int:
    """Weights of one layer of `mtp` besides its decoder layer: a projection of two hidden states to one, a norm of
    each, and one before the head."""
    return 2 * model.hidden * model.hidden + 3 * norm_parameters(model)


def mtp_parameters(model: Model) -> int:
    """Weights of the layers that predict further tokens, without the tables that they share."""
    own = layer_parameters(model, model.dense[-1]) + projection_parameters(model)
    return model.mtp * own


def parameters(model: Model) -> int:
    """Return all weights but those of `mtp`, a tied head counted once."""
    dense = sum(model.dense)
    total = dense * layer_parameters(model, True)
    total += (model.layers - dense) * layer_parameters(model, False) if model.experts else 0
    total += embedding_parameters(model) + head_parameters(model)
    return total - (model.vocab * model.hidden if model.tied else 0)


def active_parameters(model: Model, embedding: bool = True) -> int:
    """Weights used for one token: without the experts it is not routed to.

    `embedding`: count the token table, of which a token only reads a row (some authors do).
    """
    idle = model.layers - sum(model.dense)
    unused = (model.experts - model.experts_per_token) * expert_parameters(model) if idle else 0
    table = 0 if embedding or model.tied else embedding_parameters(model)
    return parameters(model) - idle * unused - table


def made_of(data: dict[str, Any]) -> Model:
    """Make a model of fields that were read.

    Raises:
        ModelError: for a field of the wrong type or size.
    """
    for key in ("published_parameters", "published_active"):
        value = data.get(key, 0)
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e18:
            raise ModelError(f"model {data['name']}: {key}: must be a number, got {value!r}")
        data[key] = float(value)
    try:
        return Model(**data)
    except (TypeError, ZeroDivisionError):
        raise ModelError(
            f"model {data['name']}: layers, hidden, heads and vocab must be whole numbers above 0"
        ) from None
