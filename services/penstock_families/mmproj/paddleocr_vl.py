"""mmproj files of PaddleOCR-VL, whose image_size is the side of the largest picture, and not of the
table of positions."""

from __future__ import annotations

from penstock.families.vision.image_processor import CLIP_MEAN, CLIP_STD
from penstock.forms.patches import PatchImages
from penstock.model.projector_spec import MergerProjector
from penstock.model.tower_spec import RotaryPositions, VisionSpec
from penstock.prepare.mmproj.common_names import PROJECTOR, TOWER
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens, of_pictures, side_of_table
from penstock.prepare.mmproj.kinds import MmprojKind
from penstock.prepare.mmproj.qwen_vl import merge_of, patch_tower, pixel_bounds
from penstock_families.vision.paddleocr_vl import PROJECTOR_NORM

TOKEN = "<|IMAGE_PLACEHOLDER|>"
PIXELS = (384 * 384, 1536 * 1536)
"""The fewest and the most that a picture has, where the file doesn't say."""


def paddleocr_vl(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    tower = patch_tower(
        found,
        "layer",
        None,
        frames=1,
        activation=found.activation("gelu_tanh"),
        patch_bias=True,
        last_norm=True,
        positions=RotaryPositions(table=side_of_table(found), by_edges=True),
    )
    merge, (least, most) = merge_of(found), pixel_bounds(found, PIXELS)
    preparation = PatchImages(
        pixels=found.pixels(3, CLIP_MEAN, CLIP_STD),
        min_pixels=least,
        max_pixels=most,
        patch=tower.patch,
        merge=merge,
        frames=1,
        widened=True,
    )
    vision = VisionSpec(tower=tower, projector=MergerProjector(side=merge, norm=PROJECTOR_NORM))
    return vision, of_pictures(preparation, tokens.id_of(TOKEN))


PADDLEOCR_VL = MmprojKind(
    "paddleocr", "PaddleOCR-VL", ("qwen2",), paddleocr_vl, {**TOWER, **PROJECTOR}
)
