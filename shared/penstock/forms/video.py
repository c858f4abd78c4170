"""What the forms of a video's preparation have in common: which frames are shown, the text around
them, and how a video stands in a prompt."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from fractions import Fraction
from typing import TYPE_CHECKING, ClassVar, Literal, NamedTuple

import msgspec

from penstock.forms.form import ItemRun, Runs
from penstock.forms.geometry import Size
from penstock.forms.pixels import Pixels

if TYPE_CHECKING:
    import numpy as np
    from PIL import Image

    from penstock.forms.arrays import Arrays


MAX_TERM = 1_000_000
"""Largest numerator and denominator of a fraction, as far as a rate goes."""


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
    that is at least 1 / fps seconds later, and the last (MiniMax M3). molmo2: those nearest to each
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
    frame.  bracketed: "]<]1.5 seconds[>[" before it.  whole: "1" after `end`, seconds.  tenths:
    "1.5 seconds" after it.  clock: "00:01 " before `begin`.  frame: "Frame2: " before it, counted
    from 1.  plain: "1.5 " before it, seconds."""


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


class VideoForm(msgspec.Struct, frozen=True, kw_only=True):
    """A form of preparation of videos, whose frames are encoded one by one, or in groups.
    What raises NotImplementedError here is each form's own to say, as in ImageForm."""

    sampling: FrameSampling = FrameSampling()

    CHANGES: ClassVar[Mapping[str, str]] = {"num_frames": "num_frames", "fps": "fps"}
    """Settings that may be changed (see ImageForm); these are of `sampling`."""
    COUNTS_WITH_ARRAYS: ClassVar[bool] = False
    """Whether counts come with the arrays: see ImageForm."""
    ALIKE: ClassVar[bool] = False
    """Whether all frames must be of one size."""

    @property
    def pixels(self) -> Pixels:
        """How bytes become numbers."""
        raise NotImplementedError

    @property
    def group(self) -> int:
        """Frames that are encoded together."""
        return 1

    def laid_out(self, shape: tuple[int, ...]) -> Runs:
        """How a video stands in a prompt. shape: VideoShape.flat. Raises BadShape."""
        return self.runs(VideoShape.of(shape))

    def runs(self, shape: VideoShape) -> Runs:
        """What `laid_out` gives."""
        raise NotImplementedError

    def frame_size(self, size: Size, shown: int) -> Size:
        """Height and width of a resized frame, pixels; of one with slices, those of the whole.
        shown: frames. Raises BadShape."""
        raise NotImplementedError

    def frame_pixels(self, size: Size, shown: int) -> int:
        """Pixels of a frame in all its parts, resized. Raises BadShape."""
        height, width = self.frame_size(size, shown)
        return height * width

    def grid(self, shape: VideoShape) -> tuple[int, ...]:
        """MediaItem.grid; nothing where positions just count. Raises BadShape."""
        return ()

    def prepare(self, frames: Iterator[Image.Image], size: Size, count: int) -> Arrays:
        """The arrays of a prepared video. frames: so many.  size: of the first one. Raises
        BadShape."""
        import numpy as np

        from penstock.forms.arrays import FRAMES

        resized = self.frame_size(size, count)
        out = np.empty((count, *resized, 3), np.uint8)
        for row, frame in zip(out, frames, strict=True):
            row[:] = self._resized(frame, resized)
        return {FRAMES: out}

    def _resized(self, frame: Image.Image, size: Size) -> np.ndarray:
        from penstock.forms.arrays import resized

        return resized(frame, size, self.pixels)

    def inputs(self, arrays: Mapping[str, np.ndarray]) -> Arrays:
        """What transformers' video processor gives for the frames: pixel_values float32 [frames, 3,
        height, width], or what the form says. Raises ValueError for what no preparation yields."""
        from penstock.forms.arrays import frames_in, of_tiles

        return {"pixel_values": of_tiles(frames_in(arrays), self.pixels)}

    def wrong(self) -> str | None:
        """What is wrong with settings that were changed; None: nothing."""
        return None


def group_texts(texts: GroupTexts, shape: VideoShape, group: int = 1) -> Iterator[tuple[str, str]]:
    """Yields the texts before and after the embeddings of each group of so many frames."""
    for number, time in enumerate(times_of(texts, shape, group)):
        before, after = texts.begin, texts.end
        match texts.stamp:
            case "tagged":
                before = f"<{time:.1f} seconds>{before}"
            case "bracketed":
                before = f"]<]{time:.1f} seconds[>[{before}"
            case "whole":
                after += f"{int(time)}"
            case "tenths":
                after += f"{time:.1f} seconds"
            case "clock":
                before = f"{int(time // 60):02d}:{int(time % 60):02d} {before}"
            case "plain":
                before = f"{time:.1f} {before}"
            case "frame":
                before = f"Frame{number + 1}: {before}"
        yield (texts.between if number else "") + before, after


def times_of(texts: GroupTexts, shape: VideoShape, group: int) -> list[float]:
    """Time of each group, seconds: the middle of its first and its last frame's, or the first's."""
    rate, last = float(shape.rate), shape.shown - 1
    seconds = [number / rate for number in shape.numbers]
    firsts = range(0, shape.shown, group)
    if texts.stamp != "tagged":
        return [seconds[first] for first in firsts]
    return [(seconds[first] + seconds[min(first + group - 1, last)]) / 2 for first in firsts]


def in_groups(texts: GroupTexts, shape: VideoShape, rows: int, group: int = 1) -> Runs:
    """How a video stands in a prompt whose groups of frames have texts around them. rows:
    embeddings of a group."""
    runs, end = [], ""
    for before, after in group_texts(texts, shape, group):
        runs.append(ItemRun(end + before, rows))
        end = after
    return Runs(tuple(runs), end)
