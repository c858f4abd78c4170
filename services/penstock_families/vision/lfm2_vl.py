"""LFM2-VL: SigLIP 2's tower for pictures of any form, two products over squares of patches, and
LFM2 with its short convolutions, dense or with experts.

Source: Liquid AI, "LFM2 technical report", 2025; Tschannen et al., "SigLIP 2", 2025.
"""

from __future__ import annotations

import math

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.bounds import layer_count
from penstock.families.media_tokens import MediaTokens
from penstock.families.tower_names import CLIP_TOWER, TWO, under
from penstock.families.vision.image_processor import MAX_EDGE, ImageSettings, pixels_of
from penstock.families.vision.pictures import MAX_ROWS, MAX_TILES
from penstock.families.vision.reading import (
    MAX_PATCH,
    MAX_SIDE,
    MAX_WIDTH,
    TextHalf,
    VisionFamily,
    activation,
    bounded,
    heads,
    only_colours,
    projector_activation,
)
from penstock.formats.fields import Fields
from penstock.forms.naflex import NaflexImages
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import SquareMLPProjector
from penstock.model.tower_spec import LearnedPositions, TowerSpec, VisionSpec
from penstock_families.lfm2 import LFM2, LFM2_MOE

PROJECTOR_NORM = NormSpec(kind="layer", eps=1e-5, bias=True)
MAX_FACTOR = 64
SIZES: dict[str, object] = {
    "vocab_size": 65_536,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 128_000,
}
DENSE = SIZES | {"hidden_size": 2560, "intermediate_size": 12_288}
"""Defaults of transformers' Lfm2Config."""
EXPERTS = SIZES | {
    "hidden_size": 2048,
    "intermediate_size": 7168,
    "moe_intermediate_size": 1792,
    "num_experts": 32,
    "num_experts_per_tok": 4,
}
"""Defaults of transformers' Lfm2MoeConfig."""
OF_PREPARATION = (
    "do_image_splitting",
    "encoder_patch_size",
    "max_image_tokens",
    "max_num_patches",
    "max_pixels_tolerance",
    "max_tiles",
    "min_image_tokens",
    "min_tiles",
    "tile_size",
    "use_image_special_tokens",
    "use_thumbnail",
)
"""Keys that config.json of older releases repeats from the preparation."""


def _tower(section: Fields) -> TowerSpec:
    kind = section.text("model_type", "siglip2_vision_model")
    if kind != "siglip2_vision_model":
        raise UnsupportedModel(
            f"{section.where}: model_type {kind[:80]!r} is not served; siglip2_vision_model is"
        )
    section = section.completed(
        hidden_size=768,
        intermediate_size=3072,
        num_hidden_layers=12,
        num_attention_heads=12,
        patch_size=16,
        num_patches=256,
    )
    hub.only(section, vision_use_head=False)
    section.ignore("image_size")  # pictures have any
    only_colours(section, "num_channels")
    hidden = bounded(section, "hidden_size", MAX_WIDTH)
    places = bounded(section, "num_patches", MAX_SIDE**2)
    if math.isqrt(places) ** 2 != places:
        raise section.wrong("num_patches", "a square number")
    return TowerSpec(
        hidden_size=hidden,
        intermediate_size=bounded(section, "intermediate_size", MAX_WIDTH),
        num_layers=layer_count(section, "num_hidden_layers"),
        num_heads=heads(section, "num_attention_heads", hidden),
        patch=bounded(section, "patch_size", MAX_PATCH),
        norm=NormSpec(kind="layer", eps=section.number("layer_norm_eps", 1e-6), bias=True),
        activation=activation(section, "gelu_pytorch_tanh"),
        patch_bias=True,
        positions=LearnedPositions(side=math.isqrt(places), stretched=True),
        last_norm=True,
    )


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    hub.only(fields, tie_embedding=text.tie_word_embeddings)
    normed = fields.flag("projector_use_layernorm", True)
    return VisionSpec(
        tower=_tower(section),
        projector=SquareMLPProjector(
            factor=bounded(fields, "downsample_factor", MAX_FACTOR, 2),
            norm=PROJECTOR_NORM if normed else None,
            inner=bounded(fields, "projector_hidden_size", MAX_WIDTH, 2560),
            activation=projector_activation(fields),
            bias=fields.flag("projector_bias", True),
        ),
    )


BEGIN, END = "<|image_start|>", "<|image_end|>"
"""Around LFM2-VL's."""


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    settings.ignore("do_pad", "size", "crop_size", "max_num_patches")  # follow from the others
    hub.only(settings, use_image_special_tokens=True)
    sizes = {
        "encoder_patch_size": (16, 1024),
        "downsample_factor": (2, 64),
        "tile_size": (512, MAX_EDGE),
        "min_image_tokens": (64, MAX_ROWS),
        "max_image_tokens": (256, MAX_ROWS),
        "min_tiles": (2, MAX_TILES),
        "max_tiles": (10, MAX_TILES),
    }
    found = {}
    for key, (usual, most) in sizes.items():
        found[key] = settings.integer(key, usual)
        if not 1 <= found[key] <= most:
            raise settings.wrong(key, f"1 to {most}")
    image = NaflexImages(
        pixels=pixels_of(settings),
        patch=found["encoder_patch_size"],
        merge=found["downsample_factor"],
        min_rows=found["min_image_tokens"],
        max_rows=found["max_image_tokens"],
        tile=found["tile_size"],
        large=settings.number("max_pixels_tolerance", 2.0),
        least=found["min_tiles"],
        most=found["max_tiles"],
        split=settings.flag("do_image_splitting", True),
        whole=settings.flag("use_thumbnail", True),
    )
    vision = config.section("vision_config")
    stated = {
        "encoder_patch_size": (image.patch, vision.integer("patch_size", 16)),
        "downsample_factor": (image.merge, config.integer("downsample_factor", 2)),
    }
    for key, (ours, model) in stated.items():
        if ours != model:
            raise settings.wrong(key, f"what config.json says ({model})")
    if image.tile % image.square:
        raise settings.wrong("tile_size", f"a multiple of {image.square}")
    if image.min_rows > image.max_rows:
        raise settings.wrong("min_image_tokens", f"at most {image.max_rows}")
    if not 2 <= image.least <= image.most:
        raise settings.wrong("min_tiles", f"2 to {image.most}")
    if not 0.1 <= image.large <= 1000:
        raise settings.wrong("max_pixels_tolerance", "0.1 to 1000")
    token = tokens.named("image_token_id", "image_token_index")
    for text in (BEGIN, END, "<|img_thumbnail|>", "<|img_row_1_col_1|>"):
        tokens.check(text)
    return KindFacts.marked(image, token, before=BEGIN, behind=END)


LFM2_VL = VisionFamily(
    "lfm2_vl",
    ("Lfm2VlForConditionalGeneration",),
    "LFM2-VL, LFM2.5-VL",
    {"lfm2": TextHalf(LFM2, DENSE), "lfm2_moe": TextHalf(LFM2_MOE, EXPERTS)},
    _read,
    usual="lfm2",
    harmless=frozenset({"vision_feature_layer", *OF_PREPARATION}),
    pictures=pictures,
    hub_names=CLIP_TOWER
    | under("multi_modal_projector", TWO | {"layer_norm": "norm"}, "projector"),
)
