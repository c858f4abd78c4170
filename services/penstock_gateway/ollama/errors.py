"""Errors as Ollama's clients expect them: {"error": "…"}."""

from __future__ import annotations

import msgspec

from penstock_gateway.http.errors import HTTPError
from penstock_gateway.http.operations import ErrorShape


class OllamaError(msgspec.Struct, frozen=True):
    """The whole body of an error response, and the last line of a stream that fails."""

    error: str


def encoded(error: HTTPError, request_id: str = "") -> bytes:
    """The error as JSON."""
    return msgspec.json.encode(OllamaError(error.body.message))


ERRORS = ErrorShape(OllamaError, encoded)
