"""One naming of tensors, whatever format their file has.

It is that of Hugging Face, without the leading `model.`: `layers.3.self_attn.q_proj.weight`.
"""

from __future__ import annotations

import re

_IGNORED = re.compile(r"(^|\.)rotary_emb\.inv_freq$")
"""Buffers that old checkpoints saved, although the configuration determines them."""

_GGUF_TOP = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "output": "lm_head",
}
_GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "attention_output_norm",
    "post_ffw_norm": "feed_forward_output_norm",
    "attn_qkv": "self_attn.qkv_proj",
    "ffn_gate_inp": "mlp.router",
    "ffn_gate_exps": "mlp.stacked.gate_proj",
    "ffn_up_exps": "mlp.stacked.up_proj",
    "ffn_down_exps": "mlp.stacked.down_proj",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_a": "self_attn.q_a_proj",
    "attn_q_a_norm": "self_attn.q_a_norm",
    "attn_q_b": "self_attn.q_proj",
    "attn_kv_a_mqa": "self_attn.kv_a_proj",
    "attn_kv_a_norm": "self_attn.kv_a_norm",
    "attn_kv_b": "self_attn.kv_b_proj",
    "attn_k_b": "self_attn.k_b_proj",
    "attn_v_b": "self_attn.v_b_proj",
    "ffn_gate_shexp": "mlp.shared_expert.gate_proj",
    "ffn_up_shexp": "mlp.shared_expert.up_proj",
    "ffn_down_shexp": "mlp.shared_expert.down_proj",
    "attn_sinks": "self_attn.sinks",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_GGUF_NAME = re.compile(r"(?:blk\.(\d+)\.)?(\w+)\.(weight|bias)")

ROPE_FACTORS = "rope_factors"
"""Divisors of the rotary frequencies, [dims / 2]."""


_TEXT_HALF = re.compile(r"^(?:model\.)?language_model\.(?:model\.)?")
_OTHER_HALVES = re.compile(
    r"^(?:model\.)?(?:vision_tower|vision_model|visual|multi_modal_projector|audio_tower)\."
)
"""What a model that sees or hears has beside its decoder."""


def from_hub(name: str) -> str | None:
    """Returns our name for a tensor of a Hugging Face checkpoint; None for one that isn't
    needed."""
    if _IGNORED.search(name) or _OTHER_HALVES.match(name):
        return None
    return _TEXT_HALF.sub("", name).removeprefix("model.")


def from_gguf(name: str) -> str:
    """Returns our name for a GGUF tensor. An unknown name stays as it is."""
    if name == "rope_freqs.weight":
        return ROPE_FACTORS
    found = _GGUF_NAME.fullmatch(name)
    if found is None:
        return name
    layer, stem, kind = found.groups()
    if stem == "exp_probs_b" and layer is not None:
        return f"layers.{layer}.mlp.router.correction"
    known = (_GGUF_TOP if layer is None else _GGUF_LAYER).get(stem)
    if known is None:
        return name
    return f"{known}.{kind}" if layer is None else f"layers.{layer}.{known}.{kind}"
