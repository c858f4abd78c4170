"""Step 3.7: a perception encoder without a class token, whose pairs turn by column and row; two
convolutions that go two places at a time and a product; and Step 3.5's decoder.

Sources: StepFun, "Step 3.7 Flash", 2026; Bolya et al., "Perception Encoder", 2025. The first half
of a head turns by the column, as the makers' code has it, SGLang, vLLM and llama.cpp; in
transformers 5.17 it turns by the row.
"""

from __future__ import annotations

from typing import Any

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.bounds import layer_count
from penstock.families.media_tokens import MediaTokens
from penstock.families.tower_names import TowerNames, under
from penstock.families.vision.image_processor import MAX_EDGE, ImageSettings, pixels_of
from penstock.families.vision.reading import (
    MAX_PATCH,
    MAX_PIXELS,
    MAX_WIDTH,
    TextHalf,
    VisionFamily,
    activation,
    bounded,
    heads,
    only_colours,
    patches_in_row,
)
from penstock.formats.fields import Fields
from penstock.forms.windowed import WindowedImages
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.projector_form import QUARTER
from penstock.model.projector_spec import HalvingProjector
from penstock.model.tower_spec import RotaryPositions, TowerSpec, VisionSpec
from penstock_families.step3p5 import STEP3P5

OF_MAKERS = {"width": "hidden_size", "layers": "num_hidden_layers", "heads": "num_attention_heads"}
"""The makers' keys of the tower's section, and transformers'."""
USUAL: dict[str, object] = {
    "hidden_size": 1536,
    "num_hidden_layers": 47,
    "num_attention_heads": 16,
    "image_size": 728,
    "patch_size": 14,
}
"""Defaults of transformers' Step3p7VisionConfig."""
ONLY: dict[str, object] = {
    "output_dim": None,
    "pool_type": "none",
    "ues_cls_token": False,  # as an older file of the makers' spells it
    "use_abs_posemb": True,
    "use_cls_token": False,
    "use_ln_post": False,
    "use_ln_pre": True,
    "use_rope2d": True,
}
"""Settings of the makers' of which one value is served."""


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec | None:
    if not section.values:
        return None
    hub.only(fields, understand_projector_stride=2, vision_select_layer=-1)
    projector = HalvingProjector(bias=fields.flag("projector_bias", False))
    return VisionSpec(tower=_tower(section), projector=projector)


def _tower(section: Fields) -> TowerSpec:
    hub.only(section, **ONLY)
    only_colours(section, "num_channels")
    section.ignore(*OF_MAKERS, "ls_init_value", "layer_scale_init_value", "max_position_embeddings")
    named = {ours: section.values[own] for own, ours in OF_MAKERS.items() if own in section}
    own = section.replaced(named).completed(**USUAL)
    rope = section.section("rope_parameters")
    hub.only(rope, rope_type="axial")
    hidden = bounded(own, "hidden_size", MAX_WIDTH // 4)
    patch = bounded(own, "patch_size", MAX_PATCH)
    side = patches_in_row(section, bounded(own, "image_size", MAX_PIXELS), patch)
    tower = TowerSpec(
        hidden_size=hidden,
        intermediate_size=_inner(section, hidden),
        num_layers=layer_count(own, "num_hidden_layers"),
        num_heads=heads(own, "num_attention_heads", hidden),
        patch=patch,
        norm=NormSpec(kind="layer", eps=section.number("layer_norm_eps", 1e-5), bias=True),
        activation=activation(section, "quick_gelu"),
        positions=RotaryPositions(
            theta=rope.number("rope_theta", 10_000.0),
            table=side,
            by_edges=True,
            columns_first=True,
            adjacent=True,
        ),
        layer_scale=True,
        first_norm=True,
    )
    if tower.head_dim % 4:
        raise UnsupportedModel(
            f"{section.where}: heads of {tower.head_dim} numbers can't rotate by row and column; "
            "hidden_size / num_attention_heads must be a multiple of 4"
        )
    return tower


def _inner(section: Fields, hidden: int) -> int:
    """Outputs of a feed-forward's first product: a multiple of the tower's size that the file
    has."""
    ratio = section.number("mlp_ratio", 8960 / 1536)
    inner = int(hidden * ratio) if 0 < ratio <= MAX_WIDTH else 0
    if not 1 <= inner <= MAX_WIDTH:
        raise section.wrong("mlp_ratio", f"one that gives 1 to {MAX_WIDTH}")
    hub.only(section, intermediate_size=inner)
    return inner


BUILT_IN: dict[str, Any] = {"image_processor_type": "Step3p7ImageProcessor"}
"""The makers' folder has no settings; their code's are the defaults of transformers' class."""


def of_makers(values: dict[str, Any], whole: dict[str, Any], where: str) -> dict[str, Any]:
    """The makers' own code has the settings built in."""
    return values or dict(BUILT_IN)


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    vision = config.section("vision_config")
    square = vision.integer("patch_size", 14) * QUARTER
    if not QUARTER <= square <= QUARTER * 1024:
        raise vision.wrong("patch_size", "1 to 1024 pixels")
    settings.ignore("vision_patch_size", "downsampler_stride")  # the tower's, as config.json has it
    whole, wide = settings.side("size")
    if whole != wide or whole % square:
        raise settings.wrong("size", f"a square whose side is a multiple of {square} pixels")
    tile, longest = settings.integer("patch_size"), settings.integer("max_image_size")
    if not square <= tile <= MAX_EDGE or tile % square:
        raise settings.wrong("patch_size", f"a multiple of {square}, up to {MAX_EDGE}")
    if not whole <= longest <= MAX_EDGE:
        raise settings.wrong("max_image_size", f"{whole} to {MAX_EDGE} pixels")
    image = WindowedImages(
        pixels=pixels_of(settings),
        whole=whole,
        tile=tile,
        longest=longest,
        patch=square // QUARTER,
        whole_rows=(whole // square) ** 2,
        tile_rows=(tile // square) ** 2,
    )
    stated = {"image_token_len": image.whole_rows, "patch_token_len": image.tile_rows}
    for key, rows in stated.items():
        if config.integer(key, rows) != rows:
            raise config.wrong(key, f"what the tower gives ({rows})")
    for text in (image.begin, image.end, image.tile_begin, image.tile_end, image.row_end):
        tokens.check(text)
    return KindFacts.marked(image, tokens.named("image_token_id"))


_BLOCK: TowerNames = {
    "attn": "",
    "attn.in_proj_weight": "qkv.weight",
    "attn.in_proj_bias": "qkv.bias",
    "ln_1": "norm1",
    "ln_2": "norm2",
    "ls_1.gamma": "scale1",
    "ls_2.gamma": "scale2",
    "mlp.c_fc": "up_proj",
    "mlp.c_proj": "down_proj",
}
NAMES = under(
    "vision_model",
    {
        "conv1": "patch_embedding",
        "positional_embedding": "position_embedding.weight",
        "ln_pre": "first_norm",
        "vit_downsampler1": "projector.halving.0",
        "vit_downsampler2": "projector.halving.1",
        **under("transformer.resblocks.*", _BLOCK, "layers.*"),
    },
) | {"vit_large_projector": "projector"}

STEP3P7_VISION = VisionFamily(
    "step3p7",
    ("Step3p7ForConditionalGeneration",),
    "Step 3.7 Flash",
    {"step3p5": TextHalf(STEP3P5)},
    _read,
    usual="step3p5",
    harmless=frozenset({"im_start_token", "image_token_len", "patch_token_len"}),
    pictures=pictures,
    makers=of_makers,
    hub_names=NAMES,
)
