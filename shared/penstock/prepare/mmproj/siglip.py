"""mmproj files with SigLIP's tower: Gemma 3's, and those of Idefics 3 and SmolVLM."""

from __future__ import annotations

from penstock.families.vision.reading import MAX_PIXELS, bounded
from penstock.model.media_facts import ScannedImages, TiledImages
from penstock.model.vision_spec import (
    LearnedPositions,
    PoolProjector,
    ShuffleProjector,
    TowerSpec,
    VisionSpec,
)
from penstock.prepare.image_processor import HALF
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens, of_pictures

SPARE_TOKENS = tuple(f"<unused{number}>" for number in range(99))
"""Unused tokens of Gemma's vocabulary: where a file lacks the token that stands for a picture's
rows, one of these does."""


def _tower(found: MmprojFile, *, fractional: bool = False) -> TowerSpec:
    return found.tower(
        "layer",
        activation=found.activation("gelu_tanh"),
        patch_bias=True,
        last_norm=True,
        positions=LearnedPositions(side=found.side()[1], fractional=fractional),
    )


def gemma3(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    image, patches = found.side()
    factor = bounded(found.keys, "projector.scale_factor", patches, 4)
    if patches % factor:
        raise found.keys.wrong("projector.scale_factor", f"a divisor of {patches}")
    tower = _tower(found)
    side = patches // factor
    vision = VisionSpec(
        tower=tower,
        projector=PoolProjector(side=side, eps=tower.norm.eps, plus_one=False),
        image_size=image,
        spans_whole=True,
    )
    begin, _ = tokens.id_of("<start_of_image>")
    end, _ = tokens.id_of("<end_of_image>")
    preparation = ScannedImages(
        pixels=found.pixels(2, HALF, HALF),
        height=image,
        width=image,
        rows=side * side,
        begin=f"\n\n{begin}",
        end=f"{end}\n\n",
    )
    token, token_id = tokens.id_of("<image_soft_token>", *SPARE_TOKENS)
    return vision, of_pictures(preparation, begin, token, token_id)


def idefics3(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    image, patches = found.side()
    factor = bounded(found.keys, "projector.scale_factor", patches, 2)
    if patches % factor:
        raise found.keys.wrong("projector.scale_factor", f"a divisor of {patches}")
    vision = VisionSpec(
        tower=_tower(found, fractional=True), projector=ShuffleProjector(factor=factor)
    )
    token, token_id = tokens.id_of("<image>")
    preparation = TiledImages(
        pixels=found.pixels(1, HALF, HALF),
        longest_edge=bounded(found.keys, "preproc_image_size", MAX_PIXELS, 4 * image),
        tile=image,
        rows=(patches // factor) ** 2,
    )
    tokens.id_of(preparation.around)
    return vision, of_pictures(preparation, token, token, token_id)
