"""BERT and its relatives as layers, and from their config.json.

Source of the keys: the configuration classes of the transformers library.
"""

from __future__ import annotations

from typing import Any, Literal

from msgspec.structs import replace

from penstock.errors import UnsupportedModel
from penstock.families.family import EncoderFamily
from penstock.families.hub_reading import refuse_unknown
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import EncoderConfig, ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec, NormSpec
from penstock.model.rope_spec import RopeSpec

ACTIVATIONS: dict[str, Literal["gelu", "gelu_tanh", "relu"]] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def read_bert(fields: Fields, family: EncoderFamily, **others: Any) -> EncoderConfig:
    """`others`: fields of ModelConfig that aren't as in BERT. Raises UnsupportedModel for a variant
    that isn't computed."""

    def key(name: str) -> str:
        return family.keys.get(name, name)

    activation = fields.text(key("hidden_act"), "gelu")
    if activation not in ACTIVATIONS:
        raise UnsupportedModel(
            f"{fields.where}: hidden_act {activation!r} is not served; {', '.join(ACTIVATIONS)} are"
        )
    kind = fields.text("position_embedding_type", "absolute")
    if kind != "absolute":
        raise UnsupportedModel(
            f"{fields.where}: position_embedding_type {kind!r} is not served; absolute is"
        )
    if fields.flag("is_decoder", False):
        raise UnsupportedModel(f"{fields.where}: a {family.name} that is a decoder is not served")
    first = fields.integer("pad_token_id", 1) + 1 if family.first_behind_padding else 0
    types, buckets = family.token_types, family.relative_buckets
    longest = fields.integer("max_position_embeddings", 512) - first
    said = {
        "first_position": first,
        "learned_positions": longest,
        "token_types": fields.integer("type_vocab_size", types) if types else 0,
        "relative_buckets": (
            fields.integer("relative_attention_num_buckets", buckets) if buckets else 0
        ),
    }
    return bert_encoder(
        family.name,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer(key("hidden_size")),
        intermediate_size=fields.integer(key("intermediate_size")),
        num_layers=fields.integer(key("num_hidden_layers")),
        num_heads=fields.integer(key("num_attention_heads")),
        max_position=longest,
        layer_norm_eps=fields.number("layer_norm_eps", 1e-12),
        activation=ACTIVATIONS[activation],
        **{**said, **others},
    )


def bert_encoder(
    family: str,
    *,
    num_layers: int,
    num_heads: int,
    hidden_size: int,
    layer_norm_eps: float = 1e-12,
    activation: Literal["gelu", "gelu_tanh", "relu", "silu"] = "gelu",
    rope: RopeSpec | None = None,
    gated: bool = False,
    biases: bool = True,
    experts: ExpertsSpec | None = None,
    experts_every: int = 0,
    **others: Any,
) -> EncoderConfig:
    """Returns BERT with these sizes. `rope`: rotates queries and keys; None: nothing does.
    `gated`: whether feed-forwards have a gate. `biases`: whether products have biases. `experts`:
    what the second of `experts_every` layers has, without biases, in the feed-forward's place.
    `others`: further fields of ModelConfig."""
    fed = FeedForwardSpec(activation=activation, gated=gated, bias=biases)
    attention = AttentionSpec(rope=None if rope is None else 0, qkv_bias=biases, output_bias=biases)
    layer = LayerSpec(order="summed", attention=attention, feed_forward=fed)
    routed = replace(layer, feed_forward=replace(fed, experts=experts, bias=False))
    layers: tuple[LayerSpec, ...] = (layer,)
    if experts is not None:
        layers = tuple(routed if n % experts_every == 1 else layer for n in range(num_layers))
    return EncoderConfig(
        layers=ModelConfig(
            architecture=family,
            hidden_size=hidden_size,
            num_layers=num_layers,
            num_heads=num_heads,
            num_kv_heads=num_heads,
            head_dim=hidden_size // max(num_heads, 1),
            norm=NormSpec(kind="layer", eps=layer_norm_eps, bias=True),
            ropes=() if rope is None else (rope,),
            layers=layers,
            tie_word_embeddings=True,
            embedding_norm=True,
            final_norm=False,
            **others,
        )
    )


def rotating_head_dim(hidden: int, heads: int, where: str) -> int:
    """Returns the size of a head. Raises UnsupportedModel for one that can't rotate."""
    if heads < 1 or hidden % heads or hidden // heads % 2:
        raise UnsupportedModel(
            f"{where}: a hidden size of {hidden} and {heads} heads make no heads of an even size, "
            "which rotary positions need"
        )
    return hidden // heads


def rope_theta(fields: Fields, default: float) -> float:
    """Returns the base of a rotary embedding. Raises UnsupportedModel for one that is scaled, or
    that rotates a part of a head."""
    section = fields.section("rope_parameters")
    kind, found = section.text("rope_type", "default"), section.number("rope_theta", default)
    if kind != "default":
        raise UnsupportedModel(
            f"{section.where}: rope_type {kind[:80]!r} is not served; default is"
        )
    share = section.number("partial_rotary_factor", 1.0)
    if share != 1.0:
        raise UnsupportedModel(
            f"{section.where}: partial_rotary_factor {share:g} is not served; 1 is"
        )
    refuse_unknown(section, ())
    return found
