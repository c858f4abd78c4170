"""The log's word of fields that are skipped."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec

from penstock.process import logs

log = logs.get(__name__)

TOLD = 1024
"""Most fields that are remembered as logged."""
MOST = 16
"""Fields of a request that are named."""
FIELDS = msgspec.json.Decoder(dict[str, msgspec.Raw])
"""Reads a body's fields, whatever they are."""


def say_skipped(
    endpoint: str, fields: Mapping[str, msgspec.Raw], kind: Any, first: str | None
) -> None:
    """Names those of a body's fields that its struct hasn't, each once in a process. first: the one
    that was found, which may be further inside."""
    known = {field.encode_name for field in msgspec.structs.fields(kind)}
    own = [name[:100] for name in fields if name not in known]
    for name in dict.fromkeys([*([] if first is None else [first]), *own][:MOST]):
        say_field(endpoint, name)


@lru_cache(maxsize=TOLD)
def say_field(endpoint: str, field: str) -> None:
    """Once for a field."""
    log.warning("a request's field is unknown here, and is skipped", field=field, of=endpoint)
