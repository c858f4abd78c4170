"""The parts of a message that are pictures: where each comes from."""

from __future__ import annotations

from typing import Any, Protocol

from penstock.errors import InvalidRequest
from penstock.media.sources import MediaSource
from penstock_gateway.http.errors import clip

PICTURES = ("image_url", "input_image")
OTHER_MEDIA = ("image_embeds", "input_audio", "audio_url", "audio_embeds", "video_url", "file")
DETAILS = ("auto", "low", "high", "original")


class PicturePart(Protocol):
    """Of a message's content. image_url: a URL, or an object with `url` and `detail`."""

    @property
    def type(self) -> str: ...

    @property
    def image_url(self) -> Any: ...

    @property
    def detail(self) -> Any: ...

    @property
    def uuid(self) -> Any: ...


def picture_source(part: PicturePart, where: str) -> MediaSource:
    """Raises InvalidRequest for a part that names no picture."""
    given, detail = part.image_url, part.detail
    if isinstance(given, dict):
        detail = given.get("detail", detail)
        given = given.get("url")
    if detail is not None and detail not in DETAILS:
        raise InvalidRequest(
            f"{where}: detail is {clip(detail)}; allowed: {', '.join(DETAILS)}", param=where
        )
    if part.uuid is not None and not isinstance(part.uuid, str):
        raise InvalidRequest(f"{where}: uuid must be a text", param=where, code="invalid_type")
    if given is None and part.uuid is None:
        raise InvalidRequest(
            f"{where}.image_url is missing; a data: URI, a URL or a uuid is needed",
            param=f"{where}.image_url",
            code="missing_required_parameter",
        )
    if given is not None and not isinstance(given, str):
        raise InvalidRequest(
            f"{where}.image_url must be a URL, or an object that holds one as url",
            param=f"{where}.image_url",
            code="invalid_type",
        )
    return MediaSource(where, url=given, uuid=part.uuid)


def refuse_other(kind: str, where: str) -> InvalidRequest:
    """The error of a part of a kind of media that isn't taken."""
    return InvalidRequest(
        f"{where} is a part of type {kind}: of media, pictures alone are supported yet; allowed: "
        "text, image_url",
        param=where,
        code="unsupported_value",
    )
