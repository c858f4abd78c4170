"""mmproj files of Step3-VL and Step 3.7: one tower, a perception encoder.

Source: llama.cpp's converter, and the makers' processor for what no file says.
"""

from __future__ import annotations

from penstock.families.vision.image_processor import CLIP_MEAN, CLIP_STD, MAX_EDGE
from penstock.forms.windowed import WindowedImages
from penstock.model.projector_form import QUARTER
from penstock.model.projector_spec import HalvingProjector
from penstock.model.tower_spec import RotaryPositions, VisionSpec
from penstock.prepare.mmproj.common_names import TOWER
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens, of_pictures, side_of_table
from penstock.prepare.mmproj.kinds import MmprojKind

TOKEN = "<im_patch>"
TILE_SQUARES = 9
"""Squares of patches in a row of a window: 504 pixels of the release's 56, which llama.cpp has
built in."""
LONGEST = 3024
"""Side to which a picture is made smaller, where the file doesn't say; pixels."""


def step3vl(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    keys = found.keys
    if keys.integer("projector.scale_factor", QUARTER) != QUARTER:
        raise keys.wrong("projector.scale_factor", str(QUARTER))
    tower = found.tower(
        "layer",
        activation=found.activation("gelu"),
        first_norm=True,
        layer_scale=True,
        positions=RotaryPositions(
            table=side_of_table(found), by_edges=True, columns_first=True, adjacent=True
        ),
    )
    if tower.head_dim % 4:
        raise keys.wrong("attention.head_count", "heads of a multiple of 4 numbers")
    (whole, _), square = found.side(), tower.patch * QUARTER
    if whole % square:
        raise keys.wrong("image_size", f"a multiple of {square}")
    longest = keys.integer("preproc_image_size", LONGEST)
    if not whole <= longest <= MAX_EDGE:
        raise keys.wrong("preproc_image_size", f"{whole} to {MAX_EDGE}")
    preparation = WindowedImages(
        pixels=found.pixels(2, CLIP_MEAN, CLIP_STD),
        whole=whole,
        tile=TILE_SQUARES * square,
        longest=longest,
        patch=tower.patch,
        whole_rows=(whole // square) ** 2,
        tile_rows=TILE_SQUARES**2,
    )
    around = (preparation.begin, preparation.end, preparation.row_end)
    tokens.need(*around, preparation.tile_begin, preparation.tile_end)
    token = tokens.id_of(TOKEN)
    projector = HalvingProjector(bias=found.has("mm.model.fc.bias"))
    vision = VisionSpec(tower=tower, projector=projector)
    return vision, of_pictures(preparation, token)


STEP3VL = MmprojKind(
    "step3vl",
    "Step3-VL or Step 3.7",
    ("step3p5", "qwen3"),
    step3vl,
    {
        **TOWER,
        "mm.0": "projector.halving.0",
        "mm.1": "projector.halving.1",
        "mm.model.fc": "projector",
    },
)
