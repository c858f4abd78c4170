"""What a process for media does with an item, by its kind."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from penstock.forms.form import ImageForm
from penstock.forms.geometry import BadShape
from penstock.forms.video import VideoForm
from penstock.media.picture import BadPicture, open_picture, raw_picture
from penstock.media.wire import DocumentText, Prepare
from penstock.model.sound_facts import BadLength, SoundPreparation, Spectrogram


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
            case ImageForm():
                return _picture(task, task.preparation)
            case VideoForm():
                return _video(task, task.preparation)
            case DocumentText():
                return _document(task, task.preparation)
            case Spectrogram():
                return _sound(task, task.preparation.mel, whole=True)
            case _:
                return _sound(task, task.preparation, whole=False)
    except BadShape as error:
        raise Unfit(f"can't be resized: {error}") from None
    except (BadPicture, BadLength) as error:
        raise Unfit(str(error)) from None


def _picture(task: Prepare, image: ImageForm) -> PreparedArrays:
    if task.raw is None:
        picture = open_picture(task.data, task.bounds.pixels, task.bounds.background)
    else:
        width, height = task.raw
        picture = raw_picture(task.data, width, height)
    return PreparedArrays(image.prepare(picture), (picture.height, picture.width))


def _video(task: Prepare, video: VideoForm) -> PreparedArrays:
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
    video.grid(shape)
    return PreparedArrays(arrays, shape.flat())


def _sound(task: Prepare, mel: SoundPreparation, *, whole: bool) -> PreparedArrays:
    # Imported here: a server of pictures needs no decoders of sounds.
    from penstock.media.log_mel import BESIDE, LOG_MEL
    from penstock.media.sound import BadSound, raw_sound
    from penstock.media.soundtrack import open_any
    from penstock.media.spectrogram import spectrogram

    rate, seconds = mel.sampling_rate, task.bounds.seconds
    try:
        if task.raw is None:
            samples = open_any(task.data, rate, seconds)
        else:
            samples = raw_sound(task.data, task.raw[0], rate, seconds)
    except BadSound as error:
        raise Unfit(str(error)) from None
    found = spectrogram(mel, samples, whole=whole)
    if not np.isfinite(found).all():
        raise Unfit("holds samples that are too large")
    arrays = {LOG_MEL: found}
    if mel.knows_pictures:
        arrays[BESIDE] = np.ones(1, np.int32)
    return PreparedArrays(arrays, (len(samples),))


def _document(task: Prepare, wanted: DocumentText) -> PreparedArrays:
    from penstock.media.document import TEXT, BadDocument, open_document

    try:
        document = open_document(task.data, wanted)
    except BadDocument as error:
        raise Unfit(str(error)) from None
    text = document.text.encode("utf-8", "replace")  # A PDF may say that a letter is half of one.
    array = np.frombuffer(text, np.uint8)
    return PreparedArrays({TEXT: array}, (document.pages,))
