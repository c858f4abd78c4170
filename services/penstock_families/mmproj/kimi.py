"""mmproj files of Kimi K2.5 and K2.6, and of Kimi-VL: one tower, MoonViT.

Source: llama.cpp's converter, and the makers' processors for what no file says.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import UnsupportedModel
from penstock.families.vision.image_processor import HALF
from penstock.families.vision.qwen_vl import MAX_MERGE
from penstock.families.vision.reading import MAX_SIDE, bounded
from penstock.forms.patches import PatchImages
from penstock.model.layer_spec import NormSpec
from penstock.model.projector_spec import MergerProjector
from penstock.model.tower_spec import RotaryPositions, VisionSpec
from penstock.prepare.mmproj.common_names import PROJECTOR, TOWER
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens, of_pictures, side_of_table
from penstock.prepare.mmproj.kinds import MmprojKind
from penstock.prepare.mmproj.qwen_vl import MAX_PICTURE
from penstock_families.vision.kimi_k25 import EPS

TOKEN = "<|media_pad|>"
MOST_SIDE = 512
"""Patches that a side has at most."""
MOST, MOST_OF_VL = 16_384, 4096
"""Patches that a picture has at most, where the file doesn't say, as Kimi-VL's never does."""


def kimi_k25(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    """The converter puts what turns by column in the first half of a head. The file's epsilon is
    the projector's."""
    rows, columns, _ = found.shape("v.position_embd.weight", 3)
    if not 1 <= rows == columns <= MAX_SIDE:
        raise UnsupportedModel(
            f"{found.file.path}: v.position_embd.weight has {rows} × {columns} places; a square of "
            f"up to {MAX_SIDE} each way is needed"
        )
    eps = found.norm_eps()
    return _seen(found, tokens, rows, eps=eps, most=MOST, columns_first=True)


def kimi_vl(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    """Queries and keys are as in the makers' files, and so are their pairs."""
    return _seen(found, tokens, side_of_table(found), eps=EPS, most=MOST_OF_VL, by_turns=True)


def _seen(
    found: MmprojFile, tokens: MmprojTokens, table: int, *, eps: float, most: int, **pairs: Any
) -> tuple[VisionSpec, Kinds]:
    """eps: of the projector's norm.  pairs: RotaryPositions' fields about them."""
    tower = found.tower(
        "layer",
        eps=EPS,
        activation=found.activation("gelu_tanh"),
        patch_bias=True,
        last_norm=True,
        positions=RotaryPositions(table=table, cubic=True, adjacent=True, **pairs),
    )
    if tower.head_dim % 4:
        raise found.keys.wrong("attention.head_count", "heads of a multiple of 4 numbers")
    merge = bounded(found.keys, "projector.scale_factor", MAX_MERGE, 2)
    least = (tower.patch * merge) ** 2
    pixels = bounded(found.keys, "image_max_pixels", MAX_PICTURE, most * tower.patch**2)
    if pixels < least:
        raise found.keys.wrong("image_max_pixels", f"at least {least}")
    preparation = PatchImages(
        pixels=found.pixels(3, HALF, HALF),
        min_pixels=least,
        max_pixels=pixels,
        patch=tower.patch,
        merge=merge,
        frames=1,
        most_side=MOST_SIDE,
    )
    norm = NormSpec(kind="layer", eps=eps, bias=True)
    vision = VisionSpec(tower=tower, projector=MergerProjector(side=merge, norm=norm))
    return vision, of_pictures(preparation, tokens.id_of(TOKEN))


KIMI_VL = MmprojKind("kimivl", "Kimi-VL", ("deepseek_v3",), kimi_vl, {**TOWER, **PROJECTOR})
KIMI_K25 = MmprojKind(
    "kimik25",
    "Kimi K2.5 or K2.6",
    ("deepseek_v3",),
    kimi_k25,
    {**TOWER, **PROJECTOR, "v.position_embd.weight": "position_grid"},
)
