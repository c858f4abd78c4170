"""Families of several makers that are Llama but for their norms, and one or two things besides.

Jais 2 has layer norms, squared relu without a gate, and biases everywhere; Phi-1.5 and Phi-2 have
one layer norm before attention and feed-forward, which are parallel, and heads that rotate in part;
OLMo 1 has layer norms without weights, and some releases bounds of queries, keys and values;
nanochat has norms without weights, also of embeddings, of
queries and of keys, and heads that rotate the other way round.

Sources: Inception and MBZUAI, "Jais 2", 2025; Li et al., "Textbooks are all you need II: phi-1.5",
2023; Groeneveld et al., "OLMo: accelerating the science of language models", 2024; Karpathy,
"nanochat", 2025.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import UnsupportedModel
from penstock.families.family import Family
from penstock.families.nemotron import ungated
from penstock.families.source import (
    OUTPUT,
    QUERY,
    GGUFSource,
    HubSource,
    Source,
    decoder,
    of_gguf,
    of_hub,
)
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import FeedForwardSpec, LayerSpec, NormSpec

EPS = 1e-5
"""What is added to a norm's variance in OLMo 1: config.json doesn't say it."""


def _jais2(source: Source) -> ModelConfig:
    norm = NormSpec(kind="layer", eps=source.layer_norm_eps(), bias=True)
    return ungated(source, "jais2", norm, biased=True)


JAIS2 = Family(
    "jais2",
    ("Jais2ForCausalLM",),
    "Jais 2",
    of_hub(_jais2),
    gguf="jais2",
    read_gguf=of_gguf(_jais2),
)


def _phi(source: Source) -> ModelConfig:
    activation = source.activation("gelu_tanh", "gelu", default="gelu_new")
    if source.flag("qk_layernorm", False):
        raise UnsupportedModel(f"{source.fields.where}: qk_layernorm is true; only false is served")
    layer = LayerSpec(
        attention=AttentionSpec(qkv_bias=True, output_bias=True),
        feed_forward=FeedForwardSpec(activation=activation, gated=False, bias=True),
        order="parallel",
    )
    norm = NormSpec(kind="layer", eps=source.layer_norm_eps(), bias=True)
    sizes = source.sizes()
    return decoder(source, "phi", sizes, [layer], norm=norm, share=0.5, head_bias=True)


PHI = Family(
    "phi",
    ("PhiForCausalLM",),
    "Phi-1.5, Phi-2",
    of_hub(_phi),
    hub_names=TensorNames(
        {
            "self_attn.dense": "self_attn.o_proj",
            "mlp.fc1": "mlp.up_proj",
            "mlp.fc2": "mlp.down_proj",
            "final_layernorm": "norm",
        }
    ),
    gguf="phi2",
    read_gguf=of_gguf(_phi),
    gguf_names=TensorNames(
        fused={"self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")}
    ),
)


def _olmo(source: Source) -> ModelConfig:
    source.activation("silu")
    if isinstance(source, GGUFSource):
        bound, eps = source.model.qkv_bound(), source.layer_norm_eps()
    else:
        bound, eps = (
            source.fields.positive("clip_qkv") if "clip_qkv" in source.fields else None,
            EPS,
        )
    attention = AttentionSpec(
        qkv_bound=bound, qkv_bias=source.bias(QUERY), output_bias=source.bias(OUTPUT)
    )
    norm = NormSpec(kind="layer", eps=eps)
    return decoder(source, "olmo", source.sizes(), [LayerSpec(attention=attention)], norm=norm)


OLMO = Family(
    "olmo",
    ("OlmoForCausalLM",),
    "OLMo 1",
    of_hub(_olmo),
    hub_names=TensorNames(unit_norms="all"),
    gguf="olmo",
    read_gguf=of_gguf(_olmo),
    gguf_names=TensorNames(unit_norms="all", pairs_adjacent=True),
)


def _nanochat(fields: Fields) -> ModelConfig:
    """NanoChat normalises queries and keys after the rotation. Norms without weights commute with
    it, so they come before it here."""
    source, bias = HubSource(fields), fields.flag("attention_bias", False)
    source.activation("relu2", default="relu2")
    layer = LayerSpec(
        attention=AttentionSpec(norm="head", qkv_bias=bias, output_bias=bias),
        feed_forward=FeedForwardSpec(activation="relu2", gated=False),
    )
    cap = fields.optional_number("final_logit_softcapping")
    further: dict[str, Any] = {"embedding_norm": True, "logits_soft_cap": cap}
    return decoder(source, "nanochat", source.sizes(), [layer], **further)


NANOCHAT = Family(
    "nanochat",
    ("NanoChatForCausalLM",),
    "nanochat",
    _nanochat,
    hub_names=TensorNames(
        {"mlp.fc1": "mlp.up_proj", "mlp.fc2": "mlp.down_proj"},
        unit_norms="all",
        halves_swapped=True,
    ),
)
