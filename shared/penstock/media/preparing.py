"""What a process for media does with an item, by its kind."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.media.geometry import BadShape
from penstock.media.picture import BadPicture, open_picture, raw_picture
from penstock.media.resize import prepare
from penstock.media.sound_frames import BadLength
from penstock.media.video_layout import video_grid
from penstock.media.wire import Prepare
from penstock.model.media_facts import (
    FixedFrames,
    ImagePreparation,
    LogMel,
    Spectrogram,
    VideoFrames,
    VideoPreparation,
)


class PreparedArrays(NamedTuple):
    """shape: as in Answer."""

    arrays: dict[str, np.ndarray]
    shape: tuple[int, ...]


class Unfit(ValueError):
    """An item can't be prepared, by its own fault; says why, to follow "the picture"."""


def prepare_item(task: Prepare) -> PreparedArrays:
    """Raises Unfit, MemoryError, and whatever decoders raise for damaged input."""
    try:
        match task.preparation:
            case LogMel():
                return _sound(task, task.preparation, whole=False)
            case Spectrogram():
                return _sound(task, task.preparation.mel, whole=True)
            case VideoFrames() | FixedFrames():
                return _video(task, task.preparation)
            case _:
                return _picture(task, task.preparation)
    except BadShape as error:
        raise Unfit(f"can't be resized: {error}") from None
    except (BadPicture, BadLength) as error:
        raise Unfit(str(error)) from None


def _picture(task: Prepare, image: ImagePreparation) -> PreparedArrays:
    if task.raw is None:
        picture = open_picture(task.data, task.bounds.pixels)
    else:
        width, height = task.raw
        picture = raw_picture(task.data, width, height)
    return PreparedArrays(prepare(image, picture), (picture.height, picture.width))


def _video(task: Prepare, video: VideoPreparation) -> PreparedArrays:
    from penstock.media.video import picture_frames, prepare_clip, prepare_frames, raw_frames

    if task.raw is not None:
        found = prepare_frames(video, raw_frames(task.data, task.raw), task.bounds)
    elif task.parts:
        found = prepare_frames(
            video, picture_frames(task.data, task.parts, task.bounds), task.bounds
        )
    else:
        found = prepare_clip(video, task.data, task.bounds)
    arrays, shape = found
    video_grid(video, shape)
    return PreparedArrays(arrays, shape.flat())


def _sound(task: Prepare, mel: LogMel, *, whole: bool) -> PreparedArrays:
    # Imported here: a server of pictures needs no decoders of sounds.
    from penstock.media.log_mel import LOG_MEL, log_mel, whole_log_mel
    from penstock.media.sound import BadSound, open_sound, raw_sound

    rate, seconds = mel.sampling_rate, task.bounds.seconds
    try:
        if task.raw is None:
            samples = open_sound(task.data, rate, seconds)
        else:
            samples = raw_sound(task.data, task.raw[0], rate, seconds)
    except BadSound as error:
        raise Unfit(str(error)) from None
    spectrogram = whole_log_mel(mel, samples) if whole else log_mel(mel, samples)
    if not np.isfinite(spectrogram).all():
        raise Unfit("holds samples that are too large")
    return PreparedArrays({LOG_MEL: spectrogram}, (len(samples),))
