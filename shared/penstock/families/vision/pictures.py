"""How pictures are prepared, as folders of the hub say it: what several families share."""

from __future__ import annotations

from penstock.errors import UnsupportedModel
from penstock.families.media_tokens import MediaTokens
from penstock.families.vision.image_processor import OF_REPEATED, ImageSettings, pixels_of
from penstock.formats.fields import Fields
from penstock.forms.patches import PatchImages
from penstock.model.media_facts import KindFacts

MAX_TILES = 64
MAX_ROWS = 65_536


def tile_of(settings: ImageSettings, config: Fields) -> tuple[int, int]:
    """Sides of a tile and of a patch, in pixels."""
    height, width = settings.side("size")
    vision = config.section("vision_config")
    patch = side_of(vision, "patch_size", 14)
    image = side_of(vision, "image_size", height)
    if not (height == width == image) or not 1 <= patch <= height:
        raise UnsupportedModel(
            f"{vision.where}: tiles of {image} pixels in patches of {patch} are seen, but pictures "
            f"are prepared as {height} × {width}"
        )
    return height, patch


def side_of(fields: Fields, key: str, default: int) -> int:
    """Side of a square, where config.json may give both of its sides."""
    value = fields.values.get(key)
    if isinstance(value, (list, tuple)) and len(value) == 2 and value[0] == value[1]:
        return fields.listed(key, int)[0]
    return fields.integer(key, default)


def check_side(vision: Fields, height: int, width: int) -> None:
    side = vision.optional_integer("image_size")
    if side is not None and (height, width) != (side, side):
        raise UnsupportedModel(
            f"{vision.where}: image_size is {side}, but pictures are prepared as {height} × {width}"
        )


def patch_of(vision: Fields) -> int:
    patch = vision.integer("patch_size")
    if not 1 <= patch <= 1024:
        raise vision.wrong("patch_size", "1 to 1024 pixels")
    return patch


def bounded_rows(rows: int, settings: Fields) -> int:
    if not 1 <= rows <= MAX_ROWS:
        raise UnsupportedModel(
            f"{settings.where}: a picture has {rows} embeddings; 1 to {MAX_ROWS} are allowed"
        )
    return rows


def merged_patches(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    size = settings.sizes("size", 56 * 56, 28 * 28 * 1280)
    return in_patches(settings, config.section("vision_config"), tokens, size)


def in_patches(
    settings: ImageSettings,
    vision: Fields,
    tokens: MediaTokens,
    size: tuple[int, int],
    *,
    frames: int = 2,
    widened: bool = False,
) -> KindFacts:
    """size: least and most pixels, where min_pixels and max_pixels don't say. frames: of a patch,
    where the settings don't say. widened: as PatchImages has it."""
    image = PatchImages(
        pixels=pixels_of(settings),
        min_pixels=settings.integer("min_pixels", size[0]),
        max_pixels=settings.integer("max_pixels", size[1]),
        patch=settings.integer("patch_size", 14),
        merge=settings.integer("merge_size", 2),
        frames=settings.integer("temporal_patch_size", frames),
        widened=widened,
        of_all=settings.kind in OF_REPEATED,
    )
    stated = (
        ("patch_size", image.patch, vision.optional_integer("patch_size")),
        ("merge_size", image.merge, vision.optional_integer("spatial_merge_size")),
        ("temporal_patch_size", image.frames, vision.optional_integer("temporal_patch_size")),
    )
    for key, ours, tower in stated:
        if not 1 <= ours <= 1024 or tower not in (None, ours):
            raise settings.wrong(key, f"what the vision tower has ({tower})")
    if not 1 <= image.min_pixels <= image.max_pixels <= 1 << 28:
        raise UnsupportedModel(
            f"{settings.where}: pictures are to have {image.min_pixels} to {image.max_pixels} "
            f"pixels; 1 to {1 << 28}, ascending, are allowed"
        )
    return KindFacts.marked(image, tokens.named("image_token_id", "image_token_index"))
