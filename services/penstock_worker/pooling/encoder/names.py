"""One naming for the tensors of encoders: that of BERT, without a leading `bert.`."""

from __future__ import annotations

import re

_PREFIX = re.compile(r"^(bert|roberta|distilbert|mpnet|model)\.")
_UNUSED = re.compile(
    r"(^|\.)(position_ids|token_type_ids)$"
    r"|^(cls|lm_head|vocab_transform|vocab_layer_norm|vocab_projector)\."
)
"""Buffers, and heads of masked language models."""

_RENAMED: dict[str, tuple[tuple[str, str], ...]] = {
    "bert": (),
    "roberta": (),
    "distilbert": (
        ("transformer.layer.", "encoder.layer."),
        (".attention.q_lin.", ".attention.self.query."),
        (".attention.k_lin.", ".attention.self.key."),
        (".attention.v_lin.", ".attention.self.value."),
        (".attention.out_lin.", ".attention.output.dense."),
        (".sa_layer_norm.", ".attention.output.LayerNorm."),
        (".ffn.lin1.", ".intermediate.dense."),
        (".ffn.lin2.", ".output.dense."),
        (".output_layer_norm.", ".output.LayerNorm."),
    ),
    "mpnet": (
        (".attention.attn.q.", ".attention.self.query."),
        (".attention.attn.k.", ".attention.self.key."),
        (".attention.attn.v.", ".attention.self.value."),
        (".attention.attn.o.", ".attention.output.dense."),
        (".attention.LayerNorm.", ".attention.output.LayerNorm."),
    ),
}
_OLD_NORMS = (("LayerNorm.gamma", "LayerNorm.weight"), ("LayerNorm.beta", "LayerNorm.bias"))


def encoder_name(name: str, family: str) -> str | None:
    """Our name for a hub checkpoint's tensor; None for one that isn't needed."""
    name = _PREFIX.sub("", name)
    if _UNUSED.search(name):
        return None
    for theirs, ours in (*_RENAMED[family], *_OLD_NORMS):
        name = name.replace(theirs, ours)
    return name
