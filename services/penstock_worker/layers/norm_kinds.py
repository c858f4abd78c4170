"""What the norm of each name is like, where a model's norms differ."""

from __future__ import annotations

from msgspec.structs import replace

from penstock.model.layer_spec import NormSpec

ATTENTION_NORM = "input_layernorm"
FEED_FORWARD_NORM = "post_attention_layernorm"
"""Norms before attention and feed-forward, by the names that Llama gave them."""
ATTENTION_OUTPUT_NORM = "attention_output_norm"
FEED_FORWARD_OUTPUT_NORM = "feed_forward_output_norm"
NORMS = (ATTENTION_NORM, ATTENTION_OUTPUT_NORM, FEED_FORWARD_NORM, FEED_FORWARD_OUTPUT_NORM)
"""Norms of a layer over the hidden state."""


def norm_spec(spec: NormSpec, name: str) -> NormSpec:
    """Returns what the norm of this name is like in a model whose norms are like `spec`."""
    kind = name.rpartition(".")[2]
    plus_one = spec.plus_one and (kind in NORMS or not spec.plus_one_in_layers)
    behind = kind in (ATTENTION_OUTPUT_NORM, FEED_FORWARD_OUTPUT_NORM)
    eps = spec.eps if spec.output_eps is None or not behind else spec.output_eps
    if (plus_one, eps) == (spec.plus_one, spec.eps):
        return spec
    return replace(spec, plus_one=plus_one, eps=eps)
