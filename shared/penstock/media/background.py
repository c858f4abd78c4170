"""The background of pictures and frames with transparent parts."""

from __future__ import annotations

from typing import Annotated

import msgspec

from penstock.config.settings import MediaSettings
from penstock.errors import StartupError
from penstock.media.frame_settings import json_object

_Level = Annotated[int, msgspec.Meta(ge=0, le=255)]
WHITE = (255, 255, 255)


def background(settings: MediaSettings) -> tuple[int, int, int]:
    """Returns the red, green and blue that show through transparent parts. Raises StartupError."""
    image = json_object("media_io_kwargs", settings.media_io_kwargs).get("image", {})
    given = image.get("rgba_background_color", WHITE) if isinstance(image, dict) else None
    try:
        colour = msgspec.convert(given, tuple[_Level, _Level, _Level])
    except msgspec.ValidationError:
        colour = None
    if colour is None or image.keys() - {"rgba_background_color"}:
        raise StartupError(
            f"media_io_kwargs is {settings.media_io_kwargs[:80]}; allowed for images: "
            '{"image": {"rgba_background_color": [255, 255, 255]}}'
        )
    return colour
