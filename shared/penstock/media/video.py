"""Makes frames of one size of a video's bytes, or of its frames."""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction

import numpy as np
from PIL import Image

from penstock.media.clip import Clip, can_decode
from penstock.media.geometry import Size
from penstock.media.picture import BadPicture, open_picture, raw_picture
from penstock.media.pixels import FRAMES
from penstock.media.video_layout import VideoShape, frame_size
from penstock.media.wire import ItemBounds
from penstock.model.video_facts import FrameSampling, VideoPreparation

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
    with Clip(data, seconds=bounds.seconds, max_pixels=bounds.pixels) as clip:
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
        open_picture(data[end - size : end], bounds.pixels)
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
    if count * height * width > bounds.all_pixels:
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
    height, width = frame_size(video, size, count)
    resample = Image.Resampling(video.pixels.resample)
    out = np.empty((count, height, width, 3), np.uint8)
    frame: Image.Image | None = first
    for row in out:
        if frame is None:
            raise BadPicture("has fewer frames than it says")
        row[:] = np.asarray(frame.resize((width, height), resample=resample))
        frame = next(frames, None)
    return {FRAMES: out}, size


# Which frames of a video a model is shown.
#
# The rules are those of the families' video processors in transformers, down to how they round.


def sampled(total: int, rate: Fraction, sampling: FrameSampling, group: int) -> tuple[int, ...]:
    """The numbers of the frames, ascending, at least one.

    total: frames of the video, at least 1.  rate: frames per second.  group: frames that a patch
    spans; as many as make whole groups are taken, where there are enough.
    """
    wanted = _wanted(total, rate, sampling, group)
    if wanted >= total:
        return tuple(range(total))
    if sampling.spread == "ends":
        places = np.linspace(0, total - 1, wanted).round().astype(int)
    else:
        # Single precision, as torch.arange has it.
        places = (np.arange(wanted) * (total / wanted)).astype(np.float32).astype(int)
    return tuple(min(int(place), total - 1) for place in places)


def _wanted(total: int, rate: Fraction, sampling: FrameSampling, group: int) -> int:
    """How many frames; at least 1."""
    most = min(sampling.max_frames, total)
    if not sampling.fps:
        return max(1, _whole(min(sampling.num_frames or most, most), sampling, group))
    if sampling.num_frames:
        most = min(most, sampling.num_frames)
    by_time = total / float(rate) * sampling.fps
    if sampling.spread == "ends":
        by_time = int(by_time)
    return max(1, _whole(min(max(by_time, sampling.min_frames), most), sampling, group))


def _whole(frames: float, sampling: FrameSampling, group: int) -> int:
    """Rounded down to whole groups; where frames lie from end to end, any number is taken."""
    if sampling.spread == "ends" or frames < group:
        return int(frames)
    return int(frames // group) * group
