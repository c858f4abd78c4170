"""Errors that users meet. Each message says what was wrong and what is allowed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Self


class PenstockError(Exception):
    """Base of everything that Penstock raises on purpose."""


class Field(str):
    """The path of a request's field, in the message of an error: other APIs have other names for
    it."""

    __slots__ = ()


class InvalidRequest(PenstockError, ValueError):
    """A request that can't be served as it stands: HTTP 400, ValueError in the library.

    said: the message in pieces, of which each Field is the name of a field; a message that begins
    with `param` begins with that field.  param: the field at fault, where there is one.  code: a
    machine-readable reason.
    """

    def __init__(self, *said: str, param: str | None = None, code: str | None = None) -> None:
        first, *rest = said
        if param and not isinstance(first, Field) and _begins_with(first, param):
            said = (Field(param), first[len(param) :], *rest)
        self.said = said
        self.message = "".join(said)
        super().__init__(self.message)
        self.param = param
        self.code = code

    def renamed(self, name: Callable[[str], str]) -> Self:
        """The error, with another name of each field. name: returns it, by the path of the
        field."""
        said = (Field(name(piece)) if isinstance(piece, Field) else piece for piece in self.said)
        param = None if self.param is None else name(self.param)
        return type(self)(*said, param=param, code=self.code)


def _begins_with(message: str, param: str) -> bool:
    after = message[len(param) : len(param) + 1]
    return message.startswith(param) and not (after.isalnum() or after == "_")


class TooLarge(InvalidRequest):
    """Raised for what is larger than is ever accepted: HTTP 413."""


class ModelNotFound(PenstockError):
    """Raised for a model that can't be found by its alias, folder, file or hub id."""


class UnsupportedModel(PenstockError):
    """The model was found, but its architecture, format or tokenizer can't be served.

    The message may quote the model's files, which may say anything at any length.
    """

    MOST_SAID = 2000

    def __init__(self, message: str) -> None:
        cut = len(message) > self.MOST_SAID
        super().__init__(f"{message[: self.MOST_SAID]}…" if cut else message)


class StartupError(PenstockError):
    """The system can't start: port taken, not enough memory, a child that failed."""


class Overloaded(PenstockError):
    """Refused for lack of room: HTTP 503.  retry_after: seconds after which to try again."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class Limited(Overloaded):
    """Refused because its tenant has as much as it may have: HTTP 429, with retry_after."""


class DeadlineExceeded(PenstockError):
    """The request's time was over before anything could be done for it: HTTP 408."""


class RequestFailed(PenstockError):
    """An accepted request that ended in an error: HTTP 500, or an error event in a stream."""


class ModelChanged(RequestFailed):
    """An answer that was begun, and that no engine core can go on with as it began: HTTP 500, or an
    error event in a stream, with the code model_changed."""


class EngineUnavailable(PenstockError):
    """Raised while there is no session with an engine core: HTTP 503."""


class EngineLost(EngineUnavailable):
    """A request lost its engine core, and waited for another in vain: HTTP 503, or an error event;
    a resumable stream breaks off instead, for another server to go on with."""


class ModelFailed(EngineUnavailable):
    """One of several models that could not be started: HTTP 503.  retry_after: seconds after which
    it may be tried again."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after
