"""MiniCPM: Llama with multipliers of embeddings, residuals and logits. MiniCPM 3 attends over
latents besides, whose rotary pairs are half of a head apart.

Source: Hu et al., "MiniCPM: unveiling the potential of small language models with scalable training
strategies", 2024; MiniCPM team, "MiniCPM4", 2025.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families.deepseek import NAMES as LATENT_NAMES
from penstock.families.deepseek import gguf_latent, latent_of
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.source import OUTPUT, QUERY, HubSource, Source, decoder, of_gguf, of_hub
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import LayerSpec, NormSpec

ORIGINAL = "rope.scaling.original_context_length"


def _minicpm(source: Source) -> ModelConfig:
    sizes, keys = source.sizes(tied=True), source.fields
    source.ignore("mup_denominator")  # of training
    attention = AttentionSpec(qkv_bias=source.bias(QUERY), output_bias=source.bias(OUTPUT))
    if isinstance(source, HubSource):
        found = _multiplied(keys, sizes, attention, embedding=1.0, depth=1.0, base=1)
        return decoder(source, "minicpm", sizes, **found)
    by = keys.number("residual_scale", 1.4 / math.sqrt(sizes["num_layers"]))
    return decoder(
        source,
        "minicpm",
        sizes,
        [LayerSpec(attention=attention, residual_multiplier=by)],
        rope=source.model.long_rope(sizes["head_dim"]),
        embedding_multiplier=keys.number("embedding_scale", 12.0),
        logits_multiplier=1.0 / keys.number("logit_scale", sizes["hidden_size"] / 256),
    )


def _multiplied(
    fields: Fields,
    sizes: dict[str, Any],
    attention: AttentionSpec,
    *,
    embedding: float,
    depth: float,
    base: int,
) -> dict[str, Any]:
    """Fields of ModelConfig: its layers and multipliers. The last three: what holds where
    config.json doesn't say."""
    hub.activation(fields, "silu")
    by = fields.number("scale_depth", depth) / math.sqrt(sizes["num_layers"])
    width = fields.integer("dim_model_base", base)
    return {
        "layers": (LayerSpec(attention=attention, residual_multiplier=by),),
        "embedding_multiplier": fields.number("scale_emb", embedding),
        "logits_multiplier": width / sizes["hidden_size"],
    }


def _hub3(fields: Fields) -> ModelConfig:
    hub.only(fields, attention_bias=False, mlp_bias=False)
    hidden, heads = fields.integer("hidden_size", 2560), fields.integer("num_attention_heads", 40)
    latent = latent_of(fields.completed(v_head_dim=hidden // max(heads, 1)))
    # The files' heads are those of the unabsorbed form.
    fields.ignore("head_dim", "num_key_value_heads", "qk_head_dim")
    sizes = hub.sizes(fields, default_head_dim=latent.rotating, tied=True)
    sizes |= {"num_kv_heads": 1, "head_dim": latent.rank + latent.rotating}
    attention = AttentionSpec(latent=latent, scale=(latent.plain + latent.rotating) ** -0.5)
    return ModelConfig(
        architecture="minicpm3",
        **sizes,
        **_multiplied(fields, sizes, attention, embedding=12.0, depth=1.4, base=256),
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-5)),
        ropes=(hub.rope(fields, latent.rotating),),
    )


def _gguf3(model: GGUFMetadata) -> ModelConfig:
    """Files say nothing of multipliers: all have those of the one release."""
    keys = model.keys
    heads, hidden = keys.integer("attention.head_count"), keys.integer("embedding_length")
    # Values have the size that keys have where a file says neither.
    value = {"attention.value_length": hidden // max(heads, 1)}
    whole = {ORIGINAL: keys.integer("context_length")}
    model = replace(model, keys=keys.completed(**value, **whole))
    latent = gguf_latent(model.keys)
    model.keys.ignore("attention.head_count_kv")
    attention = AttentionSpec(latent=latent, scale=(latent.plain + latent.rotating) ** -0.5)
    count = bounds.layer_count(model.keys, "block_count")
    layer = LayerSpec(attention=attention, residual_multiplier=1.4 / math.sqrt(count))
    return ModelConfig(
        architecture="minicpm3",
        vocab_size=model.vocab_size,
        hidden_size=hidden,
        intermediate_size=model.same_in_all_layers("feed_forward_length"),
        num_layers=count,
        num_heads=heads,
        num_kv_heads=1,
        head_dim=latent.rank + latent.rotating,
        max_position=model.keys.integer("context_length"),
        tie_word_embeddings="output.weight" not in model.tensors,
        norm=NormSpec(eps=model.rms_eps()),
        ropes=(model.long_rope(latent.rotating),),
        layers=(layer,),
        embedding_multiplier=12.0,
        logits_multiplier=256 / hidden,
    )


MINICPM = Family(
    "minicpm",
    ("MiniCPMForCausalLM",),
    "MiniCPM, MiniCPM4",
    of_hub(_minicpm),
    gguf="minicpm",
    read_gguf=of_gguf(_minicpm),
    gguf_names=TensorNames(pairs_adjacent=True),
    unserved=frozenset({"sparse_config"}),
)
MINICPM3 = Family(
    "minicpm3",
    ("MiniCPM3ForCausalLM",),
    "MiniCPM3",
    _hub3,
    hub_names=TensorNames(LATENT_NAMES.modules),
    gguf="minicpm3",
    read_gguf=_gguf3,
)
