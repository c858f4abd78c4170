"""How Step 3.7's pictures are prepared: by transformers' settings, or, without any, as the makers'
code has it built in."""

from __future__ import annotations

from typing import Any

from penstock.formats.fields import Fields
from penstock.forms.windowed import WindowedImages
from penstock.model.document_spec import QUARTER
from penstock.model.media_facts import KindFacts
from penstock.prepare.image_processor import MAX_SIDE, ImageSettings, pixels_of
from penstock.prepare.media_tokens import MediaTokens

BUILT_IN: dict[str, Any] = {"image_processor_type": "Step3p7ImageProcessor"}
"""The makers' folder has no settings; their code's are the defaults of transformers' class."""


def step3p7(settings: ImageSettings, config: Fields, tokens: MediaTokens) -> KindFacts:
    vision = config.section("vision_config")
    square = vision.integer("patch_size", 14) * QUARTER
    if not QUARTER <= square <= QUARTER * 1024:
        raise vision.wrong("patch_size", "1 to 1024 pixels")
    settings.ignore("vision_patch_size", "downsampler_stride")  # the tower's, as config.json has it
    whole, wide = settings.side("size")
    if whole != wide or whole % square:
        raise settings.wrong("size", f"a square whose side is a multiple of {square} pixels")
    tile, longest = settings.integer("patch_size"), settings.integer("max_image_size")
    if not square <= tile <= MAX_SIDE or tile % square:
        raise settings.wrong("patch_size", f"a multiple of {square}, up to {MAX_SIDE}")
    if not whole <= longest <= MAX_SIDE:
        raise settings.wrong("max_image_size", f"{whole} to {MAX_SIDE} pixels")
    image = WindowedImages(
        pixels=pixels_of(settings),
        whole=whole,
        tile=tile,
        longest=longest,
        patch=square // QUARTER,
        whole_rows=(whole // square) ** 2,
        tile_rows=(tile // square) ** 2,
    )
    stated = {"image_token_len": image.whole_rows, "patch_token_len": image.tile_rows}
    for key, rows in stated.items():
        if config.integer(key, rows) != rows:
            raise config.wrong(key, f"what the tower gives ({rows})")
    for text in (image.begin, image.end, image.tile_begin, image.tile_end, image.row_end):
        tokens.check(text)
    token, token_id = tokens.named("image_token_id")
    return KindFacts(preparation=image, placeholder=token, token=token, token_id=token_id)
