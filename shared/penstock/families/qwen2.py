"""Qwen 2 and 2.5: Llama with biases on queries, keys and values; and Qwen1.5 and Qwen2 with a
mixture of experts, beside one that every token has, with a gate. MiMo is Qwen 2 with further layers
that draft.

Sources: Yang et al., "Qwen2 technical report", 2024; Xiaomi, "MiMo: unlocking the reasoning
potential of language model", 2025.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import LAYERS_OF_THEIR_OWN, Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.qwen3 import GGUF_NAMES
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import (
    AttentionSpec,
    ExpertsSpec,
    FeedForwardSpec,
    LayerSpec,
    NormSpec,
)


def _hub(fields: Fields) -> ModelConfig:
    return _model(fields, "qwen2")


def _hub_mimo(fields: Fields) -> ModelConfig:
    hub.only(fields, attention_bias=True, use_mrope=False)
    fields.ignore("num_nextn_predict_layers")  # for drafts only
    return _model(fields, "mimo")


def _model(fields: Fields, name: str) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes = hub.sizes(fields)
    windows = hub.windows_behind(fields, sizes["num_layers"])
    return ModelConfig(
        architecture=name,
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6)),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=hub.shared(
            LayerSpec(attention=AttentionSpec(window=window, qkv_bias=True)) for window in windows
        ),
    )


PADDLEOCR = "paddleocr"


def _gguf(model: GGUFMetadata) -> ModelConfig:
    """PaddleOCR-VL's decoder is Qwen2-VL's without biases; other files need theirs."""
    sizes = model.sizes()
    bias = model.architecture != PADDLEOCR
    return ModelConfig(
        architecture="qwen2",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(model.with_sections(model.rope(sizes["head_dim"])),),
        layers=(LayerSpec(attention=AttentionSpec(qkv_bias=bias)),),
    )


QWEN2 = Family(
    "qwen2",
    ("Qwen2ForCausalLM",),
    "Qwen2, Qwen2.5",
    _hub,
    gguf="qwen2",
    gguf_also=("qwen2vl", PADDLEOCR),
    read_gguf=_gguf,
)
MIMO = Family("mimo", ("MiMoForCausalLM",), "MiMo", _hub_mimo, own_head=LAYERS_OF_THEIR_OWN)


def _hub_moe(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes = hub.sizes(fields)
    experts = ExpertsSpec(
        **hub.expert_counts(fields, "num_experts", "num_local_experts"),
        inner=fields.integer("moe_intermediate_size"),
        normalised=fields.flag("norm_topk_prob", False),
        shared_inner=fields.integer("shared_expert_intermediate_size"),
        shared_gate=True,
    )
    count = sizes["num_layers"]
    bias = fields.flag("qkv_bias", True)
    layers = []
    for window, sparse in zip(
        hub.windows_behind(fields, count), hub.sparse_layers(fields, count), strict=True
    ):
        layers.append(
            LayerSpec(
                attention=AttentionSpec(window=window, qkv_bias=bias),
                feed_forward=FeedForwardSpec(experts=experts if sparse else None),
            )
        )
    return ModelConfig(
        architecture="qwen2_moe",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6)),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=hub.shared(layers),
    )


def _gguf_moe(model: GGUFMetadata) -> ModelConfig:
    sizes, keys = model.sizes(), model.keys
    counts, inner = model.expert_counts(), sizes["intermediate_size"]
    experts = ExpertsSpec(
        **counts,
        inner=keys.integer("expert_feed_forward_length", inner // counts["active"]),
        normalised=False,
        shared_inner=keys.integer("expert_shared_feed_forward_length", inner),
        shared_gate=True,
    )
    layer = LayerSpec(
        attention=AttentionSpec(qkv_bias=model.has("attn_q.bias")),
        feed_forward=FeedForwardSpec(experts=experts),
    )
    return ModelConfig(
        architecture="qwen2_moe",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(layer,),
    )


QWEN2_MOE = Family(
    "qwen2_moe",
    ("Qwen2MoeForCausalLM",),
    "Qwen1.5-MoE, Qwen2-MoE",
    _hub_moe,
    hub_names=TensorNames({"mlp.gate": "mlp.router"}),
    gguf="qwen2moe",
    read_gguf=_gguf_moe,
    gguf_names=GGUF_NAMES,
)
