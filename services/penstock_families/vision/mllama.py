"""Llama 3.2 Vision: a tower over a canvas of tiles, all of which see one another, a product, and
Llama with layers between its own that attend to pictures and nothing else.

Source: Grattafiori et al., "The Llama 3 herd of models", 2024, section 7; the settings, as
transformers' MllamaConfig has them.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.bounds import layer_count
from penstock.families.family import Family
from penstock.families.media_tokens import MediaTokens
from penstock.families.tower_names import IN_LLAMA, TowerNames, under
from penstock.families.vision.image_processor import ImageSettings, pixels_of
from penstock.families.vision.pictures import bounded_rows
from penstock.families.vision.reading import (
    HARMLESS,
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
from penstock.forms.aspects import AspectImages, aspect_forms
from penstock.model.attention_spec import AttentionSpec
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import LayerSpec, NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import PlainProjector
from penstock.model.tower_spec import AspectSpec, TowerSpec, VisionSpec

FURTHER = 8
"""Embeddings after those of the head's tokens; the first is that of the image token."""
MAX_TILES = 16
BETWEEN = [3, 8, 13, 18, 23, 28, 33, 38]
"""Layers that see pictures, where config.json doesn't say."""
TAKEN = [3, 7, 15, 23, 30]
"""Layers of the tower whose inputs are taken, where it doesn't."""
TEXT_DEFAULTS: dict[str, object] = {
    "vocab_size": 128_256,
    "hidden_size": 4096,
    "num_hidden_layers": 40,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14_336,
    "max_position_embeddings": 131_072,
    "cross_attention_layers": BETWEEN,
}
TOWER_DEFAULTS: dict[str, object] = {
    "hidden_size": 1280,
    "num_hidden_layers": 32,
    "num_global_layers": 8,
    "attention_heads": 16,
    "intermediate_size": 5120,
    "image_size": 448,
    "patch_size": 14,
    "max_num_tiles": 4,
    "intermediate_layers_indices": TAKEN,
}


def _decoder(fields: Fields) -> ModelConfig:
    hub.activation(fields, "silu")
    sizes, key = hub.sizes(fields), "cross_attention_layers"
    count, seeing = sizes["num_layers"], set(fields.listed(key, int))
    if not seeing <= set(range(count)):
        raise fields.wrong(key, f"layers from 0 to {count - 1}")
    fields.ignore("dropout")
    sizes["vocab_size"] += FURTHER
    own, shown = LayerSpec(), LayerSpec(attention=AttentionSpec(rope=None, sees_pictures=True))
    return ModelConfig(
        architecture="llama",
        **sizes,
        norm=NormSpec(eps=fields.number("rms_norm_eps", 1e-5)),
        ropes=(hub.rope(fields, sizes["head_dim"], theta=500_000.0),),
        layers=hub.shared(shown if number in seeing else own for number in range(count)),
        head_bias=True,
    )


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    section = section.completed(**TOWER_DEFAULTS)
    only_colours(section, "num_channels")
    hidden = bounded(section, "hidden_size", MAX_WIDTH)
    image, patch = (
        bounded(section, "image_size", MAX_PIXELS),
        bounded(section, "patch_size", MAX_PATCH),
    )
    most, count = (
        bounded(section, "max_num_tiles", MAX_TILES),
        layer_count(section, "num_hidden_layers"),
    )
    forms = [list(form) for form in aspect_forms(most)]
    hub.only(section, supported_aspect_ratios=forms)
    taken = section.listed("intermediate_layers_indices", int)
    if taken != sorted(set(taken)) or not set(taken) <= set(range(count)):
        raise section.wrong("intermediate_layers_indices", f"ascending layers below {count}")
    aspects = AspectSpec(
        most=most,
        patches=patches_in_row(section, image, patch) ** 2,
        global_layers=layer_count(section, "num_global_layers"),
        taken=tuple(taken),
    )
    tower = TowerSpec(
        hidden_size=hidden,
        intermediate_size=bounded(section, "intermediate_size", MAX_WIDTH),
        num_layers=count,
        num_heads=heads(section, "attention_heads", hidden),
        patch=patch,
        norm=NormSpec(kind="layer", eps=section.number("norm_eps", 1e-5), bias=True),
        activation=activation(section, "gelu"),
        positions=None,
        class_token=True,
        keeps_class=True,
        aspects=aspects,
    )
    hub.only(section, vision_output_dim=tower.width)
    return VisionSpec(tower=tower, projector=PlainProjector(), image_size=image)


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """How pictures are prepared. The image token follows the picture's rows, and sees them as the
    text after it does."""
    vision = config.section("vision_config").completed(**TOWER_DEFAULTS)
    side, patch = vision.integer("image_size"), vision.integer("patch_size")
    if settings.side("size") != (side, side):
        raise settings.wrong("size", f"what the vision tower has ({side} x {side})")
    most = settings.integer("max_image_tiles")
    if most != vision.integer("max_num_tiles"):
        raise settings.wrong("max_image_tiles", "what the vision tower has")
    token = tokens.named("image_token_index", "image_token_id")
    image = AspectImages(
        pixels=pixels_of(settings),
        tile=side,
        rows=bounded_rows((side // max(patch, 1)) ** 2 + 1, settings),
        most=most,
    )
    return KindFacts.marked(image, token)


MLLAMA_TEXT = Family("mllama", (), "Llama 3.2 Vision's decoder", _decoder)
"""Reads the decoder's settings. What is computed is the family llama."""
_IN_LAYER: TowerNames = {**IN_LLAMA, "gate_attn": "gate1", "gate_ffn": "gate2"}
NAMES = under(
    "vision_model",
    {
        "layernorm_pre": "first_norm",
        "layernorm_post": "last_norm",
        "gated_positional_embedding": "places",
        "gated_positional_embedding.embedding": "places",
        "gated_positional_embedding.tile_embedding": "places.tiles",
        **under("pre_tile_positional_embedding", {"embedding": ""}, "tiles_before"),
        **under("post_tile_positional_embedding", {"embedding": ""}, "tiles_behind"),
        **under("transformer.layers.*", _IN_LAYER, "layers.*"),
        **under("global_transformer.layers.*", _IN_LAYER, "global.layers.*"),
    },
) | {"multi_modal_projector": "projector"}

MLLAMA = VisionFamily(
    "mllama",
    ("MllamaForConditionalGeneration",),
    "Llama 3.2 Vision",
    {"mllama_text_model": TextHalf(MLLAMA_TEXT, TEXT_DEFAULTS)},
    _read,
    usual="mllama_text_model",
    harmless=HARMLESS,
    pictures=pictures,
    hub_names=NAMES,
)
