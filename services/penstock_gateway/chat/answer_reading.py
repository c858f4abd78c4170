"""What a parser finds in one answer, with the log-probabilities of its tokens."""

from __future__ import annotations

from collections import deque
from itertools import groupby
from typing import TYPE_CHECKING, NamedTuple, Protocol

from penstock.parsing import CallBegin, Content, Event, OutputParser
from penstock_gateway.generate.logprobs import ChatLogprob

if TYPE_CHECKING:
    from penstock.text.detokenizer import Detokenizer
    from penstock_gateway.chat.parsed_choice import Marking
    from penstock_gateway.generate.logprobs import ChatLogprob


class ReadEvent(NamedTuple):
    """logprobs: of the tokens of a Content; of other events nothing is shown."""

    event: Event
    logprobs: list[ChatLogprob]


class AnswerReader(Protocol):
    """Reads one answer's pieces."""

    def read(self, text: str, token_ids: list[int], logprobs: list[ChatLogprob]) -> list[ReadEvent]:
        """What the next piece makes certain."""

    def finish(self) -> list[ReadEvent]:
        """The rest of the text."""

    def rest(self) -> list[ChatLogprob]:
        """Log-probabilities of the tokens after all text: the end of the sequence, or a stop
        string. Called once, after `finish`."""


class PlainReader:
    """Reads an answer for which no log-probabilities were asked."""

    def __init__(self, parser: OutputParser) -> None:
        self._parser = parser

    def read(self, text: str, token_ids: list[int], logprobs: list[ChatLogprob]) -> list[ReadEvent]:
        return [ReadEvent(event, []) for event in self._parser.push(text)]

    def finish(self) -> list[ReadEvent]:
        return [ReadEvent(event, []) for event in self._parser.finish()]

    def rest(self) -> list[ChatLogprob]:
        return []


class MarkedReader:
    """Reads through another one, which gets letters for the marks that are tokens."""

    def __init__(self, reader: AnswerReader, marking: Marking) -> None:
        self._reader = reader
        self._marks = marking.marks
        self._marked = marking.text()

    def read(self, text: str, token_ids: list[int], logprobs: list[ChatLogprob]) -> list[ReadEvent]:
        text = self._marked.push(text, token_ids)
        return self._plain(self._reader.read(text, token_ids, logprobs))

    def finish(self) -> list[ReadEvent]:
        return self._plain(self._reader.finish())

    def rest(self) -> list[ChatLogprob]:
        return self._reader.rest()

    def _plain(self, read: list[ReadEvent]) -> list[ReadEvent]:
        return [ReadEvent(self._marks.plain(event), logprobs) for event, logprobs in read]


class _PlacedToken(NamedTuple):
    """A token's characters, [start, end) of the answer. A token of none, which is a part of a
    character or not shown, goes with the next."""

    start: int
    end: int
    logprob: ChatLogprob


class LogprobReader:
    """A token belongs to a text if one of its characters does, and is reported once.

    The parser gets the text letter by letter, so that content stands just before what it holds
    back; and the tokens' places are those of their own text, so that neither depends on the pieces
    in which the answer comes.  detokenizer: a fresh one, of the request's kind.
    """

    def __init__(self, parser: OutputParser, detokenizer: Detokenizer) -> None:
        self._parser = parser
        self._detokenizer = detokenizer
        self._tokens: deque[_PlacedToken] = deque()
        self._placed = 0
        """Characters of the tokens so far."""
        self._read = 0
        """Characters that the parser has got."""
        self._content_end = 0
        """Index at which the last content ended."""

    def read(self, text: str, token_ids: list[int], logprobs: list[ChatLogprob]) -> list[ReadEvent]:
        for token, logprob in zip(token_ids, logprobs, strict=False):
            start = self._placed
            self._placed += len(self._detokenizer.push([token]))
            self._tokens.append(_PlacedToken(start, max(self._placed, start + 1), logprob))
        read: list[ReadEvent] = []
        for letter in text:
            self._read += 1
            if events := self._parser.push(letter):
                read += self._with_tokens(events, held=self._parser.held)
        return _joined(read)

    def finish(self) -> list[ReadEvent]:
        return _joined(self._with_tokens(self._parser.finish(), held=0))

    def rest(self) -> list[ChatLogprob]:
        left = [token.logprob for token in self._tokens if token.end > self._content_end]
        self._tokens.clear()
        return left

    def _with_tokens(self, events: list[Event], held: int) -> list[ReadEvent]:
        content = sum(len(event.text) for event in events if isinstance(event, Content))
        self._content_end = max(self._content_end, self._read - held - content)
        return [ReadEvent(event, self._logprobs_of(event)) for event in events]

    def _logprobs_of(self, event: Event) -> list[ChatLogprob]:
        if not isinstance(event, Content):
            return []
        start, end = self._content_end, self._content_end + len(event.text)
        self._content_end = end
        while self._tokens and self._tokens[0].end <= start:
            self._tokens.popleft()
        logprobs = []
        while self._tokens and self._tokens[0].start < end:
            logprobs.append(self._tokens.popleft().logprob)
        return logprobs


def _joined(read: list[ReadEvent]) -> list[ReadEvent]:
    """Neighbours of a kind as one."""
    result: list[ReadEvent] = []
    for kind, group in groupby(read, key=lambda one: type(one.event)):
        alike = list(group)
        if kind is CallBegin:
            result += alike
            continue
        text = "".join([one.event.text for one in alike if not isinstance(one.event, CallBegin)])
        result.append(ReadEvent(kind(text), [each for one in alike for each in one.logprobs]))
    return result
