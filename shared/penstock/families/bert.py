"""BERT, and encoders that are BERT but for names and a few settings.

Sources: Devlin et al., "BERT", 2019; Liu et al., "RoBERTa", 2019; Sanh et al., "DistilBERT", 2019;
Song et al., "MPNet", 2020, which has a relative attention bias.
"""

from __future__ import annotations

from penstock.families.family import ClassifierHead, EncoderFamily, WordHead
from penstock.families.tensor_names import bert_names

OF_DECODERS = frozenset({"add_cross_attention", "is_encoder_decoder"})
"""Settings that would make the encoder a part of another model."""

_LM_HEAD = WordHead("lm_head.dense", "lm_head.layer_norm", "lm_head.decoder", "lm_head.bias")

BERT = EncoderFamily(
    "bert",
    ("bert",),
    head=ClassifierHead("pooler.dense", "classifier", "tanh"),
    words=WordHead(
        "cls.predictions.transform.dense",
        "cls.predictions.transform.LayerNorm",
        "cls.predictions.decoder",
        "cls.predictions.bias",
    ),
    token_types=2,
    unserved=OF_DECODERS,
)


ROBERTA = EncoderFamily(
    "roberta",
    ("roberta", "xlm-roberta", "camembert"),
    head=ClassifierHead("classifier.dense", "classifier.out_proj", "tanh"),
    words=_LM_HEAD,
    first_behind_padding=True,
    token_types=2,
    unserved=OF_DECODERS,
)


DISTILBERT = EncoderFamily(
    "distilbert",
    ("distilbert",),
    head=ClassifierHead("pre_classifier", "classifier", "relu"),
    words=WordHead("vocab_transform", "vocab_layer_norm", "vocab_projector"),
    keys={
        "hidden_size": "dim",
        "intermediate_size": "hidden_dim",
        "num_hidden_layers": "n_layers",
        "num_attention_heads": "n_heads",
        "hidden_act": "activation",
    },
    layer_names=bert_names(
        query="attention.q_lin",
        key="attention.k_lin",
        value="attention.v_lin",
        output="attention.out_lin",
        attention_norm="sa_layer_norm",
        up="ffn.lin1",
        down="ffn.lin2",
        norm="output_layer_norm",
    ),
)


MPNET = EncoderFamily(
    "mpnet",
    ("mpnet",),
    head=ClassifierHead("classifier.dense", "classifier.out_proj", "tanh"),
    words=_LM_HEAD,
    first_behind_padding=True,
    relative_buckets=32,
    layer_names=bert_names(
        query="attention.attn.q",
        key="attention.attn.k",
        value="attention.attn.v",
        output="attention.attn.o",
        attention_norm="attention.LayerNorm",
    ),
)
