"""Granite 4 Vision: a SigLIP tower over a picture and over tiles of it, and learned queries in
windows of the outputs of several of its layers, which are added before several layers of Granite.

Source: Granite Vision team, "Granite 4 Vision", 2026.
"""

from __future__ import annotations

import re

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families import hub_reading as hub
from penstock.families.bounds import layer_count
from penstock.families.granite import GRANITE
from penstock.families.media_tokens import MediaTokens
from penstock.families.tower_names import CLIP_TOWER, IMAGE_NEWLINE, TowerNames
from penstock.families.vision import llava_next
from penstock.families.vision.image_processor import ImageSettings
from penstock.families.vision.llava import llava_tower, pinpoints
from penstock.families.vision.llava_next import (
    FORMS,
    GRANITE_DEFAULTS,
    MAX_TAKEN,
    most_of,
)
from penstock.families.vision.reading import (
    MAX_WIDTH,
    TextHalf,
    VisionFamily,
    bounded,
    computed_layers,
    heads,
)
from penstock.formats.fields import Fields
from penstock.forms.anyres import AnyresImages
from penstock.model.config import ModelConfig
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import WindowPart, WindowProjector
from penstock.model.tower_spec import TowerSpec, VisionSpec

SPATIAL_TARGETS = [12, 15, 18, 21]
CORNERS = 4
"""Patches of a square, each of which one of the spatial parts begins with."""
QUERY_LAYER: dict[str, object] = {
    "hidden_size": 768,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "intermediate_size": 3072,
    "hidden_act": "gelu",
    "layer_norm_eps": 1e-12,
    "encoder_hidden_size": 1408,
}
"""Defaults of transformers' Blip2QFormerConfig."""
OF_QUERIES = (
    "attention_probs_dropout_prob",
    "cross_attention_frequency",  # the one layer attends in any case
    "hidden_dropout_prob",
    "initializer_range",
    "max_position_embeddings",
    "pad_token_id",
    "position_embedding_type",
    "vocab_size",
)
"""Settings that change nothing without texts."""
_RATE = re.compile(r"([1-9]\d?)/([1-9]\d?)")
LAYERWISE, SPATIAL = "deepstack_layer_map", "spatial_target_layers"


def downsampling(fields: Fields) -> tuple[int, int]:
    """Queries, and patches, in a row of a window. Raises UnsupportedModel."""
    found = _RATE.fullmatch(fields.text("downsample_rate", ""))
    if found is None or int(found[1]) > int(found[2]):
        raise fields.wrong("downsample_rate", "a fraction up to 1, as 4/8")
    return int(found[1]), int(found[2])


def _sources(fields: Fields, section: Fields, text: ModelConfig) -> list[tuple[int, int, str]]:
    """Returns each part's layer of the tower, its layer of the decoder, and the name of its
    weights."""
    given = fields.values.get(LAYERWISE)
    fields.ignore(LAYERWISE)
    pairs = given if isinstance(given, list) else []
    if not pairs or not all(isinstance(each, (list, tuple)) and len(each) == 2 for each in pairs):
        raise fields.wrong(LAYERWISE, "pairs of a tower's layer and a decoder's")
    if not all(isinstance(number, int) for each in pairs for number in each):
        raise fields.wrong(LAYERWISE, "pairs of whole numbers")
    spatial = fields.listed(SPATIAL, int) if SPATIAL in fields else SPATIAL_TARGETS
    if len(spatial) > CORNERS or len(pairs) + len(spatial) > MAX_TAKEN:
        raise fields.wrong(SPATIAL, f"up to {CORNERS} layers, {MAX_TAKEN} with {LAYERWISE}")
    last = fields.integer("spatial_vision_layer", -1)
    found = [(seen, target, f"layerwise.{at}") for at, (seen, target) in enumerate(pairs)]
    found += [(last, target, f"spatial.{at}") for at, target in enumerate(spatial)]
    targets = [target for _, target, _ in found]
    if len({*targets}) < len(targets) or not all(0 <= each < text.num_layers for each in targets):
        raise fields.wrong(LAYERWISE, f"layers of 0 to {text.num_layers - 1}, each once")
    count = layer_count(section, "num_hidden_layers")
    return [(computed_layers(section, seen, count), target, name) for seen, target, name in found]


def _projector(
    fields: Fields, tower: TowerSpec, image: int, parts: tuple[WindowPart, ...]
) -> WindowProjector:
    size, (queries, window) = tower.hidden_size, downsampling(fields)
    spatial = any(part.corner is not None for part in parts)
    if image // tower.patch % window or (spatial and 2 * queries != window):
        raise fields.wrong(
            "downsample_rate", "windows that fill a tile, half of whose sides remain"
        )
    usual = {"hidden_size": size, "encoder_hidden_size": size, "num_hidden_layers": 1}
    section = fields.section("qformer_config")
    if not section.values:
        section = section.completed(num_attention_heads=max(size // 64, 1), **usual)
    section = section.completed(**QUERY_LAYER)
    hub.only(section, hidden_act="gelu", use_qformer_text_input=False, **usual)
    section.ignore("hidden_act", *OF_QUERIES)
    forms = pinpoints(fields, image, FORMS)
    return WindowProjector(
        forms=forms,
        most=most_of(forms, image),
        parts=parts,
        window=window,
        queries=queries,
        num_heads=heads(section, "num_attention_heads", size),
        inner=bounded(section, "intermediate_size", MAX_WIDTH),
        norm=NormSpec(kind="layer", eps=section.number("layer_norm_eps"), bias=True),
    )


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    hub.only(fields, use_spatial_sampling=True, spatial_stride=2)
    section = section.completed(num_hidden_layers=12)
    # What stands in the token's place comes first.
    sources = sorted(_sources(fields, section, text), key=lambda each: each[1] > 0)
    taken = tuple(dict.fromkeys(layer for layer, _, _ in sources))
    tower, image = llava_tower(fields, section, max(taken))
    if image is None or tower.keeps_class:
        raise UnsupportedModel(
            f"{fields.where}: pictures in tiles need a tower of pictures of one size, and no class "
            "token among its outputs"
        )
    if len(taken) > 1:
        tower = msgspec.structs.replace(tower, taken=taken)
    parts = tuple(
        WindowPart(
            name=name,
            output=taken.index(layer),
            corner=int(name.partition(".")[2]) if name.startswith("spatial") else None,
        )
        for layer, _, name in sources
    )
    return VisionSpec(
        tower=tower,
        projector=_projector(fields, tower, image, parts),
        image_size=image,
        levels_behind=tuple(target - 1 for _, target, _ in sources if target),
    )


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """A tile has fewer embeddings than patches."""
    facts = llava_next.pictures(settings, config, tokens)
    image = facts.preparation
    if not isinstance(image, AnyresImages):
        raise settings.wrong("image_processor_type", "LLaVA-NeXT's")
    queries, window = downsampling(config)
    side = image.side // window * queries
    return msgspec.structs.replace(facts, preparation=msgspec.structs.replace(image, side=side))


_PROJECTORS: TowerNames = {
    "layerwise_projectors": "projector.layerwise",
    "spatial_projectors": "projector.spatial",
}

GRANITE4_VISION = VisionFamily(
    "granite4_vision",
    ("Granite4VisionForConditionalGeneration",),
    "Granite 4 Vision",
    {
        "granite4_vision_text": TextHalf(GRANITE, GRANITE_DEFAULTS),
        "granite": TextHalf(GRANITE, GRANITE_DEFAULTS),
    },
    _read,
    usual="granite4_vision_text",
    harmless=frozenset(
        {
            "ignore_index",
            "image_seq_length",
            "multimodal_projector_bias",
            "projector_dropout",
            "projector_hidden_act",
            "qformer_config",
            "use_image_newline_parameter",
            "vision_feature_layer",
            "vocab_size",
        }
    ),
    pictures=pictures,
    hub_names=CLIP_TOWER | IMAGE_NEWLINE | _PROJECTORS,
)
