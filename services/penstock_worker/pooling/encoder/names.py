"""What checkpoints call encoders' tensors: what a family's names are read from, heads, and models
whose texts and pictures share a space."""

from __future__ import annotations

import re

from penstock.families.family import ClassifierHead
from penstock.families.served import ENCODERS

_PREFIXES = (
    *ENCODERS,
    *(each for family in ENCODERS.values() for each in family.prefixes),
    "model",
)
_PREFIX = re.compile(rf"^({'|'.join(_PREFIXES)})\.")
_UNUSED = re.compile(
    r"(^|\.)(position_ids|token_type_ids|rotary_emb\.(inv_freq|cos_cached|sin_cached))$"
    r"|^(cls|lm_head|vocab_transform|vocab_layer_norm|vocab_projector|predictions"
    r"|(generator|discriminator|lm|mask)_predictions|generator_lm_head|sop_classifier)\."
)
"""Buffers, and the heads that models are trained with."""

HEADS = (
    *("pooler.", "classifier.", "pre_classifier.", "head.", "decoder.", "dense_"),
    *("linear.", "sparse_linear.", "colbert_linear.", "dense.", "cls."),
)
"""How the names of a head's tensors begin; of GGUF's dense layers, too."""

_OLD_NORMS = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))


def bare_name(name: str) -> str:
    """Returns a tensor's name without what the checkpoint puts in front of an encoder's tensors,
    and without old names of norms."""
    name = _PREFIX.sub("", name)
    for theirs, ours in _OLD_NORMS:
        name = name.replace(theirs, ours)
    return name


_LAYER = re.compile(r"^(?:(?:encoder|transformer)\.)?layers?\.(?=\d)")
_SHARED = re.compile(r"^encoder\.albert_layer_groups\.(\d+)\.albert_layers\.(\d+)\.")


def encoder_name(name: str, shared: tuple[str, ...] = ()) -> str | None:
    """Returns the name of a tensor of a Hugging Face checkpoint with our names of layers; None for
    one that isn't needed. `shared`: EncoderConfig.shared_layers."""
    name = bare_name(name)
    if _UNUSED.search(name):
        return None
    of = _SHARED.match(name)
    if of is not None and f"{of[1]}.{of[2]}" in shared:
        return f"layers.{shared.index(f'{of[1]}.{of[2]}')}.{name[of.end() :]}"
    return _LAYER.sub("layers.", name)


_TEXTS = re.compile(r"^text_model\.(?:encoder\.)?(?!embeddings\.position_ids$)")
_VECTOR = re.compile(r"^(?:text_projection|text_model\.head)\.")


def space_name(name: str) -> str | None:
    """Returns our name for a tensor of the texts of a model whose pictures have vectors, too; None
    for its pictures, and for what compares both."""
    if _VECTOR.match(name):
        return _VECTOR.sub("vector.", name)
    return _TEXTS.sub("", name) if _TEXTS.match(name) else None


def with_head(name: str, head: ClassifierHead | None) -> str:
    """Returns our name for a tensor of the head in a GGUF file; other names stay as they are."""
    stem, _, kind = name.rpartition(".")
    if head is None or stem not in ("cls", "cls.output", "cls.norm"):
        return name
    own = {"cls": head.inner, "cls.output": head.outer, "cls.norm": head.norm}[stem]
    return f"{own}.{kind}" if own else name
