"""Pixtral's tower, for pictures of any form, and Mistral Small 3.1, 3.2 and 4, which have it before
a product that merges squares of patches.

Source: Agrawal et al., "Pixtral 12B", 2024; Mistral AI, "Mistral Small 3.1", 2025.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import UnsupportedModel
from penstock.families.hub_defaults import MINISTRAL3_DEFAULTS, MISTRAL4_DEFAULTS
from penstock.families.media_tokens import MediaTokens
from penstock.families.mistral import MISTRAL
from penstock.families.mistral4 import MISTRAL4
from penstock.families.tower_names import TWO, TowerNames, under
from penstock.families.vision.image_processor import MAX_EDGE, ImageSettings, pixels_of
from penstock.families.vision.reading import (
    MAX_PATCH,
    MAX_SIDE,
    MAX_WIDTH,
    TextHalf,
    VisionFamily,
    activation,
    bounded,
    heads,
    layers_up_to,
    only_colours,
    projector_activation,
)
from penstock.formats.fields import Fields
from penstock.forms.rows import RowImages
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import SquareMLPProjector
from penstock.model.tower_spec import RotaryPositions, TowerSpec, VisionSpec

EPS = 1e-5
"""Epsilon of all norms of the tower."""
MISTRAL_DEFAULTS: dict[str, object] = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 14_336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131_072,
}
"""Defaults of transformers' MistralConfig."""


def pixtral_tower(section: Fields, layer: int) -> TowerSpec:
    """layer: whose output is taken, counted from the embedded patches, 0; below 0 from the last."""
    section = section.completed(
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=24,
        num_attention_heads=16,
        patch_size=16,
    )
    section.ignore("image_size")  # the preparation's bound says how large pictures are
    only_colours(section, "num_channels")
    hidden = bounded(section, "hidden_size", MAX_WIDTH)
    tower = TowerSpec(
        hidden_size=hidden,
        intermediate_size=bounded(section, "intermediate_size", MAX_WIDTH),
        **layers_up_to(section, layer),
        num_heads=heads(section, "num_attention_heads", hidden),
        patch=bounded(section, "patch_size", MAX_PATCH),
        norm=NormSpec(kind="rms", eps=EPS),
        activation=activation(section, "gelu"),
        gated=True,
        qkv_bias=False,
        bias=False,
        first_norm=True,
        positions=RotaryPositions(theta=_theta(section), alternating=True),
    )
    if tower.head_dim % 4 or section.integer("head_dim", tower.head_dim) != tower.head_dim:
        raise UnsupportedModel(
            f"{section.where}: heads of {tower.head_dim} numbers can't rotate by row and column; "
            "hidden_size / num_attention_heads must be a multiple of 4, and head_dim"
        )
    return tower


def _theta(section: Fields) -> float:
    rope: Any = section.section("rope_parameters")
    return float(rope.number("rope_theta", section.number("rope_theta", 10_000.0)))


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    kind = section.text("model_type", "pixtral")
    if kind != "pixtral":
        raise UnsupportedModel(
            f"{section.where}: model_type {kind[:80]!r} is not served behind this projector; "
            "pixtral is"
        )
    return VisionSpec(
        tower=pixtral_tower(section, fields.integer("vision_feature_layer", -1)),
        projector=SquareMLPProjector(
            factor=bounded(fields, "spatial_merge_size", MAX_SIDE, 2),
            norm=NormSpec(kind="rms", eps=text.norm.eps),
            activation=projector_activation(fields),
            bias=fields.flag("multimodal_projector_bias", False),
            merged=True,
        ),
    )


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """Pictures of a Pixtral tower alone, or of one before a product that merges squares of its
    patches."""
    merged = "Mistral3ForConditionalGeneration" in config.listed("architectures", str)
    return in_rows(settings, config, tokens, merge=2 if merged else 0)


def in_rows(
    settings: ImageSettings, config: Fields, tokens: MediaTokens, *, merge: int, **around: str
) -> KindFacts:
    """merge: patches in a row of a square that becomes one embedding, where config.json doesn't
    say; 0: none are merged. around: RowImages' texts."""
    longest = settings.section("size").integer("longest_edge", 1024)
    if not 1 <= longest <= MAX_EDGE:
        raise settings.wrong("size", f"a longest_edge of 1 to {MAX_EDGE} pixels")
    if settings.flag("do_center_crop", False):
        raise settings.wrong("do_center_crop", "false")
    settings.ignore("crop_size")
    patch = config.section("vision_config").integer("patch_size", 16)
    merge = config.integer("spatial_merge_size", merge) if merge else 1
    if not 1 <= merge <= 64:
        raise config.wrong("spatial_merge_size", "1 to 64")
    sides = [patch] if not around else [patch, patch * merge]
    if not 1 <= patch <= 1024 or settings.side("patch_size") not in [
        (each, each) for each in sides
    ]:
        raise settings.wrong("patch_size", f"what the vision tower has ({patch})")
    image = RowImages(
        pixels=pixels_of(settings), longest_edge=longest, patch=patch * merge, **around
    )
    token = tokens.named("image_token_index", "image_token_id")
    for text in filter(None, (image.row_end, image.end)):
        tokens.check(text)
    return KindFacts.marked(image, token)


IN_PIXTRAL: TowerNames = {
    "ln_pre": "first_norm",
    "patch_conv": "patch_embedding",
    **under(
        "transformer.layers.*",
        {
            "attention": "",
            "attention.o_proj": "out_proj",
            "attention_norm": "norm1",
            "feed_forward": "",
            "ffn_norm": "norm2",
        },
        "layers.*",
    ),
}
IN_PROJECTOR: TowerNames = {**TWO, "patch_merger.merging_layer": "merging"}
NAMES = under("vision_tower", IN_PIXTRAL) | under(
    "multi_modal_projector", IN_PROJECTOR, "projector"
)

MISTRAL3 = VisionFamily(
    "mistral3",
    ("Mistral3ForConditionalGeneration",),
    "Mistral Small 3.1, 3.2 and 4, Ministral 3",
    {
        "mistral": TextHalf(MISTRAL, MISTRAL_DEFAULTS),
        "ministral3": TextHalf(MISTRAL, MINISTRAL3_DEFAULTS),
        "mistral4": TextHalf(MISTRAL4, MISTRAL4_DEFAULTS),
    },
    _read,
    usual="mistral",
    pictures=pictures,
    hub_names=NAMES,
)
