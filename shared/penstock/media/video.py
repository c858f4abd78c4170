"""Makes frames of one size of a video's bytes, or of its frames."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from PIL import Image

from penstock.forms.geometry import Size
from penstock.forms.video import VideoForm, VideoShape
from penstock.media.clip import Clip, can_decode
from penstock.media.picture import BadPicture, open_picture, raw_picture
from penstock.media.sampling import sampled
from penstock.media.wire import ItemBounds

FRAMES_RATE = Fraction(2)
"""Frames per second, of frames that come without times: what Qwen's own tools take."""


class FrameSequence:
    """Frames that are shown all. rate: per second."""

    def __init__(self, frames: Iterator[Image.Image], count: int, rate: Fraction) -> None:
        self.frames = frames
        self.count = count
        self.rate = rate


def prepare_clip(
    video: VideoForm, data: bytes, bounds: ItemBounds
) -> tuple[dict[str, np.ndarray], VideoShape]:
    """Arrays and shape of a video's file. Raises BadPicture, BadShape, MemoryError."""
    if not can_decode():
        raise BadPicture(
            "is a file, which can't be decoded here: the server lacks PyAV (pip install "
            "penstock-llm[video]); frames can be sent, as data:video/jpeg;base64,…"
        )
    most, colour = bounds.pixels, bounds.background
    with Clip(data, seconds=bounds.seconds, max_pixels=most, background=colour) as clip:
        numbers = sampled(clip.total, clip.rate, video.sampling, video.group)
        _check_frames(len(numbers), bounds)
        _check_size(video, clip.size, len(numbers), bounds)  # Before anything is decoded.
        arrays, size = _resized(video, clip.frames(numbers), len(numbers), bounds)
        return arrays, VideoShape(*size, clip.total, clip.rate, numbers)


def prepare_frames(
    video: VideoForm, sequence: FrameSequence, bounds: ItemBounds
) -> tuple[dict[str, np.ndarray], VideoShape]:
    """Arrays and shape of frames that are pictures already; all of them are shown. Raises as
    prepare_clip."""
    count = sequence.count
    if not count:
        raise BadPicture("has no frames")
    _check_frames(count, bounds)
    first = next(sequence.frames)
    arrays, size = _resized(video, _alike(first, sequence.frames), count, bounds)
    return arrays, VideoShape(*size, count, sequence.rate, tuple(range(count)))


def raw_frames(data: bytes, raw: tuple[int, ...]) -> FrameSequence:
    """raw: width, height, and the rate's numerator and denominator. Raises BadPicture."""
    width, height, above, below = raw
    each = 3 * width * height
    if min(raw) < 1 or len(data) % each:
        raise BadPicture(
            f"has {len(data)} bytes, not a whole number of {width} × {height} RGB frames"
        )
    view = memoryview(data)
    frames = (
        raw_picture(bytes(view[at : at + each]), width, height) for at in range(0, len(data), each)
    )
    return FrameSequence(frames, len(data) // each, Fraction(above, below))


def picture_frames(data: bytes, parts: tuple[int, ...], bounds: ItemBounds) -> FrameSequence:
    """The frames in pictures' files, one after the other, so many bytes each."""
    ends = np.cumsum(parts).tolist()
    frames = (
        open_picture(data[end - size : end], bounds.pixels, bounds.background)
        for end, size in zip(ends, parts, strict=True)
    )
    return FrameSequence(frames, len(parts), FRAMES_RATE)


def _alike(first: Image.Image, others: Iterator[Image.Image]) -> Iterator[Image.Image]:
    yield first
    for other in others:
        if other.size != first.size:
            raise BadPicture(
                f"has a frame of {other.width} × {other.height}, and others of {first.width} × "
                f"{first.height}; all must be of one size"
            )
        yield other


def _check_frames(count: int, bounds: ItemBounds) -> None:
    if count > bounds.frames:
        raise BadPicture(
            f"shows {count} frames; at most {bounds.frames} are accepted (--max-video-frames)"
        )


def _check_size(video: VideoForm, size: Size, count: int, bounds: ItemBounds) -> None:
    height, width = video.frame_size(size, count)
    if count * video.frame_pixels(size, count) > bounds.all_pixels:
        raise BadPicture(
            f"becomes {count} frames of {width} × {height} pixels; at most {bounds.all_pixels} "
            "pixels in all are accepted (--max-video-pixels); fewer frames (num_frames) or smaller "
            "ones (max_pixels) can be asked for"
        )


def _resized(
    video: VideoForm, frames: Iterator[Image.Image], count: int, bounds: ItemBounds
) -> tuple[dict[str, np.ndarray], Size]:
    """The prepared arrays, and (height, width) of the first frame before it was resized, which
    need not be what a file's head states."""
    first = next(frames)
    size = first.height, first.width
    _check_size(video, size, count, bounds)
    return video.prepare(_so_many(first, frames, count, alike=video.ALIKE), size, count), size


def _so_many(
    first: Image.Image, others: Iterator[Image.Image], count: int, *, alike: bool
) -> Iterator[Image.Image]:
    """alike: whether all must be of one size."""
    yield first
    for _ in range(count - 1):
        frame = next(others, None)
        if frame is None:
            raise BadPicture("has fewer frames than it says")
        if alike and frame.size != first.size:
            raise BadPicture("has frames of several sizes")
        yield frame
