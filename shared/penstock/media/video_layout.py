"""How a video stands in a prompt: sizes of its frames, its grid, and its positions in time."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from typing import NamedTuple

from penstock.media import slices
from penstock.media.geometry import (
    BadShape,
    Size,
    whole_patches,
    whole_squares,
    whole_volume,
)
from penstock.model.video_facts import (
    FixedFrames,
    GroupTexts,
    MarkedFrames,
    PooledFrames,
    SlicedFrames,
    VideoFrames,
    VideoPreparation,
)

MAX_TERM = 1_000_000
"""Largest numerator and denominator of a fraction, as far as a rate goes."""


class VideoShape(NamedTuple):
    """What a video's rows and positions depend on.

    height, width: of its upright frames, pixels.  total: frames that it has.  rate: frames per
    second.  numbers: of the frames that are shown, of these, ascending.
    """

    height: int
    width: int
    total: int
    rate: Fraction
    numbers: tuple[int, ...]

    @property
    def shown(self) -> int:
        """How many frames."""
        return len(self.numbers)

    def flat(self) -> tuple[int, ...]:
        """The shape as whole numbers, as Answer.shape has it."""
        rate = self.rate.limit_denominator(MAX_TERM)
        sizes = self.height, self.width, self.total, rate.numerator, rate.denominator
        return *sizes, *self.numbers

    @staticmethod
    def of(shape: tuple[int, ...]) -> VideoShape:
        height, width, total, above, below, *numbers = shape
        return VideoShape(height, width, total, Fraction(above, below), tuple(numbers))


def frame_size(video: VideoPreparation, size: Size, shown: int) -> Size:
    """Height and width of a resized frame, pixels; of one with slices, those of the whole. shown:
    frames. Raises BadShape."""
    if isinstance(video, FixedFrames):
        return video.height, video.width
    if isinstance(video, PooledFrames):
        return whole_squares(size, video.square, video.most)
    if isinstance(video, MarkedFrames):
        return video.image.side, video.image.side
    if isinstance(video, SlicedFrames):
        return slices.whole_size(video.image, size)
    most, factor = video.max_pixels, video.patch * video.merge
    if video.of_all:
        if video.all_pixels:
            each = max(min(video.all_pixels, most // shown), int(video.min_pixels * 1.05))
            most = each * shown
        return whole_volume(size, shown, factor, video.group, video.min_pixels, most)
    if video.all_pixels:
        most = max(min(most, video.all_pixels // shown), int(video.min_pixels * 1.05))
    return whole_patches(size, factor, video.min_pixels, most)


def frame_pixels(video: VideoPreparation, size: Size, shown: int) -> int:
    """Pixels of a frame in all its parts, resized. Raises BadShape."""
    height, width = frame_size(video, size, shown)
    if not isinstance(video, SlicedFrames):
        return height * width
    rows, columns = slices.grid(video.image, size)
    high, wide = slices.slice_size(video.image, size) if rows else (0, 0)
    return height * width + rows * columns * high * wide


def groups_of(video: VideoFrames, shown: int) -> int:
    """The last frame is repeated where they don't fill the last group."""
    return -(-shown // video.group)


def video_grid(video: VideoPreparation, shape: VideoShape) -> tuple[int, ...]:
    """MediaItem.grid: groups, rows and columns of merged patches; then, where time has a scale, the
    numerator and the denominator of what lies between the positions of two groups; nothing where
    positions just count. Raises BadShape."""
    if not isinstance(video, VideoFrames):
        return ()
    height, width = frame_size(video, (shape.height, shape.width), shape.shown)
    side = video.patch * video.merge
    grid = groups_of(video, shape.shown), height // side, width // side
    if not video.positions_per_second:
        return grid
    plane = grid[1] * grid[2]
    step = (
        Fraction(video.positions_per_second)
        * video.group
        * Fraction(shape.total, shape.shown)
        / shape.rate
    ).limit_denominator(MAX_TERM)
    if step > plane:
        seconds = float(step) / video.positions_per_second
        raise BadShape(
            f"its frames lie {seconds:.0f} s apart, and one of them has {plane} tokens; the model "
            f"tells times apart up to {plane / video.positions_per_second:.0f} s; show more frames "
            "(num_frames) or larger ones (min_pixels)"
        )
    return *grid, step.numerator, step.denominator


def group_texts(
    video: VideoPreparation, texts: GroupTexts, shape: VideoShape
) -> Iterator[tuple[str, str]]:
    """The text before and behind the embeddings of each group of frames."""
    for number, time in enumerate(times_of(video, texts, shape)):
        before, behind = texts.begin, texts.end
        match texts.stamp:
            case "tagged":
                before = f"<{time:.1f} seconds>{before}"
            case "bracketed":
                before = f"]<]{time:.1f} seconds[>[{before}"
            case "whole":
                behind += f"{int(time)}"
            case "tenths":
                behind += f"{time:.1f} seconds"
            case "clock":
                before = f"{int(time // 60):02d}:{int(time % 60):02d} {before}"
            case "plain":
                before = f"{time:.1f} {before}"
            case "frame":
                before = f"Frame{number + 1}: {before}"
        yield (texts.between if number else "") + before, behind


def times_of(video: VideoPreparation, texts: GroupTexts, shape: VideoShape) -> list[float]:
    """Time of each group, seconds: the middle of its first and its last frame's, or the first's."""
    rate, last = float(shape.rate), shape.shown - 1
    seconds = [number / rate for number in shape.numbers]
    firsts = range(0, shape.shown, video.group)
    if texts.stamp != "tagged":
        return [seconds[first] for first in firsts]
    return [(seconds[first] + seconds[min(first + video.group - 1, last)]) / 2 for first in firsts]
