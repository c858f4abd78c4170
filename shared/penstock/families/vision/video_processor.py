"""The settings of a video processor, with the defaults of its class in transformers.

video_preprocessor_config.json, or `video_processor` in processor_config.json, says how frames
become pixels; older folders have preprocessor_config.json for both.
"""

from __future__ import annotations

from typing import Any, Literal

from penstock.errors import UnsupportedModel
from penstock.families.vision.image_processor import CLIP_MEAN, CLIP_STD, HALF, ImageSettings
from penstock.formats.fields import Fields
from penstock.forms.pooled import SOFT_TOKENS
from penstock.forms.video import FrameSampling

MAX_FRAMES = 4096
USUAL_FRAMES = 32
"""Shown of a file, where a processor shows all: vLLM's number."""
_GLM: dict[str, Any] = {
    "resample": 3,
    "image_mean": CLIP_MEAN,
    "image_std": CLIP_STD,
    "size": {"shortest_edge": 112 * 112, "longest_edge": 28 * 28 * 2 * 30_000},
    "do_sample_frames": True,
}
_GEMMA4: dict[str, Any] = {
    "resample": 3,
    "image_mean": (0.0, 0.0, 0.0),
    "image_std": (1.0, 1.0, 1.0),
    "do_sample_frames": True,
    "num_frames": 32,
    "max_soft_tokens": SOFT_TOKENS[0],
}
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
    "MiniMaxM3VLVideoProcessor": {
        "resample": 3,
        "image_mean": CLIP_MEAN,
        "image_std": CLIP_STD,
        "size": {"height": 672, "width": 672},
        "min_pixels": 4 * 28 * 28,
        "max_pixels": 768 * 28 * 28,
    },
    "Molmo2VideoProcessor": {
        "resample": 2,
        "image_mean": HALF,
        "image_std": HALF,
        "size": {"height": 378, "width": 378},
        "patch_size": 14,
        "pooling_size": [3, 3],
        "do_sample_frames": True,
        "num_frames": 64,
        "max_fps": 2,
        "frame_sample_mode": "uniform_last_frame",
    },
    "Glm4vVideoProcessor": {**_GLM, "fps": 2, "max_duration": 300},
    "Glm46VVideoProcessor": _GLM,
    "InternVLVideoProcessor": {
        "resample": 3,
        "image_mean": CLIP_MEAN,
        "image_std": CLIP_STD,
        "size": {"height": 384, "width": 384},
    },
    "Gemma4VideoProcessor": _GEMMA4,
    "Gemma4UnifiedVideoProcessor": _GEMMA4,
    "MiniCPMV4_6VideoProcessor": {
        "resample": 3,
        "image_mean": HALF,
        "image_std": HALF,
        "do_sample_frames": True,
    },
}
"""Class -> its defaults."""
_HARMLESS = (
    "_valid_processor_keys",
    "auto_map",
    "crop_size",
    "crop_to_patches",  # of pictures, as the two after the next
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
    "image_seq_length",
    "input_data_format",
    "max_duration",
    "max_image_size",
    "max_patches",
    "min_patches",
    "processor_class",
    "return_metadata",
    "size_divisor",
    "video_metadata",
    "video_processor_type",
)
"""Keys that change no pixel of a frame."""


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


def check_all_read(settings: VideoSettings) -> None:
    """Raises UnsupportedModel for a setting that wasn't read."""
    settings.ignore(*_HARMLESS)
    unknown = settings.not_asked()
    if unknown:
        raise UnsupportedModel(
            f"{settings.where}: {unknown[0]} is not known here, and could change what the model "
            "sees in a video (--language-model-only serves the model without its eyes)"
        )


def sampling_of(
    settings: VideoSettings, spread: Literal["even", "middles", "ends"] = "even"
) -> FrameSampling:
    """Returns the sampling of a processor that takes a number of frames, or frames per second."""
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
