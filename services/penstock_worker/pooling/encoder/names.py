"""One naming of encoders' tensors: that of BERT, without a leading `bert.`; and the names of models
whose texts and pictures share a space."""

from __future__ import annotations

import re

from penstock.families import ENCODERS

_PREFIXES = (
    *ENCODERS,
    *(each for family in ENCODERS.values() for each in family.prefixes),
    "model",
)
_PREFIX = re.compile(rf"^({'|'.join(_PREFIXES)})\.")
_UNUSED = re.compile(
    r"(^|\.)(position_ids|token_type_ids|rotary_emb\.(inv_freq|cos_cached|sin_cached))$"
    r"|^(cls|lm_head|vocab_transform|vocab_layer_norm|vocab_projector)\."
)
"""Buffers, and the heads of masked language models."""

_OLD_NORMS = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))


def encoder_name(name: str, family: str) -> str | None:
    """Returns our name for a tensor of a Hugging Face checkpoint; None for one that isn't
    needed."""
    name = _PREFIX.sub("", name)
    if _UNUSED.search(name):
        return None
    for theirs, ours in (*ENCODERS[family].tensors, *_OLD_NORMS):
        name = name.replace(theirs, ours)
    return name


_TEXTS = re.compile(r"^text_model\.(?:encoder\.)?(?!embeddings\.position_ids$)")
_VECTOR = re.compile(r"^(?:text_projection|text_model\.head)\.")


def space_name(name: str) -> str | None:
    """Returns our name for a tensor of the texts of a model whose pictures have vectors, too; None
    for its pictures, and for what compares both."""
    if _VECTOR.match(name):
        return _VECTOR.sub("vector.", name)
    return _TEXTS.sub("", name) if _TEXTS.match(name) else None
