"""chat.completion and chat.completion.chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from penstock_gateway.openai.logprobs import ChatLogprobs, chat_logprobs
from penstock_gateway.openai.parsed_choice import (
    AssistantMessage,
    ChatDelta,
    ParsedChoice,
    Parsing,
    whole_message,
)
from penstock_gateway.openai.reply import (
    ReplyHead,
    TimelineField,
    Usage,
    UsageField,
    append_event,
    encoder,
)
from penstock_gateway.timeline import Timeline

if TYPE_CHECKING:
    from penstock.client import SequenceDelta
    from penstock.text.tokenizer import Tokenizer
    from penstock_gateway.openai.answer import Choice


class ChatChoice(msgspec.Struct):
    """stop_reason, as vLLM has it: the stop string or stop token id, null for EOS and length."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None


class ChatCompletion(msgspec.Struct, tag_field="object", tag="chat.completion"):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: Usage
    system_fingerprint: str | None
    penstock_timeline: TimelineField = UNSET


class ChatChunkChoice(msgspec.Struct):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET


class ChatChunk(msgspec.Struct, tag_field="object", tag="chat.completion.chunk"):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    system_fingerprint: str | None
    usage: UsageField = UNSET
    penstock_timeline: TimelineField = UNSET


class ChatFormat:
    """Writes the reply to one request. logprobs: whether they were asked for.  parsing: how the
    text is read; None: all of it is content."""

    def __init__(
        self,
        head: ReplyHead,
        tokenizer: Tokenizer,
        *,
        logprobs: bool,
        parsing: Parsing | None = None,
    ) -> None:
        self._head = head
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._parsing = parsing
        self._parsed: dict[int, ParsedChoice] = {}

    def opening(self, out: bytearray, choice: int, usage: UsageField) -> None:
        first = ChatChunkChoice(choice, ChatDelta("assistant", ""))
        append_event(out, self._chunk([first], usage))

    def delta(self, out: bytearray, choice: int, delta: SequenceDelta, usage: UsageField) -> None:
        shown, reason = self._shown(choice, delta)
        if shown is not None or (self._logprobs and delta.token_ids):
            piece = ChatChunkChoice(choice, shown or ChatDelta())
            if self._logprobs:
                piece.logprobs = chat_logprobs(self._tokenizer, delta.token_ids, delta.logprobs)
            append_event(out, self._chunk([piece], usage))
        if reason is not None:
            end = ChatChunkChoice(choice, ChatDelta(), None, reason, delta.stop_reason)
            append_event(out, self._chunk([end], usage))

    def usage(self, out: bytearray, usage: Usage) -> None:
        append_event(out, self._chunk([], usage))

    def timeline(self, out: bytearray, timeline: Timeline) -> None:
        append_event(out, self._chunk([], UNSET, timeline))

    def whole(self, choices: list[Choice], usage: Usage, timeline: TimelineField) -> bytes:
        head = self._head
        shown = [self._choice(index, choice) for index, choice in enumerate(choices)]
        return encoder.encode(
            ChatCompletion(
                head.id,
                head.created,
                head.model,
                shown,
                usage,
                head.system_fingerprint,
                timeline,
            )
        )

    def _choice(self, index: int, choice: Choice) -> ChatChoice:
        logprobs = None
        if self._logprobs:
            logprobs = chat_logprobs(self._tokenizer, choice.token_ids, choice.logprobs)
        parsed = None if self._parsing is None else ParsedChoice(self._parsing)
        message = whole_message("".join(choice.texts), parsed)
        reason = choice.finish_reason
        if parsed is not None:
            reason = parsed.finish_reason(reason)
        return ChatChoice(index, message, logprobs, reason, choice.stop_reason)

    def _shown(self, choice: int, delta: SequenceDelta) -> tuple[ChatDelta | None, str | None]:
        """What a delta adds to the message, and why the choice ended, if it did."""
        if self._parsing is None:
            text = delta.text
            empty = not text and not (self._logprobs and delta.token_ids)
            return None if empty else ChatDelta(content=text), delta.finish_reason
        parsed = self._parsed.get(choice)
        if parsed is None:
            parsed = self._parsed[choice] = ParsedChoice(self._parsing)
        shown = parsed.push(delta.text, last=delta.finish_reason is not None)
        return shown, parsed.finish_reason(delta.finish_reason)

    def _chunk(
        self,
        choices: list[ChatChunkChoice],
        usage: UsageField,
        timeline: TimelineField = UNSET,
    ) -> ChatChunk:
        head = self._head
        return ChatChunk(
            head.id, head.created, head.model, choices, head.system_fingerprint, usage, timeline
        )
