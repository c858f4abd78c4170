"""mmproj files of LFM2-VL."""

from __future__ import annotations

from penstock.families.vision.image_processor import HALF
from penstock.families.vision.reading import bounded
from penstock.forms.naflex import NaflexImages
from penstock.model.projector_spec import SquareMLPProjector
from penstock.model.tower_spec import LearnedPositions, VisionSpec
from penstock.prepare.mmproj.common_names import PROJECTOR, TOWER
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens, of_pictures
from penstock.prepare.mmproj.kinds import MmprojKind
from penstock_families.vision.lfm2_vl import BEGIN as NAFLEX_BEGIN
from penstock_families.vision.lfm2_vl import END as NAFLEX_END
from penstock_families.vision.lfm2_vl import MAX_FACTOR
from penstock_families.vision.lfm2_vl import PROJECTOR_NORM as NAFLEX_NORM


def lfm2_vl(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    """image_size is that of the table of positions, whatever pictures have."""
    factor = bounded(found.keys, "projector.scale_factor", MAX_FACTOR, 2)
    inner, _ = found.shape("mm.1.weight", 2)
    tower = found.tower(
        "layer",
        activation=found.activation("gelu_tanh"),
        patch_bias=True,
        last_norm=True,
        positions=LearnedPositions(side=found.side()[1], stretched=True),
    )
    projector = SquareMLPProjector(
        factor=factor,
        norm=NAFLEX_NORM if found.has("mm.input_norm.weight") else None,
        inner=inner,
        bias=found.has("mm.1.bias"),
    )
    token = tokens.id_of("<image>")
    preparation = NaflexImages(
        pixels=found.pixels(2, HALF, HALF),
        patch=tower.patch,
        merge=factor,
        min_rows=64,
        max_rows=256,
        tile=32 * tower.patch,
    )
    if preparation.tile % preparation.square:
        raise found.keys.wrong("projector.scale_factor", "a divisor of 32")
    tokens.need(NAFLEX_BEGIN, NAFLEX_END, "<|img_thumbnail|>", "<|img_row_1_col_1|>")
    vision = VisionSpec(tower=tower, projector=projector)
    kinds = of_pictures(preparation, token, before=NAFLEX_BEGIN, behind=NAFLEX_END)
    return vision, kinds


LFM2_VL = MmprojKind("lfm2", "LFM2-VL", ("lfm2", "lfm2_moe"), lfm2_vl, {**TOWER, **PROJECTOR})
