"""How DeepSeek-VL's and Janus's pictures are prepared: a picture lies, in its proportions, in the
middle of a square."""

from __future__ import annotations

import msgspec

from penstock.families.vision.multi_modality import DRAWS, tower_settings
from penstock.formats.fields import Fields
from penstock.forms.fixed import FixedImages
from penstock.forms.twofold import TwofoldImages
from penstock.model.media_facts import KindFacts
from penstock.prepare.image_processor import CLIP_MEAN, CLIP_STD, ImageSettings, pixels_of
from penstock.prepare.media_tokens import MediaTokens

BEGIN, END = "<begin_of_image>", "<end_of_image>"
"""Around Janus's embeddings."""
SMALLEST_SIDE = 14
"""Pixels that a side has at least, where settings don't say."""
PLACEHOLDER = "<image_placeholder>"
"""What stands for a picture, in the makers' tokenizers."""


OF_MEAN = ("background_color", "high_res_background_color")
"""Settings that transformers writes, and makes anew of the mean."""


def deepseek_vl(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    side, rows = _square(settings, config)
    image = FixedImages(
        pixels=pixels_of(settings),
        height=side,
        width=side,
        rows=rows,
        fitted=_least(settings, side),
    )
    token, token_id = tokens.named("image_token_id")
    return KindFacts(preparation=image, placeholder=token, token=token, token_id=token_id)


def janus(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    for text in (BEGIN, END):
        tokens.check(text)
    found = deepseek_vl(settings, config, tokens)
    return msgspec.structs.replace(found, before=BEGIN, behind=END)


def multi_modality(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """The makers' own settings of Janus and DeepSeek-VL, whose text has nothing around a picture's
    embeddings."""
    settings.ignore(*OF_MEAN, "size")
    tower = tower_settings(config)
    side, patch = tower.integer("image_size"), tower.integer("patch_size")
    if settings.integer("image_size") != side or not 1 <= patch <= side:
        raise settings.wrong("image_size", f"what the vision tower has ({side})")
    image = FixedImages(
        pixels=pixels_of(settings),
        height=side,
        width=side,
        rows=(side // patch) ** 2,
        fitted=_least(settings, side),
        fitted_down=True,
    )
    token, token_id = tokens.called(PLACEHOLDER)
    found = KindFacts(preparation=image, placeholder=token, token=token, token_id=token_id)
    if not any(key in config for key in DRAWS):
        return found
    for text in (BEGIN, END):
        tokens.check(text)
    return msgspec.structs.replace(found, before=BEGIN, behind=END)


def deepseek_vl_hybrid(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    """Facts of a picture in two squares. Where the settings name no mean of the large one, its bars
    are grey, as in transformers."""
    side, rows = _square(settings, config)
    large, wide = settings.side("high_res_size")
    wanted = config.section("high_res_vision_config").integer("image_size", large)
    if not large == wide == wanted:
        raise settings.wrong("high_res_size", f"a square of what the tower has ({wanted})")
    own = {
        ours: settings.values[f"high_res_{ours}"]
        for ours in ("resample", "image_mean", "image_std")
        if f"high_res_{ours}" in settings.values
    }
    settings.ignore(*(f"high_res_{ours}" for ours in own))
    pixels = pixels_of(settings)
    of_large = ImageSettings({**settings.values, **OF_LARGE, **own}, settings.where)
    large_pixels = pixels_of(of_large)
    background = (127, 127, 127)
    if large_pixels.mean is not None and "image_mean" in own:
        red, green, blue = (int(each * 255) for each in large_pixels.mean)
        background = (red, green, blue)
    image = TwofoldImages(
        pixels=pixels,
        large_pixels=large_pixels,
        side=side,
        large=large,
        least=_least(settings, large),
        rows=rows,
        background=background,
    )
    token, token_id = tokens.named("image_token_id")
    return KindFacts(preparation=image, placeholder=token, token=token, token_id=token_id)


OF_LARGE: dict[str, object] = {"resample": 3, "image_mean": CLIP_MEAN, "image_std": CLIP_STD}
"""What the large square has where the settings say nothing of it."""


def _square(settings: ImageSettings, config: Fields) -> tuple[int, int]:
    """Side of the tower's pictures, pixels, and their embeddings."""
    settings.ignore(*OF_MEAN)
    vision = config.section("vision_config")
    height, width = settings.side("size")
    side, patch = vision.integer("image_size", height), vision.integer("patch_size", 16)
    if not (height == width == side) or not 1 <= patch <= side:
        raise settings.wrong("size", f"a square of what the vision tower has ({side})")
    if not settings.flag("do_pad", True):
        raise settings.wrong("do_pad", "true")
    return side, (side // patch) ** 2


def _least(settings: ImageSettings, side: int) -> int:
    least = settings.integer("min_size")
    if not 1 <= least <= side:
        raise settings.wrong("min_size", f"1 to {side} pixels")
    return least
