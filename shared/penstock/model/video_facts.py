"""What a model's files say of which frames of a video are shown, and how they are prepared."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.model.image_facts import Pixels


class FrameSampling(msgspec.Struct, frozen=True, kw_only=True):
    """Which frames of a video file are shown.

    fps: so many for each second of it, min_frames to max_frames in all; 0: its length doesn't
    matter.  num_frames: at most so many; 0: max_frames.
    """

    num_frames: int = 32
    fps: float = 0.0
    min_frames: int = 4
    max_frames: int = 768
    spread: Literal["even", "ends"] = "even"
    """even: one at the beginning of each of so many equal parts.  ends: from the first to the
    last."""


class VideoFrames(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="frames"):
    """Qwen2-VL's and its successors' videos: frames of any size, rounded to whole merged patches,
    each of which spans `group` frames.

    min_pixels, max_pixels: of a resized frame.  patch: side, pixels.  merge: patches, each way,
    that become one embedding.
    """

    pixels: Pixels
    min_pixels: int
    max_pixels: int
    patch: int
    merge: int
    group: int = 2
    sampling: FrameSampling = FrameSampling()
    all_pixels: int = 0
    """Most pixels of all frames together, of which each has an even share, but no less than 1.05
    times min_pixels; 0: no such bound."""
    positions_per_second: float = 0.0
    """How far apart in time the positions of a second are; 0: those of groups follow one
    another."""
    of_all: bool = False
    """Whether min_pixels and max_pixels are of all frames together; all_pixels is of each then."""
    stamped: tuple[str, str] = ("", "")
    """The text around the embeddings of each group of frames, if each group has its time written
    before it; else two empty texts."""


class FixedFrames(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="fixed_frames"):
    """LLaVA-OneVision's videos: frames of one size, each of which has fewer embeddings than a
    picture; one embedding ends the video.

    height, width: of what the tower gets.  rows: embeddings of a frame.
    """

    pixels: Pixels
    height: int
    width: int
    rows: int
    sampling: FrameSampling = FrameSampling()

    @property
    def group(self) -> int:
        """Frames that are encoded together."""
        return 1


VideoPreparation = VideoFrames | FixedFrames
