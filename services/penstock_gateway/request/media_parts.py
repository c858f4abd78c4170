"""The parts of a message that are media: where each comes from."""

from __future__ import annotations

import re
from typing import Any, Protocol, cast

from penstock.errors import InvalidRequest
from penstock.media.sources import MediaSource, sound_uri
from penstock.model.media_facts import MediaKind
from penstock_gateway.http.errors import clip

MEDIA: dict[str, MediaKind] = {
    "image_url": "image",
    "input_image": "image",
    "audio_url": "audio",
    "input_audio": "audio",
    "video_url": "video",
}
"""The kind that a part of that type is. A `file` is what its data: URI says."""
OTHER_MEDIA = ("image_embeds", "audio_embeds")
_FILE = re.compile(r"data:(image|audio|video)/", re.IGNORECASE)
DETAILS = ("auto", "low", "high", "original")


class MediaPart(Protocol):
    """A part of a message's content. image_url, audio_url, video_url: a URL, or an object with
    `url` (and `detail`).  input_audio: an object with `data`, in base64, and `format`.  file: an
    object with `file_data`, a data: URI."""

    @property
    def type(self) -> str: ...

    @property
    def image_url(self) -> Any: ...

    @property
    def audio_url(self) -> Any: ...

    @property
    def video_url(self) -> Any: ...

    @property
    def input_audio(self) -> Any: ...

    @property
    def file(self) -> Any: ...

    @property
    def detail(self) -> Any: ...

    @property
    def uuid(self) -> Any: ...


def kind_of(part: MediaPart, where: str) -> MediaKind | None:
    """None for a part that is no item of media. Raises InvalidRequest for a file that is none."""
    if part.type != "file":
        return MEDIA.get(part.type)
    given = part.file if isinstance(part.file, dict) else {}
    data = given.get("file_data")
    if not isinstance(data, str):
        named = "file_id refers to a stored file, but" if "file_id" in given else "it is missing:"
        raise InvalidRequest(
            f"{where}.file must hold file_data, a data: URI; {named} none can be used as media",
            param=f"{where}.file",
            code="missing_required_parameter",
        )
    found = _FILE.match(data)
    if found is None:
        raise InvalidRequest(
            f"{where}.file.file_data begins with {clip(data[:40])}; a data: URI of image/…, "
            "audio/… or video/… is needed: documents are taken in chats only",
            param=f"{where}.file.file_data",
            code="unsupported_value",
        )
    return cast(MediaKind, found[1].lower())


def is_document(part: MediaPart) -> bool:
    """Whether it is a file that is no medium: a PDF, or a text."""
    if part.type != "file":
        return False
    data = part.file.get("file_data") if isinstance(part.file, dict) else None
    return not isinstance(data, str) or _FILE.match(data) is None


def media_source(part: MediaPart, kind: MediaKind, where: str) -> MediaSource:
    """kind: of the part, as `kind_of` has it. Raises InvalidRequest for a part that names no
    item."""
    if part.uuid is not None and not isinstance(part.uuid, str):
        raise InvalidRequest(f"{where}: uuid must be a string", param=where, code="invalid_type")
    if part.type == "file":
        field, given = "file", part.file["file_data"]
    elif kind == "audio" and part.type == "input_audio":
        field, given = "input_audio", part.input_audio
        if given is not None:
            given = sound_uri(given, f"{where}.input_audio")
    elif kind == "audio":
        field, given = "audio_url", part.audio_url
    elif kind == "video":
        field, given = "video_url", part.video_url
    else:
        field, given = "image_url", part.image_url
        _check_detail(part, where)
    if isinstance(given, dict):
        given = given.get("url")
    if given is None and part.uuid is None:
        raise InvalidRequest(
            f"{where}.{field} is missing; a data: URI, a URL or a uuid is needed",
            param=f"{where}.{field}",
            code="missing_required_parameter",
        )
    if given is not None and not isinstance(given, str):
        raise InvalidRequest(
            f"{where}.{field} must be a URL, or an object with a url",
            param=f"{where}.{field}",
            code="invalid_type",
        )
    return MediaSource(where, kind, url=given, uuid=part.uuid)


def _check_detail(part: MediaPart, where: str) -> None:
    detail = part.detail
    if isinstance(part.image_url, dict):
        detail = part.image_url.get("detail", detail)
    if detail is not None and detail not in DETAILS:
        raise InvalidRequest(
            f"{where}: detail is {clip(detail)}; allowed: {', '.join(DETAILS)}", param=where
        )


def refuse_other(kind: str, where: str) -> InvalidRequest:
    """The error of a part of a kind of media that isn't taken."""
    return InvalidRequest(
        f"{where} has type {kind}; allowed: text, image_url, input_audio, audio_url, video_url, "
        "file",
        param=where,
        code="unsupported_value",
    )
