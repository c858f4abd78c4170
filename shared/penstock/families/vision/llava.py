"""LLaVA 1.5, BakLLaVA and Pixtral 12B: a CLIP, SigLIP or Pixtral tower, two products, and Llama,
Vicuna, Mistral or Qwen 2.

Source: Liu et al., "Improved baselines with visual instruction tuning", 2023; Agrawal et al.,
"Pixtral 12B", 2024.
"""

from __future__ import annotations

import re

from penstock.errors import UnsupportedModel
from penstock.families.hub_defaults import QWEN2_DEFAULTS
from penstock.families.llama import LLAMA
from penstock.families.media_tokens import MediaTokens
from penstock.families.mistral import MISTRAL
from penstock.families.qwen2 import QWEN2
from penstock.families.tower_names import CLIP_TOWER, IMAGE_NEWLINE, PROJECTOR, under
from penstock.families.vision.image_processor import ImageSettings, fixed_size, pixels_of
from penstock.families.vision.pictures import bounded_rows, check_side, patch_of, tile_of
from penstock.families.vision.pixtral import IN_PIXTRAL, MISTRAL_DEFAULTS, pictures, pixtral_tower
from penstock.families.vision.reading import (
    TextHalf,
    Videos,
    VisionFamily,
    clip_tower,
    projector_activation,
    siglip_tower,
)
from penstock.families.vision.video_processor import VideoSettings, sampling_of
from penstock.families.vision.videos import video_facts
from penstock.formats.fields import Fields
from penstock.forms.anyres import AnyresImages
from penstock.forms.fixed import FixedFrames, FixedImages
from penstock.model.config import ModelConfig
from penstock.model.media_facts import KindFacts
from penstock.model.projector_spec import AnyresProjector, MLPProjector
from penstock.model.tower_spec import TowerSpec, VisionSpec

LLAMA_DEFAULTS: dict[str, object] = {
    "vocab_size": 32_000,
    "hidden_size": 4096,
    "intermediate_size": 11_008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}
"""Defaults of transformers' LlamaConfig."""
CLIP_DEFAULTS: dict[str, object] = {
    "hidden_size": 1024,
    "intermediate_size": 4096,
    "patch_size": 14,
    "image_size": 336,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
}
"""Settings of a tower that config.json has no section about."""
SELECTED = ("default", "full")
"""Values of vision_feature_select_strategy: without the class token, and with it."""


def llava_tower(fields: Fields, section: Fields, layer: int) -> tuple[TowerSpec, int | None]:
    """The tower, and the size of its pictures; None: they differ. layer: whose output is taken, as
    in clip_tower."""
    if not section.values:
        section = section.completed(**CLIP_DEFAULTS)
    kind = section.text("model_type", "clip_vision_model")
    selected = fields.text("vision_feature_select_strategy", "default")
    if selected not in SELECTED:
        raise fields.wrong("vision_feature_select_strategy", " or ".join(SELECTED))
    match kind:
        case "clip_vision_model":
            return clip_tower(section, layer, keeps_class=selected == "full")
        case "siglip_vision_model" if selected == "full":
            return siglip_tower(section, layer)
        case "pixtral" if selected == "full":
            return pixtral_tower(section, layer), None
        case "siglip_vision_model" | "pixtral":
            raise UnsupportedModel(
                f"{fields.where}: vision_feature_select_strategy default leaves the first patch of "
                "a tower without a class token; full is served for it"
            )
    raise UnsupportedModel(
        f"{section.where}: model_type {kind[:80]!r} is not served; clip_vision_model, "
        "siglip_vision_model and pixtral are"
    )


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    tower, image = llava_tower(fields, section, fields.integer("vision_feature_layer", -2))
    return VisionSpec(
        tower=tower,
        projector=MLPProjector(
            activation=projector_activation(fields),
            bias=fields.flag("multimodal_projector_bias", True),
        ),
        image_size=image,
    )


def pictures_of_one_size(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    vision = config.section("vision_config")
    if vision.text("model_type", "") == "pixtral":
        return pictures(settings, config, tokens)
    height, width, edge, resized = fixed_size(settings)
    patch = patch_of(vision)
    check_side(vision, height, width)
    rows = (height // patch) * (width // patch)
    rows += vision.text("model_type", "clip_vision_model") == "clip_vision_model"
    rows -= config.text("vision_feature_select_strategy", "default") == "default"
    token = tokens.named("image_token_index", "image_token_id")
    image = FixedImages(
        pixels=pixels_of(settings),
        height=height,
        width=width,
        rows=bounded_rows(rows, settings),
        shortest_edge=edge,
        resized=resized,
        squared=settings.kind == "LlavaImageProcessor" and settings.flag("do_pad", False),
    )
    return KindFacts.marked(image, token)


def pictures_of_any_size(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    if settings.flag("do_center_crop", False):
        raise settings.wrong("do_center_crop", "false")
    settings.ignore("do_pad", "crop_size")  # of a batch; of a crop that isn't made
    tile, patch = tile_of(settings, config)
    forms = pinpoints(config, tile)
    if pinpoints(settings, tile) != forms:
        raise settings.wrong("image_grid_pinpoints", "what config.json says")
    image = AnyresImages(
        pixels=pixels_of(settings),
        tile=tile,
        side=tile // patch,
        forms=forms,
        most=most_tiles(config),
    )
    return KindFacts.marked(image, tokens.named("image_token_index", "image_token_id"))


def videos(settings: VideoSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """LLaVA-OneVision's, for a tower whose pictures all have one size."""
    vision = config.section("vision_config")
    height, width = settings.side("size")
    side, patch = vision.integer("image_size", 384), vision.integer("patch_size", 14)
    if (height, width) != (side, side) or not 1 <= patch <= side:
        raise settings.wrong("size", f"what the vision tower has ({side} x {side})")
    video = FixedFrames(
        pixels=pixels_of(settings),
        height=height,
        width=width,
        rows=(-(-(side // patch) // 2)) ** 2,
        sampling=sampling_of(settings),
    )
    return video_facts(video, tokens)


LLAVA = VisionFamily(
    "llava",
    ("LlavaForConditionalGeneration",),
    "LLaVA 1.5, Pixtral",
    {
        "llama": TextHalf(LLAMA, LLAMA_DEFAULTS),
        "mistral": TextHalf(MISTRAL, MISTRAL_DEFAULTS),
        "qwen2": TextHalf(QWEN2, QWEN2_DEFAULTS),
    },
    _read,
    usual="llama",
    harmless=frozenset({"image_seq_length", "ignore_index", "vocab_size"}),
    ignored=("is_composition",),
    pictures=pictures_of_one_size,
    hub_names=under("vision_tower", IN_PIXTRAL) | CLIP_TOWER | PROJECTOR,
)


# LLaVA-OneVision: a SigLIP tower over a picture and over tiles of it, two products, and Qwen 2.
#
# Source: Li et al., "LLaVA-OneVision", 2024.

FORMS = tuple((384 * rows, 384 * columns) for rows in range(1, 7) for columns in range(1, 7))
"""Sizes that a picture may be fitted into, where config.json names none."""
SIGLIP: dict[str, object] = {
    "hidden_size": 1152,
    "intermediate_size": 4304,
    "patch_size": 14,
    "image_size": 384,
    "num_hidden_layers": 26,
    "num_attention_heads": 16,
}
"""Settings of a tower that config.json has no section about."""
MAX_FORMS = 256
MAX_TILES = 64
"""Most tiles of a form."""
_ASPECT = re.compile(r"anyres_max_([1-9]\d?)")


def pinpoints(
    fields: Fields, tile: int, usual: tuple[tuple[int, int], ...] = FORMS
) -> tuple[tuple[int, int], ...]:
    """The forms, (height, width) in pixels, of tiles with sides of `tile` pixels. usual: where
    nothing is said. Raises UnsupportedModel for others."""
    key = "image_grid_pinpoints"
    stated = fields.values.get(key)
    fields.ignore(key)
    forms = usual if stated is None else stated
    if not isinstance(forms, (list, tuple)) or not 1 <= len(forms) <= MAX_FORMS:
        raise fields.wrong(key, f"1 to {MAX_FORMS} sizes")
    for form in forms:
        whole = isinstance(form, (list, tuple)) and len(form) == 2
        if not whole or not all(isinstance(side, int) and side >= tile for side in form):
            raise fields.wrong(key, f"sizes of at least a tile of {tile} pixels")
        height, width = form
        if height % tile or width % tile or height * width > MAX_TILES * tile**2:
            raise fields.wrong(key, f"sizes of up to {MAX_TILES} whole tiles of {tile} pixels")
    return tuple((int(height), int(width)) for height, width in forms)


def most_tiles(fields: Fields) -> int:
    """Number of tiles of which a picture has as many rows as it may."""
    aspect = fields.text("vision_aspect_ratio", "anyres_max_9")
    found = _ASPECT.fullmatch(aspect)
    if found is None:
        raise fields.wrong("vision_aspect_ratio", "anyres_max_ and a number up to 99")
    return int(found[1])


def _read_onevision(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    kind = section.text("model_type", "siglip_vision_model")
    if kind != "siglip_vision_model":
        raise UnsupportedModel(
            f"{section.where}: model_type {kind[:80]!r} is not served; siglip_vision_model is"
        )
    if fields.text("vision_feature_select_strategy", "full") != "full":
        raise fields.wrong("vision_feature_select_strategy", "full")
    if not section.values:
        section = section.completed(**SIGLIP)
    tower, image = siglip_tower(section, fields.integer("vision_feature_layer", -1))
    return VisionSpec(
        tower=tower,
        projector=AnyresProjector(
            forms=pinpoints(fields, image),
            most=most_tiles(fields),
            activation=projector_activation(fields),
            bias=fields.flag("multimodal_projector_bias", True),
        ),
        image_size=image,
    )


LLAVA_ONEVISION = VisionFamily(
    "llava_onevision",
    ("LlavaOnevisionForConditionalGeneration",),
    "LLaVA-OneVision",
    {"qwen2": TextHalf(QWEN2, QWEN2_DEFAULTS)},
    _read_onevision,
    usual="qwen2",
    harmless=frozenset({"ignore_index", "use_image_newline_parameter"}),
    pictures=pictures_of_any_size,
    videos=Videos(videos, "LlavaOnevisionVideoProcessor"),
    hub_names=CLIP_TOWER | PROJECTOR | IMAGE_NEWLINE,
)
