"""Molmo 2's decoders: Qwen 3's layers, or, in Molmo 2 O, OLMo 3's without windows, in which some
layers stretch their rotation and others don't; and embeddings of further tokens, which stand for
pictures and which no head predicts.

Source: Clark et al., "Molmo2", 2026; the settings, as the makers' Molmo2TextConfig has them.
"""

from __future__ import annotations

from typing import Literal

from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import LayerSpec, NormSpec
from penstock.model.rope_spec import RopeSpec

DEFAULTS: dict[str, object] = {
    "vocab_size": 152_064,
    "additional_vocab_size": 128,
    "hidden_size": 3584,
    "intermediate_size": 18_944,
    "num_hidden_layers": 48,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "head_dim": 128,
    "max_position_embeddings": 4096,
}
"""Defaults of the makers' class."""
Norm = Literal["none", "head", "whole"]
NORMS: dict[str, Norm] = {"qwen3": "head", "olmo": "whole"}
"""What the makers call norms of queries and keys, and AttentionSpec."""
MAX_FURTHER = 65_536
"""Embeddings of further tokens."""
_SAME = {
    "wte.embedding": "embed_tokens.weight",
    "wte.new_embedding": "embed_tokens.further",
    "ln_f": "norm",
    "self_attn.attn_out": "self_attn.o_proj",
    "mlp.ff_out": "mlp.down_proj",
}
NAMES = {**_SAME, "attn_norm": "input_layernorm", "ff_norm": "post_attention_layernorm"}
"""What the makers call modules of Qwen 3's layers."""
NAMES_O = {
    **_SAME,
    "attn_norm": "attention_output_norm",
    "ff_norm": "feed_forward_output_norm",
}
"""What they call those of OLMo 3's."""
FUSED = {
    "self_attn.att_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "mlp.ff_proj": ("mlp.up_proj", "mlp.gate_proj"),
}
"""Matrices that both forms keep in one, and ours."""


def further_tokens(fields: Fields) -> int:
    """Returns the number of embeddings after those of the head's tokens."""
    count = fields.integer("additional_vocab_size", 128)
    if not 1 <= count <= MAX_FURTHER:
        raise fields.wrong("additional_vocab_size", f"1 to {MAX_FURTHER} tokens")
    return count


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes = hub.sizes(fields)
    count, head_dim = sizes["num_layers"], sizes["head_dim"]
    sizes["vocab_size"] += further_tokens(fields)
    norm_after = fields.flag("norm_after", False)
    ropes: tuple[RopeSpec, ...] = (hub.rope(fields, head_dim, theta=1e6),)
    stretched = _stretched(fields, count)
    if len(stretched) < count:
        ropes = (*ropes, RopeSpec(theta=fields.number("rope_theta", 1e6), dims=head_dim))
    norm, bias = _norm(fields), fields.flag("qkv_bias", True)
    return ModelConfig(
        architecture="olmo3" if norm_after else "qwen3",
        **sizes,
        norm=NormSpec(eps=fields.number("layer_norm_eps", 1e-6)),
        ropes=ropes,
        layers=hub.shared(
            LayerSpec(
                attention=AttentionSpec(
                    rope=0 if number in stretched else 1, norm=norm, qkv_bias=bias
                ),
                order="post" if norm_after else "pre",
            )
            for number in range(count)
        ),
        head_bias=True,
    )


def _norm(fields: Fields) -> Norm:
    """AttentionSpec.norm."""
    named = fields.text("qk_norm_type", "olmo")
    if not fields.flag("use_qk_norm", False):
        return "none"
    if named not in NORMS:
        raise fields.wrong("qk_norm_type", " or ".join(NORMS))
    return NORMS[named]


def _stretched(fields: Fields, count: int) -> frozenset[int]:
    """Layers whose rotation is as rope_scaling says."""
    key = "rope_scaling_layers"
    if key not in fields:
        return frozenset(range(count))
    layers = fields.listed(key, int)
    if not set(layers) <= set(range(count)):
        raise fields.wrong(key, f"layers from 0 to {count - 1}")
    return frozenset(layers)


MOLMO2 = Family("molmo2", (), "Molmo 2's decoder", _hub)
"""Reads the decoder's settings. What is computed is the family qwen3, or olmo3."""
