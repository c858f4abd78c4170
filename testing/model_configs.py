"""Configurations of Llama's shape, by flat settings."""

from __future__ import annotations

from typing import Any

from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import FeedForwardSpec, LayerSpec, NormSpec
from penstock.model.rope_spec import RopeScaling, RopeSpec


def llama_config(
    *,
    architecture: str = "llama",
    head_dim: int,
    rms_norm_eps: float = 1e-5,
    rope_theta: float = 10_000.0,
    rope_scaling: RopeScaling | None = None,
    qkv_bias: bool = False,
    output_bias: bool = False,
    mlp_bias: bool = False,
    qk_norm: bool = False,
    **sizes: Any,
) -> ModelConfig:
    """sizes: other fields of ModelConfig."""
    attention = AttentionSpec(
        qkv_bias=qkv_bias, output_bias=output_bias, norm="head" if qk_norm else "none"
    )
    return ModelConfig(
        architecture=architecture,
        head_dim=head_dim,
        norm=NormSpec(eps=rms_norm_eps),
        ropes=(RopeSpec(theta=rope_theta, dims=head_dim, scaling=rope_scaling),),
        layers=(LayerSpec(attention=attention, feed_forward=FeedForwardSpec(bias=mlp_bias)),),
        **sizes,
    )


def varied(config: ModelConfig, **changes: Any) -> ModelConfig:
    """A config that llama_config made, with other settings; named as there."""
    (layer,), (rope,) = config.layers, config.ropes
    sizes = {
        name: getattr(config, name)
        for name in config.__struct_fields__
        if name not in ("norm", "ropes", "layers")
    }
    settings = {
        "rms_norm_eps": config.norm.eps,
        "rope_theta": rope.theta,
        "rope_scaling": rope.scaling,
        "qkv_bias": layer.attention.qkv_bias,
        "output_bias": layer.attention.output_bias,
        "mlp_bias": layer.feed_forward.bias,
        "qk_norm": layer.attention.norm == "head",
    }
    return llama_config(**(sizes | settings | changes))
