"""A message, whole and as the events that make it up."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
from msgspec import UNSET

from penstock.text.call_arguments import call_arguments
from penstock_dialects.anthropic.errors import encoded
from penstock_gateway.chat.answer_parts import AnswerParts
from penstock_gateway.chat.parsing_spec import ParsingSpec, parsing_of
from penstock_gateway.generate.chunked_reply import Pace, are_many
from penstock_gateway.generate.logprobs import ChatLogprob
from penstock_gateway.generate.reply import (
    PromptLogprobsSource,
    ReceiptField,
    ReplyHead,
    TimelineField,
    UsageField,
    UsageInfo,
    WrittenAtOnce,
    encoder,
)
from penstock_gateway.generate.reply_spec import ReplySpec
from penstock_gateway.generate.timeline import RequestTimeline

if TYPE_CHECKING:
    from penstock.client import SequenceDelta
    from penstock_gateway.chat.parsed_choice import Parsing
    from penstock_gateway.generate.reply import ChoiceOutput
    from penstock_gateway.http.errors import HTTPError
    from penstock_gateway.models.backend import EngineInfo


# The blocks of a message as they arrive, and the events that report them.


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
    """The receiver of an answer's events."""

    def send(self, kind: str, **fields: Any) -> None: ...


class NoEventSink:
    """Drops the events of a reply that isn't streamed."""

    def send(self, kind: str, **fields: Any) -> None:
        """Drops the event: the answer isn't streamed."""


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
    """A tool call's block, whose text is its arguments."""

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


ID_PREFIX = "msg_"


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """input_tokens: of the prompt, without those that were found in the KV cache, which are
    cache_read_input_tokens."""

    input_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int

    @classmethod
    def of(cls, usage: UsageInfo) -> MessageUsage:
        cached = usage.prompt_tokens_details.cached_tokens
        return cls(
            input_tokens=usage.prompt_tokens - cached,
            cache_read_input_tokens=cached,
            output_tokens=usage.completion_tokens,
        )


class MessageReply(msgspec.Struct, tag_field="type", tag="message", kw_only=True):
    """stop_reason: end_turn, max_tokens, stop_sequence, tool_use, or
    model_context_window_exceeded; null while the answer is under way.  stop_details, container: of
    refusals and of code that Anthropic runs, which there are none of here."""

    id: str
    role: str = "assistant"
    content: list[Block] = []
    model: str
    stop_reason: str | None = None
    stop_sequence: str | None = None
    stop_details: None = None
    container: None = None
    usage: MessageUsage
    penstock_timeline: TimelineField = UNSET
    penstock_receipt: ReceiptField = UNSET


class MessagesFormat(WrittenAtOnce):
    """A ReplyFormat of one answer."""

    shows_aborts = False

    def __init__(
        self, head: ReplyHead, prompt_tokens: int, parsing: Parsing | None, *, short_of: bool
    ) -> None:
        """`short_of`: the context leaves less room than max_tokens asks for."""
        self.head = head
        self.receipt: ReceiptField = UNSET
        self._parsing = parsing
        self._draw = head.draw
        self._short_of = short_of
        self._events = EventSource()
        self._parts: AnswerParts[Block] | None = None
        self._reply = MessageReply(
            id=head.id,
            model=head.model,
            usage=MessageUsage(input_tokens=prompt_tokens, output_tokens=0),
        )

    def begin(self, source: PromptLogprobsSource) -> None:
        """Does nothing: this API shows nothing of the prompt."""

    def opening(self, out: bytearray, choice: int, usage: UsageField, begun: UsageInfo) -> None:
        self._events.out = out
        self._reply.usage = MessageUsage.of(begun)
        self._events.send("message_start", message=self._reply)
        self._parts = self._answer(self._events)

    def is_large(self, deltas: list[SequenceDelta]) -> bool:
        return self._parsing is not None and are_many(deltas)

    def delta(self, out: bytearray, choice: int, delta: SequenceDelta, usage: UsageField) -> None:
        if self._parts is None:
            return
        self._events.out = out
        self._parts.push(delta.text, delta.token_ids, [])
        if delta.finish_reason is not None:
            self._finish(self._parts, delta.finish_reason, delta.stop_reason)

    def usage(self, out: bytearray, usage: UsageInfo) -> None:
        """Adds nothing: usage comes with the last events."""

    def timeline(self, out: bytearray, timeline: RequestTimeline) -> None:
        """A comment line, which belongs to the event after it: the SDKs know no such event."""
        out += b": penstock_timeline "
        encoder.encode_into(timeline, out, -1)
        out += b"\n"

    def end(self, out: bytearray, usage: UsageInfo) -> None:
        self._events.out = out
        reply = self._reply
        ended = {
            "stop_reason": reply.stop_reason,
            "stop_sequence": reply.stop_sequence,
            "stop_details": None,
            "container": None,
        }
        self._events.send("message_delta", delta=ended, usage=MessageUsage.of(usage))
        signed = {} if self.receipt is UNSET else {"penstock_receipt": self.receipt}
        self._events.send("message_stop", **signed)

    def failed(self, error: HTTPError) -> bytes:
        return failed_event(error)

    async def whole(
        self, choices: list[ChoiceOutput], usage: UsageInfo, timeline: TimelineField
    ) -> list[bytes]:
        [choice] = choices
        parts = self._answer(NoEventSink())
        await parts.push_whole("".join(choice.texts), choice.token_ids, Pace())
        self._finish(parts, choice.finish_reason, choice.stop_reason)
        self._reply.usage = MessageUsage.of(usage)
        self._reply.penstock_timeline = timeline
        self._reply.penstock_receipt = self.receipt
        return [encoder.encode(self._reply)]

    def _answer(self, events: EventSink) -> AnswerParts[Block]:
        return AnswerParts(BlockKinds(events), self._parsing, draw=self._draw)

    def _finish(
        self, parts: AnswerParts[Block], reason: str | None, stopped_by: int | str | None
    ) -> None:
        reply = self._reply
        reply.content = parts.finish("completed" if reason == "stop" else "incomplete")
        if reason == "length" and self._short_of:
            reply.stop_reason = "model_context_window_exceeded"
        elif reason != "stop":
            # Of Anthropic's reasons, max_tokens alone says that the message is cut.
            reply.stop_reason = "max_tokens"
        elif parts.calls:
            reply.stop_reason = "tool_use"
        elif isinstance(stopped_by, str):
            reply.stop_reason, reply.stop_sequence = "stop_sequence", stopped_by
        else:
            reply.stop_reason = "end_turn"


def failed_event(error: HTTPError) -> bytes:
    """What a stream ends with that fails."""
    return b"event: error\ndata: " + encoded(error) + b"\n\n"


class MessagesSpec(ReplySpec, frozen=True):
    """Fields as MessagesFormat takes them."""

    prompt_tokens: int
    parsing: ParsingSpec | None
    short_of: bool

    def format(self, head: ReplyHead, engine: EngineInfo) -> MessagesFormat:
        parsing = parsing_of(self.parsing, engine)
        return MessagesFormat(head, self.prompt_tokens, parsing, short_of=self.short_of)
