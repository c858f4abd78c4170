"""EncoderConfig from the config.json of a BERT-like model.

Source of the keys: the configuration classes of the transformers library.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families import ENCODER_TYPES
from penstock.families.bounds import MAX_LAYERS
from penstock.families.hub_reading import refuse_unknown
from penstock.families.vision import HARMLESS as HARMLESS_IN_TOWERS
from penstock.formats.fields import Fields
from penstock.model.config import EncoderConfig
from penstock.prepare.checkpoint import MAX_HEADS, MAX_SIZE, check_config, check_positive
from penstock.prepare.hub_config import HARMLESS
from penstock.prepare.odd_values import odd_values_refused

ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
}


HARMLESS_OF_ENCODERS = frozenset(
    {
        "adapters",
        "attention_probs_dropout_prob",
        "classifier_dropout",
        "directionality",
        "dropout",
        "gradient_checkpointing",
        "hidden_dropout_prob",
        "output_past",
        "pooler_fc_size",
        "pooler_num_attention_heads",
        "pooler_num_fc_layers",
        "pooler_size_per_head",
        "pooler_type",
        "qa_dropout",
        "seq_classif_dropout",
        "sinusoidal_pos_embds",
        "tie_weights_",
        "tie_word_embeddings",
        "transformers.js_config",
    }
)
"""Keys of BERT and its relatives that don't change what is computed: training, other heads, and how
a table that the file has was made."""


def is_encoder(fields: Fields) -> bool:
    """Whether config.json is of a family that attends both ways."""
    family = ENCODER_TYPES.get(fields.text("model_type", ""))
    if family is None:
        return False
    return not family.both_ways_key or fields.flag(family.both_ways_key, False)


def read_encoder_config(fields: Fields, *, language_model_only: bool = False) -> EncoderConfig:
    """language_model_only: what a model sees with is left out.

    Raises UnsupportedModel for a variant that the blocks of the model can't compute, and for a
    setting that nobody here knows and that could change the output."""
    family = ENCODER_TYPES[fields.text("model_type")]
    with odd_values_refused(fields.where):
        if family.read_halves is None:
            config = (family.read_layers or _read_bert)(fields)
        else:
            config = _of_halves(fields, family.read_halves)
    refuse_unknown(fields, HARMLESS | HARMLESS_OF_ENCODERS)
    if config.layers is not None:
        check_config(config.layers, fields.where)
    if config.space is not None and language_model_only:
        space = msgspec.structs.replace(config.space, vision=None)
        config = msgspec.structs.replace(config, space=space)
    return check_encoder_config(config, fields.where)


def _of_halves(
    fields: Fields, read: Callable[[Fields, Fields, Fields], EncoderConfig]
) -> EncoderConfig:
    text, vision = (_half(fields, f"{name}_config") for name in ("text", "vision"))
    config = read(fields, text, vision)
    for half in (text, vision):
        refuse_unknown(half, HARMLESS | HARMLESS_OF_ENCODERS | HARMLESS_IN_TOWERS)
    return config


def _half(fields: Fields, key: str) -> Fields:
    """A section. What old files have beside it under the key with `_dict` goes before, as in
    transformers."""
    section, older = fields.section(key), fields.section(f"{key}_dict")
    return older if older.values else section


def _read_bert(fields: Fields) -> EncoderConfig:
    family = ENCODER_TYPES[fields.text("model_type")]

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
        activation=ACTIVATIONS[activation],  # type: ignore[arg-type]
        relative_buckets=(
            fields.integer("relative_attention_num_buckets", buckets) if buckets else 0
        ),
    )


def check_encoder_config(config: EncoderConfig, where: str) -> EncoderConfig:
    """Refuse shapes that can't be a model. Returns the config; raises UnsupportedModel."""
    bounds = {
        "vocab_size": (1, MAX_SIZE),
        "hidden_size": (1, MAX_SIZE),
        "intermediate_size": (1, MAX_SIZE),
        "num_layers": (1, MAX_LAYERS),
        "num_heads": (1, MAX_HEADS),
        "max_position": (1, MAX_SIZE),
        "token_types": (0, 256),
        "relative_buckets": (0, 65_536),
        "first_position": (0, MAX_SIZE),
    }
    for field, (least, most) in bounds.items():
        value = getattr(config, field)
        if not least <= value <= most:
            raise UnsupportedModel(f"{where}: {field} is {value}; {least} to {most} are allowed")
    if config.layers is None and config.hidden_size % config.num_heads:
        raise UnsupportedModel(
            f"{where}: {config.num_heads} attention heads don't divide the hidden size "
            f"{config.hidden_size}"
        )
    rope = config.rope
    scaling = None if rope is None else rope.scaling
    numbers = {
        "layer_norm_eps": config.layer_norm_eps,
        "rope_theta": None if rope is None else rope.theta,
        "the factor of rope_scaling": None if scaling is None else scaling.factor,
    }
    check_positive(numbers.items(), where)
    return config
