"""What a model's files say of which frames of a video are shown, and how they are prepared."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.model.image_facts import OverlappingImages, Pixels, SlicedImages


class FrameSampling(msgspec.Struct, frozen=True, kw_only=True):
    """Which frames of a video file are shown.

    fps: so many for each second of it, min_frames to max_frames in all; 0: its length doesn't
    matter.  num_frames: at most so many; 0: max_frames.
    """

    num_frames: int = 32
    fps: float = 0.0
    min_frames: int = 4
    max_frames: int = 768
    spread: Literal["even", "middles", "ends"] = "even"
    """even: one at the beginning of each of so many equal parts.  middles: in the middle of each.
    ends: from the first to the last."""
    rule: Literal["", "glm4v", "glm46v", "minicpmv", "apart", "molmo2"] = ""
    """A family's own rule, which says by a video's length which frames are shown; of more than are
    allowed some are left out, evenly. apart: the first frame, those of which each is the next one
    that is 1 / fps seconds behind it, and the last (MiniMax M3). molmo2: those nearest to each
    multiple of 1 / fps seconds, and the last; of a video that has more, some from the first to the
    last. Empty: fps and num_frames say it."""
    longest: float = 300.0
    """Seconds from which on a video has no more frames by GLM-4.1V's rule, but sparser ones."""


class GroupTexts(msgspec.Struct, frozen=True, kw_only=True):
    """The text around the embeddings of each group of frames.

    begin, end: directly around them.  between: two groups.  stamp: what says which group it is.
    """

    begin: str = ""
    end: str = ""
    between: str = ""
    stamp: Literal["", "tagged", "bracketed", "whole", "tenths", "clock", "frame", "plain"] = ""
    """tagged: "<1.5 seconds>" before `begin`, the middle of the group.  The others are of its first
    frame.  bracketed: "]<]1.5 seconds[>[" before it.  whole: "1" behind `end`, seconds.  tenths:
    "1.5 seconds" behind it.  clock: "00:01 " before `begin`.  frame: "Frame2: " before it, counted
    from 1.  plain: "1.5 " before it, seconds."""


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
    texts: GroupTexts | None = None
    """None: nothing stands between the embeddings of two groups."""


class SingleFrames(msgspec.Struct, frozen=True, kw_only=True):
    """Videos whose frames are encoded one by one."""

    @property
    def group(self) -> int:
        """Frames that are encoded together."""
        return 1


class FixedFrames(SingleFrames, frozen=True, kw_only=True, tag_field="kind", tag="fixed_frames"):
    """LLaVA-OneVision's and InternVL's videos: frames of one size.

    height, width: of what the tower gets.  rows: embeddings of a frame; LLaVA-OneVision's has fewer
    than a picture.
    """

    pixels: Pixels
    height: int
    width: int
    rows: int
    sampling: FrameSampling = FrameSampling()
    texts: GroupTexts | None = None
    """None: nothing stands between the embeddings of two frames, and one embedding ends the
    video."""


class PooledFrames(SingleFrames, frozen=True, kw_only=True, tag_field="kind", tag="pooled_frames"):
    """Gemma 4's videos: each frame is a picture, as PooledImages has it.

    patch: side, pixels.  merge: patches, each way, that become one embedding.  most: embeddings of
    a frame.
    """

    pixels: Pixels
    patch: int
    merge: int
    most: int
    texts: GroupTexts
    sampling: FrameSampling = FrameSampling()

    @property
    def square(self) -> int:
        """Pixels in a row of a square of patches."""
        return self.patch * self.merge


class SlicedFrames(SingleFrames, frozen=True, kw_only=True, tag_field="kind", tag="sliced_frames"):
    """MiniCPM-V's videos: each frame is a picture with slices, as `image` says."""

    image: SlicedImages
    sampling: FrameSampling = FrameSampling()

    @property
    def pixels(self) -> Pixels:
        """How bytes become numbers."""
        return self.image.pixels


class MarkedFrames(SingleFrames, frozen=True, kw_only=True, tag_field="kind", tag="marked_frames"):
    """Molmo 2's videos: each frame is one square without proportions, whose embeddings stand
    between `begin` and `end` of `image`, which says the rest, too, but how many crops there are."""

    image: OverlappingImages
    texts: GroupTexts
    sampling: FrameSampling = FrameSampling()

    @property
    def pixels(self) -> Pixels:
        """How pixels become numbers."""
        return self.image.pixels


VideoPreparation = VideoFrames | FixedFrames | PooledFrames | SlicedFrames | MarkedFrames
