"""What tensors of a tower are called in checkpoints of the hub, and here. Prefixes tell nothing."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from functools import partial

from penstock_worker.vision.aligner_names import of_aligner
from penstock_worker.vision.aspects import ASPECT_MODULES, of_aspects
from penstock_worker.vision.crops import of_crops
from penstock_worker.vision.document_names import DOCUMENT_MODULES, of_document
from penstock_worker.vision.mobilenet import IN_EMBEDDER, of_mobilenet
from penstock_worker.vision.perception_names import PERCEPTION_MODULES, of_perception
from penstock_worker.vision.resampler import RESAMPLER_MODULES, of_resampler
from penstock_worker.vision.sheets import TOWER as SHEET_TOWER
from penstock_worker.vision.sheets import of_sheet

_TOWER = re.compile(
    r"^(?:model\.)?"
    rf"(?:{SHEET_TOWER}|vision_tower\.vision_model|vision_tower|vision_model\.vision_model|vision_model\.vision_tower|vision_model|vision_encoder|visual\.vision_model|visual|vpm)\."
)
_PROJECTOR = re.compile(
    r"^(?:model\.)?(?:multi_modal_projector|vision_projection|mlp_AR|mlp1|mm_projector|projector|connector|merger|embed_vision|vision_embedder)\."
)
_LAYER = re.compile(
    r"^(?:encoder\.layers?|transformer\.layers|model\.layers|layers|blocks)\.(\d+)\.(.+?)(?:\.linear)?"
    r"(\.weight|\.bias|\.(?:in|out)put_(?:min|max))?$"
)
_MOONVIT = re.compile(r"^encoder\.blocks\.(\d+)\.(.+?)(\.weight|\.bias)?$")
"""A layer of Kimi K2.5's, whose modules count from 0."""
_IN_MOONVIT = {
    "norm0": "norm1",
    "norm1": "norm2",
    "mlp.fc0": "up_proj",
    "mlp.fc1": "down_proj",
    "wqkv": "qkv",
    "wo": "out_proj",
}
_MERGING = re.compile(r"^vit_merger\.(.+?)(\.weight|\.bias)?$")
"""What merges squares of patches between two of MiniCPM-V's layers."""
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
    "pre_feedforward_layernorm": "norm3",
    "post_feedforward_layernorm": "norm4",
    "self_attn.q_norm": "q_norm",
    "self_attn.k_norm": "k_norm",
    "attn.qkv": "qkv",
    "attn.q": "q_proj",
    "attn.k": "k_proj",
    "attn.v": "v_proj",
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
    "attn.q_norm": "q_norm",
    "attn.k_norm": "k_norm",
    "attention.q_norm": "q_norm",
    "attention.k_norm": "k_norm",
    "attention_norm": "norm1",
    "ffn_norm": "norm2",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "lambda_1": "scale1",
    "lambda_2": "scale2",
    "ls1": "scale1",
    "ls2": "scale2",
    "feed_forward.gate_proj": "gate_proj",
    "feed_forward.up_proj": "up_proj",
    "feed_forward.down_proj": "down_proj",
    "block_sparse_moe.fc1": "up_proj",  # as transformers saves MiniMax M3's mlp
    "block_sparse_moe.fc2": "down_proj",
    "mlp.gate_proj": "gate_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "down_proj",
}
_IN_MERGING = _IN_LAYER | {"pre_norm": "norm2", "linear_1": "up_proj", "linear_2": "down_proj"}
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
    "patch_embedder.input_proj": "patch_embedding",
    "patch_embedder.position_embedding_table": "axial_positions.weight",
    "std_bias": "projector.std_bias",
    "std_scale": "projector.std_scale",
    "ln_pre": "first_norm",
    "patch_embed.proj": "patch_embedding",
    "pre_layrnorm": "first_norm",
    "post_layernorm": "last_norm",
    "merger.ln_q": "projector.norm",
    "merger.mlp.0": "projector.1",
    "merger.mlp.2": "projector.2",
    "merger.norm": "projector.norm",
    "downsample": "projector.merging",
    "merger.proj": "projector.1",
    "merger.post_projection_norm": "projector.norm",
    "merger.gate_proj": "projector.gate_proj",
    "merger.up_proj": "projector.up_proj",
    "merger.down_proj": "projector.down_proj",
    "post_conv_layernorm": "patch_norm",
    "merger.linear_fc1": "projector.1",
    "merger.linear_fc2": "projector.2",
    "pos_embed": "position_embedding",
    "encoder.final_layernorm": "last_norm",
    "encoder.patch_embed.proj": "patch_embedding",
}
_DEEPSTACK = re.compile(r"^(?:deepstack_)?merger_list\.(\d+)\.")
_OF_PROJECTOR = {
    "linear_1": "projector.1",
    "linear_2": "projector.2",
    "layer_norm": "projector.norm",
    "layernorm": "projector.norm",
    "norm": "projector.norm",
    "pre_norm": "projector.norm",
    "proj.0": "projector.1",
    "proj.2": "projector.2",
    "0": "projector.norm",  # Qianfan-OCR's makers count modules
    "1": "projector.1",
    "3": "projector.2",
    "mlp.0.pre_norm": "projector.norm",
    "mlp.0.linear_1": "projector.1",
    "mlp.0.linear_2": "projector.2",
    "merge_linear_1": "projector.squares.1",
    "merge_linear_2": "projector.squares.2",
    "patch_merger.merging_layer": "projector.merging",
    "modality_projection.proj": "projector",
    "mm_soft_emb_norm": "projector.norm",
    "mm_input_projection_weight": "projector.weight",
    "embedding_projection": "projector",
    "multimodal_embedder.embedding_projection": "projector",  # as transformers calls it itself
    "patch_ln1": "pixel_norm",
    "patch_dense": "patch_embedding",
    "patch_ln2": "patch_norm",
    "pos_embedding": "axial_positions.by_place",
    "pos_norm": "first_norm",
}
_OF_SQUARES = re.compile(r"^(?:model\.)?patch_merge_mlp\.linear_")
"""The second half of MiniMax M3's projector."""
_OF_PICTURES = re.compile(r"^visual_projection\b")
"""CLIP's names of what makes its pictures' vectors."""
_WINDOWS = re.compile(r"^(?:model\.)?(layerwise|spatial)_projectors\.(\d+)\.")
"""Granite 4 Vision's projectors, whose queries see windows."""
_NEWLINE = re.compile(r"^(?:model\.)?image_newline$")
_NOT_NEEDED = re.compile(
    r"(^|\.)(embeddings\.(position_ids|mask_token|packing_position_embedding\.weight)|pos_emb\.time_weight|rotary_pos_emb\.inv_freq)$"
)
"""Buffers that old checkpoints saved, although the configuration determines them; what stands for
hidden patches in training."""


Namer = Callable[[str], str | None]
OWN: dict[str, Namer] = {
    "deepseek_ocr": of_document,
    "deepseek_ocr2": of_document,
    "phi3_v": of_sheet,
    "phi4_multimodal": of_sheet,
    "step3p7": of_perception,
    "molmo2": of_crops,
    "deepseek_vl": of_aligner,
    "deepseek_vl_hybrid": of_aligner,
    "janus": of_aligner,
    "multi_modality": of_aligner,
    "gemma3n": of_mobilenet,
    "minicpmv": of_resampler,
}
"""What reads names of tensors that only a family's files have, by the family; None for others. No
other family's names are read so."""
ALONE: dict[str, tuple[Namer, frozenset[str]]] = {"mllama": (of_aspects, ASPECT_MODULES)}
"""Families whose names have nothing in common with others', and the modules in them."""


def names_of(family: str) -> tuple[Namer, Collection[str]]:
    """What returns our name for a tensor of a tower or a projector of a family of models, and
    modules in the names that it knows; it returns None for another half's, and an unknown name as
    it is, without its prefix. family: "": any."""
    if family in ALONE:
        return ALONE[family]
    if not family:
        return from_hub, HUB_MODULES
    own = OWN.get(family)
    return partial(from_hub, own=() if own is None else (own,)), HUB_MODULES


def from_hub(name: str, own: Sequence[Namer] = tuple(dict.fromkeys(OWN.values()))) -> str | None:
    """Returns our name for a tensor of a tower or a projector; None for another half's. An unknown
    name stays as it is, without its prefix. own: what reads a family's own names first."""
    if _NOT_NEEDED.search(name):
        return None
    for of_family in own:
        if (found := of_family(name)) is not None:
            return found
    if _TOWER.match(name):
        return _in_tower(_TOWER.sub("", name))
    if _PROJECTOR.match(name):
        return _known(_PROJECTOR.sub("", name), _OF_PROJECTOR)
    if (window := _WINDOWS.match(name)) is not None:
        return f"projector.{window[1]}.{window[2]}.{name[window.end() :]}"
    if _OF_SQUARES.match(name):
        return _OF_SQUARES.sub("projector.squares.", name)
    if _OF_PICTURES.match(name):
        return _OF_PICTURES.sub("head.projection", name)
    return "projector.newline" if _NEWLINE.match(name) else None


HUB_MODULES = {*_IN_LAYER, *_OF_TOWER, *_OF_PROJECTOR, *DOCUMENT_MODULES, *PERCEPTION_MODULES}
HUB_MODULES |= IN_EMBEDDER.keys() | RESAMPLER_MODULES
"""Modules in the names that from_hub knows."""


def _in_tower(name: str) -> str:
    merger = _DEEPSTACK.match(name)
    if merger is not None:
        inner = _known(_DEEPSTACK.sub("merger.", name), _OF_TOWER)
        return inner.replace("projector.", f"projector.deepstack.{merger[1]}.", 1)
    moonvit = _MOONVIT.fullmatch(name)
    if moonvit is not None:
        number, module, kind = moonvit.groups()
        return f"layers.{number}.{_IN_MOONVIT.get(module, module)}{kind or ''}"
    merging = _MERGING.fullmatch(name)
    if merging is not None:
        return f"merging.{_IN_MERGING.get(merging[1], merging[1])}{merging[2] or ''}"
    if name == "patch_embed.pos_emb.weight":
        return "position_grid"
    layer = _LAYER.fullmatch(name)
    if layer is None:
        return _known(name, _OF_TOWER)
    number, module, kind = layer.groups()
    return f"layers.{number}.{_IN_LAYER.get(module, module)}{kind or ''}"


def _known(name: str, modules: dict[str, str]) -> str:
    match = _MODULE.fullmatch(name)
    return name if match is None else modules.get(match[1], match[1]) + (match[2] or "")
