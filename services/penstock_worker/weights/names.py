"""One naming of tensors, whatever format their file has.

It is that of Hugging Face, without the leading `model.`: `layers.3.self_attn.q_proj.weight`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from functools import cache

from penstock.errors import UnsupportedModel
from penstock.families.family import TowerFamily
from penstock.families.tower_names import beginning

_IGNORED = re.compile(
    r"(^|\.)(?:rotary_(?:pos_)?emb\.(?:inv_freq|original_inv_freq|cos_cached|sin_cached)"
    r"|(?:attn|self_attn|attention)\.masked_bias)$"
)
"""Buffers that old checkpoints saved, although the configuration determines them."""

_WRAPPERS = re.compile(
    r"^(?:(?:module|_orig_mod)\.)+|(?:^|(?<=\.))"
    r"(?:base_model\.model|_orig_mod|_fsdp_wrapped_module|_checkpoint_wrapped_module)\."
    r"|^thinker\."
)
"""What PEFT, DistributedDataParallel, torch.compile and FSDP wrap a model in, and Qwen what listens
and writes."""
_ADAPTED = re.compile(
    r"\.(?:lora_[AB]|lora_embedding_[AB]|lora_magnitude_vector|base_layer|original_module"
    r"|modules_to_save)\."
)

_BESIDE_PHI4 = re.compile(r"(?:^|\.)embed_tokens_extend\.")
"""Prefix of Phi-4-multimodal's vision and audio towers."""
_PHI4_ADAPTERS = re.compile(r"\.lora_[AB]\.(?:vision|speech)\.weight$")
_BASE = re.compile(r"\.base_layer(?=\.weight$)")

INDEX_QUERY, INDEX_KEY = "index_query", "index_key"
INDEX_KEY_NORM, INDEX_WEIGHTS = "index_key_norm", "index_weights"
INDEX_QUERY_NORM = "index_query_norm"
"""Modules of an index of tokens or blocks, within a layer's attention."""

TOKEN_EXPERTS = "router.by_token"
"""A table of the experts of each token id, within a layer's mixture of experts."""

_GGUF_TOP = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "output": "lm_head",
    "token_embd_norm": "embedding_norm",
    "position_embd": "embed_positions",
    "token_types": "embed_types",
    "per_layer_token_embd": "embed_tokens_per_layer",
    "per_layer_model_proj": "per_layer_model_projection",
    "per_layer_proj_norm": "per_layer_projection_norm",
    "output_hc_fn": "hc_head.fn",
    "output_hc_base": "hc_head.base",
    "output_hc_scale": "hc_head.scale",
    "altup_proj": "altup_projections",
    "altup_unembd_proj": "altup_unembed_projections",
}
_GGUF_LAYER = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "post_attention_norm": "attention_output_norm",
    "attn_output_norm": "attention_output_norm",
    "post_ffw_norm": "feed_forward_output_norm",
    "layer_output_norm": "feed_forward_output_norm",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_gate": "recurrent.in_proj_z",
    "ffn_gate_inp": "mlp.router",
    "ffn_latent_down": "mlp.latent_down",
    "ffn_latent_up": "mlp.latent_up",
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
    "ffn_gate_inp_shexp": "mlp.shared_expert_gate",
    "ffn_gate_up_exps": "mlp.stacked.gate_up_proj",
    "attn_sinks": "self_attn.sinks",
    "attn_sub_norm": "self_attn.attn_sub_norm",
    "ffn_sub_norm": "mlp.ffn_sub_norm",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
    "post_ffw_norm_1": "dense_output_norm",
    "pre_ffw_norm_2": "experts_norm",
    "post_ffw_norm_2": "experts_output_norm",
    "layer_output_scale": "output_scale",
    "inp_gate": "per_layer_input_gate",
    "proj": "per_layer_projection",
    "post_norm": "per_layer_input_norm",
    "altup_correct_coef": "altup.correction_coefs",
    "altup_correct_scale": "altup.output_scale",
    "altup_predict_coef": "altup.prediction_coefs",
    "altup_router": "altup.modality_router",
    "altup_router_norm": "altup.router_norm",
    "indexer.attn_q_b": f"self_attn.{INDEX_QUERY}",
    "indexer.attn_k": f"self_attn.{INDEX_KEY}",
    "indexer.q_proj": f"self_attn.{INDEX_QUERY}",
    "indexer.k_proj": f"self_attn.{INDEX_KEY}",
    "indexer.q_norm": f"self_attn.{INDEX_QUERY_NORM}",
    "indexer.k_norm": f"self_attn.{INDEX_KEY_NORM}",
    "indexer.proj": f"self_attn.{INDEX_WEIGHTS}",
    "attn_kv": "self_attn.kv_proj",
    "attn_output_a": "self_attn.o_a_proj",
    "attn_output_b": "self_attn.o_b_proj",
    "attn_compressor_kv": "self_attn.compressor.kv_proj",
    "attn_compressor_gate": "self_attn.compressor.gate_proj",
    "attn_compressor_norm": "self_attn.compressor.kv_norm",
    "attn_compressor_ape": "self_attn.compressor.position_bias",
    "indexer_compressor_kv": "self_attn.compressor.indexer.kv_proj",
    "indexer_compressor_gate": "self_attn.compressor.indexer.gate_proj",
    "indexer_compressor_norm": "self_attn.compressor.indexer.kv_norm",
    "indexer_compressor_ape": "self_attn.compressor.indexer.position_bias",
    "hc_attn_fn": "attn_hc.fn",
    "hc_attn_base": "attn_hc.base",
    "hc_attn_scale": "attn_hc.scale",
    "hc_ffn_fn": "ffn_hc.fn",
    "hc_ffn_base": "ffn_hc.base",
    "hc_ffn_scale": "ffn_hc.scale",
    "ffn_gate_tid2eid": f"mlp.{TOKEN_EXPERTS}",
    "laurel_l": "laurel.linear_left",
    "laurel_r": "laurel.linear_right",
    "laurel_post_norm": "laurel.post_laurel_norm",
}
_GGUF_RECURRENT = {
    "ssm_in.weight": "in_proj.weight",
    "ssm_in.bias": "in_proj.bias",
    "ssm_ba.weight": "in_proj_ba.weight",
    "ssm_alpha.weight": "in_proj_a.weight",
    "ssm_beta.weight": "in_proj_b.weight",
    "ssm_conv1d.weight": "conv.weight",
    "ssm_conv1d.bias": "conv.bias",
    "ssm_conv1d_q.weight": "q_conv.weight",
    "ssm_conv1d_k.weight": "k_conv.weight",
    "ssm_conv1d_v.weight": "v_conv.weight",
    "ssm_f_a.weight": "in_proj_a_down.weight",
    "ssm_f_b.weight": "in_proj_a.weight",
    "ssm_g_a.weight": "in_proj_z_down.weight",
    "ssm_g_b.weight": "in_proj_z.weight",
    "ssm_dt.bias": "dt_bias",
    "ssm_dt.weight": "dt_proj.weight",
    "ssm_x.weight": "x_proj.weight",
    "ssm_dt_norm.weight": "dt_norm.weight",
    "ssm_b_norm.weight": "b_norm.weight",
    "ssm_c_norm.weight": "c_norm.weight",
    "ssm_a": "A",
    "ssm_d": "D",
    "ssm_norm.weight": "norm.weight",
    "ssm_out.weight": "out_proj.weight",
    "ssm_out.bias": "out_proj.bias",
    "shortconv.in_proj.weight": "in_proj.weight",
    "shortconv.conv.weight": "conv.weight",
    "shortconv.out_proj.weight": "out_proj.weight",
}
_GGUF_OWN_HEAD = {
    "eh_proj": "eh_proj",
    "enorm": "enorm",
    "hnorm": "hnorm",
    "embed_tokens": "embed_tokens",
    "shared_head_head": "shared_head.head",
    "shared_head_norm": "shared_head.norm",
    **{f"hc_head_{part}": f"hc_head.{part}" for part in ("fn", "base", "scale")},
}
"""Tensors of a draft head outside its layer, as DeepSeek's checkpoints call them."""
_GGUF_LAYERS = re.compile(r"blk\.(\d+)\.(.+)")
_GGUF_SCALES = {
    "ffn_gate_inp": "mlp.router_norm",
    "ffn_down_exps": "mlp.router.scales",
}
"""Our tensors for `.scale` of GGUF modules that have such a tensor next to their weight."""
_GGUF_EXPERT = re.compile(r"blk\.(\d+)\.ffn_(gate|up|down)\.(\d+)\.weight")
"""Before April 2024, each expert's matrix was a tensor of its own."""
_GGUF_HEAD_NAME = re.compile(r"blk\.(\d+)\.nextn\.(\w+)\.(weight|bias)")
_GGUF_NAME = re.compile(r"(?:blk\.(\d+)\.)?((?:indexer\.)?\w+)\.(weight|bias|scale)")

ROPE_FACTORS = "rope_factors"
"""Divisors of the rotary frequencies, [dims / 2]."""


_TEXT_HALF = re.compile(
    r"^(?:model\.)?(?:language_model|text_model|llm)\.(?:model\.)?(?:encoder\.(?=layers\.\d))?"
)
"""transformers 5.17 writes the layers of Qianfan-OCR's decoder as an encoder's."""
_BESIDE = re.compile(r"^(?:model\.)?mtp(?:_\w+)?\.|^model\.encoder\.")
"""What makes drafts, and an encoder-decoder model's encoder, which is a tower here."""
_DECODERS = ("transformer.", "wte.")
"""With these, names of decoders' tensors begin, too."""


@cache
def _towers() -> re.Pattern[str]:
    """Prefixes of the names of tensors outside a model's decoder, of all families."""
    # Here, because this imports every family, and only a folder of the hub's asks.
    from penstock.families.served import AUDIO_FAMILIES
    from penstock.families.vision.served import VISION_FAMILIES

    towers: list[TowerFamily] = [*VISION_FAMILIES.values(), *AUDIO_FAMILIES.values()]
    keys = {key for each in towers for key in each.hub_names}
    return beginning({key for key in keys if not key.startswith(_DECODERS)})


_OWN_HEAD = re.compile(r"^(?:model\.)?(?=mtp(?:_\w+)?\.)")
"""Prefix of the names of what makes drafts."""

_DECODER = re.compile(
    r"^(?:model\.decoder|model\.transformer|model|backbone|transformer\.encoder|transformer)\."
)
_H = re.compile(r"^(?:h|blocks)\.(?=\d+\.)")
"""What GPT-2's makers called layers, and others after them; transformers 5 writes Kimi K2.5's as
blocks."""


def unwrapped(name: str) -> str:
    """Returns the name that a checkpoint's tensor has in the model itself, where the model was
    saved with something around it. Raises UnsupportedModel for a tensor of an adapter that isn't
    merged into its model."""
    name = _WRAPPERS.sub("", name)
    if _ADAPTED.search(name):
        raise UnsupportedModel(
            f"the tensor {name} is part of an adapter that isn't merged into its model: merge it "
            "(in PEFT, merge_and_unload), or serve the model with --enable-lora"
        )
    return name.removeprefix("model.") if name.startswith("model.model.") else name


def base_names(names: Collection[str]) -> dict[str, str]:
    """Returns the names of the tensors that are a model's own, as they are without adapters. The
    original checkpoint of Phi-4-multimodal has two adapters in its weights, which are in files of
    their own too. All tensors of any other checkpoint are its own."""
    if not any(map(_BESIDE_PHI4.search, names)):
        return {name: name for name in names}
    return {name: _BASE.sub("", name) for name in names if not _PHI4_ADAPTERS.search(name)}


def from_hub(name: str) -> str | None:
    """Returns our name for a tensor of a Hugging Face checkpoint; None for one that isn't
    needed."""
    if _IGNORED.search(name) or _BESIDE.match(name) or _towers().match(name):
        return None
    return _H.sub("layers.", _DECODER.sub("", _TEXT_HALF.sub("", name)))


def with_head_from_hub(name: str) -> str | None:
    """Returns what `from_hub` does, but what makes drafts keeps its name, `mtp.…` or
    `mtp_layers.…`."""
    return _OWN_HEAD.sub("", name) if _OWN_HEAD.match(name) else from_hub(name)


def from_gguf(name: str) -> str:
    """Returns our name for a GGUF tensor. An unknown name stays as it is."""
    if name == "rope_freqs.weight":
        return ROPE_FACTORS
    in_layer = _GGUF_LAYERS.fullmatch(name)
    if in_layer is not None and in_layer[2] in _GGUF_RECURRENT:
        return f"layers.{in_layer[1]}.recurrent.{_GGUF_RECURRENT[in_layer[2]]}"
    of_head = _GGUF_HEAD_NAME.fullmatch(name)
    if of_head is not None and of_head[2] in _GGUF_OWN_HEAD:
        return f"layers.{of_head[1]}.{_GGUF_OWN_HEAD[of_head[2]]}.{of_head[3]}"
    of_expert = _GGUF_EXPERT.fullmatch(name)
    if of_expert is not None:
        layer, part, number = of_expert.groups()
        return f"layers.{layer}.mlp.experts.{number}.{part}_proj.weight"
    found = _GGUF_NAME.fullmatch(name)
    if found is None:
        return name
    layer, stem, kind = found.groups()
    if stem == "exp_probs_b" and layer is not None:
        return f"layers.{layer}.mlp.router.correction"
    if kind == "scale":
        scaled = None if layer is None else _GGUF_SCALES.get(stem)
        return name if scaled is None else f"layers.{layer}.{scaled}.weight"
    known = (_GGUF_TOP if layer is None else _GGUF_LAYER).get(stem)
    if known is None:
        return name
    return f"{known}.{kind}" if layer is None else f"layers.{layer}.{known}.{kind}"


def to_gguf(name: str) -> str:
    """Returns a GGUF file's name for a tensor of ours, of several the one that most files have. An
    unknown name stays as it is."""
    match = _OUR_LAYER.fullmatch(name)
    if match is None:
        module, _, kind = name.rpartition(".")
        return f"{_TOP_BACK[module]}.{kind}" if module in _TOP_BACK else name
    layer, module = f"blk.{match[1]}", match[2]
    if module in _IN_LAYER_BACK:
        return f"{layer}.{_IN_LAYER_BACK[module]}"
    stem, _, kind = module.rpartition(".")
    for table, end in ((_LAYER_BACK, kind), (_SCALES_BACK, "scale")):
        if stem in table:
            return f"{layer}.{table[stem]}.{end}"
    return name


def _back(table: dict[str, str]) -> dict[str, str]:
    """Returns the table the other way round: the first name where one thing has several."""
    return {ours: theirs for theirs, ours in reversed(table.items())}


_OUR_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_TOP_BACK = _back(_GGUF_TOP)
_LAYER_BACK = _back(_GGUF_LAYER) | {
    ours: f"nextn.{theirs}" for theirs, ours in _GGUF_OWN_HEAD.items()
}
_SCALES_BACK = _back(_GGUF_SCALES)
_IN_LAYER_BACK = {
    f"recurrent.{ours}": theirs for ours, theirs in _back(_GGUF_RECURRENT).items()
} | {"mlp.router.correction": "exp_probs_b.bias"}
