"""What makes a batch: the request for one, and its file, every line of which is checked to be a
request."""

from __future__ import annotations

import math
import re
from codecs import BOM_UTF8, BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

import msgspec

from penstock.errors import InvalidRequest
from penstock_gateway.files.endpoint import check_seconds
from penstock_gateway.request.body import check_amount_now
from penstock_gateway.storage.records import BatchError

ENDPOINTS = ("/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses")
LONGEST_WINDOW = 30 * 86_400
MAX_METADATA = 16
MAX_METADATA_KEY = 64
MAX_METADATA_VALUE = 512
MAX_CUSTOM_ID = 512

_WINDOW = re.compile(r"([1-9][0-9]{0,5})([smhd])")
_SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


class ExpiresAfter(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """anchor: created_at."""

    anchor: str
    seconds: int


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A batch as OpenAI has it. completion_window: as in 24h; what isn't answered then never is.
    output_expires_after: how long its results are kept."""

    input_file_id: str
    endpoint: str
    completion_window: str = "24h"
    metadata: dict[str, str] | None = None
    output_expires_after: ExpiresAfter | None = None


class BatchLine(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of a batch's file. body: of the request, as it is."""

    custom_id: str
    url: str
    body: msgspec.Raw
    method: str = "POST"


class LineBody(msgspec.Struct, frozen=True):
    """What is looked at of a body before it is asked. What else it holds is only passed over."""

    stream: Any = None
    background: Any = None


LINE = msgspec.json.Decoder(BatchLine)
BODY = msgspec.json.Decoder(LineBody)


def check(request: BatchRequest) -> None:
    """Raises InvalidRequest."""
    if request.endpoint not in ENDPOINTS:
        raise InvalidRequest(
            f"endpoint is {request.endpoint[:100]!r}; allowed: {', '.join(ENDPOINTS)}",
            param="endpoint",
            code="unsupported_value",
        )
    window_seconds(request.completion_window)
    check_metadata(request.metadata or {})
    life = request.output_expires_after
    if life is not None:
        if life.anchor != "created_at":
            raise InvalidRequest(
                f"output_expires_after.anchor is {life.anchor[:40]!r}; allowed: created_at",
                param="output_expires_after",
            )
        check_seconds(life.seconds, "output_expires_after.seconds")


def window_seconds(window: str) -> int:
    """Raises InvalidRequest."""
    found = _WINDOW.fullmatch(window)
    seconds = int(found[1]) * _SECONDS[found[2]] if found else 0
    if not 0 < seconds <= LONGEST_WINDOW:
        raise InvalidRequest(
            f"completion_window is {window[:40]!r}; it must be a time up to 30d, as in 24h, 90m "
            "or 7d",
            param="completion_window",
        )
    return seconds


def check_metadata(metadata: dict[str, str]) -> None:
    """Raises InvalidRequest."""
    long = any(
        len(key) > MAX_METADATA_KEY or len(value) > MAX_METADATA_VALUE
        for key, value in metadata.items()
    )
    if long or len(metadata) > MAX_METADATA:
        raise InvalidRequest(
            f"metadata may have {MAX_METADATA} entries, with keys of {MAX_METADATA_KEY} and values "
            f"of {MAX_METADATA_VALUE} characters",
            param="metadata",
        )


MAX_ERRORS = 100
"""Errors that are reported for a file."""
MAX_EMPTY = 100_000
"""Most empty lines of a file, which take as long to read as others."""


class NumberedLine(msgspec.Struct, frozen=True):
    """number: from 0. Empty lines have one, too, and are none.  body: of the request."""

    number: int
    custom_id: str
    body: bytes


class BatchFile:
    """A file of requests for one endpoint. open_it: from its first byte.  longest: bytes of a
    line."""

    def __init__(
        self, open_it: Callable[[], BinaryIO], endpoint: str, *, most_lines: int, longest: int
    ) -> None:
        self._open = open_it
        self._endpoint = endpoint
        self._most_lines = most_lines
        self._longest = longest

    def check(self) -> tuple[int, list[BatchError]]:
        """How many requests it holds, and what is wrong with it: the first errors. Reads all of it.
        Raises OSError."""
        errors: list[BatchError] = []
        seen: set[str] = set()
        count = 0
        for number, raw in self._raw(MAX_EMPTY):
            count += 1
            if not raw:
                errors.append(_too_many(f"{MAX_EMPTY} empty lines"))
                break
            if not number and raw.startswith((BOM_UTF16_LE, BOM_UTF16_BE)):
                message = "the file is UTF-16; it must be UTF-8"
                errors.append(BatchError(code="invalid_line", message=message, line=1))
                break
            if count > self._most_lines:
                errors.append(_too_many(f"{self._most_lines} requests"))
                break
            error = self._check_line(raw, seen)
            if error is not None:
                errors.append(msgspec.structs.replace(error, line=number + 1))
                if len(errors) >= MAX_ERRORS:
                    break
        if not count:
            errors.append(BatchError(code="empty_file", message="the file contains no requests"))
        return count, errors

    def lines(self, answered: set[int]) -> Iterator[NumberedLine]:
        """Lines that have no answer, of a file without errors. Raises OSError."""
        for number, raw in self._raw():
            if number not in answered:
                line = LINE.decode(raw)
                yield NumberedLine(number, line.custom_id, bytes(line.body))

    def _raw(self, most_empty: float = math.inf) -> Iterator[tuple[int, bytes]]:
        """Lines that aren't empty; b"" at the end where there are more empty ones."""
        with self._open() as file:
            number = empty = 0
            # One byte more than is allowed is enough to see that a line is too long.
            while raw := file.readline(self._longest + 2):
                if not number:
                    raw = raw.removeprefix(BOM_UTF8)  # Editors of Windows write one.
                if raw.strip():
                    yield number, raw
                    if len(raw) > self._longest + 1:
                        return
                else:
                    empty += 1
                    if empty > most_empty:
                        yield number, b""
                        return
                number += 1

    def _check_line(self, raw: bytes, seen: set[str]) -> BatchError | None:
        if len(raw) > self._longest + 1:
            return BatchError(
                code="line_too_long",
                message=f"the line has more than {self._longest} bytes, the maximum for a request",
            )
        try:
            check_amount_now(raw)
            line = LINE.decode(raw)
        except InvalidRequest as error:
            return BatchError(code="invalid_line", message=str(error))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return BatchError(
                code="invalid_line", message=f"the line is not a valid request: {error}"[:500]
            )
        return self._check_fields(line) or _check_id(line.custom_id, seen)

    def _check_fields(self, line: BatchLine) -> BatchError | None:
        if line.method != "POST":
            return _wrong("method", f"method is {line.method[:40]!r}; allowed: POST")
        if line.url != self._endpoint:
            return _wrong(
                "url", f"url is {line.url[:100]!r}; the batch's endpoint is {self._endpoint}"
            )
        try:
            body = BODY.decode(line.body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            return _wrong("body", f"body must be an object: {error}"[:500])
        if body.stream:
            return _wrong("body.stream", "body.stream must be false: batches don't stream")
        if body.background:
            return _wrong(
                "body.background",
                "body.background must be false: a batch already runs in the background",
            )
        return None


def _check_id(custom_id: str, seen: set[str]) -> BatchError | None:
    if not 1 <= len(custom_id) <= MAX_CUSTOM_ID:
        return _wrong("custom_id", f"custom_id must have 1 to {MAX_CUSTOM_ID} characters")
    if custom_id in seen:
        return BatchError(
            code="duplicate_custom_id",
            message=f"custom_id {custom_id[:100]!r} is also used by another line",
            param="custom_id",
        )
    seen.add(custom_id)
    return None


def _too_many(what: str) -> BatchError:
    return BatchError(code="too_many_lines", message=f"the file has more than {what}, the maximum")


def _wrong(param: str, message: str) -> BatchError:
    return BatchError(code="invalid_request", message=message, param=param)
