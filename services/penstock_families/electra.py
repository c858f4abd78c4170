"""ELECTRA: BERT, of which small ones have smaller embeddings than layers.

Source: Clark et al., "ELECTRA: Pre-training text encoders as discriminators rather than
generators", 2020; keys: transformers' ElectraConfig.
"""

from __future__ import annotations

from penstock.families.bert import OF_DECODERS
from penstock.families.bert_reading import read_bert
from penstock.families.family import ClassifierHead, EncoderFamily, WordHead
from penstock.families.tensor_names import bert_names
from penstock.formats.fields import Fields
from penstock.model.config import EncoderConfig

IGNORED = ("summary_activation", "summary_last_dropout", "summary_type", "summary_use_proj")


def _read(fields: Fields) -> EncoderConfig:
    fields.ignore(*IGNORED)
    size = fields.integer("embedding_size", 128)
    smaller = size != fields.integer("hidden_size")
    return read_bert(fields, ELECTRA, embedding_size=size if smaller else 0)


ELECTRA = EncoderFamily(
    "electra",
    ("electra",),
    read_layers=_read,
    head=ClassifierHead("classifier.dense", "classifier.out_proj", "gelu"),
    words=WordHead(
        "generator_predictions.dense",
        "generator_predictions.LayerNorm",
        "generator_lm_head",
        activation="gelu",
    ),
    token_types=2,
    layer_names=bert_names(further={"embeddings_project": "embedding_projection"}),
    unserved=OF_DECODERS,
)
