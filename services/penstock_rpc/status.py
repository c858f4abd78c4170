"""Turns HTTP's errors into gRPC's status, so that both interfaces refuse for the same reasons."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
from grpc import StatusCode

from penstock_gateway.http.errors import HTTPError, as_http_error

Metadata = tuple[tuple[str, str | bytes], ...]

ERROR_KEY = "penstock-error-bin"
"""Trailing metadata with the error object, as JSON: {"message", "type", "param", "code"}."""
MOST_DETAILS = 1024
"""Characters of a status's message, which travels as a header."""

_OF_STATUS = {
    400: StatusCode.INVALID_ARGUMENT,
    401: StatusCode.UNAUTHENTICATED,
    403: StatusCode.PERMISSION_DENIED,
    404: StatusCode.NOT_FOUND,
    405: StatusCode.UNIMPLEMENTED,
    408: StatusCode.DEADLINE_EXCEEDED,
    409: StatusCode.FAILED_PRECONDITION,
    413: StatusCode.RESOURCE_EXHAUSTED,
    429: StatusCode.RESOURCE_EXHAUSTED,
    431: StatusCode.RESOURCE_EXHAUSTED,
    503: StatusCode.UNAVAILABLE,
}
_OF_TYPE = {
    "invalid_request_error": StatusCode.INVALID_ARGUMENT,
    "authentication_error": StatusCode.UNAUTHENTICATED,
    "permission_error": StatusCode.PERMISSION_DENIED,
    "not_found_error": StatusCode.NOT_FOUND,
    "timeout_error": StatusCode.DEADLINE_EXCEEDED,
    "rate_limit_error": StatusCode.RESOURCE_EXHAUSTED,
    "overloaded_error": StatusCode.UNAVAILABLE,
}
_PASSING = ("overloaded", "engine_unavailable", "shutting_down", "rate_limits_unavailable")
"""Codes of server errors that another try may not meet."""


class RefusedCall(Exception):
    """A call that ends with this status."""

    def __init__(self, code: StatusCode, details: str, trailing: Metadata = ()) -> None:
        super().__init__(details)
        self.code = code
        self.details = details[:MOST_DETAILS]
        self.trailing = trailing


class SlowReader(RefusedCall):
    """Raised for a client that doesn't read; nothing more is sent to it."""


def refusal(status: int, body: bytes, retry_after: str | None = None) -> RefusedCall:
    """What an HTTP response stands for that is no 200. body: its error object, of any API."""
    error = _error_in(body)
    code = _OF_STATUS.get(status, StatusCode.INTERNAL)
    return _refused(code, error, _phrase(status), retry_after)


def failure(body: bytes) -> RefusedCall:
    """What an error object stands for that ended a stream."""
    error = _error_in(body)
    code = _OF_TYPE.get(str(error.get("type")), StatusCode.INTERNAL)
    if error.get("code") in _PASSING:
        code = StatusCode.UNAVAILABLE
    return _refused(code, error, "the stream failed", None)


def refused_by(error: Exception) -> RefusedCall:
    """What an exception stands for that a handler here raised."""
    if isinstance(error, RefusedCall):
        return error
    answer: HTTPError = as_http_error(error)
    retry_after = dict(answer.headers).get("retry-after")
    return refusal(answer.status, answer.encoded(), retry_after)


def _refused(
    code: StatusCode, error: dict[str, Any], instead: str, retry_after: str | None
) -> RefusedCall:
    message = error.get("message")
    trailing: Metadata = ((ERROR_KEY, msgspec.json.encode(error)),) if error else ()
    if retry_after is not None:
        trailing += (("retry-after", retry_after),)
    return RefusedCall(code, message if isinstance(message, str) else instead, trailing)


def _error_in(body: bytes) -> dict[str, Any]:
    """The object inside; empty where there is none. Ollama has only its message there."""
    try:
        found = msgspec.json.decode(body)
    except msgspec.DecodeError:
        return {}
    error = found.get("error") if isinstance(found, dict) else None
    if isinstance(error, str):
        return {"message": error}
    return error if isinstance(error, dict) else {}


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return f"HTTP status {status}"
