"""What makes a batch: the request for one, and its lines."""

from __future__ import annotations

import re
from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock_gateway.files.upload import check_seconds

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
