"""text_completion, whole and in chunks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
from msgspec import UNSET, UnsetType

from penstock_gateway.generate.chunked_reply import ChunkedReply
from penstock_gateway.generate.echo_options import (
    EchoOptions,
)
from penstock_gateway.generate.logprobs import (
    CompletionLogprobs,
    PromptLogprobs,
    completion_logprobs,
)
from penstock_gateway.generate.reply import (
    ReplyHead,
    TimelineField,
    UsageField,
    UsageInfo,
    append_event,
    encoder,
)

if TYPE_CHECKING:
    from penstock.client import SequenceDelta
    from penstock.protocol.common import TokenLogprobs
    from penstock.text.tokenizer import Tokenizer
    from penstock_gateway.generate.choice import ChoiceOutput


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
        if self._echo_options.logprobs and delta.token_ids:
            self._add_logprobs(piece, delta.token_ids, delta.logprobs)
        if self._echo_options.token_ids:
            piece.token_ids = delta.token_ids
        append_event(out, self._chunk([piece], usage))

    def whole(
        self, choices: list[ChoiceOutput], usage: UsageInfo, timeline: TimelineField
    ) -> bytes:
        written = [self._choice(index, choice) for index, choice in enumerate(choices)]
        return encoder.encode(self._chunk(written, usage, timeline))

    def _text_piece(self, choice: int, text: str) -> TextChoice:
        return TextChoice(choice, text, None, None, None)

    def _choice(self, index: int, choice: ChoiceOutput) -> TextChoice:
        text = "".join(choice.texts)
        piece = TextChoice(index, text, None, choice.finish_reason, choice.stop_reason)
        if index in self._unopened:
            self._open(piece)
        if self._echo_options.logprobs:
            self._add_logprobs(piece, choice.token_ids, choice.logprobs)
        if self._echo_options.token_ids:
            piece.token_ids = choice.token_ids
        if self._echo_options.prompt_logprobs is not None:
            at = index // self._n
            ids = self._prompts[at].prompt_token_ids
            piece.prompt_logprobs = self._echo_options.prompt(
                self._tokenizer, ids, self._source(at)
            )
        return piece

    def _open(self, piece: TextChoice) -> None:
        """Puts what is shown of the prompt into a choice's first piece."""
        self._unopened.discard(piece.index)
        at = piece.index // self._n
        prompt = self._prompts[at]
        if self._echo_options.token_ids:
            piece.prompt_token_ids = prompt.prompt_token_ids
        if self._echo_options.echo:
            piece.text = prompt.text + piece.text
            if self._echo_options.logprobs:
                self._add_logprobs(piece, prompt.prompt_token_ids, self._source(at))

    def _add_logprobs(
        self,
        piece: TextChoice,
        ids: list[int],
        logprobs: list[TokenLogprobs | None] | list[TokenLogprobs] | None,
    ) -> None:
        offset = self._offsets.get(piece.index, 0)
        more, offset = completion_logprobs(
            self._tokenizer, ids, logprobs, offset, as_ids=self._echo_options.as_ids
        )
        self._offsets[piece.index] = offset
        if piece.logprobs is None:
            piece.logprobs = more
        else:
            piece.logprobs.extend(more)

    def _chunk(
        self, choices: list[TextChoice], usage: UsageField, timeline: TimelineField = UNSET
    ) -> TextCompletion:
        head = self._head
        return TextCompletion(
            head.id, head.created, head.model, choices, head.system_fingerprint, usage, timeline
        )
