"""How Molmo 2's pictures and videos' frames are prepared: by the makers' settings of its image and
video processors, and of the processor around them, which says what tokens stand among
embeddings."""

from __future__ import annotations

from typing import Any

from penstock.families.molmo2 import further_tokens
from penstock.formats.fields import Fields
from penstock.forms.overlapping import OverlappingImages
from penstock.model.media_facts import KindFacts
from penstock.prepare.image_processor import MAX_SIDE, ImageSettings, pixels_of
from penstock.prepare.media_tokens import MediaTokens
from penstock.prepare.picture_readers import MAX_TILES

CLASS = "Molmo2ImageProcessor"
VIDEO_CLASS = "Molmo2VideoProcessor"
PLACEHOLDER = "<|image|>"
"""What the chat template writes for a picture."""
BILINEAR = 2
"""Pillow's number of the one filter that is served; what it computes is torch's."""
OF_PROCESSOR = (
    "image_use_col_tokens",
    "use_single_crop_col_tokens",
    "use_single_crop_start_token",
)
"""Settings of the processor that are about pictures."""
OF_FRAMES = ("use_frame_special_tokens", "video_use_col_tokens")
"""Settings that are about videos."""


def of_molmo(
    values: dict[str, Any], processor: dict[str, Any], keys: tuple[str, ...] = OF_PROCESSOR
) -> dict[str, Any]:
    """Settings of the processor of images or videos, with those of the whole one's by `keys`."""
    return values | {key: processor[key] for key in keys if key in processor}


def molmo2(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """Raises UnsupportedModel."""
    side, patch = _square(settings, config)
    before, behind = _two(settings, "overlap_margins", 0, side // patch - 1)
    if before + behind >= side // patch:
        raise settings.wrong("overlap_margins", f"less than {side // patch} patches together")
    most = settings.integer("max_crops")
    if not 1 <= most <= MAX_TILES:
        raise settings.wrong("max_crops", f"1 to {MAX_TILES} crops")
    lines = settings.flag("image_use_col_tokens", True)
    keys = "image_start_token_id", "image_end_token_id", "image_col_id"
    begin, end, line_end = (_mark(config, tokens, key) for key in keys)
    whole_begin = begin
    if settings.flag("use_single_crop_start_token", True):
        whole_begin = _mark(config, tokens, "low_res_image_start_token_id")
    image = OverlappingImages(
        pixels=pixels_of(settings),
        side=side,
        patch=patch,
        pool=_two(settings, "pooling_size", 1, side // patch),
        margins=(before, behind),
        most=most,
        first_token=config.section("text_config").integer("vocab_size", 152_064),
        whole_begin=whole_begin,
        begin=begin,
        end=end,
        line_end=line_end,
        lines=lines,
        whole_lines=settings.flag("use_single_crop_col_tokens", lines),
    )
    tokens.check(PLACEHOLDER)
    token, token_id = tokens.named("image_patch_id")
    return KindFacts(
        preparation=image,
        placeholder=PLACEHOLDER,
        token=token,
        token_id=token_id,
        joined=True,
    )


def molmo2_frame(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> OverlappingImages:
    """A frame of a video, as MarkedFrames has it. Raises UnsupportedModel."""
    side, patch = _square(settings, config)
    around = "frame" if settings.flag("use_frame_special_tokens", True) else "image"
    keys = f"{around}_start_token_id", f"{around}_end_token_id", "image_col_id"
    begin, end, line_end = (_mark(config, tokens, key) for key in keys)
    return OverlappingImages(
        pixels=pixels_of(settings),
        side=side,
        patch=patch,
        pool=_two(settings, "pooling_size", 1, side // patch),
        margins=(0, 0),
        most=1,
        first_token=config.section("text_config").integer("vocab_size", 152_064),
        whole_begin=begin,
        begin=begin,
        end=end,
        line_end=line_end,
        lines=settings.flag("video_use_col_tokens", False),
    )


def _square(settings: ImageSettings, config: Fields) -> tuple[int, int]:
    """Sides of a crop or a frame, and of a patch, pixels."""
    tower = config.section("vit_config")
    patch, (side, wide) = settings.integer("patch_size"), settings.side("size")
    if patch != tower.integer("image_patch_size", 14) or not 1 <= patch <= 1024:
        raise settings.wrong("patch_size", "what the vision tower has")
    stated = tower.values.get("image_default_input_size", [378, 378])
    if side != wide or [side, wide] != stated or side % patch or side > MAX_SIDE:
        raise settings.wrong("size", f"a square of whole patches, as the tower has it ({stated})")
    if settings.integer("resample") != BILINEAR:
        raise settings.wrong("resample", f"{BILINEAR}, bilinear,")
    return side, patch


def _two(settings: ImageSettings, key: str, least: int, most: int) -> tuple[int, int]:
    values = settings.listed(key, int)
    if len(values) != 2 or not all(least <= value <= most for value in values):
        raise settings.wrong(key, f"two numbers, {least} to {most},")
    return values[0], values[1]


def _mark(config: Fields, tokens: MediaTokens, key: str) -> int:
    """A token that stands for pictures alone."""
    _, token = tokens.named(key)
    text = config.section("text_config")
    number = token - text.integer("vocab_size", 152_064)
    if not 0 <= number < further_tokens(text):
        raise config.wrong(key, "one of the tokens behind vocab_size")
    return token
