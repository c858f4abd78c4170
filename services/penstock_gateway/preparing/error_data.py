"""Exceptions that become answers, as data and back."""

from __future__ import annotations

from collections.abc import Callable

from penstock.errors import (
    DeadlineExceeded,
    EngineLost,
    EngineUnavailable,
    InvalidRequest,
    Limited,
    Overloaded,
    RequestFailed,
    TooLarge,
)
from penstock_gateway.http.errors import HTTPError
from penstock_gateway.preparing.wire import ErrorData


def _invalid(data: ErrorData) -> InvalidRequest:
    return InvalidRequest(data.message, param=data.param, code=data.code)


def _too_large(data: ErrorData) -> TooLarge:
    return TooLarge(data.message, param=data.param, code=data.code)


def _http(data: ErrorData) -> HTTPError:
    return HTTPError(
        data.status,
        data.message,
        type=data.type,
        param=data.param,
        code=data.code,
        headers=tuple(data.headers),
    )


_MADE: dict[str, Callable[[ErrorData], Exception]] = {
    "InvalidRequest": _invalid,
    "TooLarge": _too_large,
    "HTTPError": _http,
    "Overloaded": lambda data: Overloaded(data.message, retry_after=data.retry_after),
    "Limited": lambda data: Limited(data.message, retry_after=data.retry_after),
    "DeadlineExceeded": lambda data: DeadlineExceeded(data.message),
    "RequestFailed": lambda data: RequestFailed(data.message),
    "EngineUnavailable": lambda data: EngineUnavailable(data.message),
    "EngineLost": lambda data: EngineLost(data.message),
    "MemoryError": lambda data: MemoryError(),
}


def data_of(error: Exception) -> ErrorData | None:
    """None for an exception whose words aren't for clients."""
    kind = type(error).__name__
    if kind not in _MADE:
        return None
    if isinstance(error, HTTPError):
        return data_of_http(error)
    return ErrorData(
        kind,
        str(error),
        getattr(error, "param", None),
        getattr(error, "code", None),
        getattr(error, "retry_after", 0.0),
    )


def data_of_http(error: HTTPError) -> ErrorData:
    """An HTTP error as data."""
    body = error.body
    return ErrorData(
        HTTPError.__name__,
        body.message,
        body.param,
        body.code,
        status=error.status,
        type=body.type,
        headers=list(error.headers),
    )


def exception_of(data: ErrorData) -> Exception:
    """The exception that `data_of` was given."""
    return _MADE[data.kind](data)
