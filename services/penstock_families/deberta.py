"""DeBERTa's second and third version: BERT whose attention knows distances, and no positions.

Source: He et al., "DeBERTa: Decoding-enhanced BERT with disentangled attention", 2021; He et al.,
"DeBERTaV3", 2023; keys: transformers' DebertaV2Config.
"""

from __future__ import annotations

from typing import Literal

from penstock.errors import UnsupportedModel
from penstock.families.bert import OF_DECODERS
from penstock.families.bert_reading import read_bert
from penstock.families.family import ClassifierHead, EncoderFamily, WordHead
from penstock.families.tensor_names import bert_names
from penstock.formats.fields import Fields
from penstock.model.config import EncoderConfig
from penstock.model.disentangled_spec import DisentangledSpec

IGNORED = (
    "legacy",  # how the head for masked words is called
    "pooler_dropout",
    "z_steps",
)
DEFAULTS = {"layer_norm_eps": 1e-7, "conv_act": "tanh"}
KEYS, QUERIES = "c2p", "p2c"
KERNEL = 3
"""Rows that a convolution spans."""


def _read(fields: Fields) -> EncoderConfig:
    fields.ignore(*IGNORED)
    fields = fields.completed(**DEFAULTS)
    positions = fields.integer("max_position_embeddings", 512)
    config = read_bert(
        fields,
        DEBERTA_V2,
        token_types=fields.integer("type_vocab_size", 0),
        learned_positions=positions if fields.flag("position_biased_input", True) else 0,
        disentangled=_distances(fields, positions),
    )
    hidden = config.hidden_size
    for key, value in {
        "attention_head_size": config.layers.head_dim,
        "embedding_size": hidden,
        "pooler_hidden_size": hidden,
        "conv_groups": 1,
    }.items():
        if fields.integer(key, value) != value:
            raise UnsupportedModel(
                f"{fields.where}: {key} {fields.integer(key)} is not served; {value} is"
            )
    if fields.text("pooler_hidden_act", "gelu") != "gelu":
        raise fields.wrong("pooler_hidden_act", "gelu")
    return config


def _distances(fields: Fields, positions: int) -> DisentangledSpec:
    if not fields.flag("relative_attention", False):
        raise UnsupportedModel(
            f"{fields.where}: a DeBERTa without relative_attention is not served"
        )
    kinds = _kinds(fields)
    farthest, buckets = (
        fields.integer(key, -1) for key in ("max_relative_positions", "position_buckets")
    )
    if farthest < 1:
        farthest = positions
    if buckets > 0 and (buckets < 4 or farthest <= buckets // 2 + 1):
        raise fields.wrong("position_buckets", "4 to less than twice the farthest distance")
    return DisentangledSpec(
        span=buckets if buckets > 0 else farthest,
        farthest=farthest if buckets > 0 else 0,
        keys=KEYS in kinds,
        queries=QUERIES in kinds,
        shared=fields.flag("share_att_key", False),
        normed="layer_norm" in fields.text("norm_rel_ebd", "none").lower().split("|"),
        convolution=_convolution(fields),
    )


def _kinds(fields: Fields) -> list[str]:
    """What says something about distances: a list, or in files of the makers one text."""
    stated = fields.values.get("pos_att_type")
    if isinstance(stated, str):
        kinds = [kind.strip() for kind in fields.text("pos_att_type").lower().split("|")]
    else:
        kinds = fields.listed("pos_att_type", str) if stated is not None else []
    if not kinds or set(kinds) - {KEYS, QUERIES}:
        raise fields.wrong("pos_att_type", f"{KEYS}, {QUERIES} or both")
    return kinds


def _convolution(fields: Fields) -> Literal["", "gelu", "tanh"]:
    size, kind = fields.integer("conv_kernel_size", 0), fields.text("conv_act")
    if size <= 0:
        return ""
    if size != KERNEL:
        raise fields.wrong("conv_kernel_size", f"{KERNEL}, or 0")
    if kind == "gelu":
        return "gelu"
    if kind != "tanh":
        raise fields.wrong("conv_act", "gelu or tanh")
    return "tanh"


DEBERTA_V2 = EncoderFamily(
    "deberta_v2",
    ("deberta-v2",),
    prefixes=("deberta",),
    read_layers=_read,
    head=ClassifierHead("pooler.dense", "classifier", "gelu"),
    words=WordHead(
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.decoder",
        "cls.predictions.bias",
    ),
    layer_names=bert_names(
        query="attention.self.query_proj",
        key="attention.self.key_proj",
        value="attention.self.value_proj",
        further={
            "attention.self.pos_query_proj": "self_attn.pos_q_proj",
            "attention.self.pos_key_proj": "self_attn.pos_k_proj",
        },
    ),
    unserved=OF_DECODERS,
)
