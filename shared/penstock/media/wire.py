"""Frames between a front end and the process that prepares its media: a length of four bytes, then
msgpack; after an answer, the bytes of the prepared item as they are."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.model.media_facts import AnyPreparation

MAX_FRAME = 1 << 30
"""Bytes, of a frame and of what follows it."""


class DocumentText(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag="document"):
    """The text of a PDF or of a plain text. pages: that it may have at most.  characters: a text of
    more is cut off after one more, so that the caller sees that it is too long."""

    pages: int
    characters: int


AnyItem = AnyPreparation | DocumentText
"""How an item is prepared: for a model, or as text."""

Outcome = Literal["prepared", "refused", "memory"]


class ProcessBounds(msgspec.Struct, frozen=True, array_like=True):
    """memory: bytes of address space.  cpu: seconds of processor time for one item."""

    memory: int
    cpu: float


class ItemBounds(msgspec.Struct, frozen=True, array_like=True):
    """What an item may have, checked before it is decoded. pixels: of a picture, or a frame.
    seconds: of a sound or a video.  frames: of a video, that are shown.  all_pixels: of these
    together, once they are resized.  background: red, green and blue shown through transparent
    parts."""

    pixels: int
    seconds: float = 0.0
    frames: int = 0
    all_pixels: int = 0
    background: tuple[int, int, int] = (255, 255, 255)


class Prepare(msgspec.Struct, frozen=True, array_like=True):
    """An item and how it is prepared.

    data: a file's bytes; or, where raw is given, rows of RGB, (width, height), samples of a sound,
    (rate,), or frames of a video, (width, height, and the numerator and denominator of frames per
    second).  parts: where the data are several files, one after the other, bytes of each.
    """

    preparation: AnyItem
    data: bytes
    bounds: ItemBounds
    raw: tuple[int, ...] | None = None
    parts: tuple[int, ...] = ()


class Answer(msgspec.Struct, frozen=True, array_like=True):
    """data: of the prepared item, see `penstock.media.prepared`; on its way it follows the frame,
    with so many bytes as `follows` says.  shape: what its rows depend on: (height, width) of the
    upright picture, (samples,) of a sound, VideoShape of a video; (pages,) of a document, 0 where
    it has none.  reason: why there is none, to follow "the picture".  leaving: the process has
    grown too large, and ends after this."""

    outcome: Outcome
    data: bytes = b""
    shape: tuple[int, ...] = ()
    reason: str = ""
    leaving: bool = False
    follows: int = 0
