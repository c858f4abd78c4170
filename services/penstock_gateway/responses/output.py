"""An answer's items as they come, and the events that tell of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

from penstock_gateway.generate.chunked_reply import JsonList, Splices
from penstock_gateway.generate.logprobs import ChatLogprob
from penstock_gateway.generate.reply import encoder
from penstock_gateway.http.errors import ErrorBody
from penstock_gateway.responses.items import (
    OutputItem,
    OutputMessage,
    OutputText,
)


class Events(Protocol):
    """Where events go. splices: of what is shown in several of them, and in the reply."""

    splices: Splices

    def send(self, kind: str, **fields: Any) -> None:
        """kind: without `response.`, which all begin with."""


class NoEvents:
    """Events of a reply that isn't streamed: nobody hears of them."""

    def __init__(self, splices: Splices) -> None:
        self.splices = splices

    def send(self, kind: str, **fields: Any) -> None:
        """Drops the event: the answer isn't streamed."""


class EventWriter:
    """Server-sent events, numbered, each under its own name. out: taken by who writes it on."""

    def __init__(self) -> None:
        self.splices = Splices()
        self.out = bytearray()
        self._number = 0
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
        self._number -= 1

    def _append(self, kind: str, fields: dict[str, Any]) -> None:
        self._latest_at = len(self.out)
        self.out += f"event: {kind}\ndata: ".encode()
        event = {"type": kind, "sequence_number": self._number, **fields}
        encoder.encode_into(event, self.out, -1)
        self.out += b"\n\n"
        self._number += 1


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
