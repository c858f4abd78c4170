"""text_completion, whole and in chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from penstock_gateway.generate.chunked_reply import ChunkedReply, LogprobLists, Pace, paced, steps
from penstock_gateway.generate.logprobs import (
    CompletionLogprobs,
    PromptLogprobs,
    characters_of,
    completion_logprobs,
)
from penstock_gateway.generate.reply import (
    EchoOptions,
    PlainChunk,
    ReceiptField,
    ReplyHead,
    TimelineField,
    UsageField,
    UsageInfo,
    append_event,
    encoder,
)
from penstock_gateway.generate.reply_spec import ReplySpec

if TYPE_CHECKING:
    from penstock.client import SequenceDelta
    from penstock.text.tokenizer import Tokenizer
    from penstock_gateway.generate.reply import ChoiceOutput
    from penstock_gateway.models.backend import EngineInfo


class TextChoice(msgspec.Struct):
    """stop_reason, as vLLM has it: the stop string or stop token id, null for EOS and length.

    The last three are there when they were asked for; in a stream prompt_token_ids comes with a
    choice's first chunk.
    """

    index: int
    text: str
    logprobs: CompletionLogprobs | None
    finish_reason: str | None
    stop_reason: int | str | None
    prompt_logprobs: PromptLogprobs | UnsetType | None = UNSET
    prompt_token_ids: list[int] | UnsetType = UNSET
    token_ids: list[int] | UnsetType = UNSET


class TextCompletion(msgspec.Struct, tag_field="object", tag="text_completion"):
    id: str
    created: int
    model: str
    choices: list[TextChoice]
    system_fingerprint: str | None
    usage: UsageField = UNSET
    penstock_timeline: TimelineField = UNSET
    penstock_receipt: ReceiptField = UNSET


@dataclass(frozen=True, slots=True)
class Prompt:
    """A prompt as the reply may show it."""

    prompt_token_ids: list[int]
    text: str
    """What an echo begins with."""


class CompletionFormat(ChunkedReply[TextChoice]):
    """Writes the reply to one request. n: choices of each prompt."""

    def __init__(
        self,
        head: ReplyHead,
        tokenizer: Tokenizer,
        echo_options: EchoOptions,
        prompts: list[Prompt],
        n: int,
    ) -> None:
        super().__init__(head, tokenizer, echo_options)
        self._prompts = prompts
        self._n = n
        self._offsets: dict[int, int] = {}
        self._written: dict[int, LogprobLists] = {}
        """Written log-probabilities of prompts that are shown, by prompt."""
        self._ids: dict[int, bytes] = {}
        self._texts: dict[int, bytes] = {}
        self._hidden = tokenizer.special_ids if echo_options.hides_special else frozenset[int]()
        self._is_plain = not echo_options.logprobs and not echo_options.token_ids
        choices = range(len(prompts) * n)
        self._unopened = set(choices) if echo_options.echo or echo_options.token_ids else set()
        """Choices of a stream that have yet to show their prompt."""

    def opening(self, out: bytearray, choice: int, usage: UsageField, begun: UsageInfo) -> None:
        """A text completion has no role to announce."""

    def delta(self, out: bytearray, choice: int, delta: SequenceDelta, usage: UsageField) -> None:
        first = choice in self._unopened
        shows_tokens = bool(delta.token_ids) and (
            self._echo_options.logprobs or self._echo_options.token_ids
        )
        if not (delta.text or shows_tokens or first or delta.finish_reason is not None):
            return
        if self._is_plain and not first and delta.finish_reason is None and not usage:
            self._append_text(out, choice, delta.text, usage)
            return
        piece = TextChoice(choice, delta.text, None, delta.finish_reason, delta.stop_reason)
        if first:
            self._open(piece)
        if self._echo_options.logprobs:
            piece.logprobs = self._logprobs(choice, delta, first=first)
        if self._echo_options.token_ids:
            piece.token_ids = delta.token_ids
        append_event(out, self._chunk([piece], usage))

    def plain_chunk(self, choice: int, usage: UsageField) -> PlainChunk | None:
        shows_more = usage or not self._is_plain or choice in self._unopened
        return None if shows_more else self._fast(choice, usage)

    def is_large(self, deltas: list[SequenceDelta]) -> bool:
        # A choice of an echo begins with its prompt.
        return bool(self._unopened) or super().is_large(deltas)

    async def ahead(self, choice: int) -> None:
        at = choice // self._n
        async with paced(len(self._prompts[at].prompt_token_ids)) as pace:
            await self._write_prompt(at, pace)

    async def _write_prompt(self, at: int, pace: Pace) -> None:
        """What an echo shows besides a prompt's text: of all its choices the same."""
        options = self._echo_options
        if at in self._written or not (options.echo and options.logprobs):
            return
        ids, text = self._prompts[at].prompt_token_ids, self._prompts[at].text
        total = 0
        for begin, end in steps(len(ids)):
            total += characters_of(self._tokenizer, ids[begin:end])
            await pace.rest()
        # What is more is in front: a BOS, the space that a tokenizer begins words with.
        lists = LogprobLists(before_text=max(total - len(text), 0))
        await lists.add(self._tokenizer, ids, self._source(at), pace, as_ids=options.as_ids)
        self._written[at] = lists

    async def _reply(
        self, choices: Any, usage: UsageInfo, timeline: TimelineField, pace: Pace
    ) -> TextCompletion:
        return self._chunk(choices, usage, timeline, self.receipt)

    def _text_piece(self, choice: int, text: str) -> TextChoice:
        return TextChoice(choice, text, None, None, None)

    async def _choice(self, index: int, choice: ChoiceOutput, pace: Pace) -> TextChoice:
        text, at, options = "".join(choice.texts), index // self._n, self._echo_options
        piece = TextChoice(index, text, None, choice.finish_reason, choice.stop_reason)
        if index in self._unopened:
            await self._write_prompt(at, pace)
            self._open(piece)
        if options.logprobs:
            lists = LogprobLists(self._written.get(at))
            await lists.add(
                self._tokenizer,
                choice.token_ids,
                choice.logprobs,
                pace,
                as_ids=options.as_ids,
                hidden=self._hidden,
            )
            piece.logprobs = lists.shown(self._splices)
        if options.token_ids:
            piece.token_ids = choice.token_ids
        if options.prompt_logprobs is not None:
            ids = self._prompts[at].prompt_token_ids
            piece.prompt_logprobs = await self._prompt_logprobs(at, ids, pace)
        return piece

    def _open(self, piece: TextChoice) -> None:
        """Puts what is shown of the prompt into a choice's first piece."""
        self._unopened.discard(piece.index)
        at = piece.index // self._n
        if self._echo_options.token_ids:
            piece.prompt_token_ids = self._splices.put([self._ids_of(at)])
        if self._echo_options.echo:
            piece.text = self._splices.put([self._text_of(at)[:-1], encoder.encode(piece.text)[1:]])

    def _ids_of(self, at: int) -> bytes:
        """A prompt's token ids as JSON, of all its choices the same."""
        if at not in self._ids:
            self._ids[at] = encoder.encode(self._prompts[at].prompt_token_ids)
        return self._ids[at]

    def _text_of(self, at: int) -> bytes:
        """A prompt's text as JSON."""
        if at not in self._texts:
            self._texts[at] = encoder.encode(self._prompts[at].text)
        return self._texts[at]

    def _logprobs(
        self, choice: int, delta: SequenceDelta, *, first: bool
    ) -> CompletionLogprobs | None:
        """Log-probabilities of a delta's tokens, after those of the prompt where it is the
        first."""
        written = self._written.get(choice // self._n) if first else None
        if written is not None:
            self._offsets[choice] = written.offset
        elif not delta.token_ids:
            return None
        more, self._offsets[choice] = completion_logprobs(
            self._tokenizer,
            delta.token_ids,
            delta.logprobs,
            self._offsets.get(choice, 0),
            as_ids=self._echo_options.as_ids,
            hidden=self._hidden,
        )
        if written is None:
            return more
        lists = LogprobLists(written)
        lists.extend(more)
        return lists.shown(self._splices)

    def _chunk(
        self,
        choices: list[TextChoice],
        usage: UsageField,
        timeline: TimelineField = UNSET,
        receipt: ReceiptField = UNSET,
    ) -> TextCompletion:
        head = self._head
        return TextCompletion(
            head.id,
            head.created,
            head.model,
            choices,
            head.system_fingerprint,
            usage,
            timeline,
            receipt,
        )


class CompletionSpec(ReplySpec, frozen=True):
    """Fields as CompletionFormat takes them."""

    echo_options: EchoOptions
    prompts: list[Prompt]
    n: int

    def format(self, head: ReplyHead, engine: EngineInfo) -> CompletionFormat:
        return CompletionFormat(
            head, engine.text.tokenizer, self.echo_options, self.prompts, self.n
        )
