"""ALBERT: BERT whose layers share weights, and whose embeddings are smaller than its layers' rows.

Source: Lan et al., "ALBERT: A lite BERT for self-supervised learning of language representations",
2020; keys: transformers' AlbertConfig.
"""

from __future__ import annotations

from msgspec.structs import replace

from penstock.errors import UnsupportedModel
from penstock.families.bert import OF_DECODERS
from penstock.families.bert_reading import read_bert
from penstock.families.bounds import MAX_LAYERS
from penstock.families.family import ClassifierHead, EncoderFamily, WordHead
from penstock.families.tensor_names import bert_names
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
    size = fields.integer("embedding_size", 128)
    config = read_bert(fields.completed(hidden_act="gelu_new"), ALBERT, embedding_size=size)
    groups, inner = fields.integer("num_hidden_groups", 1), fields.integer("inner_group_num", 1)
    count, layers = config.num_layers, config.layers
    if not (1 <= groups <= count and 1 <= inner <= MAX_LAYERS // count):
        raise UnsupportedModel(
            f"{fields.where}: {count} layers in {groups} groups of {inner} can't be; "
            f"1 to {count} groups and at most {MAX_LAYERS} layers in all are allowed"
        )
    shared = tuple(
        f"{number * groups // count}.{within}" for number in range(count) for within in range(inner)
    )
    firsts = map(shared.index, shared)
    specs = tuple(
        replace(layers.layer(0), repeats=first if first < number else None)
        for number, first in enumerate(firsts)
    )
    return EncoderConfig(
        layers=replace(layers, num_layers=len(specs), layers=specs), shared_layers=shared
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
    layer_names=bert_names(
        query="attention.query",
        key="attention.key",
        value="attention.value",
        output="attention.dense",
        attention_norm="attention.LayerNorm",
        up="ffn",
        down="ffn_output",
        norm="full_layer_layer_norm",
        further={"encoder.embedding_hidden_mapping_in": "embedding_projection"},
    ),
    unserved=OF_DECODERS,
)
