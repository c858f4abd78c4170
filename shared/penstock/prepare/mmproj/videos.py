"""Videos: an mmproj file says nothing of them, so they are prepared as for the families' releases,
where the vocabulary has the token that stands for one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from penstock.families.media_tokens import MediaTokens
from penstock.families.vision.served import VISION_CLASSES
from penstock.formats.fields import Fields
from penstock.forms.patches import PatchImages
from penstock.model.media_facts import KindFacts
from penstock.prepare.media import read_video
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens


def with_videos(
    kinds: Kinds,
    tokens: MmprojTokens,
    mark: str,
    read: Callable[[KindFacts, str, int], KindFacts],
) -> Kinds:
    """Adds videos to pictures, where the vocabulary has the token that stands for one. read: makes
    them of the pictures, with that token's text and id."""
    if not tokens.has(mark):
        return kinds
    return {**kinds, "video": read(kinds["image"], *tokens.id_of(mark))}


def as_of_release(
    found: MmprojFile,
    tokens: MmprojTokens,
    picture: PatchImages,
    hub_class: str,
    named: Mapping[str, str],
    pixels: tuple[int, int],
    sizes: Mapping[str, int] = {},
    **settings: Any,
) -> Kinds:
    """Videos of frames in patches, as for a folder of the hub with the release's settings.

    named: tokens by what config.json calls them.  pixels: the fewest and the most, as the release's
    class means them.  sizes: what config.json says of the tower besides.  settings: of the video
    processor's file besides."""
    where = str(found.file.path)
    stated: dict[str, Any] = {key: tokens.id_of(text)[1] for key, text in named.items()}
    tower = {
        "patch_size": picture.patch,
        "spatial_merge_size": picture.merge,
        "temporal_patch_size": picture.frames,
    }
    stated |= {"architectures": [hub_class], "vision_config": tower | dict(sizes)}
    config = Fields(stated, where)
    values = settings | {
        "min_pixels": pixels[0],
        "max_pixels": pixels[1],
        "patch_size": picture.patch,
        "merge_size": picture.merge,
        "image_mean": picture.pixels.mean,
        "image_std": picture.pixels.std,
    }
    videos, known = VISION_CLASSES[hub_class].videos, MediaTokens(tokens.tokenizer, config)
    video = None if videos is None else read_video(videos, values, where, config, known)
    return {} if video is None else {"video": video}
