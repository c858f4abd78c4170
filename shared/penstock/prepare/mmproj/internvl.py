"""mmproj files of InternVL 3."""

from __future__ import annotations

from functools import partial

from penstock.families.vision.internvl import BEGIN, END, PROJECTOR_NORM, VIDEO, of_tiles
from penstock.families.vision.pictures import MAX_TILES
from penstock.families.vision.reading import bounded
from penstock.families.vision.video_processor import USUAL_FRAMES
from penstock.forms.canvas import CanvasImages
from penstock.forms.pixels import Colour
from penstock.forms.video import FrameSampling
from penstock.model.projector_spec import SquareMLPProjector
from penstock.model.tower_spec import LearnedPositions, VisionSpec
from penstock.prepare.mmproj.common_names import TOWER
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens, of_pictures
from penstock.prepare.mmproj.kinds import MmprojKind
from penstock.prepare.mmproj.videos import with_videos

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
    token = tokens.id_of(TOKEN)
    tokens.need(BEGIN, END)
    kinds = of_pictures(preparation, token, before=BEGIN, behind=END)
    videos = partial(of_tiles, sampling=FrameSampling(num_frames=USUAL_FRAMES, spread="middles"))
    return vision, with_videos(kinds, tokens, VIDEO, videos)


INTERNVL = MmprojKind(
    "internvl",
    "InternVL 3",
    ("qwen2", "qwen3", "qwen3_moe", "llama"),
    internvl,
    {
        **TOWER,
        "mm.model.mlp.0": "projector.norm",
        "mm.model.mlp.1": "projector.1",
        "mm.model.mlp.3": "projector.2",
    },
)
