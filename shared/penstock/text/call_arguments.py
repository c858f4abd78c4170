"""Arguments of calls as objects: in replies that don't show their text, and for chat templates."""

from __future__ import annotations

import json
from typing import Any, NoReturn

import msgspec

from penstock.text.as_written import SentArguments

INVALID = "INVALID_JSON"
"""Key under which the text of a call stands that is no JSON object, as in an answer cut short."""


def call_arguments(text: str | None) -> dict[str, Any]:
    """What a model wrote as a call's arguments.

    Text that is no JSON object stands under INVALID: it comes from a model's own answer, and a
    conversation must not end because one call in it was broken. A string may hold newlines and
    other control characters as they are: small models write them so.
    """
    return dict(written_arguments(text))


def written_arguments(text: str | None) -> dict[str, Any]:
    """A call's arguments for chat templates, which show them as the text has them where it is
    JSON."""
    if text is None or not text.strip():
        return {}
    try:
        values = msgspec.json.decode(text.encode(), type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        return _leniently(text)
    return SentArguments(values, text.strip())


def _leniently(text: str) -> dict[str, Any]:
    found = lenient_object(text)
    return {INVALID: text} if found is None else found


def lenient_object(text: str) -> dict[str, Any] | None:
    """The object that a text is, with control characters in strings or without, and `?` for an
    escape of half a surrogate pair, which has no UTF-8 form; None: it is no JSON object."""
    try:
        value = json.loads(text, strict=False, parse_constant=_refuse)
        if "\\u" in text:
            value = json.loads(json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _refuse(constant: str) -> NoReturn:
    """NaN and the infinities, which aren't JSON."""
    raise ValueError(constant)
