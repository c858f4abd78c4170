"""Videos: an mmproj file says nothing of them, so they are prepared as for the families' releases,
where the vocabulary has the token that stands for one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.families.media_tokens import MediaTokens
from penstock.families.vision import VISION_CLASSES
from penstock.families.vision.gemma4 import of_pooled
from penstock.families.vision.internvl import VIDEO as INTERNVL_TOKEN
from penstock.families.vision.internvl import of_tiles
from penstock.families.vision.minicpmv4_6 import MOST_FRAMES, each_second, of_sliced
from penstock.families.vision.video_processor import CLASSES, USUAL_FRAMES
from penstock.formats.fields import Fields
from penstock.forms.canvas import CanvasImages
from penstock.forms.patches import PatchImages
from penstock.forms.pooled import SOFT_TOKENS, PooledImages
from penstock.forms.sliced import SlicedImages
from penstock.forms.video import FrameSampling
from penstock.prepare.media import read_video
from penstock.prepare.mmproj.file import Kinds, MmprojFile, MmprojTokens

GEMMA, MINICPM = "<|video|>", "<|video_pad|>"
"""Tokens that stand for a video."""
GEMMA_FRAMES = CLASSES["Gemma4VideoProcessor"]["num_frames"]


def with_videos(kinds: Kinds, tokens: MmprojTokens) -> Kinds:
    """Adds videos to the pictures of Gemma 4, InternVL and MiniCPM-V."""
    picture = kinds["image"]
    match picture.preparation:
        case PooledImages() if tokens.has(GEMMA):
            sampling = FrameSampling(num_frames=GEMMA_FRAMES)
            video = of_pooled(picture, *tokens.id_of(GEMMA), sampling, most=SOFT_TOKENS[0])
        case CanvasImages() if tokens.has(INTERNVL_TOKEN):
            sampling = FrameSampling(num_frames=USUAL_FRAMES, spread="middles")
            video = of_tiles(picture, *tokens.id_of(INTERNVL_TOKEN), sampling)
        case SlicedImages() if tokens.has(MINICPM):
            video = of_sliced(picture, *tokens.id_of(MINICPM), each_second(MOST_FRAMES))
        case _:
            return kinds
    return {**kinds, "video": video}


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
