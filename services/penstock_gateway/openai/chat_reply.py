"""chat.completion and chat.completion.chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from penstock_gateway.openai.fast_chunk import FastChunks
from penstock_gateway.openai.logprobs import ChatLogprobs, chat_logprobs
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


class AssistantMessage(msgspec.Struct):
    content: str
    role: str = "assistant"
    refusal: None = None


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


class ChatDelta(msgspec.Struct, omit_defaults=True):
    role: str | None = None
    content: str | None = None


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
    """Writes the reply to one request. logprobs: whether they were asked for."""

    def __init__(self, head: ReplyHead, tokenizer: Tokenizer, *, logprobs: bool) -> None:
        self._head = head
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._plain = FastChunks(self._plain_chunk)

    def opening(self, out: bytearray, choice: int, usage: UsageField) -> None:
        first = ChatChunkChoice(choice, ChatDelta("assistant", ""))
        append_event(out, self._chunk([first], usage))

    def delta(self, out: bytearray, choice: int, delta: SequenceDelta, usage: UsageField) -> None:
        if delta.text and not self._logprobs and not usage:
            self._plain.append(out, choice, delta.text, nullable=usage is None)
        elif delta.text or (self._logprobs and delta.token_ids):
            piece = ChatChunkChoice(choice, ChatDelta(content=delta.text))
            if self._logprobs:
                piece.logprobs = chat_logprobs(self._tokenizer, delta.token_ids, delta.logprobs)
            append_event(out, self._chunk([piece], usage))
        if delta.finish_reason is not None:
            end = ChatChunkChoice(choice, ChatDelta(), None, delta.finish_reason, delta.stop_reason)
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
        message = AssistantMessage("".join(choice.texts))
        return ChatChoice(index, message, logprobs, choice.finish_reason, choice.stop_reason)

    def _plain_chunk(self, choice: int, text: str, nullable: bool) -> ChatChunk:
        piece = ChatChunkChoice(choice, ChatDelta(content=text))
        return self._chunk([piece], None if nullable else UNSET)

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
