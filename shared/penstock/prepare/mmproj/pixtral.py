"""mmproj files of Pixtral and Mistral Small 3."""

from __future__ import annotations

from penstock.families.vision.reading import bounded
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import RowImages
from penstock.model.vision_spec import MLPProjector, RotaryPositions, SquareMLPProjector, VisionSpec
from penstock.prepare.image_processor import CLIP_MEAN, CLIP_STD
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens, of_pictures


def pixtral(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    image, patches = found.side()
    merge = bounded(found.keys, "spatial_merge_size", patches, 1)
    tower = found.tower(
        "rms",
        activation=found.activation("gelu"),
        gated=True,
        qkv_bias=False,
        bias=False,
        first_norm=True,
        positions=RotaryPositions(alternating=True, adjacent=True),
    )
    if tower.head_dim % 4:
        raise found.keys.wrong("attention.head_count", "heads of a multiple of 4 numbers")
    bias = found.has("mm.1.bias")
    projector: MLPProjector | SquareMLPProjector = MLPProjector(bias=bias)
    if found.has("mm.patch_merger.weight"):
        norm = NormSpec(kind="rms", eps=found.text.norm.eps)
        projector = SquareMLPProjector(factor=merge, norm=norm, bias=bias, merged=True)
    token, token_id = tokens.id_of("[IMG]")
    preparation = RowImages(
        pixels=found.pixels(3, CLIP_MEAN, CLIP_STD),
        longest_edge=image,
        patch=tower.patch * merge,
    )
    for text in (preparation.row_end, preparation.end):
        tokens.id_of(text)
    vision = VisionSpec(tower=tower, projector=projector)
    return vision, of_pictures(preparation, token, token, token_id)
