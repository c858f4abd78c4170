"""ALBERT: BERT whose layers share weights, and whose embeddings are smaller than its layers' rows.

Source: Lan et al., "ALBERT: A lite BERT for self-supervised learning of language representations",
2020; keys: transformers' AlbertConfig.
"""

from __future__ import annotations

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families.bert import OF_DECODERS
from penstock.families.bert_reading import read_bert
from penstock.families.bounds import MAX_LAYERS
from penstock.families.family import ClassifierHead, EncoderFamily, WordHead
from penstock.formats.fields import Fields
from penstock.model.config import EncoderConfig

IGNORED = (
    "classifier_dropout_prob",
    "down_scale_factor",
    "gap_size",
    "net_structure_type",
    "num_memory_blocks",
)


def _read(fields: Fields) -> EncoderConfig:
    fields.ignore(*IGNORED)
    config = read_bert(fields.completed(hidden_act="gelu_new"), ALBERT)
    groups = fields.integer("num_hidden_groups", 1)
    inner = fields.integer("inner_group_num", 1)
    if not (1 <= groups <= config.num_layers and 1 <= inner <= MAX_LAYERS // config.num_layers):
        raise UnsupportedModel(
            f"{fields.where}: {config.num_layers} layers in {groups} groups of {inner} can't be; "
            f"1 to {config.num_layers} groups and at most {MAX_LAYERS} layers in all are allowed"
        )
    layers = tuple(
        f"{number * groups // config.num_layers}.{within}"
        for number in range(config.num_layers)
        for within in range(inner)
    )
    return msgspec.structs.replace(
        config,
        num_layers=len(layers),
        shared_layers=layers,
        embedding_size=fields.integer("embedding_size", 128),
    )


ALBERT = EncoderFamily(
    "albert",
    ("albert",),
    read_layers=_read,
    head=ClassifierHead("pooler", "classifier", "tanh"),
    words=WordHead(
        "predictions.dense", "predictions.LayerNorm", "predictions.decoder", "predictions.bias"
    ),
    token_types=2,
    tensors=(
        ("encoder.embedding_hidden_mapping_in.", "embeddings.projection."),
        ("encoder.albert_layer_groups.", "encoder.layer."),
        (".albert_layers.", "."),
        (".attention.query.", ".attention.self.query."),
        (".attention.key.", ".attention.self.key."),
        (".attention.value.", ".attention.self.value."),
        (".attention.dense.", ".attention.output.dense."),
        (".attention.LayerNorm.", ".attention.output.LayerNorm."),
        (".full_layer_layer_norm.", ".output.LayerNorm."),
        (".ffn_output.", ".output.dense."),
        (".ffn.", ".intermediate.dense."),
    ),
    unserved=OF_DECODERS,
)
