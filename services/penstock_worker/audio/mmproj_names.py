"""Names of the tensors that hear in llama.cpp's mmproj files, and ours."""

from __future__ import annotations

import re

from penstock.formats.gguf import GGUFFile
from penstock_worker.vision.mmproj_names import IN_LAYER
from penstock_worker.weights.mmproj import read_tensors
from penstock_worker.weights.stored import StoredTensor

_LAYER = re.compile(r"a\.blk\.(\d+)\.(\w+)\.(weight|bias)")
_MODULES = {
    "a.conv1d.1": "conv1",
    "a.conv1d.2": "conv2",
    "a.position_embd": "position_embedding",
    "a.post_ln": "last_norm",
    "mm.a.fc": "projector",
    "mm.a.mlp.1": "projector.1",
    "mm.a.mlp.2": "projector.2",
}
_FLAT = frozenset({"conv1.bias", "conv2.bias"})


def from_mmproj(name: str) -> str | None:
    """Returns our name for a tensor. An unknown name stays."""
    layer = _LAYER.fullmatch(name)
    if layer is not None and layer[2] in IN_LAYER:
        return f"layers.{layer[1]}.{IN_LAYER[layer[2]]}.{layer[3]}"
    module, _, kind = name.rpartition(".")
    return f"{_MODULES[module]}.{kind}" if module in _MODULES else name


def mmproj_sounds(path: str) -> dict[str, StoredTensor]:
    """Returns a file's tensors by our names. Raises UnsupportedModel for a broken file,
    ModelNotFound for a missing one."""
    return read_tensors(GGUFFile(path, vocabulary=False), from_mmproj, _FLAT)
