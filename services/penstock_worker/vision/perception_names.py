"""Names of the tensors of a perception encoder, and of what follows it in Step 3.7's files, and
ours."""

from __future__ import annotations

import re

_TOWER = re.compile(
    r"^(?:model\.)?vision_model\.(?=conv1|ln_pre|positional_embedding$|transformer\.res|vit_)"
)
_PRODUCT = re.compile(r"^(?:model\.)?vit_large_projector\.(?=weight$|bias$)")
_LAYER = re.compile(r"^transformer\.resblocks\.(\d+)\.(.+)$")
_IN_LAYER = {
    "attn.in_proj_weight": "qkv.weight",
    "attn.in_proj_bias": "qkv.bias",
    "attn.out_proj.weight": "out_proj.weight",
    "attn.out_proj.bias": "out_proj.bias",
    "ln_1.weight": "norm1.weight",
    "ln_1.bias": "norm1.bias",
    "ln_2.weight": "norm2.weight",
    "ln_2.bias": "norm2.bias",
    "ls_1.gamma": "scale1",
    "ls_2.gamma": "scale2",
    "mlp.c_fc.weight": "up_proj.weight",
    "mlp.c_fc.bias": "up_proj.bias",
    "mlp.c_proj.weight": "down_proj.weight",
    "mlp.c_proj.bias": "down_proj.bias",
}
_OUTSIDE = {
    "conv1.weight": "patch_embedding.weight",
    "positional_embedding": "position_embedding.weight",
    "ln_pre.weight": "first_norm.weight",
    "ln_pre.bias": "first_norm.bias",
    "vit_downsampler1.weight": "projector.halving.0.weight",
    "vit_downsampler1.bias": "projector.halving.0.bias",
    "vit_downsampler2.weight": "projector.halving.1.weight",
    "vit_downsampler2.bias": "projector.halving.1.bias",
}


PERCEPTION_MODULES = frozenset().union(_OUTSIDE, ("vit_large_projector",))
"""Tensors and modules in the names that of_perception knows, outside of layers."""


def of_perception(name: str) -> str | None:
    """Returns our name for a tensor; None for one of another model, or another half's. An unknown
    name stays as it is, without its prefix."""
    if _PRODUCT.match(name):
        return _PRODUCT.sub("projector.", name)
    if not _TOWER.match(name):
        return None
    inner = _TOWER.sub("", name)
    layer = _LAYER.fullmatch(inner)
    if layer is not None:
        return f"layers.{layer[1]}.{_IN_LAYER.get(layer[2], layer[2])}"
    return _OUTSIDE.get(inner, inner)
