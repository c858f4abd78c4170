"""Llama 4: a tower over tiles of a picture with learned and rotary positions, squares of patches,
and Llama 4's decoder.

Source: Meta AI, "The Llama 4 herd", 2025.
"""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.bounds import layer_count
from penstock.families.llama4 import LLAMA4
from penstock.families.media_tokens import MediaTokens
from penstock.families.tower_names import IN_LLAMA, under
from penstock.families.vision.image_processor import ImageSettings, pixels_of
from penstock.families.vision.pictures import MAX_ROWS, MAX_TILES, tile_of
from penstock.families.vision.reading import (
    MAX_PATCH,
    MAX_PIXELS,
    MAX_WIDTH,
    TextHalf,
    VisionFamily,
    bounded,
    heads,
    only_colours,
    patches_in_row,
)
from penstock.formats.fields import Fields
from penstock.forms.fitted import FittedImages
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import AdapterProjector
from penstock.model.tower_spec import LearnedPositions, RotaryPositions, TowerSpec, VisionSpec

EPS = 1e-5
"""Epsilon of all norms of the tower, whatever config.json says."""
THETA = 10_000.0
"""Base of the rotation, where nothing says it."""
MAX_FACTOR = 64
TEXT_DEFAULTS: dict[str, object] = {
    "vocab_size": 202_048,
    "hidden_size": 5120,
    "num_hidden_layers": 48,
    "num_attention_heads": 40,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "max_position_embeddings": 131_072,
    "num_local_experts": 16,
    "num_experts_per_tok": 1,
}
"""Defaults of transformers' Llama4TextConfig."""


def _tower(section: Fields) -> tuple[TowerSpec, int]:
    section.ignore("norm_eps", "projector_dropout", "vision_feature_layer")
    hub.only(
        section,
        hidden_act="gelu",
        multi_modal_projector_bias=False,
        vision_feature_select_strategy="default",
    )
    only_colours(section, "num_channels")
    hidden = bounded(section, "hidden_size", MAX_WIDTH, 768)
    patch = bounded(section, "patch_size", MAX_PATCH, 14)
    image = bounded(section, "image_size", MAX_PIXELS, 448)
    side = patches_in_row(section, image, patch)
    rope = section.section("rope_parameters")
    theta = rope.number("rope_theta", section.number("rope_theta", THETA))
    tower = TowerSpec(
        hidden_size=hidden,
        intermediate_size=bounded(section, "intermediate_size", MAX_WIDTH, 5632),
        num_layers=layer_count(section.completed(num_hidden_layers=34), "num_hidden_layers"),
        num_heads=heads(section, "num_attention_heads", hidden, 16),
        patch=patch,
        norm=NormSpec(kind="layer", eps=EPS, bias=True),
        **form(side, theta),
    )
    check_heads(tower, section.where)
    return tower, image


def form(side: int, theta: float) -> dict[str, Any]:
    """Returns the tower's fields other than sizes, by the names of TowerSpec. side: of a tile,
    patches.  theta: of the rotation."""
    rotary = RotaryPositions(theta=theta, columns_first=True, adjacent=True, first=1)
    return {
        "positions": LearnedPositions(side=side, rotary=rotary),
        "class_token": True,
        "first_norm": True,
        "last_norm": True,
    }


def check_heads(tower: TowerSpec, where: str) -> None:
    """Raises UnsupportedModel for heads that can't rotate."""
    if tower.head_dim % 4:
        raise UnsupportedModel(
            f"{where}: heads of {tower.head_dim} numbers can't rotate by row and column; "
            "hidden_size / num_attention_heads must be a multiple of 4"
        )


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec | None:
    if not section.values:
        return None  # The tower of transformers' defaults doesn't fit its own projector.
    tower, image = _tower(section)
    ratio = section.number("pixel_shuffle_ratio", 0.5)
    factor = round(1 / ratio) if ratio > 0 else 0
    if not 1 <= factor <= MAX_FACTOR or factor * ratio != 1.0 or image // tower.patch % factor:
        raise section.wrong(
            "pixel_shuffle_ratio",
            f"one over a whole number that divides the {image // tower.patch} patches in a row",
        )
    inner = bounded(section, "projector_input_dim", MAX_WIDTH, 4096)
    wide = {
        "projector_output_dim": (inner, 4096),
        "vision_output_dim": (inner, 7680),
        "intermediate_size": (tower.hidden_size * factor**2, 5632),
    }
    for key, (wanted, default) in wide.items():
        if section.integer(key, default) != wanted:
            raise section.wrong(key, f"{wanted}, as the projector's products need it")
    return VisionSpec(
        tower=tower, projector=AdapterProjector(factor=factor, inner=inner), image_size=image
    )


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    settings.ignore("do_center_crop", "crop_size", "do_pad")  # not known to this processor
    if settings.flag("resize_to_max_canvas", False):
        raise settings.wrong("resize_to_max_canvas", "false")
    tile, patch = tile_of(settings, config)
    ratio = config.section("vision_config").number("pixel_shuffle_ratio", 0.5)
    rows = (tile // patch) ** 2 // max(round(1 / (ratio * ratio or 1)), 1)
    if not 1 <= rows <= MAX_ROWS:
        raise config.wrong("pixel_shuffle_ratio", f"one that leaves 1 to {MAX_ROWS} embeddings")
    most = settings.integer("max_patches", 16)
    if not 1 <= most <= MAX_TILES:
        raise settings.wrong("max_patches", f"1 to {MAX_TILES} tiles")
    pixels = pixels_of(settings)
    if pixels.rescale is None or pixels.mean is None:
        raise settings.wrong("do_rescale", "true, and do_normalize")
    image = FittedImages(
        pixels=msgspec.structs.replace(pixels, rounded=True), tile=tile, rows=rows, most=most
    )
    token = tokens.named("image_token_index", "image_token_id")
    begin, _ = tokens.named("boi_token_index", "boi_token_id")
    end, _ = tokens.named("eoi_token_index", "eoi_token_id")
    for text in (image.tile_end, image.row_end, image.whole):
        tokens.check(text)
    return KindFacts.marked(image, token, placeholder=image.whole, before=begin, behind=end)


NAMES = under(
    "vision_model",
    {
        "patch_embedding.linear": "patch_matrix",
        "positional_embedding_vlm": "positions_before_class",
        "layernorm_pre": "first_norm",
        "layernorm_post": "last_norm",
        "vision_adapter.mlp.fc1": "projector.adapter.1",
        "vision_adapter.mlp.fc2": "projector.adapter.2",
        **under("model.layers.*", IN_LLAMA, "layers.*"),
    },
)

LLAMA4_VISION = VisionFamily(
    "llama4",
    ("Llama4ForConditionalGeneration",),
    "Llama 4",
    {"llama4_text": TextHalf(LLAMA4, TEXT_DEFAULTS)},
    _read,
    usual="llama4_text",
    ignored=("_attn_implementation_autoset",),
    pictures=pictures,
    hub_names=NAMES | under("multi_modal_projector", {"linear_1": "1"}, "projector"),
)
