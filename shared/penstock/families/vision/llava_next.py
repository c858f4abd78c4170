"""LLaVA-NeXT (LLaVA 1.6) and Granite Vision: a CLIP or SigLIP tower over a picture and over tiles
of it, the outputs of one layer of it or several, and Llama, Mistral, Qwen 2 or Granite.

Source: Liu et al., "LLaVA-NeXT", 2024; Granite Vision team, "Granite Vision", 2025. Logits of
Granite are divided by logits_scaling, as in the text-only model and in vLLM; transformers 5.17
leaves this out for the vision model.
"""

from __future__ import annotations

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families.bounds import layer_count
from penstock.families.granite import GRANITE
from penstock.families.hub_defaults import QWEN2_DEFAULTS
from penstock.families.llama import LLAMA
from penstock.families.media_tokens import MediaTokens
from penstock.families.mistral import MISTRAL
from penstock.families.qwen2 import QWEN2
from penstock.families.tower_names import CLIP_TOWER, IMAGE_NEWLINE, PROJECTOR
from penstock.families.vision.image_processor import ImageSettings, pixels_of
from penstock.families.vision.llava import CLIP_DEFAULTS, LLAMA_DEFAULTS, llava_tower, pinpoints
from penstock.families.vision.pictures import side_of
from penstock.families.vision.pixtral import MISTRAL_DEFAULTS
from penstock.families.vision.reading import (
    TextHalf,
    VisionFamily,
    computed_layers,
    projector_activation,
)
from penstock.formats.fields import Fields
from penstock.forms.anyres import AnyresImages
from penstock.model.config import ModelConfig
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import AnyresProjector
from penstock.model.tower_spec import VisionSpec

FORMS = ((336, 672), (672, 336), (672, 672), (1008, 336), (336, 1008))
"""Sizes that a picture may be fitted into, where config.json names none."""
MAX_TAKEN = 16
"""Layers whose outputs are taken."""
GRANITE_DEFAULTS = LLAMA_DEFAULTS
"""Defaults of transformers' GraniteConfig, which are LlamaConfig's."""


def most_of(forms: tuple[tuple[int, int], ...], tile: int) -> int:
    """Tiles of the largest form: a picture never has too many rows."""
    return max(height * width for height, width in forms) // tile**2


def _taken(fields: Fields, section: Fields) -> tuple[int, ...]:
    """Layers counted from the embedded patches, 0."""
    key = "vision_feature_layer"
    if not isinstance(fields.values.get(key), (list, tuple)):
        layers = [fields.integer(key, -2)]
    else:
        layers = fields.listed(key, int)
    if not 1 <= len(layers) <= MAX_TAKEN:
        raise fields.wrong(key, f"1 to {MAX_TAKEN} layers")
    count = layer_count(section, "num_hidden_layers")
    return tuple(computed_layers(section, layer, count) for layer in layers)


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    if not section.values:
        section = section.completed(**CLIP_DEFAULTS)
    section = section.completed(num_hidden_layers=12)
    taken = _taken(fields, section)
    tower, image = llava_tower(fields, section, max(taken))
    if image is None or tower.keeps_class:
        raise UnsupportedModel(
            f"{fields.where}: pictures in tiles need a tower of pictures of one size, and no class "
            "token among its outputs"
        )
    if len(taken) > 1:
        tower = msgspec.structs.replace(tower, taken=taken)
    forms = pinpoints(fields, image, FORMS)
    return VisionSpec(
        tower=tower,
        projector=AnyresProjector(
            forms=forms,
            most=most_of(forms, image),
            activation=projector_activation(fields),
            bias=fields.flag("multimodal_projector_bias", True),
        ),
        image_size=image,
        row_multiplier=text.embedding_multiplier,
    )


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """The middle of a tile that is cut out is all of it."""
    vision = config.section("vision_config")
    tile, patch = side_of(vision, "image_size", 336), side_of(vision, "patch_size", 14)
    size = settings.values.get("size")
    edge = isinstance(size, dict) and "shortest_edge" in size
    whole = settings.section("size").integer("shortest_edge") if edge else settings.side("size")
    crop = settings.side("crop_size") if settings.values.get("crop_size") else (tile, tile)
    settings.ignore("crop_size", "do_center_crop", "do_pad")
    if whole not in (tile, (tile, tile)) or crop != (tile, tile) or not 1 <= patch <= tile:
        raise settings.wrong("size", f"what the vision tower has ({tile}), as crop_size")
    forms = pinpoints(config, tile, FORMS)
    if pinpoints(settings, tile, FORMS) != forms:
        raise settings.wrong("image_grid_pinpoints", "what config.json says")
    image = AnyresImages(
        pixels=pixels_of(settings),
        tile=tile,
        side=tile // patch,
        forms=forms,
        most=most_of(forms, tile),
    )
    return KindFacts.marked(image, tokens.named("image_token_index", "image_token_id"))


LLAVA_NEXT = VisionFamily(
    "llava_next",
    ("LlavaNextForConditionalGeneration",),
    "LLaVA-NeXT (LLaVA 1.6), Granite Vision",
    {
        "llama": TextHalf(LLAMA, LLAMA_DEFAULTS),
        "mistral": TextHalf(MISTRAL, MISTRAL_DEFAULTS),
        "qwen2": TextHalf(QWEN2, QWEN2_DEFAULTS),
        "granite": TextHalf(GRANITE, GRANITE_DEFAULTS),
    },
    _read,
    usual="llama",
    harmless=frozenset(
        {"ignore_index", "image_seq_length", "use_image_newline_parameter", "vocab_size"}
    ),
    ignored=("is_composition",),
    pictures=pictures,
    hub_names=CLIP_TOWER | PROJECTOR | IMAGE_NEWLINE,
)
