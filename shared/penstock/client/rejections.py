"""The exceptions that an engine core's refusals stand for."""

from __future__ import annotations

from penstock.errors import EngineUnavailable, InvalidRequest, Limited, Overloaded, PenstockError
from penstock.protocol.to_frontend import Rejected, SequenceOutput


def rejection(message: Rejected) -> PenstockError:
    """The exception that a Rejected stands for."""
    if message.code == "invalid":
        # The field by which a request names its adapter; of one that fails later, the same is said.
        param = "model" if message.error_code == "invalid_adapter" else None
        return InvalidRequest(message.message, param=param, code=message.error_code or None)
    retry_after = message.retry_after_ms / 1000
    if message.code == "limited":
        return Limited(message.message, retry_after=retry_after)
    if message.code == "overloaded":
        return Overloaded(message.message, retry_after=retry_after)
    return EngineUnavailable(message.message)


def failed_early(output: SequenceOutput, *, has_grammar: bool, has_media: bool) -> PenstockError:
    """The exception that an output with an error code stands for, if it is the request's first."""
    error = output.error or ""
    if output.error_code == "unavailable":
        return unavailable(error)
    if not has_media:
        return InvalidRequest(error, param="structured_outputs")
    param: str | None = "structured_outputs"
    match output.error_code:
        case "invalid_media":
            param = "messages"
        case "no_token_left" if not has_grammar:
            param = None  # Of several fields, and none of them a grammar.
    return InvalidRequest(error, param=param, code=output.error_code)


def unavailable(error: str) -> Overloaded:
    """What the error code `unavailable` stands for."""
    return Overloaded(error, retry_after=1.0)
