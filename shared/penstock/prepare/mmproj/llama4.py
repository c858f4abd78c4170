"""mmproj files of Llama 4."""

from __future__ import annotations

import msgspec

from penstock.families.vision.image_processor import HALF
from penstock.families.vision.llama4 import MAX_FACTOR, THETA, check_heads, form
from penstock.families.vision.reading import MAX_WIDTH, bounded
from penstock.forms.fitted import FittedImages
from penstock.model.projector_spec import AdapterProjector
from penstock.model.tower_spec import VisionSpec
from penstock.prepare.mmproj.common_names import TOWER
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens, of_pictures
from penstock.prepare.mmproj.kinds import MmprojKind

TOKEN, BEGIN, END = "<|patch|>", "<|image_start|>", "<|image_end|>"


def llama4(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    """The file says neither how the tower rotates nor how many tiles a picture has: all releases
    have the same."""
    image, side = found.side()
    factor = bounded(found.keys, "projector.scale_factor", min(side, MAX_FACTOR), 2)
    if side % factor:
        raise found.keys.wrong("projector.scale_factor", f"a divisor of {side}")
    tower = found.tower("layer", activation=found.activation("gelu"), **form(side, THETA))
    check_heads(tower, str(found.file.path))
    inner, _ = found.shape("mm.model.mlp.1.weight", 2)
    if not 1 <= inner <= MAX_WIDTH:
        raise found.keys.wrong("mm.model.mlp.1", f"1 to {MAX_WIDTH} outputs")
    preparation = FittedImages(
        pixels=msgspec.structs.replace(found.pixels(2, HALF, HALF), rounded=True),
        tile=image,
        rows=(side // factor) ** 2,
    )
    token = tokens.id_of(TOKEN)
    tokens.need(BEGIN, END, preparation.tile_end, preparation.row_end, preparation.whole)
    kinds = of_pictures(preparation, token, preparation.whole, before=BEGIN, behind=END)
    projector = AdapterProjector(factor=factor, inner=inner)
    return VisionSpec(tower=tower, projector=projector, image_size=image), kinds


LLAMA4 = MmprojKind(
    "llama4",
    "Llama 4",
    ("llama4",),
    llama4,
    {
        **TOWER,
        "v.patch_embd": "patch_matrix",
        "v.position_embd.weight": "positions_before_class",
        # The name of the converter's releases since Gemma 4's, which has it for another norm.
        "v.blk.*.attn_post_norm": "layers.*.norm2",
        "mm.model.mlp.1": "projector.adapter.1",
        "mm.model.mlp.2": "projector.adapter.2",
        "mm.model.fc": "projector.1",
    },
)
