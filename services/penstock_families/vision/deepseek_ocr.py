"""DeepSeek-OCR: SAM's layers over a page and parts of it, CLIP's over what convolutions make of
these, both side by side in lines, and DeepSeek's first mixture of experts, which has no latents.

Source: DeepSeek-AI, "DeepSeek-OCR: contexts optical compression", 2025.
"""

from __future__ import annotations

from penstock.families import hub_reading as hub
from penstock.families.bounds import layer_count
from penstock.families.media_tokens import MediaTokens
from penstock.families.tower_names import CLIP, IMAGE_NEWLINE, IN_CLIP, under
from penstock.families.vision.image_processor import ImageSettings
from penstock.families.vision.reading import (
    MAX_PATCH,
    MAX_PIXELS,
    MAX_WIDTH,
    TextHalf,
    VisionFamily,
    bounded,
    heads,
    patches_in_row,
)
from penstock.formats.fields import Fields
from penstock.model.config import ModelConfig
from penstock.model.document_spec import PageLayersSpec, PageProjector
from penstock.model.layer_spec import NormSpec
from penstock.model.media_facts import KindFacts
from penstock.model.tower_spec import VisionSpec
from penstock_families.vision.deepseek_ocr2 import (
    BEHIND,
    NECK_NORM,
    SAM,
    TEXT_DEFAULTS,
    WIDTHS,
    WITHOUT_LATENTS,
    channels_of,
    document,
    of_makers,
    sam_of_makers,
    sam_tower,
)

CLIP_NORM = NormSpec(kind="layer", eps=1e-5, bias=True)


def _read(fields: Fields, section: Fields, text: ModelConfig) -> VisionSpec:
    hub.only(fields.section("projector_config"), projector_type="linear")
    hub.only(fields, tile_tag="2D")
    widths = section.section(WIDTHS)
    clip = widths.section("clip-l-14-224")
    sam = sam_of_makers(section, widths)
    hidden = bounded(clip, "width", MAX_WIDTH // 4, 1024)
    patch = bounded(clip, "patch_size", MAX_PATCH, 14)
    layers = PageLayersSpec(
        hidden_size=hidden,
        intermediate_size=4 * hidden,
        num_layers=layer_count(clip.completed(layers=24), "layers"),
        num_heads=heads(clip, "heads", hidden, 16),
        norm=CLIP_NORM,
        side=patches_in_row(clip, bounded(clip, "image_size", MAX_PIXELS, 224), patch),
    )
    projector = PageProjector(channels=channels_of(sam, hidden), norm=NECK_NORM, layers=layers)
    return VisionSpec(tower=sam_tower(sam), projector=projector)


def pictures(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """DeepSeek-OCR's pictures are prepared in the mode that the makers' code has by default
    ("Gundam"), which no file says."""
    return document(settings, config, tokens, 640, lines=True, most=9)


NAMES = (
    under("sam_model", SAM)
    | under("vision_model", CLIP)
    | under(
        "vision_model.transformer.layers.*",
        IN_CLIP | {"self_attn.qkv_proj": "qkv"},
        "projector.layers.*",
    )
    | BEHIND
    | IMAGE_NEWLINE
)

DEEPSEEK_OCR = VisionFamily(
    "deepseek_ocr",
    ("DeepseekOCRForCausalLM",),
    "DeepSeek-OCR",
    {"deepseek_ocr_text": TextHalf(WITHOUT_LATENTS, TEXT_DEFAULTS)},
    _read,
    usual="deepseek_ocr_text",
    flat=lambda fields: fields.section("language_config"),
    harmless=frozenset({"language_config", "projector_config"}),
    pictures=pictures,
    makers=of_makers,
    hub_names=NAMES,
)
