"""How videos are prepared, as folders of the hub say it: what several families share."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import UnsupportedModel
from penstock.families.media_tokens import MediaTokens
from penstock.families.vision.image_processor import pixels_of
from penstock.families.vision.video_processor import VideoSettings
from penstock.formats.fields import Fields
from penstock.forms.patches import VideoFrames
from penstock.forms.registry import VideoPreparation
from penstock.model.media_facts import KindFacts

KEYS = ("video_token_id", "video_token_index")
"""What config.json calls the token that stands for a video."""


def video_facts(video: VideoPreparation, tokens: MediaTokens) -> KindFacts:
    return KindFacts.marked(video, tokens.named(*KEYS))


def frames_in_patches(settings: VideoSettings, config: Fields, *, of_all: bool) -> VideoFrames:
    """of_all: as VideoFrames has it."""
    vision, size = config.section("vision_config"), settings.section("size")
    patch, merge = settings.integer("patch_size", 14), settings.integer("merge_size", 2)
    video = VideoFrames(
        pixels=pixels_of(settings),
        min_pixels=settings.integer("min_pixels", size.integer("shortest_edge")),
        max_pixels=settings.integer("max_pixels", size.integer("longest_edge")),
        patch=patch,
        merge=merge,
        group=settings.integer("temporal_patch_size", 2),
        all_pixels=_all_pixels(settings, patch * merge, of_all=of_all),
        of_all=of_all,
    )
    check_frames(video, settings, vision)
    return video


def _all_pixels(settings: VideoSettings, factor: int, *, of_all: bool) -> int:
    """Most pixels of a frame, where the other bounds are of all frames together; else of all; 0: no
    such bound."""
    tokens = settings.integer("max_video_tokens", 128_000)
    if not settings.flag("cap_pixels_per_frame", False):
        return 0
    if of_all:
        return tokens * factor * factor
    return int(tokens * factor * factor * 0.9) * settings.integer("temporal_patch_size", 2)


def check_frames(video: VideoFrames, settings: VideoSettings, vision: Fields) -> None:
    stated = (
        ("patch_size", video.patch, vision.optional_integer("patch_size")),
        ("merge_size", video.merge, vision.optional_integer("spatial_merge_size")),
        ("temporal_patch_size", video.group, vision.optional_integer("temporal_patch_size")),
    )
    for key, ours, tower in stated:
        if not 1 <= ours <= 1024 or tower not in (None, ours):
            raise settings.wrong(key, f"what the vision tower has ({tower})")
    if not 1 <= video.min_pixels <= video.max_pixels <= 1 << 28:
        raise UnsupportedModel(
            f"{settings.where}: frames are to have {video.min_pixels} to {video.max_pixels} "
            f"pixels; 1 to {1 << 28}, ascending, are allowed"
        )


def with_changes(video: VideoFrames, **changes: Any) -> VideoFrames:
    return msgspec.structs.replace(video, **changes)
