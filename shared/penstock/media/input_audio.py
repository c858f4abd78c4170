"""OpenAI's way to send a sound: base64 and the name of a format."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.errors import InvalidRequest

FORMATS = ("wav", "mp3", "flac", "ogg", "opus")


def sound_uri(given: Any, where: str) -> str:
    """The sound as a data: URI. Raises InvalidRequest."""
    if not isinstance(given, Mapping):
        raise InvalidRequest(
            f"{where} must be an object with data and format", param=where, code="invalid_type"
        )
    data, form = given.get("data"), given.get("format")
    if form not in FORMATS:
        raise InvalidRequest(
            f"{where}.format is {str(form)[:80]!r}; allowed: {', '.join(FORMATS)}",
            param=f"{where}.format",
            code="invalid_value",
        )
    if not isinstance(data, str):
        raise InvalidRequest(
            f"{where}.data must be the file in base64", param=f"{where}.data", code="invalid_type"
        )
    return f"data:audio/{form};base64,{data}"
