"""What CLIP and SigLIP have in common: a text transformer beside a vision transformer.

Source of the keys: transformers' CLIPConfig and SiglipConfig.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.family import TensorNames
from penstock.families.vision.reading import activation
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec

MAX_VECTOR = 65_536
"""Numbers of a vector."""
MAX_TOKENS = 65_536
"""Rows of a table of positions."""
TEXT_NAMES = TensorNames(
    {
        "embeddings.token_embedding": "embed_tokens",
        "embeddings.position_embedding": "embed_positions",
        "layer_norm1": "input_layernorm",
        "layer_norm2": "post_attention_layernorm",
        "self_attn.out_proj": "self_attn.o_proj",
        "mlp.fc1": "mlp.up_proj",
        "mlp.fc2": "mlp.down_proj",
        "final_layer_norm": "norm",
    }
)


def check_class(fields: Fields, served: str) -> None:
    """Raises UnsupportedModel for one half alone, or the model with another head."""
    names = fields.listed("architectures", str) if "architectures" in fields else [served]
    if served not in names:
        raise UnsupportedModel(
            f"{fields.where}: the architecture {', '.join(names)[:80] or 'none'} is not served; "
            f"{served} is"
        )


def text_layers(section: Fields, family: str, eps: float, act: str, **defaults: Any) -> ModelConfig:
    """The text transformer: layer norms, biases everywhere, a feed-forward without a gate, and a
    table of positions. eps, act, defaults: where the section says nothing."""
    section = section.completed(**defaults)
    sizes = hub.sizes(section, tied=True)
    positions = sizes["max_position"]
    if not 1 <= positions <= MAX_TOKENS:
        raise section.wrong("max_position_embeddings", f"1 to {MAX_TOKENS}")
    layer = LayerSpec(
        attention=AttentionSpec(rope=None, qkv_bias=True, output_bias=True),
        feed_forward=FeedForwardSpec(activation=activation(section, act), gated=False, bias=True),
    )
    return ModelConfig(
        architecture=family,
        **{**sizes, "tie_word_embeddings": True},
        norm=NormSpec(kind="layer", eps=section.number("layer_norm_eps", eps), bias=True),
        ropes=(),
        layers=(layer,),
        learned_positions=positions,
    )
