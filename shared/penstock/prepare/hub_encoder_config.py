"""EncoderConfig from the config.json of a BERT-like model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families.bert_reading import read_bert
from penstock.families.hub_reading import pass_over
from penstock.families.served import ENCODER_TYPES
from penstock.families.vision.reading import HARMLESS as HARMLESS_IN_TOWERS
from penstock.formats.fields import Fields
from penstock.model.config import EncoderConfig
from penstock.prepare.checkpoint import (
    MAX_HEADS,
    MAX_SIZE,
    check_config,
    check_towers,
    odd_values_refused,
)
from penstock.prepare.hub_config import HARMLESS

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


MAX_SPAN = 65_536
"""Rows for distances in one direction."""


def is_encoder(fields: Fields) -> bool:
    """Whether config.json is of a family that attends both ways."""
    family = ENCODER_TYPES.get(fields.text("model_type", ""))
    if family is None:
        return False
    return not family.both_ways_key or fields.flag(family.both_ways_key, False)


def read_encoder_config(fields: Fields, *, language_model_only: bool = False) -> EncoderConfig:
    """language_model_only: the vision tower is left out.

    Raises UnsupportedModel for a variant that the blocks of the model can't compute."""
    family = ENCODER_TYPES[fields.text("model_type")]
    with odd_values_refused(fields.where):
        if family.read_halves is None:
            config = (family.read_layers or partial(read_bert, family=family))(fields)
        else:
            config = _of_halves(fields, family.read_halves)
    pass_over(fields, HARMLESS | HARMLESS_OF_ENCODERS, family.unserved)
    if config.space is not None and language_model_only:
        space = msgspec.structs.replace(config.space, vision=None)
        config = msgspec.structs.replace(config, space=space)
    check_encoder_config(config, fields.where)
    return config


def _of_halves(
    fields: Fields, read: Callable[[Fields, Fields, Fields], EncoderConfig]
) -> EncoderConfig:
    text, vision = (_half(fields, f"{name}_config") for name in ("text", "vision"))
    config = read(fields, text, vision)
    for half in (text, vision):
        pass_over(half, HARMLESS | HARMLESS_OF_ENCODERS | HARMLESS_IN_TOWERS)
    return config


def _half(fields: Fields, key: str) -> Fields:
    """Returns a section. Old files also have it under the key with `_dict`, which takes precedence,
    as in transformers."""
    section, older = fields.section(key), fields.section(f"{key}_dict")
    return older if older.values else section


def check_encoder_config(config: EncoderConfig, where: str) -> None:
    """Refuse shapes that can't be a model. Raises UnsupportedModel."""
    layers = config.layers
    bounds = {
        "hidden_size": (1, MAX_SIZE),
        "num_heads": (1, MAX_HEADS),
        "max_position": (1, MAX_SIZE),
        "learned_positions": (0, MAX_SIZE),
        "token_types": (0, 256),
        "relative_buckets": (0, 65_536),
        "first_position": (0, MAX_SIZE),
        "embedding_size": (0, MAX_SIZE),
    }
    for field, (least, most) in bounds.items():
        value = getattr(layers, field)
        if not least <= value <= most:
            raise UnsupportedModel(f"{where}: {field} is {value}; {least} to {most} are allowed")
    if layers.is_like_bert and layers.hidden_size % layers.num_heads:
        raise UnsupportedModel(
            f"{where}: {layers.num_heads} attention heads don't divide the hidden size "
            f"{layers.hidden_size}"
        )
    check_config(layers, where)
    distances = layers.disentangled
    if distances is not None and not (
        1 <= distances.span <= MAX_SPAN and 0 <= distances.farthest <= MAX_SIZE
    ):
        raise UnsupportedModel(
            f"{where}: {distances.span} rows for distances up to {distances.farthest}; "
            f"1 to {MAX_SPAN} rows are allowed"
        )
    check_towers(config, where)
