"""What GGUF files of DeepSeek V4 say, as config.json says it, and what they call tensors.

Source of names: llama.cpp's llama-arch.cpp and conversion/deepseek.py.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families.bounds import MAX_DRAFTS, layer_count, layers_without_drafts
from penstock.families.deepseek import one_of
from penstock.families.gguf_reading import GGUFMetadata, rounded
from penstock.families.tensor_names import TensorNames
from penstock.formats.fields import Fields

_SQRT_SOFTPLUS = 4
"""GGUF's number of what makes scores of a router's products."""


def said_in_gguf(model: GGUFMetadata) -> Fields:
    """Returns what config.json would say in the file's place. Layers that draft are counted even by
    files that lack them. Raises UnsupportedModel."""
    keys = model.keys
    drafts, count = keys.integer("nextn_predict_layers", 0), layer_count(keys, "block_count")
    if not 0 <= drafts <= MAX_DRAFTS:
        raise keys.wrong("nextn_predict_layers", f"0 to {MAX_DRAFTS} layers")
    if f"blk.{count - drafts}.nextn.eh_proj.weight" in model.tensors:
        count = layers_without_drafts(keys)
    scored = keys.integer("expert_gating_func")
    one_of(keys, "expert_gating_func", scored, _SQRT_SOFTPLUS)
    limit = _limit(keys, "swiglu_clamp_exp")
    if "swiglu_clamp_shexp" in keys:
        one_of(keys, "swiglu_clamp_shexp", _limit(keys, "swiglu_clamp_shexp"), limit)
    one_of(keys, "attention.head_count_kv", model.same_in_all_layers("attention.head_count_kv"), 1)
    length = keys.integer("attention.key_length")
    one_of(keys, "attention.value_length", keys.integer("attention.value_length", length), length)
    keys.ignore("feed_forward_length")  # all layers have experts
    said = {ours: keys.integer(theirs) for ours, theirs in _GGUF_SIZES.items()} | {
        "vocab_size": model.vocab_size,
        "num_hidden_layers": count,
        "num_key_value_heads": 1,
        "tie_word_embeddings": "output.weight" not in model.tensors,
        "rms_norm_eps": model.rms_eps(),
        "compress_ratios": keys.listed("attention.compress_ratios", int),
        "norm_topk_prob": keys.flag("expert_weights_norm"),
        "routed_scaling_factor": rounded(keys.positive("expert_weights_scale")),
        "swiglu_limit": limit,
        "hc_eps": rounded(keys.number("hyper_connection.epsilon")),
        "rope_theta": keys.number("rope.freq_base", 10_000.0),
        "compress_rope_theta": keys.number("attention.compress_rope_freq_base"),
    }
    stretched = model.rope(length).scaling
    if stretched is not None:
        if stretched.kind != "yarn":
            raise UnsupportedModel(
                f"{keys.where}: RoPE scaling {stretched.kind!r} is not served in this model"
            )
        said["rope_scaling"] = {
            "rope_type": "yarn",
            "factor": stretched.factor,
            "original_max_position_embeddings": stretched.original_max_position,
            "beta_fast": stretched.beta_fast,
            "beta_slow": stretched.beta_slow,
            # Without this key, cosines and sines don't grow, as in config.json.
            "attention_factor": keys.number("rope.scaling.yarn_attn_factor", 1.0),
        }
    return Fields(said, keys.where)


_GGUF_SIZES = {
    "hidden_size": "embedding_length",
    "num_attention_heads": "attention.head_count",
    "head_dim": "attention.key_length",
    "max_position_embeddings": "context_length",
    "moe_intermediate_size": "expert_feed_forward_length",
    "n_routed_experts": "expert_count",
    "num_experts_per_tok": "expert_used_count",
    "n_shared_experts": "expert_shared_count",
    "num_hash_layers": "hash_layer_count",
    "q_lora_rank": "attention.q_lora_rank",
    "o_lora_rank": "attention.output_lora_rank",
    "o_groups": "attention.output_group_count",
    "qk_rope_head_dim": "rope.dimension_count",
    "sliding_window": "attention.sliding_window",
    "index_n_heads": "attention.indexer.head_count",
    "index_head_dim": "attention.indexer.key_length",
    "index_topk": "attention.indexer.top_k",
    "hc_mult": "hyper_connection.count",
    "hc_sinkhorn_iters": "hyper_connection.sinkhorn_iterations",
}


def _limit(keys: Fields, key: str) -> float:
    """What GGUF says once, or once for each layer."""
    if not isinstance(keys.values.get(key), list):
        return rounded(keys.number(key))
    found = keys.listed(key, float)
    one_of(keys, key, len(set(found)), 1)
    return rounded(found[0])


_BARE = (
    *(f"{of}_hc.{part}" for of in ("attn", "ffn") for part in ("fn", "base", "scale")),
    *(f"hc_head.{part}" for part in ("fn", "base", "scale")),
    "self_attn.compressor.position_bias",
    "self_attn.compressor.indexer.position_bias",
    "mlp.router.by_token",
)
"""Tensors that GGUF files call weights."""
_NAMES = {
    "self_attn.kv_a_norm": "self_attn.kv_norm",
    "self_attn.o_b_proj": "self_attn.o_proj",
    "self_attn.index_query": "self_attn.compressor.indexer.q_b_proj",
    "self_attn.index_weights": "self_attn.compressor.indexer.scorer.weights_proj",
    **{f"{name}.weight": name for name in _BARE},
}

_STACKED = {
    f"mlp.stacked.{name}": (f"mlp.experts.*.{name}",)
    for name in ("gate_proj", "up_proj", "down_proj")
}
GGUF_NAMES = TensorNames(_NAMES, stacked=_STACKED, layers_for_drafts=True)
