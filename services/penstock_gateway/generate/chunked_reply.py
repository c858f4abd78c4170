"""What the replies of chat and of completions have in common, and how JSON that is too large to be
written in one turn of the event loop is written and goes out piece by piece."""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Container, Iterator, Sequence
from contextlib import asynccontextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec
from msgspec import UNSET

from penstock.client.deltas import SequenceDelta
from penstock_gateway.generate.logprobs import (
    CompletionLogprobs,
    chat_logprobs,
    completion_logprobs,
    prompt_logprobs,
)
from penstock_gateway.generate.reply import (
    ChoiceOutput,
    EchoOptions,
    Placeless,
    PromptLogprobsSource,
    ReceiptField,
    ReplyHead,
    TimelineField,
    UsageField,
    UsageInfo,
    append_event,
    encoder,
    no_prompt_logprobs,
)
from penstock_gateway.http.events import DONE, failed_stream
from penstock_gateway.request.tokenising import loop_turn

if TYPE_CHECKING:
    from penstock.protocol.common import TokenLogprobs
    from penstock.text.tokenizer import Tokenizer
    from penstock_gateway.generate.timeline import RequestTimeline
    from penstock_gateway.http.errors import HTTPError
from penstock_gateway.generate.fast_chunks import FastChunk, FastChunks

TURN = 0.002
"""Seconds that a reply is written without a pause."""


STEP = 32
"""Tokens whose log-probabilities are written at once: with 20 alternatives each, half of a TURN."""


MANY = 128
"""Tokens from which on writing what is shown of them may need more than a turn."""


LONG_TEXT = 1024
"""Characters of a text that are read at once."""


PIECE = 1 << 16
"""Bytes of a piece, about."""


@cache
def _place() -> tuple[bytes, re.Pattern[bytes]]:
    """What stands where a text belongs, but for its number, and how that is found. Each process
    draws its own: gateways are forks, and what was drawn before would be the same in all."""
    mark = secrets.token_hex(16).encode()
    return mark, re.compile(rb'"' + mark + rb':(\d+)"')


class Pace:
    """The pace of long work on the event loop: it rests when it has lasted a turn."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    async def rest(self) -> None:
        """Others have their turn, if this one has lasted long."""
        if time.perf_counter() - self._since >= TURN:
            await asyncio.sleep(0)
            self._since = time.perf_counter()


@asynccontextmanager
async def paced(tokens: int) -> AsyncIterator[Pace]:
    """Writing what is shown of so many tokens: of many, it waits for its tenant's turn."""
    if tokens <= MANY:
        yield Pace()
        return
    async with loop_turn():
        yield Pace()


class JsonList:
    """A JSON list that grows. after: it begins with what that one holds, without a copy."""

    def __init__(self, after: JsonList | None = None) -> None:
        self._pieces: list[bytes] = [] if after is None else [*after._pieces, bytes(after._last)]
        self._last: bytearray = bytearray(b"[" if after is None else b"")
        self._begun: bool = after is not None and after._begun

    def __bool__(self) -> bool:
        return self._begun

    def add(self, elements: Sequence[object]) -> None:
        if not elements:
            return
        self.add_written([encoder.encode(elements)[1:-1]])

    def add_written(self, pieces: list[bytes]) -> None:
        """Elements that are JSON, with commas between them."""
        if self._begun:
            self._last += b","
        self._begun = True
        for piece in pieces:
            if len(piece) > PIECE:
                self._pieces += [bytes(self._last), piece] if self._last else [piece]
                self._last = bytearray()
                continue
            self._last += piece
            if len(self._last) > PIECE:
                self._pieces.append(bytes(self._last))
                self._last = bytearray()

    def pieces(self) -> list[bytes]:
        return [*self._pieces, bytes(self._last) + b"]"]


class Splices:
    """Texts that were written in pieces, and where they belong in what is encoded later."""

    def __init__(self) -> None:
        self._pieces: list[list[bytes]] = []

    def put(self, pieces: list[bytes]) -> Any:
        """Stands for that JSON in a struct, whatever its field's type."""
        self._pieces.append(pieces)
        return msgspec.Raw(b'"%b:%d"' % (_place()[0], len(self._pieces) - 1))

    def spliced(self, encoded: bytes | bytearray) -> list[bytes]:
        """The pieces of what was encoded with all that stands in it."""
        if not self._pieces:
            return [bytes(encoded)]
        between = _place()[1].split(encoded)
        found: list[bytes] = []
        for at, part in enumerate(between):
            found += self._pieces[int(part)] if at % 2 else [part] if part else []
        return found


class LogprobLists:
    """The parallel lists of CompletionLogprobs. after: of the tokens before.  before_text: how many
    characters of the first tokens the text doesn't show."""

    def __init__(self, after: LogprobLists | None = None, before_text: int = 0) -> None:
        count = len(CompletionLogprobs.__struct_fields__)
        before: Sequence[JsonList | None] = [None] * count if after is None else after._lists
        self._lists: list[JsonList] = [JsonList(each) for each in before]
        self.offset: int = -before_text if after is None else after.offset
        """Characters of the text so far."""

    async def add(
        self,
        tokenizer: Tokenizer,
        ids: list[int],
        logprobs: Sequence[TokenLogprobs | None] | None,
        pace: Pace,
        *,
        as_ids: bool,
        hidden: Container[int] = (),
    ) -> None:
        """The next tokens. Those without log-probabilities are left out. hidden: those that the
        text doesn't show."""
        given = logprobs or ()
        for begin, end in steps(min(len(ids), len(given))):
            more, self.offset = completion_logprobs(
                tokenizer,
                ids[begin:end],
                given[begin:end],
                self.offset,
                as_ids=as_ids,
                hidden=hidden,
            )
            self.extend(more)
            await pace.rest()

    def extend(self, later: CompletionLogprobs) -> None:
        """Appends those of the tokens that follow."""
        for each, field in zip(self._lists, later.__struct_fields__, strict=True):
            each.add(getattr(later, field))

    def shown(self, splices: Splices) -> CompletionLogprobs:
        return CompletionLogprobs(*(splices.put(each.pieces()) for each in self._lists))


def steps(count: int) -> Iterator[tuple[int, int]]:
    """Yields begin and end of each STEP of so many tokens."""
    for begin in range(0, count, STEP):
        yield begin, min(count, begin + STEP)


async def chat_logprob_list(
    tokenizer: Tokenizer, choice: ChoiceOutput, pace: Pace, *, as_ids: bool = False
) -> JsonList:
    """Chat's log-probabilities of all tokens of a choice. as_ids: write tokens as token_id:5."""
    made = JsonList()
    for begin, end in steps(len(choice.token_ids)):
        ids, found = choice.token_ids[begin:end], choice.logprobs[begin:end]
        made.add(chat_logprobs(tokenizer, ids, found, as_ids=as_ids).content)
        await pace.rest()
    return made


def are_many(deltas: list[SequenceDelta]) -> bool:
    """Whether they have so many tokens that they are read, or shown, in turns."""
    return sum(len(delta.token_ids) for delta in deltas) > MANY


def parts_of(delta: SequenceDelta) -> Iterator[SequenceDelta]:
    """A delta of many tokens as several of few; its text comes with the last ones, as if it
    lagged, and its end with the very last."""
    if len(delta.token_ids) <= MANY:
        yield delta
        return
    logprobs = delta.logprobs
    for begin, end in steps(len(delta.token_ids)):
        yield SequenceDelta(
            index=delta.index,
            token_ids=delta.token_ids[begin:end],
            logprobs=None if logprobs is None else logprobs[begin:end],
        )
    text = delta.text
    for begin in range(0, len(text) - LONG_TEXT, LONG_TEXT):
        yield SequenceDelta(index=delta.index, text=text[begin : begin + LONG_TEXT])
    sent = max(0, -(-len(text) // LONG_TEXT) - 1) * LONG_TEXT
    yield msgspec.structs.replace(
        delta, text=text[sent:], token_ids=[], logprobs=None if logprobs is None else []
    )


Piece = TypeVar("Piece", bound=msgspec.Struct)
"""What a chunk holds of one choice."""


class ChunkedReply(Placeless, ABC, Generic[Piece]):
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
        self.receipt: ReceiptField = UNSET
        """What the reply, or the last chunk of a stream, is signed with."""

    @property
    def head(self) -> ReplyHead:
        """What all its chunks have."""
        return self._head

    def begin(self, source: PromptLogprobsSource) -> None:
        """source: of the prompts' log-probabilities."""
        self._source = source
        self._plain = FastChunks()

    def is_large(self, deltas: list[SequenceDelta]) -> bool:
        options = self._echo_options
        return bool(options.logprobs or options.token_ids) and are_many(deltas)

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
                entries = prompt_logprobs(self._tokenizer, ids[begin:end], found[begin:end], top)
                written.add(entries)
                await pace.rest()
            self._prompt_pieces[prompt] = written.pieces()
        return self._splices.put(self._prompt_pieces[prompt])

    def usage(self, out: bytearray, usage: UsageInfo) -> None:
        append_event(out, self._chunk([], usage))

    def timeline(self, out: bytearray, timeline: RequestTimeline) -> None:
        append_event(out, self._chunk([], UNSET, timeline))

    def end(self, out: bytearray, usage: UsageInfo) -> None:
        if self.receipt is not UNSET:
            append_event(out, self._chunk([], UNSET, UNSET, self.receipt))
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
        self,
        choices: list[Piece],
        usage: UsageField,
        timeline: TimelineField = UNSET,
        receipt: ReceiptField = UNSET,
    ) -> msgspec.Struct:
        """A chunk of the stream."""

    def _append_text(self, out: bytearray, choice: int, text: str, usage: UsageField) -> None:
        """Appends a chunk with nothing but text. usage: absent, or null."""
        out += self._fast(choice, usage).event(text)

    def _fast(self, choice: int, usage: UsageField) -> FastChunk:
        return self._plain.of(choice, self._plain_chunk, nullable=usage is None)

    def _plain_chunk(self, choice: int, text: str, nullable: bool) -> msgspec.Struct:
        return self._chunk([self._text_piece(choice, text)], None if nullable else UNSET)
