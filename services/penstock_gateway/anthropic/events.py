"""The blocks of a message as they arrive, and the events that report them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Protocol

import msgspec

from penstock.text.call_arguments import call_arguments
from penstock_gateway.generate.logprobs import ChatLogprob
from penstock_gateway.generate.reply import encoder


class TextBlock(msgspec.Struct, tag_field="type", tag="text"):
    """citations isn't among its fields: none are made, and a strict client refuses null there."""

    text: str


class ThinkingBlock(msgspec.Struct, tag_field="type", tag="thinking"):
    """What the model thought to itself. signature: UNSIGNED, once the thoughts are whole."""

    thinking: str
    signature: str = ""


class ToolUseBlock(msgspec.Struct, tag_field="type", tag="tool_use"):
    """input: the arguments; where the model wrote no JSON object, what it wrote is under
    INVALID_JSON."""

    id: str
    name: str
    input: dict[str, Any]


UNSIGNED = "unsigned"
"""In place of a signature, which nothing here checks. It isn't empty: clients take thoughts without
one for broken, and leave them out of the conversation or send them as the user's words."""
Block = TextBlock | ThinkingBlock | ToolUseBlock


class EventSink(Protocol):
    """Where events go."""

    def send(self, kind: str, **fields: Any) -> None: ...


class NoEventSink:
    """Events of a reply that isn't streamed go here: nobody hears of them."""

    def send(self, kind: str, **fields: Any) -> None:
        """Nobody hears of it."""


class EventSource:
    """Server-sent events, each under its own name. out: taken by who writes it on."""

    def __init__(self) -> None:
        self.out = bytearray()

    def send(self, kind: str, **fields: Any) -> None:
        """Appends an event."""
        self.out += f"event: {kind}\ndata: ".encode()
        encoder.encode_into({"type": kind, **fields}, self.out, -1)
        self.out += b"\n\n"


class OpenBlock(ABC):
    """A block that grows. Its events name it by its place among the blocks."""

    def __init__(self, events: EventSink, index: int) -> None:
        self._events = events
        self._index = index
        self._texts: list[str] = []

    def begin(self) -> None:
        self._events.send("content_block_start", index=self._index, content_block=self._block(""))

    def add(self, text: str, logprobs: list[ChatLogprob]) -> None:
        self._texts.append(text)
        self._events.send("content_block_delta", index=self._index, delta=self._delta(text))

    def finish(self, status: str) -> Block:
        """The whole block."""
        block = self._block("".join(self._texts))
        self._events.send("content_block_stop", index=self._index)
        return block

    @abstractmethod
    def _block(self, text: str) -> Block:
        """The block with this text; at its beginning, none."""

    @abstractmethod
    def _delta(self, text: str) -> dict[str, str]:
        """What tells of a piece."""


class OpenText(OpenBlock):
    def _block(self, text: str) -> TextBlock:
        return TextBlock(text)

    def _delta(self, text: str) -> dict[str, str]:
        return {"type": "text_delta", "text": text}


class OpenThinking(OpenBlock):
    _signature = ""

    def finish(self, status: str) -> Block:
        self._signature = UNSIGNED
        delta = {"type": "signature_delta", "signature": UNSIGNED}
        self._events.send("content_block_delta", index=self._index, delta=delta)
        return super().finish(status)

    def _block(self, text: str) -> ThinkingBlock:
        return ThinkingBlock(text, self._signature)

    def _delta(self, text: str) -> dict[str, str]:
        return {"type": "thinking_delta", "thinking": text}


class OpenToolUse(OpenBlock):
    """Its text is its arguments."""

    def __init__(self, events: EventSink, index: int, call_id: str, name: str) -> None:
        super().__init__(events, index)
        self._call_id = call_id
        self._name = name

    def _block(self, text: str) -> ToolUseBlock:
        return ToolUseBlock(self._call_id, self._name, call_arguments(text))

    def _delta(self, text: str) -> dict[str, str]:
        return {"type": "input_json_delta", "partial_json": text}


class BlockKinds:
    """Blocks of the kinds that a message has."""

    def __init__(self, events: EventSink) -> None:
        self._events = events

    def text(self, index: int) -> OpenText:
        return OpenText(self._events, index)

    def thoughts(self, index: int) -> OpenThinking:
        return OpenThinking(self._events, index)

    def call(self, index: int, call_id: str, name: str) -> OpenToolUse:
        return OpenToolUse(self._events, index, call_id, name)
