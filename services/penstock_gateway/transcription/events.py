"""The events of a streamed transcript, in OpenAI's shapes."""

from __future__ import annotations

from typing import Literal

import msgspec

from penstock.transcription.transcript import DurationUsage


class TextDelta(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["transcript.text.delta"] = "transcript.text.delta"
    delta: str


class TextDone(msgspec.Struct, frozen=True, kw_only=True):
    type: Literal["transcript.text.done"] = "transcript.text.done"
    text: str
    usage: DurationUsage


def event(value: msgspec.Struct) -> bytes:
    """One server-sent event."""
    return b"data: " + msgspec.json.encode(value) + b"\n\n"
