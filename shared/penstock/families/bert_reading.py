"""EncoderConfig from the config.json of BERT and its relatives.

Source of the keys: the configuration classes of the transformers library.
"""

from __future__ import annotations

from typing import Literal

from penstock.errors import UnsupportedModel
from penstock.families.family import EncoderFamily
from penstock.formats.fields import Fields
from penstock.model.config import EncoderConfig

ACTIVATIONS: dict[str, Literal["gelu", "gelu_tanh", "relu"]] = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


def read_bert(fields: Fields, family: EncoderFamily) -> EncoderConfig:
    """Raises UnsupportedModel for a variant that isn't computed."""

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
    return EncoderConfig(
        family=family.name,
        vocab_size=fields.integer("vocab_size"),
        hidden_size=fields.integer(key("hidden_size")),
        intermediate_size=fields.integer(key("intermediate_size")),
        num_layers=fields.integer(key("num_hidden_layers")),
        num_heads=fields.integer(key("num_attention_heads")),
        max_position=fields.integer("max_position_embeddings", 512) - first,
        first_position=first,
        token_types=fields.integer("type_vocab_size", types) if types else 0,
        layer_norm_eps=fields.number("layer_norm_eps", 1e-12),
        activation=ACTIVATIONS[activation],
        relative_buckets=(
            fields.integer("relative_attention_num_buckets", buckets) if buckets else 0
        ),
    )
