"""How a video stands in a prompt: sizes of its frames, its grid, and its positions in time."""

from __future__ import annotations

from fractions import Fraction
from typing import NamedTuple

from penstock.media.geometry import BadShape, Size, whole_patches, whole_volume
from penstock.model.video_facts import FixedFrames, VideoFrames, VideoPreparation

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
    """Height and width of a resized frame, pixels. shown: frames. Raises BadShape."""
    if isinstance(video, FixedFrames):
        return video.height, video.width
    most, factor = video.max_pixels, video.patch * video.merge
    if video.of_all:
        if video.all_pixels:
            each = max(min(video.all_pixels, most // shown), int(video.min_pixels * 1.05))
            most = each * shown
        return whole_volume(size, shown, factor, video.group, video.min_pixels, most)
    if video.all_pixels:
        most = max(min(most, video.all_pixels // shown), int(video.min_pixels * 1.05))
    return whole_patches(size, factor, video.min_pixels, most)


def groups_of(video: VideoFrames, shown: int) -> int:
    """The last frame is repeated where they don't fill the last group."""
    return -(-shown // video.group)


def video_grid(video: VideoPreparation, shape: VideoShape) -> tuple[int, ...]:
    """MediaItem.grid: groups, rows and columns of merged patches; then, where time has a scale, the
    numerator and the denominator of what lies between the positions of two groups; nothing where
    positions just count. Raises BadShape."""
    if isinstance(video, FixedFrames):
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


def times_of(video: VideoFrames, shape: VideoShape) -> list[float]:
    """Time of each group, seconds: the middle of its first and its last frame's."""
    rate, last = float(shape.rate), shape.shown - 1
    seconds = [number / rate for number in shape.numbers]
    return [
        (seconds[first] + seconds[min(first + video.group - 1, last)]) / 2
        for first in range(0, shape.shown, video.group)
    ]
