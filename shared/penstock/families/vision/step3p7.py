"""Step 3.7: a perception encoder without a class token, whose pairs turn by column and row; two
convolutions that go two places at a time and a product; and Step 3.5's decoder.

Sources: StepFun, "Step 3.7 Flash", 2026; Bolya et al., "Perception Encoder", 2025. The first half
of a head turns by the column, as the makers' code has it, SGLang, vLLM and llama.cpp; in
transformers 5.17 it turns by the row.
"""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.bounds import layer_count
from penstock.families.step3p5 import STEP3P5
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
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.projector_spec import HalvingProjector
from penstock.model.tower_spec import RotaryPositions, TowerSpec, VisionSpec

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


STEP3P7_VISION = VisionFamily(
    "step3p7",
    ("Step3p7ForConditionalGeneration",),
    "Step 3.7 Flash",
    {"step3p5": TextHalf(STEP3P5)},
    _read,
    usual="step3p5",
    harmless=frozenset(
        {
            "im_start_token",
            "im_start_token_id",
            "image_token_id",
            "image_token_len",  # read with how pictures are prepared, as the next
            "patch_token_len",
        }
    ),
)
