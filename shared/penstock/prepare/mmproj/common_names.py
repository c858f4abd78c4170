"""Names of tensors that several kinds of mmproj files have in common."""

from __future__ import annotations

from penstock.families.tower_names import TowerNames, under

IN_LAYER: TowerNames = {
    **{f"attn_{part}": f"{part}_proj" for part in "qkv"},
    "attn_qkv": "qkv",
    "attn_q_norm": "q_norm",
    "attn_k_norm": "k_norm",
    "attn_out": "out_proj",
    "ln1": "norm1",
    "ln2": "norm2",
    "ls1.weight": "scale1",
    "ls2.weight": "scale2",
    "ffn_gate": "gate_proj",
    "ffn_up": "up_proj",
    "ffn_down": "down_proj",
}
"""Modules of a layer."""
NOT_SEEN: TowerNames = dict.fromkeys(("a", "mm.a", "v.token_embd.img_break", "v.head"))
"""Tensors that aren't the vision tower's: the audio tower; a row of the decoder's own table; what
pools SigLIP's patches."""
TOWER: TowerNames = {
    **NOT_SEEN,
    "v.class_embd": "class_embedding",
    "v.patch_embd": "patch_embedding",
    "v.position_embd": "position_embedding",
    "v.pre_ln": "first_norm",
    "v.post_ln": "last_norm",
    **under("v.blk.*", IN_LAYER, "layers.*"),
}
"""A tower of patches."""
OF_FRAMES: TowerNames = {
    "v.patch_embd.weight": "patch_embedding.0.weight",
    "v.patch_embd.weight.1": "patch_embedding.1.weight",
}
"""A kernel for each of two frames."""
PROJECTOR: TowerNames = {
    "mm.input_norm": "projector.norm",
    "mm.1": "projector.1",
    "mm.2": "projector.2",
}
"""A norm and two products."""
HEARS: TowerNames = {
    "a": "a",
    "mm.a": "mm.a",
    "a.conv1d.1": "conv1",
    "a.conv1d.2": "conv2",
    **{f"a.conv2d.{number}": f"conv2d{number}" for number in (1, 2, 3)},
    "a.conv_out": "conv_out",
    "a.position_embd": "position_embedding",
    "a.post_ln": "last_norm",
    "mm.a.fc": "projector",
    "mm.a.mlp.1": "projector.1",
    "mm.a.mlp.2": "projector.2",
    **under("a.blk.*", IN_LAYER, "layers.*"),
}
"""Whisper's encoder, and encoders with its layers, before one or two products."""
