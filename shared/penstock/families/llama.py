"""Llama 2 and 3, SmolLM, XVERSE and relatives: grouped-query attention, rotary positions and
SwiGLU; biases only where the config has them. Helium: the same with adjacent rotary pairs.

Sources: Touvron et al., "Llama 2", 2023; Grattafiori et al., "The Llama 3 herd of models", 2024;
Kyutai, "Helium 1", 2025.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.source import OUTPUT, QUERY, UP, GGUFSource, HubSource, Source, decoder
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import ExpertsSpec, FeedForwardSpec, LayerSpec


def _hub(fields: Fields) -> ModelConfig:
    return _model(HubSource(fields), None)


def _model(source: Source, experts: ExpertsSpec | None) -> ModelConfig:
    source.activation("silu")
    sizes = source.sizes()
    if isinstance(source, HubSource):
        hub.no_windows(source.fields, sizes["num_layers"])
    layer = LayerSpec(
        attention=AttentionSpec(qkv_bias=source.bias(QUERY), output_bias=source.bias(OUTPUT)),
        feed_forward=FeedForwardSpec(bias=source.bias(UP, "mlp_bias"), experts=experts),
    )
    return decoder(source, "mixtral" if experts else "llama", sizes, [layer])


def read_gguf(model: GGUFMetadata) -> ModelConfig:
    """The config in a file of Llama, or of Mistral, whose layers are the same; with experts, the
    file is of Mixtral, or of a mixture that was made of models of either."""
    keys = model.keys
    if not keys.integer("expert_count", 0):
        keys.ignore("expert_used_count")
        return _model(GGUFSource(model), None)
    length = model.same_in_all_layers("feed_forward_length")
    inner = keys.integer("expert_feed_forward_length", length)
    return _model(GGUFSource(model), ExpertsSpec(**model.expert_counts(), inner=inner))


LLAMA = Family(
    "llama",
    ("LlamaForCausalLM", "XverseForCausalLM"),
    "Llama 2 and 3, SmolLM",
    _hub,
    gguf="llama",
    read_gguf=read_gguf,
    gguf_names=TensorNames(pairs_adjacent=True),
)


def _helium(fields: Fields) -> ModelConfig:
    source = HubSource(fields)
    source.activation("silu")
    layer = LayerSpec(
        attention=AttentionSpec(qkv_bias=fields.flag("attention_bias", False)),
        feed_forward=FeedForwardSpec(bias=fields.flag("mlp_bias", False)),
    )
    sizes = source.sizes(head_dim=128)
    return decoder(source, "helium", sizes, [layer], eps=1e-8, theta=100_000.0)


HELIUM = Family(
    "helium",
    ("HeliumForCausalLM",),
    "Helium",
    _helium,
    hub_names=TensorNames(pairs_adjacent=True),
)
