"""mmproj files of GLM-4.1V, 4.5V and 4.6V, and of GLM-OCR."""

from __future__ import annotations

import re

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families.vision.glm4v import BEGIN as GLM_BEGIN
from penstock.families.vision.glm4v import END as GLM_END
from penstock.families.vision.glm4v import PROJECTOR_NORM
from penstock.families.vision.image_processor import CLIP_MEAN, CLIP_STD
from penstock.families.vision.reading import MAX_WIDTH
from penstock.forms.patches import PatchImages
from penstock.model.projector_spec import GatedMergerProjector
from penstock.model.tower_spec import RotaryPositions, VisionSpec
from penstock.prepare.mmproj.common_names import OF_FRAMES, TOWER
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens, of_pictures, side_of_table
from penstock.prepare.mmproj.kinds import MmprojKind
from penstock.prepare.mmproj.qwen_vl import FRAMES, merge_of, patch_tower
from penstock.prepare.mmproj.videos import as_of_release

PICTURE, VIDEO = "<|image|>", "<|video|>"
NAMES = ("general.name", "general.basename", "general.version")
VERSION = re.compile(r"(?<![\d.])4\.([156])V", re.IGNORECASE)
VIDEO_CLASSES = {
    "1": "Glm4vForConditionalGeneration",
    "5": "Glm4vMoeForConditionalGeneration",
    "6": "Glm46VForConditionalGeneration",
}
FRAME_PIXELS = (112 * 112, 28 * 28 * 2 * 30_000)
"""The fewest and the most of all frames together."""
PIXELS = (112 * 112, 28 * 28 * 15_000)
"""The fewest and the most that a picture has, as in transformers; the file doesn't say."""


def glm4v(found: MmprojFile, tokens: MmprojTokens) -> tuple[VisionSpec, Kinds]:
    """The file's feed_forward_length is the projector's size in some models, and the tower's in
    others. GLM-OCR has no table of positions."""
    tower = patch_tower(
        found,
        "rms",
        None,
        activation=found.activation("gelu"),
        inner=_outputs(found, "v.blk.0.ffn_up.weight"),
        gated=True,
        patch_bias=True,
        qkv_bias=found.has("v.blk.0.attn_qkv.bias"),
        bias=found.has("v.blk.0.attn_out.bias"),
        head_norms=found.has("v.blk.0.attn_q_norm.weight"),
        patch_norm=found.has("v.norm_embd.weight"),
        last_norm=True,
    )
    if found.has("v.position_embd.weight"):
        positions = RotaryPositions(table=side_of_table(found), cubic=True)
        tower = msgspec.structs.replace(tower, positions=positions)
    merge = merge_of(found)
    projector = GatedMergerProjector(
        side=merge,
        norm=PROJECTOR_NORM,
        inner=_outputs(found, "mm.gate.weight"),
        activation=tower.activation,
    )
    preparation = PatchImages(
        pixels=found.pixels(3, CLIP_MEAN, CLIP_STD),
        min_pixels=PIXELS[0],
        max_pixels=PIXELS[1],
        patch=tower.patch,
        merge=merge,
        frames=FRAMES,
        of_all=True,
    )
    kinds = of_pictures(preparation, tokens.id_of(PICTURE))
    hub_class = _video_class(found)
    if hub_class is not None and tokens.has(VIDEO, GLM_BEGIN, GLM_END):
        named = {"image_token_id": PICTURE, "video_token_id": VIDEO}
        kinds |= as_of_release(found, tokens, preparation, hub_class, named, FRAME_PIXELS)
    return VisionSpec(tower=tower, projector=projector), kinds


def _video_class(found: MmprojFile) -> str | None:
    """The class whose rules a model's videos have. No key says them, so models are known by the
    names that the converter copies; None: by none of these."""
    said = " ".join(str(found.file.metadata.get(key, "")) for key in NAMES)
    version = VERSION.search(said)
    return None if version is None else VIDEO_CLASSES[version[1]]


def _outputs(found: MmprojFile, name: str) -> int:
    """Outputs of a product that must be there."""
    rows, _ = found.shape(name, 2)
    if not 1 <= rows <= MAX_WIDTH:
        raise UnsupportedModel(f"{found.file.path}: {name} has {rows} outputs")
    return rows


GLM4V = MmprojKind(
    "glm4v",
    "GLM-4.1V, 4.5V, 4.6V or GLM-OCR",
    ("glm4", "glm4_moe"),
    glm4v,
    {
        **TOWER,
        **OF_FRAMES,
        "v.norm_embd": "patch_norm",
        "mm.patch_merger": "projector.merging",
        "mm.model.fc": "projector.1",
        "mm.post_norm": "projector.norm",
        "mm.gate": "projector.gate_proj",
        "mm.up": "projector.up_proj",
        "mm.down": "projector.down_proj",
    },
)
