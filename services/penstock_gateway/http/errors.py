"""Turns exceptions into OpenAI's error object: {"error": {"message", "type", "param", "code"}}."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Sequence
from itertools import takewhile
from typing import Any

import msgspec

from penstock.errors import (
    DeadlineExceeded,
    EngineUnavailable,
    InvalidRequest,
    Limited,
    ModelChanged,
    ModelFailed,
    Overloaded,
    RequestFailed,
    TooLarge,
)

INVALID = "invalid_request_error"
SERVER = "server_error"
MEMORY_RETRY_AFTER = 5
"""Seconds after which the memory may have been released."""
ENGINE_RETRY_AFTER = 1
"""Seconds that a client should wait before it asks for an absent engine core again."""


class ErrorBody(msgspec.Struct, frozen=True):
    """What went wrong.  param: the request field at fault.  code: a machine-readable reason."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorReply(msgspec.Struct, frozen=True):
    """The whole body of an error response, and the data of an error event in a stream."""

    error: ErrorBody


class HTTPError(Exception):
    """An error with its HTTP status. headers: extra response headers, lower-case names."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        type: str = INVALID,
        param: str | None = None,
        code: str | None = None,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers
        self.body = ErrorBody(message, type, param, code)

    def encoded(self) -> bytes:
        """The error object as JSON."""
        return msgspec.json.encode(ErrorReply(self.body))


class ClientGone(Exception):
    """Raised when the client has closed its connection or stopped reading, so that nobody is left
    to answer."""


def unavailable(message: str, code: str, retry_after: float) -> HTTPError:
    """503 with Retry-After in whole seconds, at least one."""
    seconds = str(max(1, math.ceil(retry_after)))
    return HTTPError(503, message, type=SERVER, code=code, headers=(("retry-after", seconds),))


def timed_out(message: str) -> HTTPError:
    """408: the deadline that the request brought has passed."""
    return HTTPError(408, message, type="timeout_error", code="request_timeout")


def _rate_limited(error: Limited) -> HTTPError:
    seconds = str(max(1, math.ceil(error.retry_after)))
    return HTTPError(
        429,
        str(error),
        type="rate_limit_error",
        code="rate_limit_exceeded",
        headers=(("retry-after", seconds),),
    )


def leaving() -> HTTPError:
    """503 of a gateway that drains: the client should come back over another connection."""
    error = unavailable("the server is shutting down", "shutting_down", ENGINE_RETRY_AFTER)
    error.headers += (("connection", "close"),)
    return error


def head_too_large(limit: int) -> HTTPError:
    """431: the request's line and headers are too long."""
    return HTTPError(
        431,
        f"the request line and headers are limited to {limit} bytes",
        code="head_too_large",
        headers=(("connection", "close"),),
    )


MOST_LISTED = 20
"""Names of models in an error message."""


def listed(names: Sequence[str]) -> str:
    """Names for an error message, cut where there are many."""
    shown = ", ".join(clip(name) for name in names[:MOST_LISTED])
    more = len(names) - MOST_LISTED
    return f"{shown} and {more} more" if more > 0 else shown or "none that this key may use"


def model_not_found(name: str, served: Sequence[str]) -> HTTPError:
    """404 for a model name that is not served here. served: what is."""
    return HTTPError(
        404,
        f"the model {clip(name)} does not exist here; this server serves {listed(served)}",
        param="model",
        code="model_not_found",
    )


def as_http_error(error: BaseException) -> HTTPError:
    """The HTTP error that an exception stands for; anything unforeseen is a 500 without details."""
    match error:
        case HTTPError():
            return error
        case TooLarge():
            return HTTPError(413, error.message, param=error.param, code=error.code)
        case InvalidRequest():
            return HTTPError(400, error.message, param=error.param, code=error.code)
        case DeadlineExceeded():
            return timed_out(str(error))
        case Limited():
            return _rate_limited(error)
        case Overloaded():
            return unavailable(str(error), "overloaded", error.retry_after)
        case ModelFailed():
            return unavailable(str(error), "model_failed", error.retry_after)
        case EngineUnavailable():
            return unavailable(str(error), "engine_unavailable", ENGINE_RETRY_AFTER)
        case ModelChanged():
            return HTTPError(500, str(error), type=SERVER, code="model_changed")
        case RequestFailed():
            return HTTPError(500, str(error), type=SERVER, code="request_failed")
        case asyncio.CancelledError():
            return leaving()
        case MemoryError():
            return unavailable(
                "the server has no memory left for this request; send a smaller one, or try again "
                "later",
                "out_of_memory",
                MEMORY_RETRY_AFTER,
            )
    return HTTPError(500, "internal error; see the server's log for this x-request-id", type=SERVER)


def logged_cause(error: BaseException) -> dict[str, Any]:
    """Returns the fields by which a log tells why a request failed: the reason, of a request that
    ended in an error of the engine's; the traceback that is being handled, of anything else."""
    if isinstance(error, RequestFailed):
        return {"reason": str(error)}
    return {"exception": True}


def clip(value: object, limit: int = 100) -> str:
    """A client's value for an error message: as JSON, cut at `limit` characters. Takes no longer
    for a large one."""
    try:
        text = msgspec.json.encode(_beginning(value, [limit + 1])).decode()
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError, OverflowError):
        text = f"<{type(value).__name__}>"
    return text if len(text) <= limit else f"{text[:limit]}…"


def _beginning(value: Any, room: list[int]) -> Any:
    """Returns a value's beginning that fills the room, which shrinks by it."""
    if isinstance(value, str):
        kept = value[: max(0, room[0])]
        room[0] -= len(kept)
        return kept
    room[0] -= 1
    if isinstance(value, list):
        return [_beginning(each, room) for each in takewhile(lambda _: room[0] > 0, value)]
    if isinstance(value, dict):
        return {
            _beginning(name, room): _beginning(each, room)
            for name, each in takewhile(lambda _: room[0] > 0, value.items())
        }
    return value
