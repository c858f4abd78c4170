"""What the replies of chat and of completions have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Generic, TypeVar

import msgspec
from msgspec import UNSET

from penstock_gateway.generate.echo_options import (
    EchoOptions,
    PromptLogprobsSource,
    no_prompt_logprobs,
)
from penstock_gateway.generate.fast_chunk import FastChunks
from penstock_gateway.generate.reply import (
    ReplyHead,
    TimelineField,
    UsageField,
    UsageInfo,
    append_event,
)
from penstock_gateway.http.events import DONE, failed_stream

if TYPE_CHECKING:
    from penstock.text.tokenizer import Tokenizer
    from penstock_gateway.generate.timeline import RequestTimeline
    from penstock_gateway.http.errors import HTTPError

Piece = TypeVar("Piece", bound=msgspec.Struct)
"""What a chunk holds of one choice."""


class ChunkedReply(ABC, Generic[Piece]):
    """A ReplyFormat whose stream is chunks of pieces, and ends in [DONE]."""

    shows_aborts = True

    def __init__(self, head: ReplyHead, tokenizer: Tokenizer, echo_options: EchoOptions) -> None:
        self._head = head
        self._tokenizer = tokenizer
        self._echo_options = echo_options
        self._source: PromptLogprobsSource = no_prompt_logprobs
        self._plain = FastChunks()

    def begin(self, source: PromptLogprobsSource) -> None:
        """source: of the prompts' log-probabilities."""
        self._source = source

    def usage(self, out: bytearray, usage: UsageInfo) -> None:
        append_event(out, self._chunk([], usage))

    def timeline(self, out: bytearray, timeline: RequestTimeline) -> None:
        append_event(out, self._chunk([], UNSET, timeline))

    def end(self, out: bytearray, usage: UsageInfo) -> None:
        out += DONE

    def failed(self, error: HTTPError) -> bytes:
        return failed_stream(error)

    @abstractmethod
    def _text_piece(self, choice: int, text: str) -> Piece:
        """A piece with nothing but text."""

    @abstractmethod
    def _chunk(
        self, choices: list[Piece], usage: UsageField, timeline: TimelineField = UNSET
    ) -> msgspec.Struct:
        """A chunk of the stream."""

    def _append_text(self, out: bytearray, choice: int, text: str, usage: UsageField) -> None:
        """Appends a chunk with nothing but text. usage: absent, or null."""
        self._plain.append(out, choice, text, self._plain_chunk, nullable=usage is None)

    def _plain_chunk(self, choice: int, text: str, nullable: bool) -> msgspec.Struct:
        return self._chunk([self._text_piece(choice, text)], None if nullable else UNSET)
