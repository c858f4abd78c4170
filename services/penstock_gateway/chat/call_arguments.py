"""Arguments of calls as objects, for replies that don't show their text."""

from __future__ import annotations

from typing import Any

import msgspec


def arguments_of(text: str) -> dict[str, Any]:
    """What a model wrote as a call's arguments. Where that is no JSON object, as in an answer that
    was cut short, the text itself is under INVALID_JSON."""
    if not text.strip():
        return {}
    try:
        return msgspec.json.decode(text.encode(), type=dict[str, Any])
    except (msgspec.MsgspecError, RecursionError, UnicodeEncodeError):
        return {"INVALID_JSON": text}
