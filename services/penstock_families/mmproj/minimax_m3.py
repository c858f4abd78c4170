"""mmproj files of MiniMax M3."""

from __future__ import annotations

from penstock.families.vision.image_processor import CLIP_MEAN, CLIP_STD
from penstock.families.vision.reading import MAX_WIDTH
from penstock.forms.patches import PatchImages
from penstock.model.projector_spec import TwiceProjector
from penstock.model.tower_spec import RotaryPositions, VisionSpec
from penstock.prepare.mmproj.common_names import OF_FRAMES, PROJECTOR, TOWER
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens, of_pictures
from penstock.prepare.mmproj.kinds import MmprojKind
from penstock.prepare.mmproj.qwen_vl import FRAMES, merge_of, pixel_bounds
from penstock.prepare.mmproj.videos import as_of_release
from penstock_families.vision.minimax_m3 import BEGIN as MINIMAX_BEGIN
from penstock_families.vision.minimax_m3 import END as MINIMAX_END

PICTURE, VIDEO = "]<]image[>[", "]<]video[>["
HUB_CLASS = "MiniMaxM3SparseForConditionalGeneration"
TOGETHER = 4
"""Groups of frames that see one another, in the release."""
PIXELS, FRAME_PIXELS = (4 * 28 * 28, 672 * 672), (4 * 28 * 28, 768 * 28 * 28)
"""The fewest and the most of a picture, where the file doesn't say, and of a frame."""


def minimax_m3(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    """The converter puts what turns by frame, by row and by column one after the other. There is no
    table of positions, so image_size means nothing."""
    tower = found.tower(
        "layer",
        activation=found.activation("gelu"),
        frames=FRAMES,
        together=TOGETHER,
        first_norm=True,
        positions=RotaryPositions(timed=True, by_axes=True),
    )
    if tower.head_dim < 6:
        raise found.keys.wrong("attention.head_count", "heads of at least 6 numbers")
    inner, _ = found.shape("mm.1.weight", 2)
    if not 1 <= inner <= MAX_WIDTH:
        raise found.keys.wrong("mm.1.weight", f"1 to {MAX_WIDTH} outputs")
    merge, (least, most) = merge_of(found), pixel_bounds(found, PIXELS)
    projector = TwiceProjector(
        side=merge,
        inner=inner,
        bias=found.has("mm.1.bias"),
        square_bias=found.has("mm.merger.fc1.bias"),
    )
    preparation = PatchImages(
        pixels=found.pixels(3, CLIP_MEAN, CLIP_STD),
        min_pixels=least,
        max_pixels=most,
        patch=tower.patch,
        merge=merge,
        frames=FRAMES,
    )
    token = tokens.id_of(PICTURE)
    tokens.need(MINIMAX_BEGIN, MINIMAX_END)
    kinds = of_pictures(preparation, token, before=MINIMAX_BEGIN, behind=MINIMAX_END)
    if tokens.has(VIDEO):
        named = {"video_token_id": VIDEO}
        kinds |= as_of_release(found, tokens, preparation, HUB_CLASS, named, FRAME_PIXELS)
    return VisionSpec(tower=tower, projector=projector), kinds


MINIMAX_M3 = MmprojKind(
    "minimax_m3",
    "MiniMax M3",
    ("minimax_m3",),
    minimax_m3,
    {
        **TOWER,
        **OF_FRAMES,
        **PROJECTOR,
        "mm.merger.fc1": "projector.squares.1",
        "mm.merger.fc2": "projector.squares.2",
    },
)
