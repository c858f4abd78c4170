"""Gemma 3 from 4B upwards: a SigLIP tower, the mean of squares of patches, and Gemma 3.

Source: Gemma team, "Gemma 3 technical report", 2025.
"""

from __future__ import annotations

import math

from penstock.errors import UnsupportedModel
from penstock.families.gemma3 import GEMMA3
from penstock.families.media_tokens import MediaTokens
from penstock.families.tower_names import CLIP_TOWER, TowerNames, under
from penstock.families.vision.image_processor import ImageSettings, fixed_size, pixels_of
from penstock.families.vision.pictures import bounded_rows, check_side
from penstock.families.vision.reading import MAX_SIDE, TextHalf, VisionFamily, bounded, siglip_tower
from penstock.formats.fields import Fields
from penstock.forms.scanned import ScannedImages
from penstock.model.config import ModelConfig
from penstock.model.media_facts import KindFacts
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


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    if settings.flag("do_pan_and_scan", False):
        raise settings.wrong("do_pan_and_scan", "false")
    height, width, edge, _ = fixed_size(settings)
    if edge:
        raise settings.wrong("size", "height and width")
    check_side(config.section("vision_config"), height, width)
    begin, _ = tokens.named("boi_token_index", "boi_token_id")
    end, _ = tokens.named("eoi_token_index", "eoi_token_id")
    token = tokens.named("image_token_index", "image_token_id")
    image = ScannedImages(
        pixels=pixels_of(settings),
        height=height,
        width=width,
        rows=bounded_rows(config.integer("mm_tokens_per_image", 256), settings),
        begin=f"\n\n{begin}",
        end=f"{end}\n\n",
    )
    return KindFacts.marked(image, token, placeholder=begin)


_PROJECTOR: TowerNames = {"mm_input_projection_weight": "weight", "mm_soft_emb_norm": "norm"}

GEMMA3_VISION = VisionFamily(
    "gemma3",
    ("Gemma3ForConditionalGeneration",),
    "Gemma 3",
    {"gemma3_text": TextHalf(GEMMA3)},
    _read,
    usual="gemma3_text",
    pictures=pictures,
    hub_names=CLIP_TOWER | under("multi_modal_projector", _PROJECTOR, "projector"),
)
