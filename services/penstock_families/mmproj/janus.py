"""mmproj files of Janus-Pro."""

from __future__ import annotations

from penstock.families.vision.image_processor import HALF
from penstock.forms.fixed import FixedImages
from penstock.model.projector_spec import MLPProjector
from penstock.model.tower_spec import LearnedPositions, VisionSpec
from penstock.prepare.mmproj.common_names import TOWER
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens, of_pictures
from penstock.prepare.mmproj.kinds import MmprojKind
from penstock_families.vision.deepseek_vl import SMALLEST_SIDE
from penstock_families.vision.janus import BEGIN as JANUS_BEGIN
from penstock_families.vision.janus import END as JANUS_END
from penstock_families.vision.janus import PLACEHOLDER as JANUS_TOKEN


def janus_pro(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    image, side = found.side()
    tower = found.tower(
        "layer",
        activation=found.activation("gelu"),
        patch_bias=True,
        qkv_bias=found.has("v.blk.0.attn_q.bias"),
        positions=LearnedPositions(side=side),
        last_norm=True,
    )
    vision = VisionSpec(tower=tower, projector=MLPProjector(bias=True), image_size=image)
    preparation = FixedImages(
        pixels=found.pixels(3, HALF, HALF),
        height=image,
        width=image,
        rows=side * side,
        fitted=SMALLEST_SIDE,
    )
    token = tokens.id_of(JANUS_TOKEN, "<image>")
    tokens.need(JANUS_BEGIN, JANUS_END)
    kinds = of_pictures(preparation, token, before=JANUS_BEGIN, behind=JANUS_END)
    return vision, kinds


JANUS_PRO = MmprojKind(
    "janus_pro",
    "Janus-Pro",
    ("llama",),
    janus_pro,
    {**TOWER, "mm.0": "projector.1", "mm.1": "projector.2"},
)
