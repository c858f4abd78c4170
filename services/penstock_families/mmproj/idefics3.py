"""mmproj files of Idefics 3 and SmolVLM."""

from __future__ import annotations

from penstock.families.vision.image_processor import HALF
from penstock.families.vision.reading import MAX_PIXELS, bounded
from penstock.forms.tiled import TiledImages
from penstock.model.projector_spec import ShuffleProjector
from penstock.model.tower_spec import VisionSpec
from penstock.prepare.mmproj.common_names import TOWER
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens, of_pictures
from penstock.prepare.mmproj.gemma import (
    siglip_tower,
)
from penstock.prepare.mmproj.kinds import MmprojKind


def idefics3(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    image, patches = found.side()
    factor = bounded(found.keys, "projector.scale_factor", patches, 2)
    if patches % factor:
        raise found.keys.wrong("projector.scale_factor", f"a divisor of {patches}")
    vision = VisionSpec(
        tower=siglip_tower(found, fractional=True), projector=ShuffleProjector(factor=factor)
    )
    token = tokens.id_of("<image>")
    preparation = TiledImages(
        pixels=found.pixels(1, HALF, HALF),
        longest_edge=bounded(found.keys, "preproc_image_size", MAX_PIXELS, 4 * image),
        tile=image,
        rows=(patches // factor) ** 2,
    )
    tokens.id_of(preparation.around)
    return vision, of_pictures(preparation, token)


IDEFICS3 = MmprojKind(
    "idefics3",
    "Idefics 3 or SmolVLM",
    ("llama",),
    idefics3,
    {**TOWER, "mm.model.fc": "projector"},
)
