"""Qwen 2 and 2.5: Llama with biases on queries, keys and values; and Qwen1.5 and Qwen2 with a
mixture of experts and a gated shared one. MiMo is Qwen 2 with MTP layers for drafts.

Sources: Yang et al., "Qwen2 technical report", 2024; Xiaomi, "MiMo: unlocking the reasoning
potential of language model", 2025.
"""

from __future__ import annotations

from penstock.families.family import LAYERS_OF_THEIR_OWN, Family
from penstock.families.qwen3 import GGUF_NAMES
from penstock.families.source import QUERY, GGUFSource, HubSource, Source, decoder, of_gguf, of_hub
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec


def _read(source: Source) -> ModelConfig:
    """In GGUF files PaddleOCR-VL's decoder is Qwen2-VL's without biases; others need theirs."""
    return _model(source, "qwen2")


def _mimo(fields: Fields) -> ModelConfig:
    source = HubSource(fields)
    source.only(attention_bias=True, use_mrope=False)
    source.ignore("num_nextn_predict_layers")  # for drafts only
    return _model(source, "mimo")


def _model(source: Source, name: str) -> ModelConfig:
    source.activation("silu")
    sizes, bias, rope = source.sizes(), True, None
    if isinstance(source, GGUFSource):
        bias = source.model.architecture != PADDLEOCR
        rope = source.model.with_sections(source.rope(sizes["head_dim"]))
    layers = [
        LayerSpec(attention=AttentionSpec(window=window, qkv_bias=bias))
        for window in source.windows_behind(sizes["num_layers"])
    ]
    return decoder(source, name, sizes, layers, rope=rope)


PADDLEOCR = "paddleocr"


QWEN2 = Family(
    "qwen2",
    ("Qwen2ForCausalLM",),
    "Qwen2, Qwen2.5",
    of_hub(_read),
    gguf="qwen2",
    gguf_also=("qwen2vl", PADDLEOCR),
    read_gguf=of_gguf(_read),
)
MIMO = Family("mimo", ("MiMoForCausalLM",), "MiMo", _mimo, own_head=LAYERS_OF_THEIR_OWN)


def _moe(source: Source) -> ModelConfig:
    source.activation("silu")
    sizes, counts = source.sizes(), source.expert_counts("num_experts", "num_local_experts")
    inner = sizes["intermediate_size"]
    experts = ExpertsSpec(
        **counts,
        inner=source.integer(
            "moe_intermediate_size",
            gguf="expert_feed_forward_length",
            without=inner // counts["active"],
        ),
        normalised=source.flag("norm_topk_prob", False),
        shared_inner=source.integer(
            "shared_expert_intermediate_size",
            gguf="expert_shared_feed_forward_length",
            without=inner,
        ),
        shared_gate=True,
    )
    count, bias = sizes["num_layers"], source.bias(QUERY, "qkv_bias", True)
    layers = [
        LayerSpec(
            attention=AttentionSpec(window=window, qkv_bias=bias),
            feed_forward=FeedForwardSpec(experts=experts if sparse else None),
        )
        for window, sparse in zip(
            source.windows_behind(count), source.sparse_layers(count), strict=True
        )
    ]
    return decoder(source, "qwen2_moe", sizes, layers)


QWEN2_MOE = Family(
    "qwen2_moe",
    ("Qwen2MoeForCausalLM",),
    "Qwen1.5-MoE, Qwen2-MoE",
    of_hub(_moe),
    hub_names=TensorNames({"mlp.gate": "mlp.router"}),
    gguf="qwen2moe",
    read_gguf=of_gguf(_moe),
    gguf_names=GGUF_NAMES,
)
