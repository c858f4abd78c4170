"""mmproj files of MiniCPM-V 4.6."""

from __future__ import annotations

import msgspec

from penstock.families.vision.minicpmv4_6 import merging, positions, projector
from penstock.model.image_facts import SlicedImages
from penstock.model.media_facts import KindFacts
from penstock.model.tower_spec import VisionSpec
from penstock.prepare.image_processor import HALF
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens, side_of_table
from penstock.prepare.mmproj.videos import with_videos
from penstock.prepare.picture_readers import SLICE_NUMBER

TOKEN = "<|image_pad|>"
FACTORS = (4, 2)
"""Patches, each way, that become one embedding: with squares that the tower merges, and without."""


def minicpmv4_6(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    """image_size is the side of the square of as many pixels as a slice has; the table of positions
    has its own."""
    factor = found.keys.integer("projector.scale_factor", FACTORS[0])
    if factor not in FACTORS:
        raise found.keys.wrong("projector.scale_factor", "4 or 2")
    tower = found.tower(
        "layer",
        activation=found.activation("gelu_tanh"),
        patch_bias=True,
        last_norm=True,
        positions=positions(side_of_table(found)),
    )
    if factor == FACTORS[0]:
        behind = found.keys.listed("wa_layer_indexes", int)
        if len(behind) != 1 or not 0 <= behind[0] < tower.num_layers:
            raise found.keys.wrong("wa_layer_indexes", "one layer of the tower")
        tower = msgspec.structs.replace(tower, merging=merging(tower, behind[0]))
    scale, _ = found.side()
    preparation = SlicedImages(
        pixels=found.pixels(3, HALF, HALF), patch=tower.patch, merge=factor, scale=scale
    )
    token, token_id = tokens.id_of(TOKEN)
    around = (preparation.begin, preparation.end, preparation.slice_begin, preparation.slice_end)
    for text in (*around, *SLICE_NUMBER):
        tokens.id_of(text)
    facts = KindFacts(
        preparation=preparation,
        placeholder=token,
        token=token,
        token_id=token_id,
        numbered=SLICE_NUMBER,
    )
    vision = VisionSpec(tower=tower, projector=projector(tower))
    return vision, with_videos({"image": facts}, tokens)
