"""Janus and Janus-Pro, which are served for what they understand: SigLIP's layers under names of
their own, two products, and Llama. What draws pictures isn't read.

Source: DeepSeek-AI, "Janus: decoupling visual encoding for unified multimodal understanding and
generation", 2024; keys and defaults: transformers' JanusConfig.
"""

from __future__ import annotations

import msgspec

from penstock.families import hub_reading as hub
from penstock.families.bounds import layer_count
from penstock.families.llama import LLAMA
from penstock.families.media_tokens import MediaTokens
from penstock.families.tower_names import CLIP_MODEL, under
from penstock.families.vision.image_processor import ImageSettings
from penstock.families.vision.reading import (
    MAX_PATCH,
    MAX_PIXELS,
    MAX_WIDTH,
    TextHalf,
    VisionFamily,
    bounded,
    feed_forward_of,
    heads,
    only_colours,
    patches_in_row,
)
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import MLPProjector
from penstock.model.tower_spec import LearnedPositions, TowerSpec, VisionSpec
from penstock_families.vision import deepseek_vl
from penstock_families.vision.deepseek_vl import TEXT_DEFAULTS

USUAL: dict[str, object] = {
    "hidden_size": 1024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "image_size": 384,
    "patch_size": 16,
    "projection_dim": 2048,
}
"""Defaults of transformers' JanusVisionConfig."""


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    """The projector's activation is the tower's."""
    section = section.completed(**USUAL)
    hub.only(
        section, depth=2, hidden_act="gelu", projection_dim=text.hidden_size, use_qk_norm=False
    )
    section.ignore("hidden_dropout_rate", "projection_dropout")
    only_colours(section, "num_channels")
    hidden = bounded(section, "hidden_size", MAX_WIDTH)
    patch = bounded(section, "patch_size", MAX_PATCH)
    image = bounded(section, "image_size", MAX_PIXELS)
    side = patches_in_row(section, image, patch)
    hub.only(section, num_image_tokens=side * side)
    tower = TowerSpec(
        hidden_size=hidden,
        intermediate_size=feed_forward_of(section, hidden),
        num_layers=layer_count(section, "num_hidden_layers"),
        num_heads=heads(section, "num_attention_heads", hidden),
        patch=patch,
        norm=NormSpec(kind="layer", eps=section.number("layer_norm_eps", 1e-6), bias=True),
        patch_bias=True,
        qkv_bias=section.flag("attention_bias", True),
        positions=LearnedPositions(side=side),
        last_norm=True,
    )
    return VisionSpec(tower=tower, projector=MLPProjector(bias=True), image_size=image)


BEGIN, END = "<begin_of_image>", "<end_of_image>"
"""Around Janus's embeddings."""
PLACEHOLDER = "<image_placeholder>"
"""What stands for a picture, in the makers' tokenizers."""


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    for text in (BEGIN, END):
        tokens.check(text)
    found = deepseek_vl.pictures(settings, config, tokens)
    return msgspec.structs.replace(found, before=BEGIN, behind=END)


NAMES = (
    CLIP_MODEL
    | {"vision_model.encoder.layers.*.self_attn.projection_layer": "layers.*.out_proj"}
    | under("aligner", {"fc1": "1", "hidden_layers.0": "2"}, "projector")
    | dict.fromkeys(("vqmodel", "generation_embeddings", "generation_aligner", "generation_head"))
)

JANUS = VisionFamily(
    "janus",
    ("JanusForConditionalGeneration",),
    "Janus, Janus-Pro",
    {"llama": TextHalf(LLAMA, TEXT_DEFAULTS)},
    _read,
    usual="llama",
    harmless=frozenset({"vq_config"}),
    pictures=pictures,
    hub_names=NAMES,
)
