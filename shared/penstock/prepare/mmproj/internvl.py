"""mmproj files of InternVL 3."""

from __future__ import annotations

from penstock.families.vision.internvl import PROJECTOR_NORM
from penstock.families.vision.reading import bounded
from penstock.model.media_facts import CanvasImages, Colour
from penstock.model.vision_spec import LearnedPositions, SquareMLPProjector, VisionSpec
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens, of_pictures
from penstock.prepare.picture_readers import BEGIN, END, MAX_TILES

MEAN: Colour = (0.485, 0.456, 0.406)
STD: Colour = (0.229, 0.224, 0.225)
"""Mean and deviation of ImageNet's pictures, as the releases have them."""
TOKEN = "<IMG_CONTEXT>"


def internvl(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    """The larger towers have other norms, which have no biases."""
    image, side = found.side()
    factor = bounded(found.keys, "projector.scale_factor", side, 2)
    if side % factor:
        raise found.keys.wrong("projector.scale_factor", f"a divisor of {side}")
    tower = found.tower(
        "layer" if found.has("v.blk.0.ln1.bias") else "rms",
        activation=found.activation("gelu"),
        patch_bias=found.has("v.patch_embd.bias"),
        qkv_bias=found.has("v.blk.0.attn_q.bias"),
        query_norms=found.has("v.blk.0.attn_q_norm.weight"),
        layer_scale=True,
        positions=LearnedPositions(side=side),
        class_token=True,
        last_norm=found.has("v.post_ln.weight"),
    )
    vision = VisionSpec(
        tower=tower,
        projector=SquareMLPProjector(factor=factor, norm=PROJECTOR_NORM),
        image_size=image,
    )
    least = bounded(found.keys, "preproc_min_tiles", MAX_TILES, 1)
    most = bounded(found.keys, "preproc_max_tiles", MAX_TILES, 12)
    if least > most:
        raise found.keys.wrong("preproc_min_tiles", f"at most {most}")
    preparation = CanvasImages(
        pixels=found.pixels(3, MEAN, STD),
        tile=image,
        rows=(side // factor) ** 2,
        least=least,
        most=most,
    )
    token, token_id = tokens.id_of(TOKEN)
    for text in (BEGIN, END):
        tokens.id_of(text)
    kinds = of_pictures(preparation, token, token, token_id, before=BEGIN, behind=END)
    return vision, kinds
