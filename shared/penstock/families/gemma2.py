"""Gemma, the first: GeGLU, norms by 1 + weight, embeddings scaled by the root of their size; and
Gemma 2: norms before and after each half of a layer, soft caps, every second layer in a window;
VaultGemma: Gemma 2 without the norms behind.

Sources: Gemma team, "Gemma: open models based on Gemini research and technology", 2024; "Gemma 2:
improving open language models at a practical size", 2024; Sinha et al., "VaultGemma: a
differentially private Gemma model", 2025.
"""

from __future__ import annotations

from typing import Literal

from penstock.families import hub_reading as hub
from penstock.families.family import Family, TensorNames
from penstock.families.gguf_reading import GGUFMetadata
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import AttentionSpec, FeedForwardSpec, LayerSpec, NormSpec


def _hub(fields: Fields) -> ModelConfig:
    sizes = hub.sizes(fields, default_head_dim=256, tied=True)
    fields.ignore("hidden_activation")  # says the same as hidden_act, or is null
    # The first releases say gelu and mean its approximation, as their trainers computed.
    hub.activation(fields, "gelu_tanh", "gelu", default="gelu_pytorch_tanh")
    return ModelConfig(
        architecture="gemma",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6), plus_one=True),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=(LayerSpec(feed_forward=FeedForwardSpec(activation="gelu_tanh")),),
        embedding_multiplier=sizes["hidden_size"] ** 0.5,
    )


def _gguf_gemma(model: GGUFMetadata) -> ModelConfig:
    sizes = model.sizes()
    return ModelConfig(
        architecture="gemma",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),  # 1 + weight is what the file has
        ropes=(model.rope(sizes["head_dim"]),),
        layers=(LayerSpec(feed_forward=FeedForwardSpec(activation="gelu_tanh")),),
        embedding_multiplier=sizes["hidden_size"] ** 0.5,
    )


UNSERVED = frozenset({"attention_bias", "use_bidirectional_attention"})
"""Settings that no release of Gemma 1 to 3 has on, but for embedding models."""

GEMMA = Family(
    "gemma",
    ("GemmaForCausalLM",),
    "Gemma",
    _hub,
    gguf="gemma",
    read_gguf=_gguf_gemma,
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


def _layers(
    kinds: list[str],
    window: int | None,
    scale: float,
    cap: float | None,
    order: Literal["pre", "sandwich"] = "sandwich",
) -> tuple[LayerSpec, ...]:
    return hub.shared(
        LayerSpec(
            attention=AttentionSpec(
                window=window if kind == hub.SLIDING else None,
                scale=scale,
                soft_cap=cap,
            ),
            feed_forward=FeedForwardSpec(activation="gelu_tanh"),
            order=order,
        )
        for kind in kinds
    )


def _hub_gemma2(fields: Fields) -> ModelConfig:
    return _of_both(fields, "gemma2", "sandwich")


def _hub_vaultgemma(fields: Fields) -> ModelConfig:
    return _of_both(fields, "vaultgemma", "pre")


def _of_both(fields: Fields, name: str, order: Literal["pre", "sandwich"]) -> ModelConfig:
    """Reads what Gemma 2 and VaultGemma have, whose layers differ by the order of norms."""
    sizes = hub.sizes(fields, default_head_dim=256, tied=True)
    fields.ignore("hidden_act")  # hidden_activation is what counts
    fields.ignore("sliding_window_size")  # says the same as sliding_window
    hub.activation(fields, "gelu_tanh", key="hidden_activation", default="gelu_pytorch_tanh")
    count = sizes["num_layers"]
    kinds = hub.layer_kinds(fields, count, hub.every_nth_full(2, count))
    window, cap = hub.window(fields), fields.optional_number("attn_logit_softcapping")
    scale = fields.number("query_pre_attn_scalar", 256) ** -0.5
    return ModelConfig(
        architecture=name,
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6), plus_one=True),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=_layers(kinds, window, scale, cap, order),
        embedding_multiplier=sizes["hidden_size"] ** 0.5,
        logits_soft_cap=fields.optional_number("final_logit_softcapping"),
    )


LARGEST = 46
"""Layers of Gemma 2 27B, which alone scales scores by its hidden size: the files don't say so."""


def _gguf_gemma2(model: GGUFMetadata) -> ModelConfig:
    sizes, keys = model.sizes(), model.keys
    count, window = sizes["num_layers"], model.window()
    size = sizes["head_dim"]
    if count == LARGEST:
        size = sizes["hidden_size"] // sizes["num_heads"]
    cap = keys.optional_number("attn_logit_softcapping")
    kinds = hub.every_nth_full(2, count)
    return ModelConfig(
        architecture="gemma2",
        **sizes,
        norm=NormSpec(eps=model.rms_eps()),  # 1 + weight is what the file has
        ropes=(model.rope(sizes["head_dim"]),),
        layers=_layers(kinds, window, size**-0.5, cap),
        embedding_multiplier=sizes["hidden_size"] ** 0.5,
        logits_soft_cap=keys.optional_number("final_logit_softcapping"),
    )


GEMMA2 = Family(
    "gemma2",
    ("Gemma2ForCausalLM",),
    "Gemma 2",
    _hub_gemma2,
    hub_names=NAMES,
    gguf="gemma2",
    read_gguf=_gguf_gemma2,
    unserved=UNSERVED,
)
VAULT_GEMMA = Family(
    "vaultgemma",
    ("VaultGemmaForCausalLM",),
    "VaultGemma",
    _hub_vaultgemma,
    hub_names=TensorNames({"pre_feedforward_layernorm": "post_attention_layernorm"}),
    unserved=UNSERVED,
)
