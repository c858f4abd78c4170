"""What client and server say, in vLLM's shapes."""

from __future__ import annotations

import time
import uuid
from typing import Any

import msgspec

from penstock.errors import InvalidRequest
from penstock.transcription.transcript import DurationUsage
from penstock_gateway.request.body import check_amount_now
from penstock_gateway.request.decoding import decode_fields
from penstock_gateway.request.fields import Flag, Text
from penstock_gateway.request.skipping import skipping


class SessionUpdate(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag="session.update"
):
    """What is transcribed from now on, by which model."""

    model: Text = None
    language: Text = None
    """The language that is spoken: a code or an English name; null: it is detected in the first
    piece."""
    prompt: Text = None
    """Names and words as they are written."""


class Append(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="input_audio_buffer.append",
):
    """More sound."""

    audio: str
    """Base64 of 16-bit samples, little-endian, of one channel at 16 kHz."""


class Commit(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag="input_audio_buffer.commit",
):
    """Transcription may begin; with `final`, the sound is at its end."""

    final: Flag = None


ClientMessage = SessionUpdate | Append | Commit


class SessionCreated(msgspec.Struct, frozen=True, kw_only=True, tag="session.created"):
    id: str
    created: int
    """Unix time."""

    @classmethod
    def new(cls) -> SessionCreated:
        return cls(id=f"sess-{uuid.uuid4().hex}", created=int(time.time()))


class TranscriptionDelta(msgspec.Struct, frozen=True, kw_only=True, tag="transcription.delta"):
    delta: str


class TranscriptionDone(msgspec.Struct, frozen=True, kw_only=True, tag="transcription.done"):
    """text: all deltas."""

    text: str
    usage: DurationUsage


class ErrorMessage(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    error: str
    code: str | None = None


ServerMessage = SessionCreated | TranscriptionDelta | TranscriptionDone | ErrorMessage


class _AnyMessage(msgspec.Struct, frozen=True):
    type: str


class ClientMessages:
    """Reads what clients send. unknown_fields: the setting."""

    def __init__(self, unknown_fields: str) -> None:
        skips = unknown_fields == "ignore"
        self._any = msgspec.json.Decoder(_AnyMessage)
        self._decoders: dict[str, msgspec.json.Decoder[Any]] = {
            str(kind.__struct_config__.tag): msgspec.json.Decoder(skipping(kind) if skips else kind)
            for kind in (SessionUpdate, Append, Commit)
        }

    def read(self, text: bytes) -> ClientMessage:
        """Raises InvalidRequest, which says what is allowed."""
        check_amount_now(text)
        kind = decode_fields(text, self._any).type
        decoder = self._decoders.get(kind)
        if decoder is None:
            raise InvalidRequest(
                f"type is {kind[:100]!r}; allowed: {', '.join(self._decoders)}",
                param="type",
                code="unknown_event",
            )
        found: ClientMessage = decode_fields(text, decoder)
        return found
