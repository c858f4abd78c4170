"""How pictures are prepared for Command A Vision and Aya Vision, by transformers' settings."""

from __future__ import annotations

from penstock.families.vision.cohere_vision import square_factor
from penstock.formats.fields import Fields
from penstock.forms.canvas import CanvasImages
from penstock.model.media_facts import KindFacts
from penstock.prepare.image_processor import ImageSettings, pixels_of
from penstock.prepare.media_tokens import MediaTokens
from penstock.prepare.picture_readers import MAX_TILES

BEGIN, END = "<|START_OF_IMG|>", "<|END_OF_IMG|>"
LINE = "<|IMG_LINE_BREAK|>"
PLACEHOLDER = "<image>"
"""What stands for a picture in Aya Vision's filled template."""


def command_vision(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """A token stands behind each tile. The settings' patch_size is embeddings in a row of one."""
    image = _canvas(settings, config, fitting=True, tile_end=LINE)
    side = int(image.rows**0.5)
    if settings.integer("patch_size", side) != side:
        raise settings.wrong("patch_size", f"embeddings in a row of a tile ({side})")
    tokens.check(LINE)
    return _facts(image, config, tokens, None)


def aya_vision(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """`crop_to_patches` is on whatever the file says, as in transformers' AyaVisionProcessor."""
    settings.ignore("crop_to_patches")
    image = _canvas(settings, config, numbered="TILE_", whole="TILE_GLOBAL")
    return _facts(image, config, tokens, PLACEHOLDER)


def _facts(
    image: CanvasImages, config: Fields, tokens: MediaTokens, placeholder: str | None
) -> KindFacts:
    for text in (BEGIN, END):
        tokens.check(text)
    token, token_id = tokens.named("image_token_id", "image_token_index")
    return KindFacts(
        preparation=image,
        placeholder=token if placeholder is None else placeholder,
        token=token,
        token_id=token_id,
        before=BEGIN,
        behind=END,
    )


def _canvas(
    settings: ImageSettings,
    config: Fields,
    *,
    fitting: bool = False,
    numbered: str = "",
    whole: str = "",
    tile_end: str = "",
) -> CanvasImages:
    """fitting, numbered, whole, tile_end: as CanvasImages has them."""
    vision = config.section("vision_config")
    height, width = settings.side("size")
    patch, tile = vision.integer("patch_size", 16), vision.integer("image_size", height)
    if not height == width == tile or not 1 <= patch <= tile:
        raise settings.wrong("size", f"a square of what the vision tower has ({tile})")
    side = tile // patch
    least, most = settings.integer("min_patches", 1), settings.integer("max_patches", 12)
    if not 1 <= least <= most <= MAX_TILES:
        raise settings.wrong("max_patches", f"min_patches to {MAX_TILES} tiles")
    return CanvasImages(
        pixels=pixels_of(settings),
        tile=tile,
        rows=(side // square_factor(config, side)) ** 2,
        least=least,
        most=most,
        split=not fitting or settings.flag("crop_to_patches", True),
        fitting=fitting,
        numbered=numbered,
        whole=whole,
        tile_end=tile_end,
    )
