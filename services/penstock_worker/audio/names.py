"""Names of the tensors of towers that hear, and of their projectors, in checkpoints of the hub, and
ours."""

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
_PROJECTOR = re.compile(r"^(?:model\.)?multi_modal_projector\.")
_OF_PROJECTOR = {"linear": "projector", "linear_1": "projector.1", "linear_2": "projector.2"}
ZERO_BIASES = ("k_proj",)
"""Modules of every layer without biases, where others that share the product have some."""


def from_hub(name: str) -> str | None:
    """Returns our name for a tensor of a tower or a projector; None for another half's. An unknown
    name stays as it is, without its prefix."""
    if _PROJECTOR.match(name):
        return _known(_PROJECTOR.sub("", name), _OF_PROJECTOR)
    if not _TOWER.match(name):
        return None
    inner = _TOWER.sub("", name)
    layer = _LAYER.fullmatch(inner)
    if layer is not None:
        number, module, kind = layer.groups()
        return f"layers.{number}.{_IN_LAYER.get(module, module)}{kind}"
    return _known(inner, _OF_TOWER)


def _known(name: str, modules: dict[str, str]) -> str:
    match = _MODULE.fullmatch(name)
    return name if match is None else modules.get(match[1], match[1]) + match[2]
