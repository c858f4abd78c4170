"""Molmo 2: a SigLIP 2 tower whose outputs of two layers are taken, queries that each see a square
of patches, a gated feed-forward without norms, and Qwen 3's or OLMo 3's decoder. The tokens around
and among pictures' embeddings have embeddings of their own. All of these see one another, also
those of several pictures or of a video's frames, but not the text between them.

Sources: Clark et al., "Molmo2", 2026; Tschannen et al., "SigLIP 2", 2025; the makers' code, whose
configuration classes have the keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.bounds import layer_count
from penstock.families.molmo2 import DEFAULTS, MOLMO2, further_tokens
from penstock.families.vision.reading import (
    MAX_PATCH,
    MAX_PIXELS,
    MAX_WIDTH,
    TextHalf,
    VisionFamily,
    activation,
    bounded,
    computed_layers,
    heads,
    patches_in_row,
)
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.projector_spec import PooledProjector
from penstock.model.tower_spec import LearnedPositions, TowerSpec, VisionSpec

USUAL: dict[str, object] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "num_hidden_layers": 27,
    "num_attention_heads": 16,
    "image_patch_size": 14,
    "image_num_pos": 577,
}
"""Defaults of the makers' class for towers."""
USUAL_POOLING: dict[str, object] = {
    "hidden_size": 1152,
    "num_attention_heads": 16,
    "intermediate_size": 18_944,
    "vit_layers": [-3, -9],
}
"""The makers' defaults for the connector, which files may leave out."""
IDS = (
    "frame_end_token_id",
    "frame_start_token_id",
    "image_col_id",
    "image_end_token_id",
    "image_high_res_id",
    "image_low_res_id",
    "image_start_token_id",
    "low_res_image_start_token_id",
)
"""Token ids, which are read with how pictures are prepared."""
MAX_TAKEN = 8
"""Layers whose outputs are taken."""


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    pooling = fields.section("adapter_config").completed(**USUAL_POOLING)
    section = section.completed(**USUAL)
    taken = _taken(pooling, section)
    tower, image = _tower(section, taken)
    hub.only(pooling, text_hidden_size=text.hidden_size, pooling_attention_mask=True)
    if "pooling_attention_mask" not in pooling:
        raise pooling.wrong("pooling_attention_mask", "true")
    _same_heads(pooling)
    hub.activation(pooling, "silu")
    further = further_tokens(fields.section("text_config"))
    patch = fields.integer("image_patch_id") - (text.vocab_size - further)
    if not 0 <= patch < further:
        raise fields.wrong("image_patch_id", "one of the tokens behind the head's")
    projector = PooledProjector(
        size=bounded(pooling, "hidden_size", MAX_WIDTH),
        num_heads=heads(pooling, "num_attention_heads", pooling.integer("hidden_size")),
        inner=bounded(pooling, "intermediate_size", MAX_WIDTH),
        tokens=further,
        patch_token=patch,
    )
    pooling.ignore("float32_attention", "image_feature_dropout")
    hub.pass_over(pooling, _HARMLESS)
    return VisionSpec(tower=tower, projector=projector, image_size=image, spans_whole=True)


_HARMLESS = frozenset(
    {
        "attention_dropout",
        "attn_implementation",
        "dtype",
        "initializer_range",
        "model_type",
        "residual_dropout",
        "torch_dtype",
        "transformers_version",
    }
)


def _taken(pooling: Fields, section: Fields) -> tuple[int, ...]:
    """Layers whose outputs are taken, in their order, counted from the embedded patches, 0."""
    key = "vit_layers"
    layers, count = pooling.listed(key, int), layer_count(section, "num_hidden_layers")
    if not 1 <= len(layers) <= MAX_TAKEN or len(set(layers)) < len(layers):
        raise pooling.wrong(key, f"1 to {MAX_TAKEN} layers, each once,")
    # They count layers from 0, or from behind.
    found = tuple(computed_layers(pooling, layer + (layer >= 0), count) for layer in layers)
    if not all(found):
        raise pooling.wrong(key, f"layers of the tower, which has {count},")
    return found


def _tower(section: Fields, taken: tuple[int, ...]) -> tuple[TowerSpec, int]:
    """The tower, and the size of its pictures."""
    key, patch = "image_default_input_size", bounded(section, "image_patch_size", MAX_PATCH)
    sides = section.listed(key, int) if key in section else [378, 378]
    if len(sides) != 2 or len(set(sides)) > 1 or not 1 <= sides[0] <= MAX_PIXELS:
        raise section.wrong(key, f"a square of 1 to {MAX_PIXELS} pixels")
    side = patches_in_row(section, sides[0], patch)
    hub.only(section, image_num_pos=side * side)
    hidden = bounded(section, "hidden_size", MAX_WIDTH)
    _same_heads(section)
    section.ignore("float32_attention")
    tower = TowerSpec(
        hidden_size=hidden,
        intermediate_size=bounded(section, "intermediate_size", MAX_WIDTH),
        num_layers=max(taken),
        num_heads=heads(section, "num_attention_heads", hidden),
        patch=patch,
        norm=NormSpec(kind="layer", eps=section.number("layer_norm_eps", 1e-6), bias=True),
        activation=activation(section, "gelu_pytorch_tanh"),
        patch_bias=True,
        positions=LearnedPositions(side=side),
        taken=taken,
    )
    return tower, sides[0]


def _same_heads(section: Fields) -> None:
    """Raises UnsupportedModel for heads that share keys, or of a size of their own."""
    count, hidden = section.integer("num_attention_heads"), section.integer("hidden_size")
    own = section.integer("head_dim", hidden // max(count, 1))
    if own * count != hidden:
        raise UnsupportedModel(
            f"{section.where}: head_dim is {own} and num_attention_heads {count}; together they "
            f"must be the hidden size, {hidden}"
        )
    if section.integer("num_key_value_heads", count) != count:
        raise section.wrong("num_key_value_heads", f"num_attention_heads, {count}")


@dataclass(frozen=True)
class MolmoFamily(VisionFamily):
    """A family whose files call the tower's section otherwise."""

    SECTION: ClassVar[str] = "vit_config"


MOLMO2_VISION = MolmoFamily(
    "molmo2",
    ("Molmo2ForConditionalGeneration",),
    "Molmo 2",
    {"molmo2_text": TextHalf(MOLMO2, DEFAULTS)},
    _read,
    usual="molmo2_text",
    begins_with_bos=True,
    harmless=frozenset({"adapter_config", "use_frame_special_tokens", *IDS}),
)
