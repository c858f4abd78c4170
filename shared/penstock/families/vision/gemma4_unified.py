"""Gemma 4 12B: no tower, but norms and products of the pixels of a square of patches, to which
vectors of its column and row are added; and its decoder.

Source: transformers' Gemma4UnifiedVisionConfig and the model that has it.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.gemma4_unified import GEMMA4_UNIFIED
from penstock.families.tower_names import under
from penstock.families.vision.gemma4 import BEHIND, MAX_POOL, MAX_TABLE, pictures, videos
from penstock.families.vision.reading import (
    MAX_PATCH,
    MAX_WIDTH,
    TextHalf,
    Videos,
    VisionFamily,
    bounded,
)
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.projector_spec import SquarePoolProjector
from penstock.model.tower_spec import AxialPositions, TowerSpec, VisionSpec

NORM = NormSpec(kind="layer", eps=1e-5, bias=True)
"""torch's defaults: no setting tells of them."""
USUAL: dict[str, object] = {
    "patch_size": 16,
    "pooling_kernel_size": 3,
    "mm_embed_dim": 3840,
    "mm_posemb_size": 1120,
    "output_proj_dims": 3840,
}
"""Defaults of transformers' Gemma4UnifiedVisionConfig."""


def unified_vision(
    where: str, hidden: int, patch: int, factor: int, side: int, *, eps: float, spans: bool
) -> VisionSpec:
    """patch: pixels.  factor: patches in a row of a square.  side: vectors of each table.  eps: of
    the last norm.  spans: whether the rows of a picture see one another in the decoder's windows.
    Raises UnsupportedModel for a square that is too large."""
    square = patch * factor
    if square > MAX_PATCH:
        raise UnsupportedModel(
            f"{where}: a square of {factor} patches of {patch} pixels each way has {square} in a "
            f"row; 1 to {MAX_PATCH} are allowed"
        )
    tower = TowerSpec(
        hidden_size=hidden,
        intermediate_size=hidden,
        num_layers=0,
        num_heads=1,
        patch=square,
        norm=NORM,
        positions=AxialPositions(side=side),
        patch_bias=True,
        pixel_norm=True,
        patch_norm=True,
        first_norm=True,
    )
    return VisionSpec(
        tower=tower,
        projector=SquarePoolProjector(factor=1, eps=eps, rooted=False),
        spans_whole=spans,
        windowed_spans=spans,
    )


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec | None:
    if not section.values:
        return None
    section = section.completed(**USUAL)
    hidden = bounded(section, "mm_embed_dim", MAX_WIDTH)
    hub.only(section, output_proj_dims=hidden)
    patch = bounded(section, "patch_size", MAX_PATCH)
    factor = bounded(section, "pooling_kernel_size", MAX_POOL)
    # The decoder has asked for it, whether its pictures are served or not.
    decoder = fields.section("text_config").values
    vision = unified_vision(
        section.where,
        hidden,
        patch,
        factor,
        bounded(section, "mm_posemb_size", MAX_TABLE),
        eps=section.number("rms_norm_eps", 1e-6),
        spans=decoder.get("use_bidirectional_attention", "vision") == "vision",
    )
    hub.only(section, model_patch_size=vision.tower.patch)
    return vision


NAMES = (
    under(
        "vision_embedder",
        {
            "patch_ln1": "pixel_norm",
            "patch_dense": "patch_embedding",
            "patch_ln2": "patch_norm",
            "pos_embedding": "axial_positions.by_place",
            "pos_norm": "first_norm",
        },
    )
    | under("vision_embedder.multimodal_embedder", BEHIND, "projector")
    | under("embed_vision", BEHIND, "projector")
)

GEMMA4_UNIFIED_VISION = VisionFamily(
    "gemma4_unified",
    ("Gemma4UnifiedForConditionalGeneration",),
    "Gemma 4 12B",
    {"gemma4_unified_text": TextHalf(GEMMA4_UNIFIED, nulls=True)},
    _read,
    usual="gemma4_unified_text",
    pictures=pictures,
    videos=Videos(videos, "Gemma4UnifiedVideoProcessor"),
    may_be_blind=True,
    hub_names=NAMES,
)
