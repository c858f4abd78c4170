"""Gemma 3 from 4B upwards: a SigLIP tower, the mean of squares of patches, and Gemma 3.

Source: Gemma team, "Gemma 3 technical report", 2025.
"""

from __future__ import annotations

import math

from penstock.errors import UnsupportedModel
from penstock.families.gemma3 import GEMMA3
from penstock.families.vision.reading import MAX_SIDE, TextHalf, VisionFamily, bounded, siglip_tower
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.projector_spec import PoolProjector
from penstock.model.tower_spec import VisionSpec


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    tower, image = siglip_tower(section)
    rows = bounded(fields, "mm_tokens_per_image", MAX_SIDE**2, 256)
    side, patches = math.isqrt(rows), image // tower.patch
    if side * side != rows or patches % side:
        raise UnsupportedModel(
            f"{fields.where}: mm_tokens_per_image is {rows}; a square number is needed whose root "
            f"divides the {patches} patches in a row of a picture"
        )
    return VisionSpec(
        tower=tower,
        projector=PoolProjector(side=side, eps=tower.norm.eps),
        image_size=image,
        spans_whole=True,
    )


GEMMA3_VISION = VisionFamily(
    "gemma3",
    ("Gemma3ForConditionalGeneration",),
    "Gemma 3",
    {"gemma3_text": TextHalf(GEMMA3)},
    _read,
    usual="gemma3_text",
    harmless=frozenset(
        {
            "boi_token_id",
            "boi_token_index",
            "eoi_token_id",
            "eoi_token_index",
            "image_token_id",
            "image_token_index",
            "non_image_token_id",
        }
    ),
)
