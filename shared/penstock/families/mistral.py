"""Mistral 7B and its successors: Llama, of which some releases attend within a sliding window; and
Mixtral: Mistral with a mixture of experts in every layer.

GGUF files of Mistral and Mixtral say that they are Llama's, but for Mistral 3's.  Sources: Jiang et
al., "Mistral 7B", 2023; "Mixtral of experts", 2024.
"""

from __future__ import annotations

import msgspec

from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.llama import read_gguf
from penstock.families.qwen3 import GGUF_NAMES
from penstock.families.source import HubSource, decoder
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec


def _hub(fields: Fields) -> ModelConfig:
    is_ministral3 = fields.text("model_type", "mistral") == "ministral3"
    if not is_ministral3:
        fields = fields.with_absent({"sliding_window": 4096})
    source = HubSource(fields)
    source.activation("silu")
    sizes, window = source.sizes(), source.window()
    kinds = [hub.FULL if window is None else hub.SLIDING] * sizes["num_layers"]
    layers = [
        LayerSpec(attention=AttentionSpec(window=window if kind == hub.SLIDING else None))
        for kind in hub.layer_kinds(fields, sizes["num_layers"], kinds)
    ]
    return decoder(source, "mistral", sizes, layers, eps=1e-5 if is_ministral3 else 1e-6)


_ORIGINAL = "rope.scaling.original_context_length"


def _gguf(model: GGUFMetadata) -> ModelConfig:
    plain, keys = read_gguf(model), model.keys
    by = keys.number("attention.temperature_scale", 0.0)
    length = keys.integer(_ORIGINAL, plain.max_position)
    if by and length < 1:
        raise keys.wrong(_ORIGINAL, "a positive number")
    rope = msgspec.structs.replace(plain.ropes[0], query_growth=by, query_growth_length=length)
    name = "mistral" if plain.architecture == "llama" else plain.architecture
    return msgspec.structs.replace(plain, architecture=name, ropes=(rope,))


MISTRAL = Family(
    "mistral",
    (
        "MistralForCausalLM",
        "MinistralForCausalLM",
        "Ministral3ForCausalLM",
        "Mistral3ForConditionalGeneration",
    ),
    "Mistral, Ministral, Ministral 3, Mistral Small 3",
    _hub,
    gguf="mistral3",
    read_gguf=_gguf,
    gguf_names=TensorNames(pairs_adjacent=True),
)


MIXTRAL_MODULES = {
    "block_sparse_moe.gate": "mlp.router",
    "block_sparse_moe.experts.*.w1": "mlp.experts.*.gate_proj",
    "block_sparse_moe.experts.*.w2": "mlp.experts.*.down_proj",
    "block_sparse_moe.experts.*.w3": "mlp.experts.*.up_proj",
}


def _hub_mixtral(fields: Fields) -> ModelConfig:
    source = HubSource(fields)
    source.activation("silu")
    sizes = source.sizes()
    source.ignore("router_jitter_noise")  # of training
    experts = ExpertsSpec(
        **source.expert_counts("num_local_experts"), inner=sizes["intermediate_size"]
    )
    layer = LayerSpec(
        attention=AttentionSpec(window=source.window()),
        feed_forward=FeedForwardSpec(experts=experts),
    )
    return decoder(source, "mixtral", sizes, [layer], eps=1e-5, theta=1_000_000.0)


MIXTRAL = Family(
    "mixtral",
    ("MixtralForCausalLM",),
    "Mixtral",
    _hub_mixtral,
    hub_names=TensorNames(MIXTRAL_MODULES),
    gguf="llama",
    read_gguf=read_gguf,
    gguf_names=TensorNames(stacked=GGUF_NAMES.stacked, pairs_adjacent=True),
)
