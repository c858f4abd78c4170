"""An answer's items as they come, and the events that tell of them.

The item of what the model thought holds the thoughts as its content. Clients of OpenAI's models
expect two other fields, and many show or send back nothing else: a summary, and an encrypted text
in conversations that the server doesn't store. Both hold all of the thoughts here; nothing is
encrypted.
"""

from __future__ import annotations

import base64
import binascii
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, Protocol

from msgspec import UNSET

from penstock_gateway.generate.chunked_reply import JsonList, Splices
from penstock_gateway.generate.logprobs import ChatLogprob
from penstock_gateway.generate.reply import encoder
from penstock_gateway.http.errors import ErrorBody, HTTPError
from penstock_gateway.responses.items import (
    OutputItem,
    OutputMessage,
    OutputText,
    ReasoningItem,
    ReasoningText,
    SummaryText,
)
from penstock_gateway.responses.request import ENCRYPTED, ResponsesRequest


class Events(Protocol):
    """The sink of a response's events. splices: of what is shown in several of them, and in the
    reply."""

    splices: Splices

    def send(self, kind: str, **fields: Any) -> None:
        """kind: without `response.`, which all begin with."""


class NoEvents:
    """Drops the events of a reply that isn't streamed."""

    def __init__(self, splices: Splices) -> None:
        self.splices = splices

    def send(self, kind: str, **fields: Any) -> None:
        """Drops the event: the answer isn't streamed."""


class EventWriter:
    """Server-sent events, numbered, each under its own name. out: taken by who writes it on.
    number: of the next one."""

    def __init__(self) -> None:
        self.splices = Splices()
        self.out = bytearray()
        self.number = 0
        self._latest_at = 0

    def send(self, kind: str, **fields: Any) -> None:
        """Appends an event."""
        self._append(f"response.{kind}", fields)

    def fail(self, error: ErrorBody) -> None:
        """Appends the event `error`, which has no prefix: OpenAI has its fields in the event,
        Open Responses in an object of it."""
        fields = {
            "code": error.code,
            "message": error.message,
            "param": error.param,
            "error": error,
        }
        self._append("error", fields)

    def take_back(self) -> None:
        """Removes the latest event, which is still in `out`: another one comes in its place."""
        del self.out[self._latest_at :]
        self.number -= 1

    def _append(self, kind: str, fields: dict[str, Any]) -> None:
        self._latest_at = len(self.out)
        self.out += f"event: {kind}\ndata: ".encode()
        event = {"type": kind, "sequence_number": self.number, **fields}
        encoder.encode_into(event, self.out, -1)
        self.out += b"\n\n"
        self.number += 1


def failure(error: HTTPError, number: int = 0) -> bytes:
    """What a stream ends with that fails. number: of the event."""
    events = EventWriter()
    events.number = number
    events.fail(error.body)
    return bytes(events.out)


class OpenItem(ABC):
    """An item that grows. Its events name it by its id and its place among the items."""

    def __init__(self, events: Events, id: str, index: int) -> None:
        self.id = id
        self._events = events
        self._index = index
        self._texts: list[str] = []

    def begin(self) -> None:
        self._events.send(
            "output_item.added", output_index=self._index, item=self._item("in_progress", "")
        )
        self._begun()

    def add(self, text: str, logprobs: list[ChatLogprob]) -> None:
        self._texts.append(text)
        self._added(text, logprobs)

    def finish(self, status: str) -> OutputItem:
        """The whole item."""
        text = "".join(self._texts)
        self._finished(text)
        item = self._item(status, text)
        self._events.send("output_item.done", output_index=self._index, item=item)
        return item

    @abstractmethod
    def _item(self, status: str, text: str) -> OutputItem:
        """The item with what it holds by now."""

    @abstractmethod
    def _begun(self) -> None:
        """Tells of the part that the text is in."""

    @abstractmethod
    def _added(self, text: str, logprobs: list[ChatLogprob]) -> None:
        """Tells of a piece."""

    @abstractmethod
    def _finished(self, text: str) -> None:
        """Tells of the whole text."""

    def _tell(self, kind: str, **fields: Any) -> None:
        self._events.send(kind, item_id=self.id, output_index=self._index, **fields)

    def _tell_part(self, kind: str, **fields: Any) -> None:
        self._tell(kind, content_index=0, **fields)


class OpenMessage(OpenItem):
    """Text for the reader, in one part."""

    def __init__(self, events: Events, id: str, index: int) -> None:
        super().__init__(events, id, index)
        self._logprobs = JsonList()

    def _item(self, status: str, text: str) -> OutputMessage:
        content = [] if status == "in_progress" else [OutputText(text, logprobs=self._shown())]
        return OutputMessage(self.id, status, content)

    def _begun(self) -> None:
        self._tell_part("content_part.added", part=OutputText(""))

    def _added(self, text: str, logprobs: list[ChatLogprob]) -> None:
        self._logprobs.add(logprobs)
        self._tell_part("output_text.delta", delta=text, logprobs=logprobs)

    def _finished(self, text: str) -> None:
        self._tell_part("output_text.done", text=text, logprobs=self._shown())
        part = OutputText(text, logprobs=self._shown())
        self._tell_part("content_part.done", part=part)

    def _shown(self) -> list[ChatLogprob]:
        """All log-probabilities so far, as a struct's field."""
        if not self._logprobs:
            return []
        shown: list[ChatLogprob] = self._events.splices.put(self._logprobs.pieces())
        return shown


_MARK = "penstock:"
"""How an encrypted_content of this server begins; those of others can't be read."""


@dataclass(frozen=True, slots=True)
class ThoughtsShown:
    """Which fields hold the thoughts, besides the content. sealed: encrypted_content does."""

    summary: bool = False
    sealed: bool = False

    @classmethod
    def asked_for(cls, request: ResponsesRequest) -> ThoughtsShown:
        options = request.reasoning
        summary = options is not None and (options.summary or options.generate_summary)
        return cls(bool(summary), ENCRYPTED in (request.include or ()))

    @classmethod
    def in_item(cls, item: ReasoningItem) -> ThoughtsShown:
        return cls(bool(item.summary), item.encrypted_content is not UNSET)


class OpenReasoning(OpenItem):
    """Thoughts, in one part, and in one part of the summary if they are shown there."""

    def __init__(self, *place: Any, shown: ThoughtsShown) -> None:
        super().__init__(*place)
        self._shown = shown

    def _item(self, status: str, text: str) -> ReasoningItem:
        if status == "in_progress":
            return ReasoningItem(self.id, status, [])
        summary = [SummaryText(text)] if self._shown.summary else []
        sealed = _sealed(text) if self._shown.sealed else UNSET
        return ReasoningItem(self.id, status, [ReasoningText(text)], summary, sealed)

    def _begun(self) -> None:
        self._tell_part("content_part.added", part=ReasoningText(""))
        self._tell_summary("part.added", part=SummaryText(""))

    def _added(self, text: str, logprobs: Any) -> None:
        self._tell_part("reasoning_text.delta", delta=text)
        self._tell_summary("text.delta", delta=text)

    def _finished(self, text: str) -> None:
        self._tell_part("reasoning_text.done", text=text)
        self._tell_part("content_part.done", part=ReasoningText(text))
        self._tell_summary("text.done", text=text)
        self._tell_summary("part.done", part=SummaryText(text))

    def _tell_summary(self, kind: str, **fields: Any) -> None:
        if self._shown.summary:
            self._tell(f"reasoning_summary_{kind}", summary_index=0, **fields)


def _sealed(text: str) -> str:
    return _MARK + base64.b64encode(text.encode()).decode()


def unsealed(sealed: str | None) -> str:
    """The thoughts in an encrypted_content; empty if it is another server's."""
    if sealed is None or not sealed.startswith(_MARK):
        return ""
    try:
        return base64.b64decode(sealed.removeprefix(_MARK), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return ""
