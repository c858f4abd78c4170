"""Jina embeddings v2 in GGUF files: BERT with gated feed-forwards, whose scores fall with the
distance. Its code lies on the hub, not in transformers.

Source: Günther et al., "Jina Embeddings 2: 8192-token general-purpose text embeddings for long
documents", 2023; Press et al., "Train short, test long" (ALiBi), 2022; names: llama.cpp's
converter.
"""

from __future__ import annotations

from dataclasses import replace

from penstock.families.bert_gguf import GGUF_NAMES, bert_sizes, refuse_tensors
from penstock.families.bert_reading import bert_encoder
from penstock.families.family import EncoderFamily
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.tensor_names import PLAIN_GATE
from penstock.model.config import EncoderConfig


def _gguf(model: GGUFMetadata) -> EncoderConfig:
    refuse_tensors(
        model, "attn_q_norm.weight", "attn_norm_2.weight", of="jina-embeddings-v2-base-code's norm"
    )
    refuse_tensors(model, "ffn_up.bias", "ffn_gate.bias", of="a bias of a gated feed-forward")
    return bert_encoder(
        "jina_bert_v2",
        **bert_sizes(model),
        activation="gelu",
        gated=True,
        distance_slopes=True,
    )


JINA_BERT_V2 = EncoderFamily(
    "jina_bert_v2",
    (),
    gguf="jina-bert-v2",
    read_gguf=_gguf,
    gguf_names=replace(GGUF_NAMES, zero_biases=PLAIN_GATE),
)
