"""Lines of a batch's results, as OpenAI has them."""

from __future__ import annotations

import os

import msgspec

from penstock_gateway.batches.in_process import OwnAnswer


class LineResponse(msgspec.Struct, frozen=True):
    """body: as the endpoint answered."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(msgspec.Struct, frozen=True):
    """Why a line has no answer."""

    code: str
    message: str


class LineResult(msgspec.Struct, frozen=True):
    """The result of one line of a batch."""

    id: str
    custom_id: str
    response: LineResponse | None
    error: LineError | None


def result_line(custom_id: str, answer: OwnAnswer) -> str:
    """The line of a request that was answered, well or badly."""
    body = msgspec.Raw(bytes(answer.body) or b"null")
    response = LineResponse(answer.status, answer.request_id, body)
    return _encoded(custom_id, response, None)


def error_line(custom_id: str, code: str, message: str) -> str:
    """The result of a line that was never asked."""
    return _encoded(custom_id, None, LineError(code, message))


def _encoded(custom_id: str, response: LineResponse | None, error: LineError | None) -> str:
    name = f"batch_req_{os.urandom(16).hex()}"
    return msgspec.json.encode(LineResult(name, custom_id, response, error)).decode()
