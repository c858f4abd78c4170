"""Names of the tensors of towers and projectors in checkpoints of the hub, and ours.

Several namings occur: CLIP's and SigLIP's, which differ in prefixes alone, Qwen's, InternVL's,
Pixtral's and Llama 4's. Releases of transformers have put different prefixes before each; none of
them tells anything.
"""

from __future__ import annotations

import re

_TOWER = re.compile(
    r"^(?:model\.)?(?:vision_tower\.vision_model|vision_tower|vision_model|visual)\."
)
_PROJECTOR = re.compile(r"^(?:model\.)?(?:multi_modal_projector|connector)\.")
_LAYER = re.compile(
    r"^(?:encoder\.layers?|transformer\.layers|model\.layers|blocks)\.(\d+)\.(.+?)(\.weight|\.bias)?$"
)
_MODULE = re.compile(r"^(.+?)(\.weight|\.bias)?$")

_IN_LAYER = {
    "layer_norm1": "norm1",
    "layer_norm2": "norm2",
    "norm1": "norm1",
    "norm2": "norm2",
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.out_proj": "out_proj",
    "self_attn.o_proj": "out_proj",
    "input_layernorm": "norm1",
    "post_attention_layernorm": "norm2",
    "attn.qkv": "qkv",
    "attn.proj": "out_proj",
    "mlp.fc1": "up_proj",
    "mlp.linear_fc1": "up_proj",
    "mlp.linear_fc2": "down_proj",
    "mlp.fc2": "down_proj",
    "attention.q_proj": "q_proj",
    "attention.k_proj": "k_proj",
    "attention.v_proj": "v_proj",
    "attention.o_proj": "out_proj",
    "attention.projection_layer": "out_proj",
    "attention.q_norm": "q_norm",
    "attention.k_norm": "k_norm",
    "attention_norm": "norm1",
    "ffn_norm": "norm2",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "lambda_1": "scale1",
    "lambda_2": "scale2",
    "feed_forward.gate_proj": "gate_proj",
    "feed_forward.up_proj": "up_proj",
    "feed_forward.down_proj": "down_proj",
    "mlp.gate_proj": "gate_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "down_proj",
}
_OF_TOWER = {
    "embeddings.class_embedding": "class_embedding",
    "embeddings.patch_embedding": "patch_embedding",
    "embeddings.position_embedding": "position_embedding",
    "embeddings.cls_token": "cls_token",
    "embeddings.patch_embeddings.projection": "patch_embedding",
    "embeddings.position_embeddings": "position_embeddings",
    "layernorm": "last_norm",
    "patch_embedding.linear": "patch_matrix",
    "positional_embedding_vlm": "positions_before_class",
    "layernorm_pre": "first_norm",
    "layernorm_post": "last_norm",
    "vision_adapter.mlp.fc1": "projector.adapter.1",
    "vision_adapter.mlp.fc2": "projector.adapter.2",
    "patch_conv": "patch_embedding",
    "ln_pre": "first_norm",
    "patch_embed.proj": "patch_embedding",
    "pre_layrnorm": "first_norm",
    "post_layernorm": "last_norm",
    "merger.ln_q": "projector.norm",
    "merger.mlp.0": "projector.1",
    "merger.mlp.2": "projector.2",
    "merger.norm": "projector.norm",
    "merger.linear_fc1": "projector.1",
    "merger.linear_fc2": "projector.2",
    "pos_embed": "position_embedding",
}
_TAP = re.compile(r"^deepstack_merger_list\.(\d+)\.")
_OF_PROJECTOR = {
    "linear_1": "projector.1",
    "linear_2": "projector.2",
    "layer_norm": "projector.norm",
    "norm": "projector.norm",
    "patch_merger.merging_layer": "projector.merging",
    "modality_projection.proj": "projector",
    "mm_soft_emb_norm": "projector.norm",
    "mm_input_projection_weight": "projector.weight",
}
_OF_PICTURES = re.compile(r"^visual_projection\b")
"""CLIP's names of what makes its pictures' vectors."""
_NEWLINE = re.compile(r"^(?:model\.)?image_newline$")
_NOT_NEEDED = re.compile(r"(^|\.)(embeddings\.(position_ids|mask_token)|rotary_pos_emb\.inv_freq)$")
"""Buffers that old checkpoints saved, although the configuration determines them; what stands for
hidden patches in training."""


def from_hub(name: str) -> str | None:
    """Returns our name for a tensor of a tower or a projector; None for another half's. An unknown
    name stays as it is, without its prefix."""
    if _NOT_NEEDED.search(name):
        return None
    if _TOWER.match(name):
        return _in_tower(_TOWER.sub("", name))
    if _PROJECTOR.match(name):
        return _known(_PROJECTOR.sub("", name), _OF_PROJECTOR)
    if _OF_PICTURES.match(name):
        return _OF_PICTURES.sub("head.projection", name)
    return "projector.newline" if _NEWLINE.match(name) else None


def _in_tower(name: str) -> str:
    tap = _TAP.match(name)
    if tap is not None:
        inner = _known(_TAP.sub("merger.", name), _OF_TOWER)
        return inner.replace("projector.", f"projector.taps.{tap[1]}.", 1)
    layer = _LAYER.fullmatch(name)
    if layer is None:
        return _known(name, _OF_TOWER)
    number, module, kind = layer.groups()
    return f"layers.{number}.{_IN_LAYER.get(module, module)}{kind or ''}"


def _known(name: str, modules: dict[str, str]) -> str:
    module, kind = _parts(name)
    return modules.get(module, module) + kind


def _parts(name: str) -> tuple[str, str]:
    match = _MODULE.fullmatch(name)
    if match is None:
        return name, ""
    return match[1], match[2] or ""
