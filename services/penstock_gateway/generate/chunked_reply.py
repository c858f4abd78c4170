"""What the replies of chat and of completions have in common."""

from __future__ import annotations

import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec import UNSET

from penstock_gateway.generate.echo_options import (
    EchoOptions,
    PromptLogprobsSource,
    no_prompt_logprobs,
)
from penstock_gateway.generate.logprobs import prompt_logprobs
from penstock_gateway.generate.pieces import MANY, JsonList, Pace, Splices, paced, steps
from penstock_gateway.generate.reply import (
    ReplyHead,
    TimelineField,
    UsageField,
    UsageInfo,
    append_event,
    encoder,
)
from penstock_gateway.http.events import DONE, failed_stream

if TYPE_CHECKING:
    from penstock.client import SequenceDelta
    from penstock.text.tokenizer import Tokenizer
    from penstock_gateway.generate.choice import ChoiceOutput
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
        self._splices = Splices()
        self._prompt_pieces: dict[int, list[bytes]] = {}
        """The log-probabilities of prompts, as JSON."""

    def begin(self, source: PromptLogprobsSource) -> None:
        """source: of the prompts' log-probabilities."""
        self._source = source

    def is_large(self, deltas: list[SequenceDelta]) -> bool:
        options = self._echo_options
        if not (options.logprobs or options.token_ids):
            return False
        return sum(len(delta.token_ids) for delta in deltas) > MANY

    async def ahead(self, choice: int) -> None:
        """Chunks show no prompt, mostly."""

    def spliced(self, out: bytearray) -> list[bytes]:
        return self._splices.spliced(out)

    async def whole(
        self, choices: list[ChoiceOutput], usage: UsageInfo, timeline: TimelineField
    ) -> list[bytes]:
        options, written = self._echo_options, JsonList()
        shown = sum(len(choice.token_ids) for choice in choices) * options.logprobs
        if options.echo or options.prompt_logprobs is not None:
            shown += usage.prompt_tokens
        async with paced(shown) as pace:
            for index, choice in enumerate(choices):
                one = await self._choice(index, choice, pace)
                written.add_written(self._splices.spliced(encoder.encode(one)))
                await pace.rest()
            reply = await self._reply(self._splices.put(written.pieces()), usage, timeline, pace)
        return self._splices.spliced(encoder.encode(reply))

    async def _prompt_logprobs(self, prompt: int, ids: list[int], pace: Pace) -> Any:
        """A prompt's log-probabilities, where they were asked for and are there, to stand in a
        struct; else None."""
        top, found = self._echo_options.prompt_logprobs, self._source(prompt)
        if top is None or found is None:
            return None
        if prompt not in self._prompt_pieces:
            written = JsonList()
            for begin, end in steps(min(len(ids), len(found))):
                told = prompt_logprobs(self._tokenizer, ids[begin:end], found[begin:end], top)
                written.add(told)
                await pace.rest()
            self._prompt_pieces[prompt] = written.pieces()
        return self._splices.put(self._prompt_pieces[prompt])

    def usage(self, out: bytearray, usage: UsageInfo) -> None:
        append_event(out, self._chunk([], usage))

    def timeline(self, out: bytearray, timeline: RequestTimeline) -> None:
        append_event(out, self._chunk([], UNSET, timeline))

    def end(self, out: bytearray, usage: UsageInfo) -> None:
        out += DONE

    def failed(self, error: HTTPError) -> bytes:
        return failed_stream(error)

    @abstractmethod
    async def _choice(self, index: int, choice: ChoiceOutput, pace: Pace) -> msgspec.Struct:
        """A choice of the whole reply."""

    @abstractmethod
    async def _reply(
        self, choices: Any, usage: UsageInfo, timeline: TimelineField, pace: Pace
    ) -> msgspec.Struct:
        """The whole reply. choices: they are written."""

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


# Chunks of a stream that differ only in one text, written without building them anew.

_MARK = secrets.token_hex(16)
"""Stands where the text will; nobody can have it in a model's name or a request's id."""


class FastChunk:
    """chunk_of: makes the chunk for a text. What comes before and after the text is encoded once:
    with the text's JSON between them, they are the bytes that append_event gives.
    """

    __slots__ = ("after", "before")

    def __init__(self, chunk_of: Callable[[str], msgspec.Struct]) -> None:
        event = bytearray()
        append_event(event, chunk_of(_MARK))
        self.before, self.after = bytes(event).split(f'"{_MARK}"'.encode())


ChunkOf = Callable[[int, str, bool], msgspec.Struct]
"""A chunk, from a choice's index and a text; `usage` in it is absent, or null if that says so."""


class FastChunks:
    """Fast chunks of one reply: one for each choice, made when it is first wanted.

    chunk_of is handed in each time, and not kept: it is a reply's own method, and what holds one
    another is freed by the garbage collector only.
    """

    __slots__ = ("_by_choice",)

    def __init__(self) -> None:
        self._by_choice: dict[int, FastChunk] = {}  # -1 - choice where usage is null.

    def append(
        self, out: bytearray, choice: int, text: str, chunk_of: ChunkOf, *, nullable: bool
    ) -> None:
        """Appends the event that says `text`. nullable: its usage is null."""
        key = -1 - choice if nullable else choice
        fast = self._by_choice.get(key)
        if fast is None:
            fast = FastChunk(lambda text: chunk_of(choice, text, nullable))
            self._by_choice[key] = fast
        out += fast.before
        encoder.encode_into(text, out, -1)
        out += fast.after
