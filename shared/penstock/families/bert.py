"""BERT. Source: Devlin et al., "BERT", 2019."""

from __future__ import annotations

from penstock.families.encoder import ClassifierHead, EncoderFamily

BERT = EncoderFamily(
    "bert", ("bert",), head=ClassifierHead("pooler.dense", "classifier", "tanh"), token_types=2
)
