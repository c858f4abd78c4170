"""text_completion, whole and in chunks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET

from penstock_gateway.openai.fast_chunk import FastChunks
from penstock_gateway.openai.logprobs import CompletionLogprobs, completion_logprobs
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


class TextChoice(msgspec.Struct):
    """stop_reason, as vLLM has it: the stop string or stop token id, null for EOS and length."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None


class TextCompletion(msgspec.Struct, tag_field="object", tag="text_completion"):
    id: str
    created: int
    model: str
    choices: list[TextChoice]
    system_fingerprint: str | None
    usage: UsageField = UNSET
    penstock_timeline: TimelineField = UNSET


class CompletionFormat:
    """Writes the reply to one request. logprobs: whether they were asked for."""

    def __init__(self, head: ReplyHead, tokenizer: Tokenizer, *, logprobs: bool) -> None:
        self._head = head
        self._tokenizer = tokenizer
        self._logprobs = logprobs
        self._offsets: dict[int, int] = {}
        self._plain = FastChunks(self._plain_chunk)

    def opening(self, out: bytearray, choice: int, usage: UsageField) -> None:
        """A text completion has no role to announce."""

    def delta(self, out: bytearray, choice: int, delta: SequenceDelta, usage: UsageField) -> None:
        shows_tokens = self._logprobs and bool(delta.token_ids)
        if not delta.text and not shows_tokens and delta.finish_reason is None:
            return
        if not self._logprobs and delta.finish_reason is None and not usage:
            self._plain.append(out, choice, delta.text, nullable=usage is None)
            return
        logprobs = None
        if shows_tokens:
            logprobs, self._offsets[choice] = completion_logprobs(
                self._tokenizer, delta.token_ids, delta.logprobs, self._offsets.get(choice, 0)
            )
        shown = TextChoice(choice, delta.text, logprobs, delta.finish_reason, delta.stop_reason)
        append_event(out, self._reply([shown], usage))

    def usage(self, out: bytearray, usage: Usage) -> None:
        append_event(out, self._reply([], usage))

    def timeline(self, out: bytearray, timeline: Timeline) -> None:
        append_event(out, self._reply([], UNSET, timeline))

    def whole(self, choices: list[Choice], usage: Usage, timeline: TimelineField) -> bytes:
        shown = [self._choice(index, choice) for index, choice in enumerate(choices)]
        return encoder.encode(self._reply(shown, usage, timeline))

    def _plain_chunk(self, choice: int, text: str, nullable: bool) -> TextCompletion:
        piece = TextChoice(choice, text, None, None, None)
        return self._reply([piece], None if nullable else UNSET)

    def _choice(self, index: int, choice: Choice) -> TextChoice:
        logprobs = None
        if self._logprobs:
            logprobs, _ = completion_logprobs(self._tokenizer, choice.token_ids, choice.logprobs, 0)
        text = "".join(choice.texts)
        return TextChoice(index, text, logprobs, choice.finish_reason, choice.stop_reason)

    def _reply(
        self, choices: list[TextChoice], usage: UsageField, timeline: TimelineField = UNSET
    ) -> TextCompletion:
        head = self._head
        return TextCompletion(
            head.id, head.created, head.model, choices, head.system_fingerprint, usage, timeline
        )
