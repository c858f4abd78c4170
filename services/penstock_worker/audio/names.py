"""Names of the tensors of towers that hear in checkpoints of the hub, and ours."""

from __future__ import annotations

import re

_TOWER = re.compile(r"^(?:model\.)?(?:encoder|audio_tower)\.")
_LAYER = re.compile(r"^layers\.(\d+)\.(.+?)(\.weight|\.bias)$")
_MODULE = re.compile(r"^(.+?)(\.weight|\.bias)$")

_IN_LAYER = {
    "self_attn_layer_norm": "norm1",
    "final_layer_norm": "norm2",
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.out_proj": "out_proj",
    "fc1": "up_proj",
    "fc2": "down_proj",
}
_OF_TOWER = {"embed_positions": "position_embedding", "layer_norm": "last_norm"}
ZERO_BIASES = ("k_proj",)
"""Modules of every layer without biases, where others that share the product have some."""


def from_hub(name: str) -> str | None:
    """Returns our name for a tensor of a tower; None for another half's. An unknown name stays as
    it is, without its prefix."""
    if not _TOWER.match(name):
        return None
    inner = _TOWER.sub("", name)
    layer = _LAYER.fullmatch(inner)
    if layer is not None:
        number, module, kind = layer.groups()
        return f"layers.{number}.{_IN_LAYER.get(module, module)}{kind}"
    match = _MODULE.fullmatch(inner)
    return inner if match is None else _OF_TOWER.get(match[1], match[1]) + match[2]
