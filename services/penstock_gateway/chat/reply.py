"""chat.completion and chat.completion.chunk."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from penstock_gateway.chat.parsed_choice import (
    AssistantMessage,
    ChatDelta,
    ParsedChoice,
    Parsing,
    whole_message,
)
from penstock_gateway.chat.parsing_spec import ParsingSpec, parsing_of
from penstock_gateway.generate.chunked_reply import ChunkedReply, Pace, are_many, chat_logprob_list
from penstock_gateway.generate.logprobs import ChatLogprobs, PromptLogprobs, chat_logprobs
from penstock_gateway.generate.reply import (
    EchoOptions,
    PlainChunk,
    ReceiptField,
    ReplyHead,
    TimelineField,
    UsageField,
    UsageInfo,
    append_event,
)
from penstock_gateway.generate.reply_spec import ReplySpec

if TYPE_CHECKING:
    from penstock.client import SequenceDelta
    from penstock.protocol.common import TokenLogprobs
    from penstock.text.tokenizer import Tokenizer
    from penstock_gateway.generate.reply import ChoiceOutput
    from penstock_gateway.models.backend import EngineInfo


class ChatChoice(msgspec.Struct):
    """stop_reason, as vLLM has it: the stop string or stop token id, null for EOS and length.
    token_ids: there when they were asked for."""

    index: int
    message: AssistantMessage
    logprobs: ChatLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    token_ids: list[int] | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, tag_field="object", tag="chat.completion"):
    id: str
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageInfo
    system_fingerprint: str | None
    penstock_timeline: TimelineField = UNSET
    penstock_receipt: ReceiptField = UNSET
    prompt_logprobs: PromptLogprobs | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: str | None = None
    stop_reason: int | str | UnsetType | None = UNSET
    token_ids: list[int] | UnsetType = UNSET


class ChatChunk(msgspec.Struct, tag_field="object", tag="chat.completion.chunk"):
    id: str
    created: int
    model: str
    choices: list[ChatChunkChoice]
    system_fingerprint: str | None
    usage: UsageField = UNSET
    penstock_timeline: TimelineField = UNSET
    penstock_receipt: ReceiptField = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET


class ChatFormat(ChunkedReply[ChatChunkChoice]):
    """Writes the reply to one request. echo: what each answer begins with.  parsing: how the text
    is read; None: all of it is content."""

    def __init__(
        self,
        head: ReplyHead,
        tokenizer: Tokenizer,
        echo_options: EchoOptions,
        prompt_token_ids: list[int],
        echo: str,
        parsing: Parsing | None = None,
    ) -> None:
        super().__init__(head, tokenizer, echo_options)
        self._prompt_token_ids = prompt_token_ids
        self._echo = echo
        self._parsing = parsing
        self._parsed: dict[int, ParsedChoice] = {}
        self._is_plain = (
            parsing is None and not echo_options.logprobs and not echo_options.token_ids
        )

    def opening(self, out: bytearray, choice: int, usage: UsageField, begun: UsageInfo) -> None:
        first = ChatChunkChoice(choice, ChatDelta("assistant", self._echo))
        chunk = self._chunk([first], usage)
        if self._echo_options.token_ids:
            chunk.prompt_token_ids = self._prompt_token_ids
        append_event(out, chunk)

    def delta(self, out: bytearray, choice: int, delta: SequenceDelta, usage: UsageField) -> None:
        if isinstance(usage, UsageInfo):
            usage = self._detailed(usage)
        if self._is_plain and delta.finish_reason is None and not usage:
            if delta.text:
                self._append_text(out, choice, delta.text, usage)
            return
        options = self._echo_options
        added, reason = self._read(choice, delta)
        if added is not None or (delta.token_ids and (options.logprobs or options.token_ids)):
            piece = ChatChunkChoice(choice, added or ChatDelta())
            if options.logprobs:
                piece.logprobs = self._logprobs(delta.token_ids, delta.logprobs)
            if options.token_ids:
                piece.token_ids = delta.token_ids
            append_event(out, self._chunk([piece], usage))
        if reason is not None:
            end = ChatChunkChoice(choice, ChatDelta(), None, reason, delta.stop_reason)
            append_event(out, self._chunk([end], usage))

    def is_large(self, deltas: list[SequenceDelta]) -> bool:
        return super().is_large(deltas) or (self._parsing is not None and are_many(deltas))

    def plain_chunk(self, choice: int, usage: UsageField) -> PlainChunk | None:
        return self._fast(choice, usage) if self._is_plain and not usage else None

    def usage(self, out: bytearray, usage: UsageInfo) -> None:
        super().usage(out, self._detailed(usage))

    async def _reply(
        self, choices: Any, usage: UsageInfo, timeline: TimelineField, pace: Pace
    ) -> ChatCompletion:
        head = self._head
        usage = self._detailed(usage)
        reply = ChatCompletion(
            head.id,
            head.created,
            head.model,
            choices,
            usage,
            head.system_fingerprint,
            timeline,
            self.receipt,
        )
        if self._echo_options.prompt_logprobs is not None:
            reply.prompt_logprobs = await self._prompt_logprobs(0, self._prompt_token_ids, pace)
        if self._echo_options.token_ids:
            reply.prompt_token_ids = self._prompt_token_ids
        return reply

    async def _choice(self, index: int, choice: ChoiceOutput, pace: Pace) -> ChatChoice:
        logprobs = None
        if self._echo_options.logprobs:
            content = await chat_logprob_list(
                self._tokenizer, choice, pace, as_ids=self._echo_options.as_ids
            )
            logprobs = ChatLogprobs(self._splices.put(content.pieces()))
        parsed = self._parsed_choice(index)
        message = await whole_message("".join(choice.texts), choice.token_ids, parsed, pace)
        reason = choice.finish_reason
        if parsed is not None:
            reason = parsed.finish_reason(reason)
        if self._echo:
            message.content = self._echo + (message.content or "")
        whole = ChatChoice(index, message, logprobs, reason, choice.stop_reason)
        if self._echo_options.token_ids:
            whole.token_ids = choice.token_ids
        return whole

    def _read(self, choice: int, delta: SequenceDelta) -> tuple[ChatDelta | None, str | None]:
        """What a delta adds to the message, and why the choice ended, if it did."""
        parsed = self._parsed_choice(choice)
        if parsed is None:
            text = delta.text
            return ChatDelta(content=text) if text else None, delta.finish_reason
        added = parsed.push(delta.text, delta.token_ids, last=delta.finish_reason is not None)
        return added, parsed.finish_reason(delta.finish_reason)

    def _parsed_choice(self, choice: int) -> ParsedChoice | None:
        if self._parsing is None:
            return None
        parsed = self._parsed.get(choice)
        if parsed is None:
            parsed = self._parsed[choice] = ParsedChoice(
                self._parsing, self._head.draw and b"%b %d" % (self._head.draw, choice)
            )
        return parsed

    def _detailed(self, usage: UsageInfo) -> UsageInfo:
        """Usage with the tokens that were thoughts."""
        thoughts = sum(parsed.reasoning_tokens for parsed in self._parsed.values())
        return usage.with_reasoning(thoughts) if thoughts else usage

    def _logprobs(self, ids: list[int], logprobs: list[TokenLogprobs] | None) -> ChatLogprobs:
        return chat_logprobs(self._tokenizer, ids, logprobs, as_ids=self._echo_options.as_ids)

    def _text_piece(self, choice: int, text: str) -> ChatChunkChoice:
        return ChatChunkChoice(choice, ChatDelta(content=text))

    def _chunk(
        self,
        choices: list[ChatChunkChoice],
        usage: UsageField,
        timeline: TimelineField = UNSET,
        receipt: ReceiptField = UNSET,
    ) -> ChatChunk:
        head = self._head
        return ChatChunk(
            head.id,
            head.created,
            head.model,
            choices,
            head.system_fingerprint,
            usage,
            timeline,
            receipt,
        )


class ChatSpec(ReplySpec, frozen=True):
    """Fields as ChatFormat takes them."""

    echo_options: EchoOptions
    prompt_token_ids: list[int]
    echo: str = ""
    parsing: ParsingSpec | None = None

    def format(self, head: ReplyHead, engine: EngineInfo) -> ChatFormat:
        parsing = parsing_of(self.parsing, engine)
        tokenizer = engine.text.tokenizer
        return ChatFormat(
            head, tokenizer, self.echo_options, self.prompt_token_ids, self.echo, parsing
        )
