"""Makes frames of one size of a video's bytes, or of its frames."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from PIL import Image

from penstock.media import overlaps
from penstock.media.clip import Clip, can_decode
from penstock.media.geometry import Size
from penstock.media.picture import BadPicture, open_picture, raw_picture
from penstock.media.pixels import FRAMES, PIXELS, SHAPES
from penstock.media.resize import prepare
from penstock.media.sampling import sampled
from penstock.media.video_layout import VideoShape, frame_pixels, frame_size
from penstock.media.wire import ItemBounds
from penstock.model.video_facts import MarkedFrames, SlicedFrames, VideoPreparation

FRAMES_RATE = Fraction(2)
"""Frames per second, of frames that come without times: what Qwen's own tools take."""


class FrameSequence:
    """Frames that are shown all. rate: per second."""

    def __init__(self, frames: Iterator[Image.Image], count: int, rate: Fraction) -> None:
        self.frames = frames
        self.count = count
        self.rate = rate


def prepare_clip(
    video: VideoPreparation, data: bytes, bounds: ItemBounds
) -> tuple[dict[str, np.ndarray], VideoShape]:
    """Arrays and shape of a video's file. Raises BadPicture, BadShape, MemoryError."""
    if not can_decode():
        raise BadPicture(
            "is a file, which can't be decoded here: the server lacks PyAV (pip install "
            "penstock-llm[video]); frames can be sent, as data:video/jpeg;base64,…"
        )
    most, behind = bounds.pixels, bounds.background
    with Clip(data, seconds=bounds.seconds, max_pixels=most, background=behind) as clip:
        numbers = sampled(clip.total, clip.rate, video.sampling, video.group)
        _check_frames(len(numbers), bounds)
        _check_size(video, clip.size, len(numbers), bounds)  # Before anything is decoded.
        arrays, size = _resized(video, clip.frames(numbers), len(numbers), bounds)
        return arrays, VideoShape(*size, clip.total, clip.rate, numbers)


def prepare_frames(
    video: VideoPreparation, sequence: FrameSequence, bounds: ItemBounds
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


def _check_size(video: VideoPreparation, size: Size, count: int, bounds: ItemBounds) -> None:
    height, width = frame_size(video, size, count)
    if count * frame_pixels(video, size, count) > bounds.all_pixels:
        raise BadPicture(
            f"becomes {count} frames of {width} × {height} pixels; at most {bounds.all_pixels} "
            "pixels in all are accepted (--max-video-pixels); fewer frames (num_frames) or smaller "
            "ones (max_pixels) can be asked for"
        )


def _resized(
    video: VideoPreparation, frames: Iterator[Image.Image], count: int, bounds: ItemBounds
) -> tuple[dict[str, np.ndarray], Size]:
    """The prepared arrays, and (height, width) of the first frame before it was resized, which
    need not be what a file's head states."""
    first = next(frames)
    size = first.height, first.width
    _check_size(video, size, count, bounds)
    if isinstance(video, SlicedFrames):
        return _sliced(video, first, frames, count), size
    height, width = frame_size(video, size, count)
    resample = Image.Resampling(video.pixels.resample)
    out = np.empty((count, height, width, 3), np.uint8)
    frame: Image.Image | None = first
    for row in out:
        if frame is None:
            raise BadPicture("has fewer frames than it says")
        if isinstance(video, MarkedFrames):
            row[:] = overlaps.resized(np.asarray(frame), (height, width))
        else:
            row[:] = np.asarray(frame.resize((width, height), resample=resample))
        frame = next(frames, None)
    return {FRAMES: out}, size


def _sliced(
    video: SlicedFrames, first: Image.Image, frames: Iterator[Image.Image], count: int
) -> dict[str, np.ndarray]:
    """The patches of each frame's whole, then of its slices; and how many rows and columns of them
    each has."""
    made: list[dict[str, np.ndarray]] = []
    frame: Image.Image | None = first
    while len(made) < count:
        if frame is None:
            raise BadPicture("has fewer frames than it says")
        if frame.size != first.size:
            raise BadPicture("has frames of several sizes")
        made.append(prepare(video.image, frame))
        frame = next(frames, None)
    return {
        FRAMES: np.concatenate([each[PIXELS] for each in made]),
        SHAPES: np.concatenate([each[SHAPES] for each in made]),
    }
