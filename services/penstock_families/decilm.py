"""Llama-Nemotron (DeciLM): Llama whose layers a search has thinned out. Each says whether it has
attention, with how many KV heads, and whether it has a feed-forward, of which size.

Source: Bercovich et al., "Puzzle: distillation-based NAS for inference-optimized LLMs", 2024;
"Llama-Nemotron: efficient reasoning models", 2025.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from msgspec import structs

from penstock.errors import UnsupportedModel
from penstock.families import bounds
from penstock.families import hub_reading as hub
from penstock.families import recurrent_reading as recurrent
from penstock.families.family import Family
from penstock.families.gguf_reading import GGUFMetadata
from penstock.families.source import GGUFSource, decoder
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields
from penstock.model.attention_spec import AttentionSpec, KVHeadsSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import FeedForwardSpec, LayerSpec, NormSpec

MULTIPLE = 256
"""Inner dimensions are rounded up to a multiple of it."""
MAX_FACTOR = 1024.0


def _hub(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    key, count = "block_configs", bounds.layer_count(fields, "num_hidden_layers")
    blocks = [Fields(each, f"{fields.where}: {key}") for each in fields.listed(key, dict)]
    if len(blocks) != count:
        raise fields.wrong(key, f"a list of {count} blocks")
    heads, hidden = fields.integer("num_attention_heads"), fields.integer("hidden_size")
    kv_heads = [_kv_heads(each.section("attention"), heads) for each in blocks]
    inner = [_inner(each.section("ffn"), hidden) for each in blocks]
    fields.ignore("intermediate_size", "num_key_value_heads")  # blocks say them
    sizes = hub.sizes(fields.replaced({"num_key_value_heads": max(kv_heads)}), inner=max(inner))
    bias = fields.flag("attention_bias", False)
    return ModelConfig(
        architecture="decilm",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-6)),
        ropes=(hub.rope(fields, sizes["head_dim"]),),
        layers=_layers(
            kv_heads,
            inner,
            sizes["head_dim"],
            AttentionSpec(qkv_bias=bias, output_bias=bias),
            FeedForwardSpec(bias=fields.flag("mlp_bias", False)),
            fields.where,
        ),
    )


def _kv_heads(block: Fields, heads: int) -> int:
    """0: there is no attention."""
    for key in ("replace_with_linear", "unshifted_sink", "use_prefill_window_in_sink_attention"):
        if block.flag(key, False):
            raise block.wrong(key, "false")
    for key in ("window_length", "num_sink_tokens", "sparsify"):
        if key in block:
            raise block.wrong(key, "null")
    _nothing_else(block, "no_op", "n_heads_in_group")
    if block.flag("no_op", False):
        return 0
    shared = block.integer("n_heads_in_group")
    if shared < 1 or heads % shared:
        raise block.wrong("n_heads_in_group", f"a divisor of {heads} heads")
    return heads // shared


def _inner(block: Fields, hidden: int) -> int:
    """0: there is no feed-forward."""
    if block.flag("replace_with_linear", False) or "sparsify" in block:
        raise block.wrong("replace_with_linear", "false, and sparsify null")
    hub.activation(block, "silu")
    _nothing_else(block, "no_op", "ffn_mult", "intermediate_size")
    if block.flag("no_op", False):
        return 0
    factor = block.number("ffn_mult")
    if not 0 < factor <= MAX_FACTOR:
        raise block.wrong("ffn_mult", f"a number up to {MAX_FACTOR:g}")
    return -(-int(2 * factor * hidden / 3) // MULTIPLE) * MULTIPLE


def _nothing_else(block: Fields, *known: str) -> None:
    """Raises UnsupportedModel for a part that is switched on and not known here."""
    for key in block.not_asked():
        if key not in known:
            raise block.wrong(key, "null or false")


def _layers(
    kv_heads: Sequence[int],
    inner: Sequence[int],
    head: int,
    attention: AttentionSpec,
    feed_forward: FeedForwardSpec,
    where: str,
) -> tuple[LayerSpec, ...]:
    """kv_heads, inner: of each layer; 0 for what it lacks. Where they differ between layers, each
    says its own. head: numbers of a head."""
    layers, several = [], [len(set(each) - {0}) > 1 for each in (kv_heads, inner)]
    for number, (count, columns) in enumerate(zip(kv_heads, inner, strict=True)):
        if not count and not columns:
            raise UnsupportedModel(
                f"{where}: layer {number} has neither attention nor a feed-forward; one of them is "
                "needed"
            )
        own = KVHeadsSpec(count=count, size=head) if several[0] and count else None
        size = columns if several[1] and columns else None
        layers.append(
            LayerSpec(
                attention=structs.replace(attention, kv_heads=own),
                feed_forward=structs.replace(feed_forward, inner=size),
                halves="both" if count and columns else "mixer" if count else "feed_forward",
            )
        )
    return hub.shared(layers)


def _gguf(model: GGUFMetadata) -> ModelConfig:
    keys = model.keys
    count = bounds.layer_count(keys, "block_count")
    kv_heads = recurrent.gguf_per_layer(keys, recurrent.GGUF_KV_HEADS, count)
    inner = recurrent.gguf_per_layer(keys, recurrent.GGUF_INNER, count)
    heads = max(recurrent.gguf_per_layer(keys, "attention.head_count", count))
    whole = {
        "attention.head_count": heads,
        recurrent.GGUF_KV_HEADS: max(kv_heads),
        recurrent.GGUF_INNER: max(inner),
    }
    sizes = replace(model, keys=keys.replaced(whole)).sizes()
    attention = AttentionSpec(
        qkv_bias=model.has_in_any("attn_q.bias", count),
        output_bias=model.has_in_any("attn_output.bias", count),
    )
    feed_forward = FeedForwardSpec(bias=model.has_in_any("ffn_up.bias", count))
    return decoder(
        GGUFSource(model),
        "decilm",
        sizes,
        _layers(kv_heads, inner, sizes["head_dim"], attention, feed_forward, keys.where),
    )


DECILM = Family(
    "decilm",
    ("DeciLMForCausalLM",),
    "Llama-Nemotron Super",
    _hub,
    gguf="deci",
    read_gguf=_gguf,
    gguf_names=TensorNames(pairs_adjacent=True),
)
