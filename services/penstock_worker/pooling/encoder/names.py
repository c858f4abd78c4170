"""One naming of encoders' tensors: that of BERT, without a leading `bert.`."""

from __future__ import annotations

import re

from penstock.families import ENCODERS

_PREFIX = re.compile(rf"^({'|'.join(ENCODERS)}|model)\.")
_UNUSED = re.compile(
    r"(^|\.)(position_ids|token_type_ids)$"
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
