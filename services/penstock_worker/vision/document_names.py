"""Names of the tensors of DeepSeek-OCR 2's tower and what follows it, in the makers' files, in
transformers' and in llama.cpp's, and ours."""

from __future__ import annotations

import re

_SAM = re.compile(r"^(?:model\.)?(?:sam_model|vision_tower\.sam_encoder)\.")
_QUERIES = re.compile(
    r"^(?:model\.)?(?:qwen2_model\.(?:model\.model\.)?|vision_tower\.(?=vision_encoder\.|query_))"
    r"(?:vision_encoder\.)?"
)
_OUT = re.compile(r"^(?:model\.)?(?:projector\.layers|multi_modal_projector)\.(?=weight$|bias$)")
_END = re.compile(r"^(?:model\.)?view_sep[ae]rator$")
_CLIP_LAYER = re.compile(
    r"^(?:model\.)?vision_model\.transformer\.(layers\.\d+)\.(.+?)(\.weight|\.bias)$"
)
_IN_CLIP = {
    "layer_norm1": "norm1",
    "layer_norm2": "norm2",
    "self_attn.qkv_proj": "qkv",
    "self_attn.out_proj": "out_proj",
    "mlp.fc1": "up_proj",
    "mlp.fc2": "down_proj",
}
_LAYER = re.compile(r"^(?:blocks|layers)\.(\d+)\.(.+?)(\.weight|\.bias)?$")
_IN_SAM = {
    "norm1": "norm1",
    "norm2": "norm2",
    "layer_norm1": "norm1",
    "layer_norm2": "norm2",
    "attn.qkv": "qkv",
    "attn.proj": "out_proj",
    "attn.rel_pos_h": "distances.rows",
    "attn.rel_pos_w": "distances.columns",
    "mlp.lin1": "up_proj",
    "mlp.lin2": "down_proj",
}
_OF_SAM = {
    "patch_embed.proj": "sam_embedding",
    "patch_embed.projection": "sam_embedding",
    "pos_embed": "position_grid",
    "neck.0": "projector.neck.0",
    "neck.1": "projector.neck.norm0",
    "neck.2": "projector.neck.1",
    "neck.3": "projector.neck.norm1",
    "net_2": "projector.smaller.0",
    "net_3": "projector.smaller.1",
    "neck.conv1": "projector.neck.0",
    "neck.layer_norm1": "projector.neck.norm0",
    "neck.conv2": "projector.neck.1",
    "neck.layer_norm2": "projector.neck.norm1",
    "proj.conv1": "projector.smaller.0",
    "proj.conv2": "projector.smaller.1",
}
DOCUMENTS = ("deepseekocr", "deepseekocr2")
"""clip.projector_type of llama.cpp's files."""
_SAM_IN_FILE = re.compile(r"^v\.sam\.blk\.(\d+)\.(.+)\.(weight|bias)$")
_LAYER_IN_FILE = re.compile(r"^v\.blk\.(\d+)\.(\w+)\.(weight|bias)$")
_IN_SAM_IN_FILE = {
    "pre_ln": "norm1.{}",
    "post_ln": "norm2.{}",
    "attn.qkv": "qkv.{}",
    "attn.out": "out_proj.{}",
    "attn.pos_h": "distances.rows",
    "attn.pos_w": "distances.columns",
    "mlp.lin1": "up_proj.{}",
    "mlp.lin2": "down_proj.{}",
}
_IN_LAYER_IN_FILE = {
    "ln1": "norm1",
    "ln2": "norm2",
    "attn_qkv": "qkv",
    "attn_q": "q_proj",
    "attn_k": "k_proj",
    "attn_v": "v_proj",
    "attn_out": "out_proj",
    "ffn_gate": "gate_proj",
    "ffn_up": "up_proj",
    "ffn_down": "down_proj",
}
_IN_FILE = {
    "v.sam.patch_embd.weight": "sam_embedding.weight",
    "v.sam.patch_embd.bias": "sam_embedding.bias",
    "v.sam.pos_embd.weight": "position_grid",
    "v.sam.neck.0.weight": "projector.neck.0.weight",
    "v.sam.neck.1.weight": "projector.neck.norm0.weight",
    "v.sam.neck.1.bias": "projector.neck.norm0.bias",
    "v.sam.neck.2.weight": "projector.neck.1.weight",
    "v.sam.neck.3.weight": "projector.neck.norm1.weight",
    "v.sam.neck.3.bias": "projector.neck.norm1.bias",
    "v.sam.net_2.weight": "projector.smaller.0.weight",
    "v.sam.net_3.weight": "projector.smaller.1.weight",
    "v.class_embd": "class_embedding",
    "v.position_embd.weight": "position_embedding.weight",
    "v.patch_embd.weight": "patch_embedding.weight",
    "v.pre_ln.weight": "first_norm.weight",
    "v.pre_ln.bias": "first_norm.bias",
    "v.image_newline": "projector.newline",
    "v.resample_query_768.weight": "projector.queries.0.weight",
    "v.resample_query_1024.weight": "projector.queries.1.weight",
    "v.post_ln.weight": "projector.norm.weight",
    "v.view_seperator": "projector.end",
    "mm.model.fc.weight": "projector.out.weight",
    "mm.model.fc.bias": "projector.out.bias",
}
_IN_QUERIES = {
    "input_layernorm": "norm1",
    "post_attention_layernorm": "norm2",
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.o_proj": "out_proj",
    "mlp.gate_proj": "gate_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "down_proj",
}
_OF_QUERIES = {
    "norm": "projector.norm",
    "query_768": "projector.queries.0",
    "query_1024": "projector.queries.1",
    "query_768_resolution": "projector.queries.0",
    "query_1024_resolution": "projector.queries.1",
}


DOCUMENT_MODULES = frozenset().union(_OF_SAM, _IN_SAM, _OF_QUERIES, ("view_seperator",))
"""Modules in the names that of_document knows."""


def of_document(name: str) -> str | None:
    """Returns our name for a tensor; None for one of another model, or another half's. An unknown
    name stays as it is, without its prefix."""
    if _SAM.match(name):
        return _named(_SAM.sub("", name), _IN_SAM, _OF_SAM, "")
    if _QUERIES.match(name):
        return _named(_QUERIES.sub("", name), _IN_QUERIES, _OF_QUERIES, "projector.")
    if (layer := _CLIP_LAYER.fullmatch(name)) is not None:
        return f"projector.{layer[1]}.{_IN_CLIP.get(layer[2], layer[2])}{layer[3]}"
    if _OUT.match(name):
        return _OUT.sub("projector.out.", name)
    return "projector.end" if _END.match(name) else None


def _named(name: str, in_layer: dict[str, str], outside: dict[str, str], within: str) -> str:
    layer = _LAYER.fullmatch(name)
    if layer is not None:
        number, module, kind = layer.groups()
        return f"{within}layers.{number}.{in_layer.get(module, module)}{kind or ''}"
    for kind in (".weight", ".bias", ""):
        module = name.removesuffix(kind)
        if name.endswith(kind) and module in outside:
            return f"{outside[module]}{kind}"
    return name


def of_document_file(name: str) -> str:
    """Returns our name for a tensor of an mmproj file. An unknown name stays."""
    sam, layer = _SAM_IN_FILE.fullmatch(name), _LAYER_IN_FILE.fullmatch(name)
    if sam is not None and sam[2] in _IN_SAM_IN_FILE:
        return f"layers.{sam[1]}.{_IN_SAM_IN_FILE[sam[2]].format(sam[3])}"
    if layer is not None and layer[2] in _IN_LAYER_IN_FILE:
        return f"projector.layers.{layer[1]}.{_IN_LAYER_IN_FILE[layer[2]]}.{layer[3]}"
    return _IN_FILE.get(name, name)
