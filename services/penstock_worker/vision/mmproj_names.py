"""Names of the tensors in llama.cpp's mmproj files, and ours."""

from __future__ import annotations

import re

from penstock.errors import UnsupportedModel
from penstock.formats.gguf import GGUFFile
from penstock_worker.weights.stored import StoredTensor

_LAYER = re.compile(r"v\.blk\.(\d+)\.(\w+)\.(weight|bias)")
_IN_LAYER = {
    "attn_q": "q_proj",
    "attn_k": "k_proj",
    "attn_v": "v_proj",
    "attn_out": "out_proj",
    "ln1": "norm1",
    "ln2": "norm2",
    "ffn_gate": "gate_proj",
    "ffn_up": "up_proj",
    "ffn_down": "down_proj",
}
_MODULES = {
    "v.patch_embd": "patch_embedding",
    "v.position_embd": "position_embedding",
    "v.pre_ln": "first_norm",
    "v.post_ln": "last_norm",
    "mm.model.fc": "projector",
    "mm.input_projection": "projector",
    "mm.soft_emb_norm": "projector.norm",
    "mm.input_norm": "projector.norm",
    "mm.patch_merger": "projector.merging",
    "mm.1": "projector.1",
    "mm.2": "projector.2",
}
_NOT_NEEDED = ("a.", "mm.a.", "v.token_embd.img_break")
"""What a model hears with; a row of the decoder's own table."""


def from_mmproj(name: str) -> str | None:
    """Returns our name for a tensor; None for one that isn't needed. An unknown name stays."""
    if name.startswith(_NOT_NEEDED):
        return None
    layer = _LAYER.fullmatch(name)
    if layer is not None and layer[2] in _IN_LAYER:
        return f"layers.{layer[1]}.{_IN_LAYER[layer[2]]}.{layer[3]}"
    module, _, kind = name.rpartition(".")
    return f"{_MODULES[module]}.{kind}" if module in _MODULES else name


def mmproj_tensors(path: str) -> dict[str, StoredTensor]:
    """Returns a file's tensors by our names. Raises UnsupportedModel for a broken file,
    ModelNotFound for a missing one."""
    found: dict[str, StoredTensor] = {}
    for tensor in GGUFFile(path, vocabulary=False).tensors.values():
        name = from_mmproj(tensor.name)
        if name is None:
            continue
        if name in found:
            raise UnsupportedModel(f"{path}: two tensors have the meaning of {tensor.name}")
        found[name] = StoredTensor(tensor.name, tensor.shape, tensor.type, tensor.data)
    return found
