"""Gemma, the first: GeGLU, norms by 1 + weight, embeddings scaled by the root of their size; and
Gemma 2: norms before and after each half of a layer, soft caps, every second layer in a window;
VaultGemma: Gemma 2 without the norms after each half.

Sources: Gemma team, "Gemma: open models based on Gemini research and technology", 2024; "Gemma 2:
improving open language models at a practical size", 2024; Sinha et al., "VaultGemma: a
differentially private Gemma model", 2025.
"""

from __future__ import annotations

from typing import Literal

from penstock.families import hub_reading as hub
from penstock.families.family import Family
from penstock.families.source import HubSource, Source, decoder, of_gguf, of_hub
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import FeedForwardSpec, LayerSpec, NormSpec


def _gemma(source: Source) -> ModelConfig:
    sizes = source.sizes(head_dim=256, tied=True)
    source.ignore("hidden_activation")  # says the same as hidden_act, or is null
    # The first releases say gelu and mean its approximation, as their trainers computed.
    source.activation("gelu_tanh", "gelu", default="gelu_pytorch_tanh")
    layer = LayerSpec(feed_forward=FeedForwardSpec(activation="gelu_tanh"))
    multiplier = sizes["hidden_size"] ** 0.5
    norm = gemma_norm(source)
    return decoder(source, "gemma", sizes, [layer], norm=norm, embedding_multiplier=multiplier)


def gemma_norm(source: Source) -> NormSpec:
    """1 + weight is what GGUF files have."""
    return NormSpec(eps=source.eps(), plus_one=isinstance(source, HubSource))


UNSERVED = frozenset({"attention_bias", "use_bidirectional_attention"})
"""Settings that no release of Gemma 1 to 3 has on, but for embedding models."""

GEMMA = Family(
    "gemma",
    ("GemmaForCausalLM",),
    "Gemma",
    of_hub(_gemma),
    gguf="gemma",
    read_gguf=of_gguf(_gemma),
    unserved=UNSERVED,
)


NAMES = TensorNames(
    {
        "post_attention_layernorm": "attention_output_norm",
        "pre_feedforward_layernorm": "post_attention_layernorm",
        "post_feedforward_layernorm": "feed_forward_output_norm",
    }
)
"""What Gemma 2 and 3 call their norms."""


LARGEST = 46
"""Layers of Gemma 2 27B, which alone scales scores by its hidden size: GGUF files don't say so."""


def _gemma2(source: Source) -> ModelConfig:
    return _of_both(source, "gemma2", "sandwich")


def _vaultgemma(fields: Fields) -> ModelConfig:
    return _of_both(HubSource(fields), "vaultgemma", "pre")


def _of_both(source: Source, name: str, order: Literal["pre", "sandwich"]) -> ModelConfig:
    """Reads what Gemma 2 and VaultGemma have, whose layers differ by the order of norms."""
    sizes = source.sizes(head_dim=256, tied=True)
    source.ignore("hidden_act")  # hidden_activation is what counts
    source.ignore("sliding_window_size")  # says the same as sliding_window
    source.activation("gelu_tanh", key="hidden_activation", default="gelu_pytorch_tanh")
    keys, count = source.fields, sizes["num_layers"]
    kinds, window = hub.every_nth_full(2, count), source.window()
    if isinstance(source, HubSource):
        kinds, window = hub.layer_kinds(keys, count, kinds), hub.window(keys)
    size = sizes["head_dim"]
    if count == LARGEST:
        size = sizes["hidden_size"] // max(sizes["num_heads"], 1)
    scale = source.number("query_pre_attn_scalar", 256, without=size) ** -0.5
    cap = keys.optional_number("attn_logit_softcapping")
    layers = [
        LayerSpec(
            attention=AttentionSpec(
                window=window if kind == hub.SLIDING else None, scale=scale, soft_cap=cap
            ),
            feed_forward=FeedForwardSpec(activation="gelu_tanh"),
            order=order,
        )
        for kind in kinds
    ]
    return decoder(
        source,
        name,
        sizes,
        layers,
        norm=gemma_norm(source),
        embedding_multiplier=sizes["hidden_size"] ** 0.5,
        logits_soft_cap=keys.optional_number("final_logit_softcapping"),
    )


GEMMA2 = Family(
    "gemma2",
    ("Gemma2ForCausalLM",),
    "Gemma 2",
    of_hub(_gemma2),
    hub_names=NAMES,
    gguf="gemma2",
    read_gguf=of_gguf(_gemma2),
    unserved=UNSERVED,
)
VAULT_GEMMA = Family(
    "vaultgemma",
    ("VaultGemmaForCausalLM",),
    "VaultGemma",
    _vaultgemma,
    hub_names=TensorNames({"pre_feedforward_layernorm": "post_attention_layernorm"}),
    unserved=UNSERVED,
)
