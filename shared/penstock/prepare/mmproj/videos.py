"""Videos of models whose frames are pictures: an mmproj file says nothing of them, so they are
prepared as for the families' releases, where the vocabulary has the token that stands for one."""

from __future__ import annotations

from penstock.model.image_facts import SOFT_TOKENS, CanvasImages, PooledImages, SlicedImages
from penstock.model.video_facts import FrameSampling
from penstock.prepare.mmproj.file import Kinds, MmprojTokens
from penstock.prepare.video_processor import CLASSES, USUAL_FRAMES
from penstock.prepare.video_readers import (
    INTERNVL_TOKEN,
    MOST_FRAMES,
    each_second,
    of_pooled,
    of_sliced,
    of_tiles,
)

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
