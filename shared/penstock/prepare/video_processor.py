"""What a hub folder says about the videos that its model takes.

video_preprocessor_config.json, or `video_processor` in processor_config.json, says how frames
become pixels; older folders have preprocessor_config.json for both.  Defaults are those of
transformers' video processors.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import msgspec

from penstock.errors import UnsupportedModel
from penstock.formats.fields import Fields
from penstock.model.media_facts import KindFacts
from penstock.model.video_facts import FixedFrames, FrameSampling, VideoFrames
from penstock.prepare.image_processor import CLIP_MEAN, CLIP_STD, HALF, ImageSettings, pixels_of
from penstock.prepare.media_tokens import MediaTokens

MAX_FRAMES = 4096
USUAL_FRAMES = 32
"""Shown of a file, where a processor shows all: vLLM's number."""
CLASSES: dict[str, dict[str, Any]] = {
    "Qwen2VLVideoProcessor": {
        "resample": 3,
        "image_mean": CLIP_MEAN,
        "image_std": CLIP_STD,
        "size": {"shortest_edge": 128 * 28 * 28, "longest_edge": 28 * 28 * 768},
    },
    "LlavaOnevisionVideoProcessor": {
        "resample": 3,
        "image_mean": CLIP_MEAN,
        "image_std": CLIP_STD,
        "size": {"height": 384, "width": 384},
    },
    "Qwen3VLVideoProcessor": {
        "resample": 3,
        "image_mean": HALF,
        "image_std": HALF,
        "size": {"shortest_edge": 128 * 32 * 32, "longest_edge": 32 * 32 * 768},
        "patch_size": 16,
        "do_sample_frames": True,
        "fps": 2,
        "max_video_tokens": 768,
    },
}
"""Class -> its defaults."""
_HARMLESS = (
    "_valid_processor_keys",
    "crop_size",
    "data_format",
    "default_to_square",
    "device",
    "disable_grouping",
    "do_center_crop",
    "do_convert_rgb",
    "do_pad",
    "feature_extractor_type",
    "image_grid_pinpoints",  # of pictures
    "image_processor_type",
    "input_data_format",
    "max_duration",
    "processor_class",
    "return_metadata",
    "size_divisor",
    "video_metadata",
    "video_processor_type",
)
"""Keys that change no pixel of a frame."""


class VideoFamily(NamedTuple):
    """processor: the class where a folder names none.  timed: whether positions are as far apart as
    times.  stamped: whether each group of frames stands after its time as text, with tokens of its
    own around it.  fixed: whether all frames have the tower's one size."""

    processor: str
    timed: bool = False
    stamped: bool = False
    fixed: bool = False


FAMILIES: dict[str, VideoFamily] = {
    "LlavaOnevisionForConditionalGeneration": VideoFamily(
        "LlavaOnevisionVideoProcessor", fixed=True
    ),
    "Qwen2VLForConditionalGeneration": VideoFamily("Qwen2VLVideoProcessor"),
    "Qwen2_5_VLForConditionalGeneration": VideoFamily("Qwen2VLVideoProcessor", timed=True),
    "Qwen3VLForConditionalGeneration": VideoFamily("Qwen3VLVideoProcessor", stamped=True),
    "Qwen3VLMoeForConditionalGeneration": VideoFamily("Qwen3VLVideoProcessor", stamped=True),
    "Qwen3_5ForConditionalGeneration": VideoFamily("Qwen3VLVideoProcessor", stamped=True),
    "Qwen3_5MoeForConditionalGeneration": VideoFamily("Qwen3VLVideoProcessor", stamped=True),
}
"""Families of models that take videos, by config.json's architecture."""


class VideoSettings(ImageSettings):
    """Settings as in the folder's file, completed by the class's defaults. kind: the class."""

    def __init__(self, values: dict[str, Any], where: str, usual: str) -> None:
        self.kind = str(values.get("video_processor_type") or usual)
        if self.kind not in CLASSES:
            raise UnsupportedModel(
                f"{where}: video_processor_type is {self.kind[:80]!r}; known are "
                f"{', '.join(CLASSES)} (--language-model-only serves the model without its eyes)"
            )
        given = {key: value for key, value in values.items() if value is not None}
        Fields.__init__(self, {**CLASSES[self.kind], **given}, where)


def read_video(
    values: dict[str, Any], where: str, config: Fields, tokens: MediaTokens
) -> KindFacts | None:
    """None for a model that takes no videos, and where no token stands for one. values, where: of
    the folder's file.  config: config.json.  Raises UnsupportedModel."""
    names = config.listed("architectures", str)
    family = next((FAMILIES[name] for name in names if name in FAMILIES), None)
    keys = ("video_token_id", "video_token_index")
    if family is None or not any(map(tokens.has, keys)):
        return None
    token, token_id = tokens.named(*keys)
    settings = VideoSettings(values, where, family.processor)
    read = _fixed_frames if family.fixed else _frames
    video = read(settings, config, family)
    _check_all_read(settings)
    placeholder = token
    if family.stamped and isinstance(video, VideoFrames):
        begin, _ = tokens.named("vision_start_token_id")
        end, _ = tokens.named("vision_end_token_id")
        video = msgspec.structs.replace(video, stamped=(begin, end))
        # Each group has its own; those of the template stood around all of them.
        placeholder = f"{begin}{token}{end}"
    return KindFacts(preparation=video, placeholder=placeholder, token=token, token_id=token_id)


def _frames(settings: VideoSettings, config: Fields, family: VideoFamily) -> VideoFrames:
    vision, size = config.section("vision_config"), settings.section("size")
    patch, merge = settings.integer("patch_size", 14), settings.integer("merge_size", 2)
    video = VideoFrames(
        pixels=pixels_of(settings),
        min_pixels=settings.integer("min_pixels", size.integer("shortest_edge")),
        max_pixels=settings.integer("max_pixels", size.integer("longest_edge")),
        patch=patch,
        merge=merge,
        group=settings.integer("temporal_patch_size", 2),
        sampling=_sampling(settings, "ends" if family.stamped else "even"),
        positions_per_second=vision.number("tokens_per_second", 4) if family.timed else 0.0,
        all_pixels=_all_pixels(settings, patch * merge, of_all=family.stamped),
        of_all=family.stamped,
    )
    _check(video, settings, vision)
    return video


def _fixed_frames(settings: VideoSettings, config: Fields, family: VideoFamily) -> FixedFrames:
    """Preparation for a tower whose pictures all have one size."""
    vision = config.section("vision_config")
    height, width = settings.side("size")
    side, patch = vision.integer("image_size", 384), vision.integer("patch_size", 14)
    if (height, width) != (side, side) or not 1 <= patch <= side:
        raise settings.wrong("size", f"what the vision tower has ({side} x {side})")
    return FixedFrames(
        pixels=pixels_of(settings),
        height=height,
        width=width,
        rows=(-(-(side // patch) // 2)) ** 2,
        sampling=_sampling(settings, "even"),
    )


def _check_all_read(settings: VideoSettings) -> None:
    settings.ignore(*_HARMLESS)
    unknown = settings.not_asked()
    if unknown:
        raise UnsupportedModel(
            f"{settings.where}: {unknown[0]} is not known here, and could change what the model "
            "sees in a video (--language-model-only serves the model without its eyes)"
        )


def _sampling(settings: VideoSettings, spread: Literal["even", "ends"]) -> FrameSampling:
    count, fps = settings.integer("num_frames", 0), settings.number("fps", 0.0)
    least, most = settings.integer("min_frames", 4), settings.integer("max_frames", 768)
    by_itself = settings.flag("do_sample_frames", False)
    if not (0 <= count <= MAX_FRAMES and 1 <= least <= most and 0 <= fps <= 1000):
        raise settings.wrong("num_frames", f"0 to {MAX_FRAMES}, with min_frames to max_frames")
    if not by_itself or not (count or fps):
        count, fps = USUAL_FRAMES, 0.0
    return FrameSampling(
        num_frames=count, fps=fps, min_frames=least, max_frames=most, spread=spread
    )


def _all_pixels(settings: VideoSettings, factor: int, *, of_all: bool) -> int:
    """Most pixels of a frame, where the other bounds are of all frames together; else of all; 0: no
    such bound."""
    tokens = settings.integer("max_video_tokens", 128_000)
    if not settings.flag("cap_pixels_per_frame", False):
        return 0
    if of_all:
        return tokens * factor * factor
    return int(tokens * factor * factor * 0.9) * settings.integer("temporal_patch_size", 2)


def _check(video: VideoFrames, settings: VideoSettings, vision: Fields) -> None:
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
    if not 0 <= video.positions_per_second <= 1000:
        raise vision.wrong("tokens_per_second", "0 to 1000")
