"""A body's `messages`, for a model that embeds texts and pictures: one input in the format of a
chat, which is a text or one picture (vLLM's chat embeddings)."""

from __future__ import annotations

from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock.media.sources import MediaSource
from penstock_gateway.http.errors import clip
from penstock_gateway.request.media_parts import OTHER_MEDIA, kind_of, media_source, refuse_other

MAX_MESSAGES = 64
TEXTS = ("text", "input_text")


class PoolPart(msgspec.Struct, frozen=True, kw_only=True):
    """A text or a picture. uuid: the client's own name for that."""

    type: str
    text: str | None = None
    image_url: Any = None
    audio_url: Any = None
    video_url: Any = None
    input_audio: Any = None
    file: Any = None
    detail: Any = None
    uuid: Any = None


class PoolMessage(msgspec.Struct, frozen=True, kw_only=True):
    """role: says nothing here."""

    role: str
    content: str | list[PoolPart]
    name: str | None = None


def input_of(messages: list[PoolMessage]) -> str | MediaSource:
    """What all messages hold together. Raises InvalidRequest."""
    if not 1 <= len(messages) <= MAX_MESSAGES:
        raise InvalidRequest(
            f"messages has {len(messages)} entries; 1 to {MAX_MESSAGES} are allowed",
            param="messages",
        )
    texts: list[str] = []
    pictures: list[MediaSource] = []
    for place, message in enumerate(messages):
        read_parts(message.content, f"messages[{place}].content", texts, pictures)
    return one_of(texts, pictures, "messages")


def read_parts(
    content: str | list[PoolPart], where: str, texts: list[str], pictures: list[MediaSource]
) -> None:
    """texts, pictures: the message's parts are appended, in order. Raises InvalidRequest."""
    if isinstance(content, str):
        texts.append(content)
        return
    for place, part in enumerate(content):
        read_part(part, f"{where}[{place}]", texts, pictures)


def read_part(part: PoolPart, where: str, texts: list[str], pictures: list[MediaSource]) -> None:
    """Does what read_parts does, with one part."""
    kind = kind_of(part, where)
    if kind is not None:
        pictures.append(media_source(part, kind, where))
    else:
        texts.append(_text(part, where))


def _text(part: PoolPart, where: str) -> str:
    if part.type in OTHER_MEDIA:
        raise refuse_other(part.type, where)
    if part.type not in TEXTS or part.text is None:
        raise InvalidRequest(
            f"{where} is a part of type {clip(part.type)}; allowed: text (with a text) and "
            "image_url",
            param=where,
            code="invalid_value",
        )
    return part.text


def one_of(texts: list[str], pictures: list[MediaSource], where: str) -> str | MediaSource:
    """A text, or one picture. Raises InvalidRequest for both, or neither."""
    text = "\n".join(texts)
    if len(pictures) == 1 and not text:
        return pictures[0]
    if pictures:
        raise InvalidRequest(
            f"{where} holds {len(pictures)} images and {len(text)} characters of text; an input "
            "must be a text, or one image without text",
            param=where,
            code="unsupported_value",
        )
    if not text:
        raise InvalidRequest(f"{where} contains neither text nor an image", param=where)
    return text
