"""RoBERTa, XLM-RoBERTa and CamemBERT. Source: Liu et al., "RoBERTa", 2019."""

from __future__ import annotations

from penstock.families.encoder import ClassifierHead, EncoderFamily

ROBERTA = EncoderFamily(
    "roberta",
    ("roberta", "xlm-roberta", "camembert"),
    head=ClassifierHead("classifier.dense", "classifier.out_proj", "tanh"),
    first_behind_padding=True,
    token_types=2,
)
