"""LLaVA-OneVision: a SigLIP tower over a picture and over tiles of it, two products, and Qwen 2.

Source: Li et al., "LLaVA-OneVision", 2024.
"""

from __future__ import annotations

import re

from penstock.errors import UnsupportedModel
from penstock.families.qwen2 import QWEN2
from penstock.families.vision.family import TextHalf, VisionFamily
from penstock.families.vision.reading import projector_activation, siglip_tower
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.vision_spec import AnyresProjector, VisionSpec

FORMS = tuple((384 * rows, 384 * columns) for rows in range(1, 7) for columns in range(1, 7))
"""Where config.json says nothing of them."""
SIGLIP: dict[str, object] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "patch_size": 14,
    "image_size": 384,
    "num_hidden_layers": 26,
    "num_attention_heads": 16,
}
"""Settings of a tower that config.json has no section about."""
MAX_FORMS = 256
MAX_TILES = 64
"""Most tiles of a form."""
_ASPECT = re.compile(r"anyres_max_([1-9]\d?)")


def pinpoints(fields: Fields, tile: int) -> tuple[tuple[int, int], ...]:
    """The forms, (height, width) in pixels, of tiles with sides of `tile` pixels. Raises
    UnsupportedModel for others."""
    key = "image_grid_pinpoints"
    stated = fields.values.get(key)
    fields.ignore(key)
    forms = FORMS if stated is None else stated
    if not isinstance(forms, (list, tuple)) or not 1 <= len(forms) <= MAX_FORMS:
        raise fields.wrong(key, f"1 to {MAX_FORMS} sizes")
    for form in forms:
        whole = isinstance(form, (list, tuple)) and len(form) == 2
        if not whole or not all(isinstance(side, int) and side >= tile for side in form):
            raise fields.wrong(key, f"sizes of at least a tile of {tile} pixels")
        height, width = form
        if height % tile or width % tile or height * width > MAX_TILES * tile**2:
            raise fields.wrong(key, f"sizes of up to {MAX_TILES} whole tiles of {tile} pixels")
    return tuple((int(height), int(width)) for height, width in forms)


def most_tiles(fields: Fields) -> int:
    """Number of tiles of which a picture has as many rows as it may."""
    aspect = fields.text("vision_aspect_ratio", "anyres_max_9")
    found = _ASPECT.fullmatch(aspect)
    if found is None:
        raise fields.wrong("vision_aspect_ratio", "anyres_max_ and a number up to 99")
    return int(found[1])


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    kind = section.text("model_type", "siglip_vision_model")
    if kind != "siglip_vision_model":
        raise UnsupportedModel(
            f"{section.where}: model_type {kind[:80]!r} is not served; siglip_vision_model is"
        )
    if fields.text("vision_feature_select_strategy", "full") != "full":
        raise fields.wrong("vision_feature_select_strategy", "full")
    if not section.values:
        section = section.completed(**SIGLIP)
    tower, image = siglip_tower(section, fields.integer("vision_feature_layer", -1))
    return VisionSpec(
        tower=tower,
        projector=AnyresProjector(
            forms=pinpoints(fields, image),
            most=most_tiles(fields),
            activation=projector_activation(fields),
            bias=fields.flag("multimodal_projector_bias", True),
        ),
        image_size=image,
    )


LLAVA_ONEVISION = VisionFamily(
    "llava_onevision",
    ("LlavaOnevisionForConditionalGeneration",),
    "LLaVA-OneVision",
    {"qwen2": TextHalf(QWEN2)},
    _read,
    usual="qwen2",
    harmless=frozenset(
        {
            "ignore_index",
            "image_token_index",
            "image_token_id",
            "video_token_index",
            "video_token_id",
            "use_image_newline_parameter",
        }
    ),
)
