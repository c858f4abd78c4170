"""Errors as Anthropic's clients expect them: {"type": "error", "error": {"type", "message"}}."""

from __future__ import annotations

import msgspec
from msgspec import UNSET, UnsetType

from penstock_gateway.http.errors import HTTPError
from penstock_gateway.http.operations import ErrorShape

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


THREAD_UNSUPPORTED = "thread_unsupported_request"
"""Tells Anthropic's SDK to send the whole conversation, without a thread."""


class ErrorDetails(msgspec.Struct, frozen=True):
    """What an SDK decides by."""

    error_code: str


class MessageError(msgspec.Struct, frozen=True):
    type: str
    message: str
    details: ErrorDetails | UnsetType = UNSET


class MessageErrorReply(msgspec.Struct, frozen=True, kw_only=True):
    """The whole body of an error response, and the data of an error event in a stream."""

    type: str = "error"
    error: MessageError
    request_id: str | None = None


def error_type(status: int) -> str:
    """What Anthropic calls errors of this status."""
    return _TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")


def encoded(error: HTTPError, request_id: str | None = None) -> bytes:
    """The error object as JSON."""
    threads = error.body.code == THREAD_UNSUPPORTED
    details = ErrorDetails(THREAD_UNSUPPORTED) if threads else UNSET
    body = MessageError(error_type(error.status), error.body.message, details)
    return msgspec.json.encode(MessageErrorReply(error=body, request_id=request_id))


VERSION = b"anthropic-version"
"""The header that all of Anthropic's clients send."""
VERSIONS = ("2023-01-01", "2023-06-01", "2026-10-21")
"""All that Anthropic has published. The differences are of no account here: what the last one
refuses, such as temperature, is for models of Anthropic's own."""
ERRORS = ErrorShape(MessageErrorReply, encoded, b"request-id", asked_by=VERSION, versions=VERSIONS)
