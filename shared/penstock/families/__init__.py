"""The families of models that are served, one to a module. A new one needs its line here."""

from penstock.families.bert import BERT
from penstock.families.distilbert import DISTILBERT
from penstock.families.encoder import EncoderFamily
from penstock.families.family import Family
from penstock.families.llama import LLAMA
from penstock.families.mistral import MISTRAL
from penstock.families.mpnet import MPNET
from penstock.families.qwen2 import QWEN2
from penstock.families.qwen3 import QWEN3
from penstock.families.roberta import ROBERTA

FAMILIES: dict[str, Family] = {
    each.name: each
    for each in (
        LLAMA,
        MISTRAL,
        QWEN2,
        QWEN3,
    )
}
"""Decoders, by ModelConfig.architecture."""

MODEL_NAMES = ", ".join(family.known_as for family in FAMILIES.values())
"""What people call the decoders that are served."""

GGUF_ARCHITECTURES: dict[str, Family] = {
    family.gguf: family for family in FAMILIES.values() if family.gguf is not None
}
"""By what a GGUF file names."""

HUB_CLASSES: dict[str, Family] = {
    name: family for family in FAMILIES.values() for name in family.hub_classes
}
"""By the class that a hub folder's config.json names."""

ENCODERS: dict[str, EncoderFamily] = {
    each.name: each for each in (BERT, ROBERTA, DISTILBERT, MPNET)
}
"""By EncoderConfig.family."""

ENCODER_TYPES: dict[str, EncoderFamily] = {
    kind: family for family in ENCODERS.values() for kind in family.model_types
}
"""By the model_type that a hub folder's config.json names."""

__all__ = [
    "ENCODERS",
    "ENCODER_TYPES",
    "FAMILIES",
    "GGUF_ARCHITECTURES",
    "HUB_CLASSES",
    "MODEL_NAMES",
    "EncoderFamily",
    "Family",
]
