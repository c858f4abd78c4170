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

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.nemotron import ungated_gguf
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec


def _hub_jais2(fields: Fields) -> ModelConfig:
    hub.activation(fields, "relu2", default="relu2")
    sizes, bias = hub.sizes(fields), fields.flag("attention_bias", True)
    layer = LayerSpec(
        attention=AttentionSpec(qkv_bias=bias, output_bias=bias),
        feed_forward=FeedForwardSpec(
            activation="relu2", gated=False, bias=fields.flag("mlp_bias", True)
        ),
    )
    return ModelConfig(
        architecture="jais2",
        **sizes,
        norm=NormSpec(kind="layer", eps=fields.number("layer_norm_eps", 1e-5), bias=True),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=(layer,),
    )


def _gguf_jais2(model: GGUFMetadata) -> ModelConfig:
    return ungated_gguf(model, "jais2")


JAIS2 = Family(
    "jais2",
    ("Jais2ForCausalLM",),
    "Jais 2",
    _hub_jais2,
    gguf="jais2",
    read_gguf=_gguf_jais2,
)


PHI_LAYER = LayerSpec(
    attention=AttentionSpec(qkv_bias=True, output_bias=True),
    feed_forward=FeedForwardSpec(activation="gelu_tanh", gated=False, bias=True),
    order="parallel",
)


def _hub_phi(fields: Fields) -> ModelConfig:
    activation = hub.activation(fields, "gelu_tanh", "gelu", default="gelu_new")
    sizes = hub.sizes(fields)
    if fields.flag("qk_layernorm", False):
        raise UnsupportedModel(f"{fields.where}: qk_layernorm is true; only false is served")
    feed_forward = msgspec.structs.replace(PHI_LAYER.feed_forward, activation=activation)
    return ModelConfig(
        architecture="phi",
        **sizes,
        norm=NormSpec(kind="layer", eps=fields.number("layer_norm_eps", 1e-5), bias=True),
        ropes=(hub.rope(fields, sizes["head_dim"], share=0.5),),
        layers=(msgspec.structs.replace(PHI_LAYER, feed_forward=feed_forward),),
        head_bias=True,
    )


def _gguf_phi2(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    return ModelConfig(
        architecture="phi",
        **sizes,
        norm=NormSpec(kind="layer", eps=model.layer_norm_eps(), bias=True),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(PHI_LAYER,),
        head_bias=True,
    )


PHI = Family(
    "phi",
    ("PhiForCausalLM",),
    "Phi-1.5, Phi-2",
    _hub_phi,
    hub_names=TensorNames(
        {
            "self_attn.dense": "self_attn.o_proj",
            "mlp.fc1": "mlp.up_proj",
            "mlp.fc2": "mlp.down_proj",
            "final_layernorm": "norm",
        }
    ),
    gguf="phi2",
    read_gguf=_gguf_phi2,
    gguf_names=TensorNames(
        fused={"self_attn.qkv_proj": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")}
    ),
)


def _hub_olmo(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes, bias = hub.sizes(fields), fields.flag("attention_bias", False)
    bound = fields.positive("clip_qkv") if "clip_qkv" in fields else None
    attention = AttentionSpec(qkv_bound=bound, qkv_bias=bias, output_bias=bias)
    return ModelConfig(
        architecture="olmo",
        **sizes,
        norm=NormSpec(kind="layer", eps=1e-5),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=(LayerSpec(attention=attention),),
    )


def _gguf_olmo(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    return ModelConfig(
        architecture="olmo",
        **sizes,
        norm=NormSpec(kind="layer", eps=model.layer_norm_eps()),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(LayerSpec(attention=AttentionSpec(qkv_bound=model.qkv_bound())),),
    )


OLMO = Family(
    "olmo",
    ("OlmoForCausalLM",),
    "OLMo 1",
    _hub_olmo,
    hub_names=TensorNames(unit_norms="all"),
    gguf="olmo",
    read_gguf=_gguf_olmo,
    gguf_names=TensorNames(unit_norms="all", pairs_adjacent=True),
)


def _hub_nanochat(fields: Fields) -> ModelConfig:
    """Queries and keys are normalised behind the rotation, which is the same where norms have no
    weights."""
    hub.activation(fields, "relu2", default="relu2")
    sizes, bias = hub.sizes(fields), fields.flag("attention_bias", False)
    layer = LayerSpec(
        attention=AttentionSpec(norm="head", qkv_bias=bias, output_bias=bias),
        feed_forward=FeedForwardSpec(activation="relu2", gated=False),
    )
    return ModelConfig(
        architecture="nanochat",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6)),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=(layer,),
        embedding_norm=True,
        logits_soft_cap=fields.optional_number("final_logit_softcapping"),
    )


NANOCHAT = Family(
    "nanochat",
    ("NanoChatForCausalLM",),
    "nanochat",
    _hub_nanochat,
    hub_names=TensorNames(
        {"mlp.fc1": "mlp.up_proj", "mlp.fc2": "mlp.down_proj"},
        unit_norms="all",
        halves_swapped=True,
    ),
)
