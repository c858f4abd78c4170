"""mmproj files of Gemma 3 and 4, and the tower that Gemma 3 shares with others: SigLIP's."""

from __future__ import annotations

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families.vision.gemma4 import FORM, MAX_TABLE, gemma4_vision, positions
from penstock.families.vision.reading import bounded
from penstock.model.media_facts import SOFT_TOKENS, PooledImages, ScannedImages
from penstock.model.tower_spec import (
    LearnedPositions,
    PoolProjector,
    TowerSpec,
    VisionSpec,
)
from penstock.prepare.image_processor import HALF
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens, of_pictures

SPARE_TOKENS = tuple(f"<unused{number}>" for number in range(99))
"""Unused tokens of Gemma's vocabulary: where a file lacks the token that stands for a picture's
rows, one of these does."""


def siglip_tower(found: MmprojFile, *, fractional: bool = False) -> TowerSpec:
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
    tower = siglip_tower(found)
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


def gemma4(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    """What the file leaves out is what all releases have; image_size means nothing. Rows of a
    picture see one another but in models with inputs of each layer's own, E2B and E4B."""
    tables, side, _ = found.shape("v.position_embd.weight", 3)
    if tables != 2 or not 1 <= side <= MAX_TABLE:
        raise UnsupportedModel(
            f"{found.file.path}: v.position_embd must have two tables of up to {MAX_TABLE} vectors"
        )
    tower = found.tower(
        "rms",
        activation="gelu_tanh",
        positions=positions(side),
        clipped=found.has("v.blk.0.attn_q.input_max"),
        **FORM,
    )
    factor = bounded(found.keys, "projector.scale_factor", side, 3)
    vision = gemma4_vision(
        tower,
        factor,
        spans=found.text.per_layer_inputs is None,
        standard=found.has("v.std_bias"),
    )
    pixels = found.pixels(3, *PLAIN)
    if (pixels.mean, pixels.std) == PLAIN:
        pixels = msgspec.structs.replace(pixels, mean=None, std=None)
    preparation = PooledImages(pixels=pixels, patch=tower.patch, merge=factor, most=SOFT_TOKENS[2])
    token, token_id = tokens.id_of("<|image|>")
    before, _ = tokens.id_of("<|image>")
    behind, _ = tokens.id_of("<image|>")
    kinds = of_pictures(preparation, token, token, token_id, before=before, behind=behind)
    return vision, kinds


PLAIN = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
"""Mean and deviation of pixels that stay as they are."""
